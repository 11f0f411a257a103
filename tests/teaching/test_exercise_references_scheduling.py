"""What the exercises of scheduling and memory call right is what the engine does, on random inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagedlab.batch import BlockTable, TableSpec
from pagedlab.config import SchedulerConfig
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.kvcache.hashing import extend_hashes
from pagedlab.request import Request, RequestStatus, SamplingParams
from pagedlab.scheduling import Scheduler, SchedulerOutput, StaticBatchScheduler
from pagedlab.teaching.exercises import find_exercise

MAX_MODEL_LEN = 64
BLOCK_SIZE = 4

ALLOCATE_BLOCKS = find_exercise("allocate_blocks").exercise
BLOCK_TABLE_ROWS = find_exercise("block_table_rows").exercise
PREEMPT_RESUME = find_exercise("preempt_resume").exercise
PREFIX_HASH = find_exercise("prefix_hash").exercise
REFILL_SEATS = find_exercise("refill_seats").exercise
SCHEDULE = find_exercise("schedule").exercise

enough = settings(max_examples=60, deadline=None)


def request_of(request_id: str, token_ids: list[int]) -> Request:
    return Request(request_id, token_ids, SamplingParams(), arrival_time=0)


# --- a scheduler at work ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """Requests as (prompt tokens, most output tokens, step of arrival), and the settings of the scheduler."""

    requests: tuple[tuple[int, int, int], ...]
    budget: int = 1000
    seats: int = 100
    num_blocks: int = 1000
    chunked: bool = True

    def scheduler(self, kind: type[Scheduler] = Scheduler) -> Scheduler:
        manager = KVCacheManager([FullAttentionSpec(BLOCK_SIZE)], self.num_blocks, MAX_MODEL_LEN)
        config = SchedulerConfig(self.budget, self.seats, enable_chunked_prefill=self.chunked)
        return kind(config, manager, MAX_MODEL_LEN)


@st.composite
def workloads(draw: st.DrawFn, longest_prompt: int = 20, most_output: int = 12, **limits: Any) -> Workload:
    """One to seven requests; and the scheduler's limits, each from a strategy."""
    lengths = st.tuples(st.integers(1, longest_prompt), st.integers(1, most_output), st.integers(0, 6))
    requests = draw(st.lists(lengths, min_size=1, max_size=7))
    return Workload(tuple(requests), **{name: draw(strategy) for name, strategy in limits.items()})


class Step:
    """A scheduler before a step, as an exercise sees it, and what the scheduler then did."""

    def __init__(self, scheduler: Scheduler, just_finished: set[str], running_before: list[str]) -> None:
        requests = [*scheduler.running, *scheduler.waiting]
        self.scheduler = scheduler
        self.just_finished = just_finished
        self.running_before = running_before
        self.running = [request.request_id for request in scheduler.running]
        self.waiting = [request.request_id for request in scheduler.waiting]
        self.num_tokens = {request.request_id: request.num_tokens for request in requests}
        self.num_prompt_tokens = {request.request_id: request.num_prompt_tokens for request in requests}
        self.num_output_tokens = {request.request_id: request.num_output_tokens for request in requests}
        self.num_computed_tokens = {request.request_id: request.num_computed_tokens for request in requests}
        self.free_block_ids = list(scheduler.kv_cache_manager.free_block_ids)
        self.output = scheduler.schedule()
        self.num_computed_afterwards = {request.request_id: request.num_computed_tokens for request in requests}

    def came_to(self, running: list[str], waiting: list[str]) -> bool:
        """Whether these are the scheduler's own queues now."""
        return running == [request.request_id for request in self.scheduler.running] and waiting == [
            request.request_id for request in self.scheduler.waiting
        ]


def steps_of(workload: Workload, scheduler: Scheduler) -> Iterator[Step]:
    """Run a workload to its end, and pause after each `schedule`."""
    finished: set[str] = set()
    running: list[str] = []
    for number in range(500):
        for index, (prompt, max_tokens, arrival) in enumerate(workload.requests):
            if arrival == number:
                params = SamplingParams(max_tokens=max_tokens, temperature=0)
                scheduler.add_request(Request(f"r{index}", [1] * prompt, params, arrival))
        step = Step(scheduler, finished, running)
        yield step
        running = [request.request_id for request in scheduler.running]
        sampled = {name: sampled_for(scheduler, name) for name, _ in step.output.scheduled}
        finished = set(scheduler.update_from_output(step.output, sampled).finish_reasons)
        if number > 6 and not scheduler.has_unfinished_requests():
            return
    raise AssertionError("the workload does not end")


def sampled_for(scheduler: Scheduler, request_id: str) -> tuple[int, ...]:
    return () if scheduler.requests[request_id].is_prefill_chunk else (7,)


# --- refill_seats -------------------------------------------------------------------------------------------------


@enough
@given(workloads(longest_prompt=3, seats=st.integers(1, 4)))
def test_seats_are_refilled_as_the_scheduler_does(workload: Workload) -> None:
    for step in steps_of(workload, workload.scheduler()):
        running, waiting = list(step.running_before), list(step.waiting)
        REFILL_SEATS.reference(running, waiting, step.just_finished, workload.seats)
        assert step.came_to(running, waiting)


@enough
@given(workloads(longest_prompt=3, seats=st.integers(1, 4)))
def test_who_waits_for_the_whole_batch_does_static_batching(workload: Workload) -> None:
    waits = find_exercise("refill_seats").mutants["waits_for_the_whole_batch"]
    for step in steps_of(workload, workload.scheduler(StaticBatchScheduler)):
        running, waiting = list(step.running_before), list(step.waiting)
        waits(running, waiting, step.just_finished, workload.seats)
        assert step.came_to(running, waiting)


# --- schedule -----------------------------------------------------------------------------------------------------

with_chunks = workloads(budget=st.integers(4, 24), seats=st.integers(1, 4))
without_chunks = workloads(budget=st.just(MAX_MODEL_LEN), seats=st.integers(1, 6), chunked=st.just(False))


@enough
@given(st.one_of(with_chunks, without_chunks))
@example(Workload(((20, 3, 0), (40, 2, 1), (30, 2, 1), (3, 2, 1)), budget=MAX_MODEL_LEN, seats=6, chunked=False))
def test_a_step_is_scheduled_as_the_scheduler_does(workload: Workload) -> None:
    for step in steps_of(workload, workload.scheduler()):
        running, waiting, num_computed = list(step.running), list(step.waiting), dict(step.num_computed_tokens)
        limits = workload.budget, workload.seats, workload.chunked
        granted = SCHEDULE.reference(running, waiting, step.num_tokens, num_computed, *limits)
        assert list(granted.items()) == list(step.output.scheduled)
        assert step.came_to(running, waiting)
        assert num_computed == step.num_computed_afterwards


def scheduler_in(inputs: dict[str, Any]) -> Scheduler:
    """Put a scheduler into the state of an exercise's inputs, one that it might not have come to by itself."""
    manager = KVCacheManager([FullAttentionSpec(BLOCK_SIZE)], 1000, MAX_MODEL_LEN)
    config = SchedulerConfig(inputs["max_num_batched_tokens"], inputs["max_num_seqs"])
    scheduler = Scheduler(config, manager, MAX_MODEL_LEN)
    scheduler.config = replace(config, enable_chunked_prefill=inputs["enable_chunked_prefill"])
    for name, num_tokens in inputs["num_tokens"].items():
        request = request_of(name, [1] * num_tokens)
        scheduler.add_request(request)
        if name in inputs["running"]:
            scheduler.running.append(scheduler.waiting.pop())
            manager.allocate_slots(request, inputs["num_computed_tokens"][name])
            request.num_computed_tokens = inputs["num_computed_tokens"][name]
            request.status = RequestStatus.RUNNING
    return scheduler


@enough
@given(SCHEDULE.strategy)
def test_a_step_is_scheduled_as_the_scheduler_does_from_any_state(inputs: dict[str, Any]) -> None:
    scheduler = scheduler_in(inputs)
    granted = SCHEDULE.reference(**inputs)
    assert granted == scheduler.schedule().num_scheduled_tokens
    assert inputs["running"] == [request.request_id for request in scheduler.running]
    assert inputs["waiting"] == [request.request_id for request in scheduler.waiting]
    assert inputs["num_computed_tokens"] == {
        name: request.num_computed_tokens for name, request in scheduler.requests.items()
    }


# --- preempt_resume -----------------------------------------------------------------------------------------------

TIGHT = Workload(((9, 12, 0), (7, 12, 0), (5, 12, 1), (6, 6, 2)), num_blocks=8)
"""Every request fits an empty pool, all together do not."""


class Worker:
    """What the worker knows of blocks: replaced on resume, extended while a request runs, kept while it waits."""

    def __init__(self) -> None:
        self.block_ids: dict[str, list[int]] = {}

    def update(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            self.block_ids[new.request_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for request_id, (block_ids,) in cached.new_block_ids:
            if request_id in cached.resumed_req_ids:
                self.block_ids[request_id] = list(block_ids)
            else:
                self.block_ids[request_id] += block_ids


def follow_with_the_reference(workload: Workload) -> list[SchedulerOutput]:
    """Do each step with the scheduler and with the reference; return what the scheduler put out."""
    worker, outputs = Worker(), []
    for step in steps_of(workload, workload.scheduler()):
        running, waiting, num_computed = list(step.running), list(step.waiting), dict(step.num_computed_tokens)
        block_ids, free = copy.deepcopy(worker.block_ids), list(step.free_block_ids)
        counts = step.num_prompt_tokens, step.num_output_tokens
        PREEMPT_RESUME.reference(running, waiting, *counts, num_computed, block_ids, free, BLOCK_SIZE)
        worker.update(step.output)
        assert step.came_to(running, waiting)
        assert num_computed == step.num_computed_afterwards
        assert free == list(step.scheduler.kv_cache_manager.free_block_ids)
        assert block_ids == worker.block_ids
        for name in running:
            assert (tuple(block_ids[name]),) == step.scheduler.kv_cache_manager.get_block_ids(name)
        outputs.append(step.output)
    return outputs


@enough
@given(workloads(num_blocks=st.integers(9, 16)))
def test_requests_are_preempted_and_resumed_as_the_scheduler_and_the_worker_do(workload: Workload) -> None:
    follow_with_the_reference(workload)


def test_a_tight_pool_preempts_and_resumes_and_the_reference_follows() -> None:
    outputs = follow_with_the_reference(TIGHT)
    assert any(output.preempted_req_ids for output in outputs)
    assert any(output.scheduled_cached_reqs.resumed_req_ids for output in outputs)


# --- allocate_blocks, block_table_rows, prefix_hash: the same operations, done by the engine's own classes --------


class RealManager:
    """`KVCacheManager` of the engine, called like the exercise's."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = KVCacheManager([FullAttentionSpec(block_size)], num_blocks, max_model_len=1000)
        self.requests: dict[str, Request] = {}

    @property
    def free_block_ids(self) -> tuple[int, ...]:
        return self.manager.free_block_ids

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        request = self.requests.setdefault(request_id, request_of(request_id, [1]))
        new = self.manager.allocate_slots(request, num_tokens - request.num_computed_tokens)
        if new is None:
            return None
        request.num_computed_tokens = num_tokens
        return list(new[0])

    def free(self, request_id: str) -> None:
        self.manager.free(self.requests.pop(request_id, request_of(request_id, [1])))
        self.manager.check_integrity()


class RealTable:
    """`BlockTable` of the engine; after each operation its rows are copied to where the exercise looks."""

    def __init__(self, table: npt.NDArray[np.int32], num_blocks_per_row: npt.NDArray[np.int32]) -> None:
        rows, columns = table.shape
        spec = TableSpec(block_size=128)
        self.real = BlockTable(spec, rows, columns * 128, max_num_batched_tokens=1, device=torch.device("cpu"))
        self.seen = table, num_blocks_per_row

    def __getattr__(self, name: str) -> Any:
        def operate(*arguments: Any) -> None:
            getattr(self.real, name)(*arguments)
            table, num_blocks_per_row = self.seen
            table[:], num_blocks_per_row[:] = self.real.table.np, self.real.num_blocks_per_row

        return operate


class RealCache:
    """The pool and the manager of the engine, with blocks that are cached and evicted by hand."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.manager = KVCacheManager([FullAttentionSpec(block_size)], 50, max_model_len=1000, enable_caching=True)
        self.pool = self.manager.block_pool

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        hashes: list[bytes] = []
        extend_hashes(hashes, token_ids, self.block_size)
        self.pool.cache([self.pool.blocks[block_id] for block_id in block_ids[: len(hashes)]], hashes, group=0)

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        hit = self.manager.get_computed_blocks(request_of("A", token_ids))
        assert hit.num_tokens == len(hit.blocks[0]) * self.block_size
        return [block.block_id for block in hit.blocks[0]]

    def evict(self, block_id: int) -> None:
        self.pool.forget([self.pool.blocks[block_id]])


def both(exercise: Any, real: type, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Do the operations with the reference and with the engine's class; return what was seen of each."""
    return tuple(exercise.drive(subject, *copy.deepcopy(inputs).values()) for subject in (exercise.reference, real))


@enough
@given(ALLOCATE_BLOCKS.strategy)
def test_blocks_are_allocated_and_freed_as_the_manager_does(inputs: dict[str, Any]) -> None:
    reference, real = both(ALLOCATE_BLOCKS, RealManager, inputs)
    assert reference == real


@enough
@given(BLOCK_TABLE_ROWS.strategy)
def test_rows_change_as_in_the_block_table(inputs: dict[str, Any]) -> None:
    reference, real = both(BLOCK_TABLE_ROWS, RealTable, inputs)
    assert reference == real


@enough
@given(PREFIX_HASH.strategy)
def test_prefixes_are_found_as_the_manager_does(inputs: dict[str, Any]) -> None:
    reference, real = both(PREFIX_HASH, RealCache, inputs)
    assert reference == real


def test_the_cases_picked_by_hand_are_no_different() -> None:
    for exercise, real in ((ALLOCATE_BLOCKS, RealManager), (BLOCK_TABLE_ROWS, RealTable), (PREFIX_HASH, RealCache)):
        for case in exercise.cases:
            of_reference, of_real = both(exercise, real, dict(case.inputs))
            assert of_reference == of_real, case.why
