"""Bug reports about the rows of the persistent batch, as small inputs (section A of the list)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from rebuilt_batch import CPU

from pagedlab.batch import (
    BatchUpdate,
    CachedRequestState,
    InputBatch,
    MoveDirection,
    TableSpec,
    builtin_logits_processors,
)
from pagedlab.config import SchedulerConfig
from pagedlab.conformance import smallest_model
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, model_runner
from pagedlab.scheduling import Scheduler


def state(name: str, prompt: tuple[int, ...] = (1,), allowed: tuple[int, ...] | None = None) -> CachedRequestState:
    params = SamplingParams(temperature=0, allowed_token_ids=allowed)
    return CachedRequestState(name, prompt, params, ((1,),), 0)


def batch_of(*states: CachedRequestState) -> InputBatch:
    batch = InputBatch(4, 16, 16, 4, [TableSpec(4)], CPU)
    for one in states:
        batch.add_request(one)
    batch.refresh_metadata()
    return batch


def mask_of(batch: InputBatch) -> list[list[int]]:
    mask = batch.sampling.allowed_token_ids_mask
    assert mask is not None
    return mask.np.astype(int).tolist()


def test_a1_a_swap_exchanges_the_masks_of_both_rows() -> None:
    batch = batch_of(state("A", allowed=(3,)), state("B", allowed=(0, 1)))
    assert mask_of(batch)[:2] == [[1, 1, 1, 0], [0, 0, 1, 1]]
    batch.swap_rows(0, 1)
    assert mask_of(batch)[:2] == [[0, 0, 1, 1], [1, 1, 1, 0]]


def test_a2_a_row_that_is_used_again_inherits_no_mask() -> None:
    batch = batch_of(state("A"), state("B", allowed=(2,)))
    batch.remove_request("A")
    batch.condense()
    batch.refresh_metadata()
    assert batch.req_ids == ["B"]
    batch.add_request(state("C"))
    batch.refresh_metadata()
    assert mask_of(batch)[:2] == [[1, 1, 0, 1], [0, 0, 0, 0]]
    mask = batch.sampling_metadata.allowed_token_ids_mask
    assert mask is not None
    assert mask.tolist() == [[True, True, False, True], [False] * 4]


@pytest.mark.parametrize("swap", [False, True])
def test_a4_drafts_move_with_their_row(swap: bool) -> None:
    batch = batch_of(state("A"), state("B"), state("C"), state("D", tuple(range(10))))
    batch.set_drafts("D", [91, 92])
    if swap:
        batch.swap_rows(3, 1)
    else:
        batch.remove_request("B")
        batch.condense()
    assert batch.num_row_tokens(1) == 12
    assert batch.token_ids[1, :12].tolist() == [*range(10), 91, 92]
    assert batch.spec_token_ids[1] == [91, 92]
    batch.refresh_metadata()
    batch.check_integrity({})


# --- A5 -----------------------------------------------------------------------------------------------------------


def long_rows(max_model_len: int) -> InputBatch:
    """Three rows of 128 live tokens and 8 blocks."""
    batch = InputBatch(3, max_model_len, 16, 4, [TableSpec(16)], CPU)
    for name in "ABC":
        add_long(batch, name)
    batch.refresh_metadata()
    return batch


def add_long(batch: InputBatch, name: str) -> None:
    batch.add_request(CachedRequestState(name, (1,) * 128, SamplingParams(temperature=0), [list(range(1, 9))], 0))


def swap(batch: InputBatch) -> float:
    started = time.perf_counter()
    batch.swap_rows(0, 2)
    seconds = time.perf_counter() - started
    batch.refresh_metadata()
    return seconds


def move(batch: InputBatch) -> float:
    """Have `condense` move the last row into the first; afterwards somebody is in the last again."""
    first = batch.req_ids[0]
    batch.remove_request(first)
    started = time.perf_counter()
    batch.condense()
    seconds = time.perf_counter() - started
    batch.refresh_metadata()
    add_long(batch, first)
    batch.refresh_metadata()
    return seconds


@pytest.mark.parametrize(("operation", "max_model_len"), [(swap, 131072), (move, 1048576)])  # a move copies but once
def test_a5_a_row_costs_what_lives_in_it_however_long_it_may_grow(
    operation: Callable[[InputBatch], float], max_model_len: int
) -> None:
    short, long = long_rows(1024), long_rows(max_model_len)
    ratios = []
    for _ in range(3):
        seconds = [min(operation(batch) for _ in range(100)) for batch in (short, long)]
        ratios.append(seconds[1] / seconds[0])
    assert min(ratios) < 3


@pytest.mark.parametrize("operation", [swap, move])
def test_a5_nothing_behind_the_live_tokens_is_touched(operation: Callable[[InputBatch], float]) -> None:
    batch = long_rows(1024)
    tokens, blocks = batch.token_ids, batch.block_table[0].table.np
    for row in range(3):
        tokens[row, 128:] = blocks[row, 8:] = 1000 + row
    operation(batch)
    for row in range(3):
        assert (tokens[row, 128:] == 1000 + row).all()
        assert (blocks[row, 8:] == 1000 + row).all()


# --- with a scheduler ---------------------------------------------------------------------------------------------


class Pair:
    """A scheduler and a runner without a model: each request gets the token that is its number of tokens."""

    def __init__(self, *, budget: int = 4, num_blocks: int = 9) -> None:
        spec = FullAttentionSpec(4)
        self.manager = KVCacheManager([spec], num_blocks, 16)
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4)
        self.scheduler = Scheduler(config, self.manager, 16)
        self.runner = GPUModelRunner(
            smallest_model(16),
            max_num_reqs=4,
            max_model_len=16,
            max_num_batched_tokens=budget,
            num_blocks=num_blocks,
            specs=[spec],
        )
        self.preempted: set[str] = set()

    def add(self, name: str, prompt: tuple[int, ...], max_tokens: int = 3) -> None:
        self.scheduler.add_request(Request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0), 0))

    def step(self) -> dict[str, int]:
        """Return who was scheduled, and how many tokens."""
        output = self.scheduler.schedule()
        inputs = self.runner.prepare(output)
        sampled = {} if inputs is None else self.runner.take_in(inputs, np.asarray(inputs.seq_lens))
        self.scheduler.update_from_output(output, sampled)
        self.preempted |= output.preempted_req_ids
        self.scheduler.check_integrity()
        self.runner.check_integrity(self.manager.held_block_ids)
        return output.num_scheduled_tokens


def test_a6_an_id_that_is_aborted_and_used_again_in_one_step_is_one_new_row() -> None:
    pair = Pair()
    pair.add("r0", (1, 2, 3, 4, 5, 6))
    pair.step()
    pair.step()
    assert pair.manager.num_free_blocks == 8 - 2
    pair.scheduler.abort_requests(["r0"])
    assert pair.manager.num_free_blocks == 8
    pair.add("r0", (9, 8))
    pair.step()
    batch = pair.runner.input_batch
    assert batch.req_ids == ["r0"]
    assert batch.rows.num_computed_tokens[0] == 0
    assert batch.token_ids[0, :3].tolist() == [9, 8, 2]
    assert pair.manager.num_free_blocks == 8 - 1
    while pair.scheduler.has_unfinished_requests():
        pair.step()
    assert pair.manager.num_free_blocks == 8
    assert pair.step() == {}
    assert (pair.runner.requests, pair.runner.input_batch.num_reqs) == ({}, 0)


class OutputCounter:
    """A logits processor with a state by row: the outputs it has been shown, each once."""

    is_argmax_invariant = True

    def __init__(self) -> None:
        self.by_row: dict[int, list[int]] = {}
        self.history: list[list[int]] = []

    def update_state(self, update: BatchUpdate | None) -> None:
        if update is not None:
            for row in update.removed:
                self.by_row.pop(row, None)
            for added in update.added:
                self.by_row[added.row] = added.output_token_ids
            for moved in update.moved:
                assert moved.direction is MoveDirection.UNIDIRECTIONAL
                self.by_row[moved.target] = self.by_row.pop(moved.source)
        self.history.append([len(outputs) for _, outputs in sorted(self.by_row.items())])

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


def test_a8_a_token_that_is_discarded_advances_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 10 with a budget of 4 takes three steps (4, 4, 2); only the last brings a token."""
    counter = OutputCounter()
    monkeypatch.setattr(
        model_runner, "builtin_logits_processors", lambda *args: (*builtin_logits_processors(*args), counter)
    )
    pair = Pair()
    pair.add("A", tuple(range(10)))
    scheduled = [pair.step() for _ in range(4)]
    assert scheduled == [{"A": 4}, {"A": 4}, {"A": 2}, {"A": 1}]
    assert counter.history == [[0], [0], [0], [1]]  # as each step began: it advanced once, after step 3
    assert counter.by_row[0] == [10, 11]


def test_a8_a_state_is_not_lost_when_its_request_is_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = OutputCounter()
    monkeypatch.setattr(
        model_runner, "builtin_logits_processors", lambda *args: (*builtin_logits_processors(*args), counter)
    )
    pair = Pair(budget=8, num_blocks=4)
    pair.add("A", (1, 2, 3, 4), max_tokens=8)
    pair.add("B", (5, 6, 7), max_tokens=8)
    most = 0
    while pair.scheduler.has_unfinished_requests():
        pair.step()
        for request in pair.scheduler.running:
            row = pair.runner.input_batch.req_id_to_index[request.request_id]
            assert counter.by_row[row] == request.output_token_ids
            most = max(most, request.num_output_tokens)
    assert pair.preempted == {"B"}
    assert most == 7  # B too got on after it came back: the eighth ends it
