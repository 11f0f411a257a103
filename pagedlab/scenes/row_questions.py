"""Questions about the rows of the persistent batch: who gets which.

    predict(row_taken(scene, trace, step=3))   # D has left row 3, and E comes

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.events import RowAdded, RowRemoved
from pagedlab.scenes.replay import Replay
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import counted, name
from pagedlab.trace import Trace


def row_taken(scene: Scene, trace: Trace, step: int) -> Iterator[Question]:
    """Ask, for the first request that comes in a step of a condense scene, which row it gets. Nothing if nobody comes.

    Parameters
    ----------
    scene : Scene
        Of `pagedlab.scenes.condense`, of the same step.
    trace : Trace
    step : int
    """
    records = trace.of_step(step)
    added = next((record.event for record in records if isinstance(record.event, RowAdded)), None)
    if added is None:
        return
    replay = Replay.of(record for record in trace if record.step < step)
    gone = []
    for record in records:
        if isinstance(record.event, RowAdded):
            break
        if isinstance(record.event, RowRemoved):
            gone.append(record.event)
            replay.apply(record.event)
    holes = sorted(replay.holes)
    end = len(replay.req_id_to_index) + len(holes)
    who = name(added.request_id)
    left = ", ".join(f"{name(event.request_id)} has left row {event.row}" for event in gone) or "Nobody has left"
    reasons = {
        str(hole): f"Row {hole} is a hole too, but not the lowest: filled from below, fewer rows have to move later."
        for hole in holes[1:]
    }
    if holes:
        reasons[str(end)] = (
            f"Behind the last row there is room, but then {counted(len(holes), 'hole')} would stay inside and a row "
            "would have to move."
        )
        explanation = f"Row {added.row} is the lowest hole: the newcomer fills it, and nothing has to move."
    else:
        explanation = f"There is no hole, so {who} comes behind the last row: row {added.row}."
    frame = scene.frame_of("RowAdded")
    yield Question(
        f"{left}, and {who} comes. Which row does {who} get?",
        "number",
        str(added.row),
        (),
        reasons,
        explanation,
        max(0, frame - 1),
        frame,
    )
