"""A question about the slots behind the last token of a step.

    predict(slot_behind(scene, trace, step=6))   # step 5 wrote there

vLLM has no counterpart.
"""

from __future__ import annotations

from pagedlab.errors import TraceError
from pagedlab.events import SlotsComputed
from pagedlab.scenes.replay import PAD_SLOT
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import counted
from pagedlab.trace import Trace


def slot_behind(scene: Scene, trace: Trace, step: int) -> Question:
    """Ask what must stand in the slot mapping behind a step's last token, where an earlier step has left something.

    Parameters
    ----------
    scene : Scene
        Of `pagedlab.scenes.slot_mapping`, of the same step.
    trace : Trace
    step : int

    Raises
    ------
    TraceError
        If no slots are computed in the step, or no earlier step wrote further.
    """
    slots = {
        record.step: record.event
        for record in trace
        if isinstance(record.event, SlotsComputed) and record.event.group == 0 and record.step <= step
    }
    if step not in slots:
        raise TraceError(f"no slots are computed in step {step}: choose a step in which somebody runs")
    length = len(slots[step].slot_mapping)
    longer = [at for at, event in slots.items() if at < step and len(event.slot_mapping) > length]
    if not longer:
        raise TraceError(f"no step before step {step} wrote more than {counted(length, 'slot')}: choose a later one")
    earlier = slots[longer[-1]]
    stale = earlier.slot_mapping[length]
    block = stale // earlier.block_size
    frame = len(scene.frames) - 1
    return Question(
        f"Step {step} has {counted(length, 'token')}, at the places 0 to {length - 1}. The slot mapping is a buffer "
        f"that is used again in each step, and step {longer[-1]} wrote {len(earlier.slot_mapping)} slots into it. What "
        f"must stand at place {length} now?",
        "number",
        str(PAD_SLOT),
        (),
        {
            str(stale): f"That is what step {longer[-1]} left there. If the batch is padded, a token that is nobody's "
            f"would write its key over slot {stale}, in block {block}.",
            "0": "Slot 0 is a real one, in the null block: it would be written. What is not to be written needs a "
            "number that is no slot.",
            str(length): "That is the place itself. A slot is a place in KV memory.",
        },
        f"PAD, which is {PAD_SLOT}: the kernel that writes keys and values passes over it.",
        max(0, frame - 1),
        frame,
        scene,
    )
