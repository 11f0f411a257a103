"""Logits processors follow the batch by its updates alone, and do nothing when nobody needs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.batch import AddedRow, BatchUpdate, MoveDirection, MovedRow
from pagedlab.batch.logits_processors import (
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    builtin_logits_processors,
)
from pagedlab.request import SamplingParams

CPU = torch.device("cpu")
VOCAB, EOS = 9, 8
INF = float("inf")


def add(row: int, output: list[int] | None = None, **params: Any) -> AddedRow:
    return AddedRow(row, SamplingParams(**params), (1,), [] if output is None else output)


def update(*added: AddedRow, removed: tuple[int, ...] = (), moved: tuple[MovedRow, ...] = ()) -> BatchUpdate:
    return BatchUpdate(4, removed, added, moved)


def biased(*biases: float) -> LogitBiasLogitsProcessor:
    """A processor with a bias in each row but those of 0."""
    processor = LogitBiasLogitsProcessor(CPU)
    processor.update_state(
        update(*(add(row, logit_bias={0: bias} if bias else None) for row, bias in enumerate(biases)))
    )
    return processor


def first_column(processor: LogitsProcessor, num_reqs: int) -> list[float]:
    column: list[float] = processor.apply(torch.zeros(num_reqs, VOCAB))[:, 0].tolist()
    return column


# --- they follow the batch -------------------------------------------------------------------------------------


def test_a_move_takes_the_state_along_and_leaves_none() -> None:
    processor = biased(1, 2, 3)
    processor.update_state(update(removed=(), moved=(MovedRow(2, 0, MoveDirection.UNIDIRECTIONAL),)))
    assert first_column(processor, 3) == [3, 2, 0]


def test_a_move_of_a_row_without_state_takes_the_state_of_its_target_away() -> None:
    processor = biased(1, 2, 0)
    processor.update_state(update(moved=(MovedRow(2, 0, MoveDirection.UNIDIRECTIONAL),)))
    assert first_column(processor, 3) == [0, 2, 0]


def test_a_swap_exchanges_states_even_with_a_row_that_has_none() -> None:
    processor = biased(1, 2, 0)
    swaps = (MovedRow(0, 1, MoveDirection.SWAP), MovedRow(1, 2, MoveDirection.SWAP))
    processor.update_state(update(moved=swaps))  # one after the other: the first bias ends in row 2
    assert first_column(processor, 3) == [2, 0, 1]


def test_a_new_request_without_a_setting_takes_away_what_its_row_had() -> None:
    processor = biased(1, 2)
    processor.update_state(update(add(0)))  # a hole that is filled in the same step is not reported as removed
    assert first_column(processor, 2) == [0, 2]


class Batch:
    """Rows of requests that change as those of `InputBatch` do, and say so in updates."""

    def __init__(self) -> None:
        self.rows: list[AddedRow | None] = []

    def change(self, leaving: set[int], arriving: list[AddedRow], swaps: list[tuple[int, int]]) -> BatchUpdate | None:
        added, moved = [], []
        holes = sorted((row for row in leaving if row < len(self.rows)), reverse=True)
        for row in holes:
            self.rows[row] = None
        for request in arriving:
            if not holes:
                holes.append(len(self.rows))
                self.rows.append(None)
            row = holes.pop()  # the lowest; it is not reported as removed
            self.rows[row] = request
            added.append(request._replace(row=row))
        while None in self.rows:
            last = self.rows.pop()
            if last is not None:
                row = holes.pop()
                self.rows[row] = last
                moved.append(MovedRow(len(self.rows), row, MoveDirection.UNIDIRECTIONAL))
        for first, second in swaps:
            if first != second and max(first, second) < len(self.rows):
                self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
                moved.append(MovedRow(first, second, MoveDirection.SWAP))
        if not (holes or added or moved):
            return None
        return BatchUpdate(len(self.rows), tuple(holes), tuple(added), tuple(moved))


tokens = st.integers(0, VOCAB - 1)
requests = st.builds(
    lambda output, **params: add(0, output, max_tokens=9, **params),
    output=st.lists(tokens, max_size=3),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
    temperature=st.sampled_from([0, 1]),
    logit_bias=st.none() | st.dictionaries(tokens, st.floats(-5, 5, width=32), max_size=3),
    min_tokens=st.sampled_from([0, 0, 1, 3, 5]),
    stop_token_ids=st.lists(tokens, max_size=2),
    ignore_eos=st.booleans(),
)
rows = st.integers(0, 5)
steps = st.lists(
    st.tuples(st.sets(rows, max_size=3), st.lists(requests, max_size=3), st.lists(st.tuples(rows, rows), max_size=2)),
    max_size=8,
)


@given(steps=steps)
@settings(max_examples=150, deadline=None)
def test_after_any_history_a_row_is_processed_as_if_its_request_were_alone(steps: list[Any]) -> None:
    batch, processors = Batch(), builtin_logits_processors(CPU, EOS)
    for leaving, arriving, swaps in steps:
        change = batch.change(leaving, arriving, swaps)
        logits = torch.randn(len(batch.rows), VOCAB, generator=torch.Generator().manual_seed(1))
        for processor in processors:
            processor.update_state(change)
            together = processor.apply(logits)
            for row, request in enumerate(batch.rows):
                assert request is not None
                alone = type(processor)(*((CPU, EOS) if isinstance(processor, MinTokensLogitsProcessor) else (CPU,)))
                alone.update_state(update(request._replace(row=0)))
                assert torch.equal(together[row : row + 1], alone.apply(logits[row : row + 1]))
        for request in batch.rows:
            assert request is not None
            request.output_token_ids.append(0)  # the live list: min_tokens sees it grow


# --- they cost nothing when nobody needs them --------------------------------------------------------------------


def test_an_update_that_concerns_no_such_row_makes_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = builtin_logits_processors(CPU, EOS)
    logits = torch.zeros(3, VOCAB)

    def no_tensor(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("a tensor was made")

    monkeypatch.setattr(torch, "tensor", no_tensor)
    for processor in processors:
        moves = (MovedRow(2, 0, MoveDirection.UNIDIRECTIONAL), MovedRow(0, 1, MoveDirection.SWAP))
        processor.update_state(update(add(0), add(1), removed=(3,), moved=moves))
        processor.update_state(None)
        assert processor.apply(logits) is logits


@pytest.mark.parametrize("processor", builtin_logits_processors(CPU, EOS))
def test_tensors_are_made_once_and_again_only_after_a_change(
    processor: LogitsProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    tensor = torch.tensor

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        made.append(args)
        return tensor(*args, **kwargs)

    monkeypatch.setattr(torch, "tensor", counted)
    settings: dict[str, Any] = {"min_p": 0.5, "logit_bias": {0: 1.0}, "min_tokens": 3}
    processor.update_state(update(add(0, **settings), add(1)))
    assert made == []  # only when logits come
    logits = torch.zeros(2, VOCAB)
    processor.apply(logits)
    after_one = len(made)
    assert after_one > 0
    processor.update_state(None)
    processor.update_state(update(removed=(1,)))  # a row without the setting
    processor.apply(logits)
    assert len(made) == after_one
    processor.update_state(update(moved=(MovedRow(0, 1, MoveDirection.UNIDIRECTIONAL),)))
    processor.apply(logits)
    assert len(made) == 2 * after_one


def test_processors_leave_the_logits_they_are_given_alone() -> None:
    for processor in builtin_logits_processors(CPU, EOS):
        processor.update_state(update(add(0, min_p=1.0, logit_bias={0: 1.0}, min_tokens=3)))
        logits = torch.arange(float(VOCAB)).repeat(2, 1)
        assert not torch.equal(processor.apply(logits), logits)
        assert torch.equal(logits, torch.arange(float(VOCAB)).repeat(2, 1))


# --- what each does ------------------------------------------------------------------------------------------------


def test_min_p_forbids_what_is_less_likely_than_that_part_of_the_likeliest() -> None:
    processor = MinPLogitsProcessor(CPU)
    processor.update_state(update(add(0, min_p=0.5), add(1)))
    logits = torch.tensor([0.8, 0.41, 0.39]).log().repeat(2, 1)
    processed = processor.apply(logits)
    assert (processed[0] == -INF).tolist() == [False, False, True]
    assert torch.equal(processed[1], logits[1])


def test_min_p_leaves_greedy_rows_out() -> None:
    processor = MinPLogitsProcessor(CPU)
    processor.update_state(update(add(0, min_p=0.5, temperature=0)))
    logits = torch.zeros(1, VOCAB)
    assert processor.apply(logits) is logits


@given(seed=st.integers(0, 999), min_p=st.floats(0, 1))
def test_min_p_keeps_the_likeliest_token(seed: int, min_p: float) -> None:
    processor = MinPLogitsProcessor(CPU)
    assert processor.is_argmax_invariant
    processor.update_state(update(add(0, min_p=min_p)))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    processed = processor.apply(logits)
    assert processed.argmax() == logits.argmax()
    assert processed.max() == logits.max()


@pytest.mark.parametrize("kind", [LogitBiasLogitsProcessor, MinTokensLogitsProcessor])
def test_processors_that_can_change_the_likeliest_token_say_so(kind: type[Any]) -> None:
    assert not kind(CPU).is_argmax_invariant


@pytest.mark.parametrize(
    ("params", "forbidden"),
    [
        ({"min_tokens": 2}, {EOS}),
        ({"min_tokens": 2, "stop_token_ids": (3, 5)}, {3, 5, EOS}),
        ({"min_tokens": 2, "stop_token_ids": (3,), "ignore_eos": True}, {3}),
        ({"min_tokens": 2, "ignore_eos": True}, set()),
        ({"min_tokens": 0, "stop_token_ids": (3,)}, set()),
    ],
)
def test_min_tokens_forbids_what_would_stop_the_request(params: dict[str, Any], forbidden: set[int]) -> None:
    processor = MinTokensLogitsProcessor(CPU, EOS)
    processor.update_state(update(add(0, **params)))
    processed = processor.apply(torch.zeros(1, VOCAB))[0]
    assert {token for token in range(VOCAB) if processed[token] == -INF} == forbidden


def test_min_tokens_lets_go_of_a_row_as_soon_as_it_has_them() -> None:
    processor = MinTokensLogitsProcessor(CPU, EOS)
    output: list[int] = []
    processor.update_state(update(add(0, output, min_tokens=2), add(1, min_tokens=2)))
    logits = torch.zeros(2, VOCAB)
    forbidden = []
    for _ in range(3):
        forbidden.append((processor.apply(logits)[:, EOS] == -INF).tolist())
        output.append(0)
        processor.update_state(None)
    assert forbidden == [[True, True], [True, True], [False, True]]


def test_a_request_that_comes_back_with_enough_tokens_may_stop() -> None:
    processor = MinTokensLogitsProcessor(CPU, EOS)
    processor.update_state(update(add(0, [1, 2], min_tokens=2)))
    logits = torch.zeros(1, VOCAB)
    assert processor.apply(logits) is logits
