"""Which row a newcomer gets: asked of the real engine's traces."""

from __future__ import annotations

import pytest

from pagedlab import scenes
from pagedlab.events import RowAdded
from pagedlab.teaching import serve

TRACE = serve().trace


@pytest.mark.parametrize("step", sorted({record.step for record in TRACE if isinstance(record.event, RowAdded)}))
def test_the_answer_is_the_row_that_the_engine_took(step: int) -> None:
    added = next(record.event for record in TRACE.of_step(step) if isinstance(record.event, RowAdded))
    question = scenes.condense(TRACE, step=step).questions[-1]
    assert question.answer == str(added.row)
    assert f"{added.request_id} comes. Which row" in question.prompt
    assert question.answer not in question.reasons
    assert question.scene is not None
    shown = question.scene.frames[question.frame]
    assert shown.event == "RowAdded"
    assert added.request_id in shown.caption


def test_the_place_behind_the_last_row_has_a_reason_while_there_is_a_hole() -> None:
    question = scenes.condense(TRACE, step=3).questions[-1]
    assert question.prompt == "D has left row 3, and E comes. Which row does E get?"
    assert list(question.reasons) == ["4"]
    assert "a row would have to move" in question.reasons["4"]


def test_nobody_comes_and_nothing_is_asked() -> None:
    assert [question.kind for question in scenes.condense(TRACE, step=11).questions] == ["choice"]
