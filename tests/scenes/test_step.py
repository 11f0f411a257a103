"""The scene `step` says what the events say, beat by beat."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import make_trace

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import (
    BeatStarted,
    RequestAdded,
    RequestScheduled,
    SlotsComputed,
    StepStarted,
    TokenAccepted,
    TokenSampled,
)
from pagedlab.scenes.engine_step import EVENTS
from pagedlab.scenes.replay import Replay
from pagedlab.trace import Record, Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace({"A": "To be, or not", "B": "Shall I compare thee", "C": "Now is the"}, [2, 6, 6], budget=24)


def test_a_step_goes_through_its_four_beats_in_order(trace: Trace) -> None:
    beats = [frame.beat for frame in scenes.step(trace, 1).frames]
    assert list(dict.fromkeys(beats)) == ["schedule", "prepare", "execute", "update"]
    assert beats == sorted(beats, key=["schedule", "prepare", "execute", "update"].index)


def test_the_budget_fills_with_the_tokens_that_were_granted(trace: Trace) -> None:
    scene = scenes.step(trace, 0)
    grants = [r.event for r in trace.of_step(0) if isinstance(r.event, RequestScheduled)]
    for nth, event in enumerate(grants):
        stage = scene.frames[scene.frame_of("RequestScheduled", nth)].stage
        assert stage["budget"].data["left"] == event.budget_left
        shown = [key for key in stage if key.startswith(f"tok:{event.request_id}:")]
        assert shown, "its tokens are on the stage"
        assert stage[f"chip:{event.request_id}"].data["queue"] == "running"


def test_the_caption_says_why_somebody_waits(trace: Trace) -> None:
    captions = [frame.caption for frame in scenes.step(trace, 0).frames]
    assert "The scheduler is done: 24 tokens of 2 requests will run. C waits: the budget is spent." in captions


def test_each_token_flies_to_the_slot_of_the_event() -> None:
    trace = make_trace({"A": "To be, or not", "B": "Shall I compare thee", "C": "Now is the"}, [2, 6, 6], budget=18)
    scene = scenes.step(trace, 1)
    slots = next(r.event for r in trace.of_step(1) if isinstance(r.event, SlotsComputed))
    frame = scene.frames[scene.frame_of("ForwardFinished")]
    size = trace.settings["block_size"]
    landed = {}
    for key, actor in frame.stage.items():
        if not key.startswith("tok:"):
            continue
        blocks = [block for name, block in frame.stage.items() if name.startswith("block:")]
        (home,) = (b for b in blocks if b.x <= actor.x < b.x + b.w and b.y <= actor.y < b.y + b.h)
        offset = round((actor.x - home.x - 4) / ((home.w - 7) / size))
        landed[actor.data["request"], actor.data["position"]] = int(home.data["block"]) * size + offset
    replay = Replay()
    for record in trace.records[: frame.record + 1]:
        replay.apply(record.event)
    assert replay.inputs is not None
    expected = {}
    for row, request_id in enumerate(replay.inputs.request_ids):
        for at in range(replay.inputs.query_start_loc[row], replay.inputs.query_start_loc[row + 1]):
            expected[request_id, replay.inputs.positions[at]] = slots.slot_mapping[at]
    assert landed == {place: expected[place] for place in landed}
    assert len(landed) == len(expected)


def test_what_a_partial_prefill_samples_is_dropped(trace: Trace) -> None:
    scene = scenes.step(trace, 0)
    dropped = [r.event for r in trace.of_step(0) if isinstance(r.event, TokenSampled) and r.event.discarded]
    frame = scene.frames[scene.frame_of("TokenSampled")]
    assert [event.request_id for event in dropped] == ["B"]
    assert frame.stage["new:B"].parts[0].style == "dropped"
    assert "B is in the middle of the prompt" in frame.caption
    assert "new:B" not in scene.frames[scene.frame_of("TokenAppended")].stage


def test_a_finished_request_leaves_the_queue_and_its_blocks_are_free(trace: Trace) -> None:
    scene = scenes.step(trace, 1)
    frame = scene.frames[scene.frame_of("RequestFinished")]
    assert "chip:A" not in frame.stage
    assert {block.data["state"] for key, block in frame.stage.items() if key in {"block:1", "block:2"}} == {"free"}
    assert frame.stage["row:A"].data["row"] == 0, "the row stays until the next step"


@pytest.mark.thorough
def test_hostile_names_and_prompts_stay_text_and_inside_the_stage() -> None:
    prompts = {
        "<img src=x onerror=alert(1)>": "one\ntwo\r\n\tthree",
        "x" * 10_000: "four",
        "שלום עולם": "fünf",
        "": "</script><!--",
        "🙂\n": "six " * 40,
    }
    trace = make_trace(prompts, [2] * 5, budget=40, num_blocks=200)
    for step in range(trace.num_steps):
        for scene in (scenes.step(trace, step), scenes.condense(trace, step)):
            for frame in scene.frames:
                assert len(frame.caption) < 600
                for actor in frame.stage.values():
                    for part in actor.parts:
                        assert "\n" not in part.text
                        assert len(part.text) < 80
                        left, top = actor.x + part.x, actor.y + part.y
                        assert min(left, top) >= 0
                        assert left + part.w <= scene.width
                        assert top + part.h <= scene.height


def test_the_same_trace_gives_the_same_scene(trace: Trace) -> None:
    again = Trace.loads(trace.dumps())
    assert json.dumps(scenes.step(again, 1).to_json()) == json.dumps(scenes.step(trace, 1).to_json())


def test_a_recording_that_begins_inside_a_step_is_refused(trace: Trace) -> None:
    late = Trace(trace.records[4:], trace.sources, trace.vocabulary, trace.settings)
    with pytest.raises(TraceError, match="does not hold the beginning of step 0"):
        scenes.step(late, 0)


def test_a_recording_that_begins_late_still_shows_its_later_steps(trace: Trace) -> None:
    start = next(i for i, r in enumerate(trace.records) if isinstance(r.event, StepStarted) and r.step == 1)
    late = Trace(trace.records[start:], trace.sources, trace.vocabulary, trace.settings)
    scene = scenes.step(late, 1)
    assert scene.frames[-1].event == "StepFinished"
    assert any("?" in part.text for a in scene.frames[-1].stage.values() for part in a.parts), "unknown tokens say so"


def test_a_step_with_nothing_to_do_is_shown() -> None:
    records = [Record(0, None, StepStarted(0), None), Record(0, "schedule", BeatStarted("schedule"), None)]
    scene = scenes.step(Trace.from_records(records), 0)
    assert scene.frames[0].change == "Step 0 begins: nothing to do."
    assert scene.questions == ()


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=12),
    st.sampled_from([5, 16, 64, 2048]),
    st.integers(1, 12),
    st.sampled_from([1, 4, 16, 64]),
)
def test_every_event_shows_in_a_frame_and_every_frame_equals_the_replay(
    requests: list[tuple[int, int, int]], budget: int, seats: int, block_size: int
) -> None:
    prompts = {f"r{at}": "ab c"[at % 4] * length for at, (length, _, _) in enumerate(requests)}
    trace = make_trace(
        prompts, [output for _, output, _ in requests], budget=budget, seats=seats, block_size=block_size,
        num_blocks=700, arrivals=[arrival for _, _, arrival in requests],
    )  # fmt: skip
    replay, done = Replay(), 0
    for step in range(trace.num_steps):
        scene = scenes.step(trace, step)
        reached = [frame.record for frame in scene.frames]
        assert reached == sorted(reached)
        last = max(i for i, r in enumerate(trace.records) if r.step == step and isinstance(r.event, EVENTS))
        assert reached[-1] >= last, "all that happens in the step is on the stage at the end"
        for frame in scene.frames:
            while done <= frame.record:
                replay.apply(trace.records[done].event)
                done += 1
            stage = frame.stage
            for key, actor in stage.items():
                if key.startswith("row:"):
                    assert replay.req_id_to_index[key[4:]] == actor.data["row"]
                    assert actor.y == stage[f"track:{actor.data['row']}"].y
                elif key.startswith("chip:"):
                    queue = replay.waiting if actor.data["queue"] == "waiting" else replay.running
                    assert key[5:] in queue
                elif key.startswith("block:"):
                    assert actor.data["owner"] == replay.block_owner.get(int(actor.data["block"]), "")
            if frame.beat != "prepare" and replay.budget_left is not None:
                assert stage["budget"].data["left"] == replay.budget_left
        taken = [re.search(r"takes in (\d+) new", frame.change) for frame in scene.frames]
        accepted = [r.event for r in trace.of_step(step) if isinstance(r.event, TokenAccepted)]
        assert sum(int(match[1]) for match in taken if match) == len(accepted)


def test_a_request_id_that_is_used_again_starts_anew() -> None:
    replay = Replay()
    replay.apply(RequestAdded("A", (1, 2), 3))
    replay.apply(TokenAccepted("A", 9, 2))
    replay.apply(RequestAdded("A", (5,), 3))
    assert replay.request("A").tokens == [5]
    assert replay.request("A").index == 0
