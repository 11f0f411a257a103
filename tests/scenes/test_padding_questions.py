"""What stands behind the last token: asked where an earlier step of the real engine has left something."""

from __future__ import annotations

import pytest

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import SlotsComputed
from pagedlab.scenes.padding_questions import slot_behind
from pagedlab.teaching import serve

TRACE = serve(budget=16).trace


@pytest.mark.parametrize("step", [4, 6, 14])
def test_what_an_earlier_step_left_there_has_its_reason(step: int) -> None:
    slots = {r.step: r.event.slot_mapping for r in TRACE if isinstance(r.event, SlotsComputed)}
    length = len(slots[step])
    if step == 4:  # as long as any before it
        with pytest.raises(TraceError, match="no step before step 4 wrote more than 16 slots"):
            slot_behind(scenes.slot_mapping(TRACE, step=step), TRACE, step)
        return
    question = slot_behind(scenes.slot_mapping(TRACE, step=step), TRACE, step)
    wrote_last = max(at for at in slots if at < step and len(slots[at]) > length)
    assert question.answer == "-1"
    assert f"step {wrote_last} left there" in question.reasons[str(slots[wrote_last][length])]


def test_a_step_without_slots_is_refused() -> None:
    with pytest.raises(TraceError, match="no slots are computed in step 99"):
        slot_behind(scenes.slot_mapping(TRACE, step=0), TRACE, 99)
