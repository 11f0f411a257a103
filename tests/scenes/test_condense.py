"""The scene `condense` says what the events say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import five_requests, make_trace

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import BatchUpdated, RowAdded, RowMoved, RowRemoved
from pagedlab.scenes import Scene
from pagedlab.scenes.replay import Replay


def _rows(scene: Scene, frame: int) -> dict[str, int]:
    return {
        str(actor.data["request"]): int(actor.data["row"])
        for key, actor in scene.frames[frame].stage.items()
        if key.startswith("row:")
    }


def test_the_first_step_that_condenses_is_the_default() -> None:
    trace = five_requests()
    scene = scenes.condense(trace)
    assert scene.frames[0].step == next(record.step for record in trace if isinstance(record.event, RowMoved)) == 3


def test_the_last_row_flies_into_the_lowest_hole() -> None:
    scene = scenes.condense(five_requests())
    move = scene.frame_of("RowMoved")
    before, after = scene.frames[move - 1], scene.frames[move]
    assert _rows(scene, move - 1) == {"A": 0, "C": 2, "E": 4}
    assert _rows(scene, move) == {"A": 0, "C": 2, "E": 1}
    assert before.stage["row:E"].y > after.stage["row:E"].y == after.stage["track:1"].y
    assert after.change == "E moves from row 4 to row 1."
    assert before.event is None
    assert before.arrows == after.arrows != ()
    assert before.focus == ("track:1", "row:E")


def test_a_row_that_was_left_keeps_its_tokens_stale() -> None:
    scene = scenes.condense(five_requests())
    after = scene.frames[scene.frame_of("RowMoved")]
    old = [part for part in after.stage["track:4"].parts if part.kind == "cell"]
    new = [part for part in after.stage["row:E"].parts if part.kind == "cell"]
    assert [part.text for part in old] == [part.text for part in new] == list("tion:nub")
    assert {part.style for part in old} == {"stale"}
    assert {part.style for part in new} == {"live"}
    # Row 1 belonged to B, which had one token more: it shows behind E's.
    tail = [part for part in after.stage["track:1"].parts if part.kind == "cell"]
    assert [(part.style, part.owner) for part in tail] == [("stale", scene.requests.index("B"))]


def test_what_logits_processors_are_told_is_the_event() -> None:
    trace = five_requests()
    scene = scenes.condense(trace)
    event = next(r.event for r in trace.of_step(3) if isinstance(r.event, BatchUpdated))
    shown = [part.text for part in scene.frames[-1].stage["update"].parts if part.kind == "chip"]
    assert shown == [str(row) for row in event.removed] + [f"{a}→{b}" for a, b, _ in event.moved]


def test_nothing_to_show_is_a_clear_error() -> None:
    trace = make_trace({"A": "abc"}, [2])
    with pytest.raises(TraceError, match="no step of this trace condenses"):
        scenes.condense(trace)
    with pytest.raises(TraceError, match="no step 99"):
        scenes.condense(trace, 99)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=14),
    st.integers(4, 64),
    st.integers(1, 8),
)
def test_in_every_frame_rows_are_where_a_replay_of_the_events_has_them(
    requests: list[tuple[int, int, int]], budget: int, seats: int
) -> None:
    prompts = {f"r{at}": "x" * length for at, (length, _, _) in enumerate(requests)}
    trace = make_trace(
        prompts, [output for _, output, _ in requests], budget=budget, seats=seats, num_blocks=200,
        arrivals=[arrival for _, _, arrival in requests],
    )  # fmt: skip
    replay, done = Replay(), 0
    for step in range(trace.num_steps):
        scene = scenes.condense(trace, step)
        for at, frame in enumerate(scene.frames):
            while done <= frame.record:
                replay.apply(trace.records[done].event)
                done += 1
            shown = _rows(scene, at)
            assert shown == {k: v for k, v in replay.req_id_to_index.items() if k in shown}
            tracks = {int(actor.data["row"]): actor for key, actor in frame.stage.items() if key.startswith("track:")}
            assert set(shown) == {r for r, row in replay.req_id_to_index.items() if row in tracks}
            for request_id, row in shown.items():
                assert frame.stage[f"row:{request_id}"].y == tracks[row].y
                assert tracks[row].data["state"] == "live"
        of_interest = (RowAdded, RowMoved, RowRemoved, BatchUpdated)
        happened = [r.event.kind for r in trace.of_step(step) if isinstance(r.event, of_interest)]
        kinds = {kind.__name__ for kind in of_interest}
        assert [frame.event for frame in scene.frames if frame.event in kinds] == happened
