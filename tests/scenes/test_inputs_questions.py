"""Questions about the flat batch: the answers are those of the real engine, and wrong orders have their reason."""

from __future__ import annotations

import pytest

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import InputsPrepared, TokenAppended
from pagedlab.scenes.inputs_questions import place_in_batch, who_keeps_a_token
from pagedlab.teaching import serve

TRACE = serve(budget=16).trace
STEPS = range(TRACE.num_steps)


@pytest.mark.parametrize("step", STEPS)
def test_the_place_is_where_the_row_begins(step: int) -> None:
    question = place_in_batch(scenes.step(TRACE, step=step), TRACE, step)
    (inputs,) = (record.event for record in TRACE.of_step(step) if isinstance(record.event, InputsPrepared))
    asked = question.prompt.split("does ")[1].split("’s")[0]
    assert int(question.answer) == inputs.query_start_loc[inputs.request_ids.index(asked)]
    assert question.answer not in question.reasons


def test_the_order_of_scheduling_has_its_reason() -> None:
    question = place_in_batch(scenes.step(TRACE, step=4), TRACE, 4)
    assert "The scheduler granted B 1, C 1, D 7, E 7. The rows of the batch are E, B, C, D." in question.prompt
    assert "order of scheduling" in question.reasons["9" if "does E" in question.prompt else "0"]


@pytest.mark.parametrize("step", STEPS)
def test_who_keeps_a_token_is_who_got_one(step: int) -> None:
    question = who_keeps_a_token(scenes.step(TRACE, step=step), TRACE, step)
    got = {record.event.request_id for record in TRACE.of_step(step) if isinstance(record.event, TokenAppended)}
    assert set(question.answer.replace(" and ", ", ").split(", ")) == got
    assert question.answer in question.choices
    assert set(question.choices) == {question.answer, *question.reasons}


def test_a_step_without_inputs_is_refused() -> None:
    with pytest.raises(TraceError, match="no inputs are prepared in step -1"):
        who_keeps_a_token(scenes.step(TRACE, step=0), TRACE, -1)
