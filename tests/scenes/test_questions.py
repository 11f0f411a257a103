"""Answers come from the trace; every wrong answer has a reason."""

from __future__ import annotations

import pytest
from traces import five_requests, make_trace

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import InputsPrepared, RequestScheduled, RowMoved, SlotsComputed


@pytest.fixture(scope="module")
def trace():
    return make_trace({"A": "To be, or not", "B": "Shall I compare thee", "C": "Now is the"}, [2, 6, 6], budget=24)


def test_a_step_asks_three_questions_on_its_own_frames(trace) -> None:
    scene = scenes.step(trace, 0)
    assert [question.kind for question in scene.questions] == ["choice", "number", "number"]
    for question in scene.questions:
        assert question.scene is not None
        assert question.scene.frames == scene.frames
        assert 0 <= question.ask_frame < question.frame < len(scene)


def test_who_runs_is_decided_by_the_scheduler_not_the_model(trace) -> None:
    question = scenes.step(trace, 0).questions[0]
    assert question.answer == "A and B: the scheduler decides, before the model is called"
    model = next(choice for choice in question.choices if "the model decides" in choice)
    assert "24 tokens" in question.reasons[model]
    everybody = next(choice for choice in question.choices if "whoever is in a queue" in choice)
    assert question.reasons[everybody] == "C stays out: the budget is spent."


def test_granted_tokens_are_those_of_the_event(trace) -> None:
    scene = scenes.step(trace, 0)
    for record in trace.of_step(0):
        if isinstance(record.event, RequestScheduled):
            question = scenes.tokens_granted(scene, trace, 0, record.event.request_id)
            assert question.answer == str(record.event.num_scheduled_tokens)
            assert scene.frames[question.frame].event == "RequestScheduled"
            assert question.answer not in question.reasons
    cut = scene.questions[1]
    assert cut.reasons["20"] == "B holds 20 tokens, but only 11 tokens of the budget are left for it."
    with pytest.raises(TraceError, match="gets no tokens in step 0"):
        scenes.tokens_granted(scene, trace, 0, "C")


def test_the_slot_is_that_of_the_event(trace) -> None:
    scene = scenes.step(trace, 1)
    inputs = next(r.event for r in trace.of_step(1) if isinstance(r.event, InputsPrepared))
    slots = next(r.event for r in trace.of_step(1) if isinstance(r.event, SlotsComputed))
    for row, request_id in enumerate(inputs.request_ids):
        for at in range(inputs.query_start_loc[row], inputs.query_start_loc[row + 1]):
            question = scenes.slot_of_token(scene, trace, 1, request_id, inputs.positions[at])
            assert question.answer == str(slots.slot_mapping[at])
            assert question.answer not in question.reasons
    with pytest.raises(TraceError, match="does not compute position 3"):
        scenes.slot_of_token(scene, trace, 1, "A", 3)


def test_the_first_move_is_asked_before_it_is_shown() -> None:
    trace = five_requests()
    scene = scenes.condense(trace)
    (question,) = scene.questions
    move = next(r.event for r in trace if isinstance(r.event, RowMoved))
    assert question.answer == f"E: row {move.source} → row {move.target}"
    assert question.frame == scene.frame_of("RowMoved")
    assert question.prompt == "Rows 1 and 3 are holes. What does condense do first?"
    assert len(question.choices) == 5
    shift = next(choice for choice in question.choices if "shift up" in choice)
    assert "copies 2 rows" in question.reasons[shift]
    assert "No row moves: the holes wait for new requests" in question.reasons
