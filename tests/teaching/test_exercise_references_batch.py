"""What the exercises of the batch, the slots and the padding call right is what the engine does, and what vLLM did."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.batch import BlockTable, ContextParallel, TableSpec
from pagedlab.config import SchedulerConfig
from pagedlab.conformance import read_cases, smallest_model
from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.slot_mapping import slot_mapping_numpy, slot_mapping_triton
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, ModelInputs
from pagedlab.scheduling import Scheduler
from pagedlab.scheduling.output import CachedRequestData, NewRequestData, SchedulerOutput
from pagedlab.teaching.exercises import Case, Exercise, find_exercise
from pagedlab.teaching.exercises.searching import Examiner, subject_of

MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
STALE = 77
GOLDEN = Path(__file__).parents[1] / "golden" / "slot_mapping.jsonl.gz"

EXPAND_KERNEL_BLOCKS = find_exercise("expand_kernel_blocks").exercise
FAST_SLOT_MAPPING = find_exercise("fast_slot_mapping").exercise
LOCAL_SLOTS = find_exercise("local_slots").exercise
PAD_FOR_GRAPH = find_exercise("pad_for_graph").exercise
PREPARE_INPUTS = find_exercise("prepare_inputs").exercise
SLOT_MAPPING_TRITON = find_exercise("slot_mapping_triton").exercise

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
enough = settings(max_examples=60, deadline=None)


def fault(exercise: Exercise, submission: Callable[..., Any], inputs: Mapping[str, Any]) -> str:
    """Say what the exercise finds wrong with a submission, which here is the engine; nothing, if all is well."""
    finding = Examiner(exercise, subject_of(exercise, submission)).try_inputs(inputs)
    return "" if finding is None else finding.text


def new_runner(max_num_reqs: int, budget: int, **options: Any) -> GPUModelRunner:
    return GPUModelRunner(
        smallest_model(MAX_MODEL_LEN),
        max_num_reqs=max_num_reqs,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=budget,
        num_blocks=100,
        specs=[FullAttentionSpec(BLOCK_SIZE)],
        poison=True,  # all that is stale is wrong
        **options,
    )


# --- prepare_inputs -----------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Requests as (prompt tokens, most output tokens, step of arrival), and limits that chunk, preempt and refuse."""
    lengths = st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(0, 6))
    return {
        "requests": draw(st.lists(lengths, min_size=1, max_size=6)),
        "budget": draw(st.integers(4, 24)),
        "seats": draw(st.integers(1, 4)),
        "num_blocks": draw(st.integers(9, 24)),
        "decode_threshold": draw(st.sampled_from([None, 1])),
    }


def reference_inputs(runner: GPUModelRunner, output: SchedulerOutput) -> dict[str, Any]:
    """Return what the exercise makes of the runner's rows, in buffers as large as the runner's own."""
    batch, num_reqs = runner.input_batch, runner.input_batch.num_reqs
    num_tokens = output.total_num_scheduled_tokens
    buffers = {
        "query_start_loc": np.full(runner.input_batch.max_num_reqs + 1, STALE, dtype=np.int32),
        "positions": np.full(num_tokens, STALE, dtype=np.int64),
        "input_ids": np.full(num_tokens, STALE, dtype=np.int32),
        "seq_lens": np.full(runner.input_batch.max_num_reqs, STALE, dtype=np.int32),
        "logits_indices": np.full(num_reqs, STALE, dtype=np.int32),
        "discard": np.zeros(num_reqs, dtype=bool),
    }
    PREPARE_INPUTS.reference(
        list(batch.req_ids),
        dict(output.num_scheduled_tokens),
        batch.rows.num_computed_tokens[:num_reqs],
        batch.rows.num_tokens_no_spec[:num_reqs],
        batch.token_ids[:num_reqs],
        *buffers.values(),
    )
    return {name: buffer.tolist() for name, buffer in buffers.items()}


def engine_inputs(runner: GPUModelRunner, inputs: ModelInputs) -> dict[str, Any]:
    """Return what the runner prepared; the two buffers that have a tail, to their ends."""
    return {
        "query_start_loc": runner._buffers.query_start_loc.np.tolist(),
        "positions": inputs.positions.tolist(),
        "input_ids": inputs.input_ids.tolist(),
        "seq_lens": runner._buffers.seq_lens.np.tolist(),
        "logits_indices": inputs.logits_indices.tolist(),
        "discard": inputs.discard.tolist(),
    }


def prepared_otherwise(workload: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Run a workload and prepare each step twice; return the number of steps, and what differed."""
    manager = KVCacheManager([FullAttentionSpec(BLOCK_SIZE)], workload["num_blocks"], MAX_MODEL_LEN)
    scheduler = Scheduler(SchedulerConfig(workload["budget"], workload["seats"]), manager, MAX_MODEL_LEN)
    runner = new_runner(workload["seats"], workload["budget"], decode_threshold=workload["decode_threshold"])
    steps, differences = 0, []
    for number in range(400):
        for index, (prompt, max_tokens, arrival) in enumerate(workload["requests"]):
            if arrival == number:
                tokens = range(10 * index, 10 * index + prompt)
                params = SamplingParams(max_tokens=max_tokens, temperature=0)
                scheduler.add_request(Request(f"r{index}", tokens, params, arrival))
        output = scheduler.schedule()
        inputs = runner.prepare(output)
        sampled: dict[str, tuple[int, ...]] = {}
        if inputs is not None:
            steps += 1
            ours, theirs = reference_inputs(runner, output), engine_inputs(runner, inputs)
            differences += [f"step {number}: {name}" for name in ours if ours[name] != theirs[name]]
            sampled = runner.bookkeep(inputs, [number % 50 + row for row in range(len(inputs.req_ids))])
        scheduler.update_from_output(output, sampled)
        if number > 6 and not scheduler.has_unfinished_requests():
            return steps, differences
    raise AssertionError("the workload does not end")


@settings(max_examples=40, deadline=None)
@given(workloads())
def test_inputs_are_prepared_as_the_runner_does(workload: Mapping[str, Any]) -> None:
    steps, differences = prepared_otherwise(workload)
    assert steps
    assert not differences


def test_such_a_workload_has_rows_in_another_order_than_they_are_scheduled() -> None:
    """So the test above can tell: a request that arrives late takes the row of one that has left."""
    requests = [(3, 1, 0), (3, 8, 0), (3, 4, 0), (12, 3, 1)]
    runner = new_runner(3, 8)
    scheduler = Scheduler(
        SchedulerConfig(8, 3), KVCacheManager([FullAttentionSpec(BLOCK_SIZE)], 30, MAX_MODEL_LEN), MAX_MODEL_LEN
    )
    for index, (prompt, max_tokens, arrival) in enumerate(requests):
        params = SamplingParams(max_tokens=max_tokens, temperature=0)
        scheduler.add_request(Request(f"r{index}", range(prompt), params, arrival))
    orders = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        inputs = runner.prepare(output)
        assert inputs is not None
        orders.append((list(inputs.req_ids), list(output.num_scheduled_tokens)))
        scheduler.update_from_output(output, runner.bookkeep(inputs, [5] * len(inputs.req_ids)))
    assert any(rows != scheduled for rows, scheduled in orders)


# --- slot mapping -------------------------------------------------------------------------------------------------


@needs_triton
@settings(max_examples=15, deadline=None)
@given(inputs=SLOT_MAPPING_TRITON.strategy)
@pytest.mark.parametrize("programs", ["tokens", "requests"])
def test_the_engines_kernels_pass_the_exercise_in_triton(inputs: Mapping[str, Any], programs: str) -> None:
    """Guard bands, wider tables and all."""
    kernel = functools.partial(slot_mapping_triton, programs=programs)
    assert not fault(SLOT_MAPPING_TRITON, kernel, inputs)


@enough
@given(FAST_SLOT_MAPPING.strategy)
def test_the_engines_numpy_form_passes_the_exercise_in_speed(inputs: Mapping[str, Any]) -> None:
    assert not fault(FAST_SLOT_MAPPING, slot_mapping_numpy, inputs)


@pytest.mark.parametrize("case", FAST_SLOT_MAPPING.speed.cases, ids=lambda case: case.why)
def test_it_is_right_on_what_is_timed_too(case: Case) -> None:
    assert not fault(FAST_SLOT_MAPPING, slot_mapping_numpy, {**case.inputs, "steps": 1})


# --- kernel blocks ------------------------------------------------------------------------------------------------


def appended_by_the_block_table(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: npt.NDArray[np.int32], num_blocks: int
) -> int:
    """Do the exercise with a `BlockTable`."""
    try:
        spec = TableSpec(block_size, kernel_block_size)
    except ConfigError as error:  # a kind of ValueError; the exercise asks for that type itself
        raise ValueError(str(error)) from error
    table = BlockTable(spec, 1, block_size * len(row), 1, torch.device("cpu"))
    table.table.np[0, : len(row)] = row
    table.num_blocks_per_row[0] = num_blocks
    table.append_row(block_ids, 0)
    row[:] = table.table.np[0, : len(row)]
    return int(table.num_blocks_per_row[0])


@enough
@given(EXPAND_KERNEL_BLOCKS.strategy)
def test_kernel_blocks_are_appended_as_the_block_table_does(inputs: Mapping[str, Any]) -> None:
    assert not fault(EXPAND_KERNEL_BLOCKS, appended_by_the_block_table, inputs)


# --- padding ------------------------------------------------------------------------------------------------------


def new_requests(num_reqs: int, lengths: Sequence[int]) -> SchedulerOutput:
    """Return a step that computes whole prompts; a request has two blocks and more than it needs now."""
    names = [f"r{row}" for row in range(num_reqs)]
    data = [
        NewRequestData(
            name, (row,) * length, (), SamplingParams(temperature=0), (tuple(range(1 + 4 * row, 5 + 4 * row)),), 0
        )
        for row, (name, length) in enumerate(zip(names, lengths, strict=True))
    ]
    nobody = CachedRequestData((), frozenset(), (), (), ())
    return SchedulerOutput(tuple(zip(names, lengths, strict=True)), tuple(data), nobody, frozenset(), sum(lengths))


def decodes(lengths: Sequence[int], finished: Sequence[str]) -> SchedulerOutput:
    """Return a step in which requests that have computed ``lengths`` decode, after others have finished."""
    names = tuple(f"r{row}" for row in range(len(lengths)))
    going_on = CachedRequestData(names, frozenset(), (), tuple(lengths), (1,) * len(names))
    return SchedulerOutput(tuple((name, 1) for name in names), (), going_on, frozenset(finished), len(names))


@settings(max_examples=40, deadline=None)
@given(
    capture_sizes=st.sets(st.integers(1, 8), max_size=4).map(sorted),
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=8),
    data=st.data(),
)
def test_a_batch_is_padded_as_the_runner_does(
    capture_sizes: list[int], lengths: list[int], data: st.DataObject
) -> None:
    """A step of many requests, and then one of the first few: what the rows of the others held is stale."""
    num_reqs = data.draw(st.integers(1, len(lengths)))
    runner = new_runner(8, 80, capture_sizes=capture_sizes)
    first = runner.prepare(new_requests(len(lengths), lengths))
    assert first is not None
    runner.bookkeep(first, [50 + row for row in range(len(lengths))])
    gone = [f"r{row}" for row in range(num_reqs, len(lengths))]
    inputs = runner.prepare(decodes(lengths[:num_reqs], gone))
    assert inputs is not None
    (common,) = inputs.attention

    live = {
        "input_ids": inputs.input_ids.numpy(),
        "positions": inputs.positions.numpy(),
        "query_start_loc": inputs.query_start_loc,
        "seq_lens": inputs.seq_lens,
        "block_table": inputs.block_table.numpy(),
        "slot_mapping": inputs.slot_mapping.numpy(),
    }
    buffers = {}
    for name, values in live.items():
        rows = 9 if name == "query_start_loc" else 8
        buffers[name] = np.full((rows, *values.shape[1:]), STALE, dtype=values.dtype)
        buffers[name][: len(values)] = values
    size = PAD_FOR_GRAPH.reference(capture_sizes, num_reqs, *buffers.values())

    padded = {
        "input_ids": runner._buffers.input_ids.gpu[:size],
        "positions": common.positions,
        "query_start_loc": common.query_start_loc,
        "seq_lens": common.seq_lens,
        "block_table": common.block_table,
        "slot_mapping": common.slot_mapping,
    }
    assert size == inputs.num_reqs_padded == inputs.num_tokens_padded
    for name, values in padded.items():
        assert buffers[name][: len(values)].tolist() == values.tolist(), name


# --- context parallelism --------------------------------------------------------------------------------------------


def local_slots_of_the_engine(
    block_ids: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    seq_len: int,
    block_size: int,
    world_size: int,
    rank: int,
    interleave: int,
    slot_mapping: npt.NDArray[np.int64],
) -> int:
    """Do the exercise with the engine's kernel and its count."""
    begins = np.array([0, len(positions)])
    sharing = {"cp_world_size": world_size, "cp_rank": rank, "cp_interleave": interleave}
    slot_mapping_numpy(begins, positions, block_ids[np.newaxis], block_size, slot_mapping, **sharing)
    return int(ContextParallel(world_size, rank, interleave).num_local_tokens(np.array([seq_len]))[0])


@enough
@given(LOCAL_SLOTS.strategy)
def test_a_ranks_slots_are_those_of_the_engine(inputs: Mapping[str, Any]) -> None:
    assert not fault(LOCAL_SLOTS, local_slots_of_the_engine, inputs)


@enough
@given(LOCAL_SLOTS.strategy)
def test_each_token_is_on_one_rank(inputs: Mapping[str, Any]) -> None:
    """The check of the reference's own claim: tokens are dealt out, none twice and none left over."""
    held, lengths = [], []
    for rank in range(inputs["world_size"]):
        slots = np.full(len(inputs["positions"]), STALE, dtype=np.int64)
        lengths.append(LOCAL_SLOTS.reference(*{**inputs, "rank": rank, "slot_mapping": slots}.values()))
        held.append(slots >= 0)
    assert np.sum(held, axis=0).tolist() == [1] * len(inputs["positions"])
    assert sum(lengths) == inputs["seq_len"]


def test_kernel_blocks_and_ranks_give_the_slots_that_vllm_gave() -> None:
    """Two references together, on every golden case: rows of kernel blocks, and in them each rank's slots."""
    num_cases = 0
    for case in read_cases(GOLDEN):
        config, begins = case["config"], case["query_start_loc"]
        kernel_block_size = config["kernel_block_size"]
        world_size = config["pcp_world_size"] * config["dcp_world_size"]
        for rank, expected in enumerate(case["slot_mapping"].values()):
            slots = np.full(config["max_num_batched_tokens"], -1, dtype=np.int64)
            for row, block_ids in enumerate(case["block_ids"]):
                blocks = np.zeros(len(block_ids) * config["block_size"] // kernel_block_size, dtype=np.int32)
                EXPAND_KERNEL_BLOCKS.reference(block_ids, config["block_size"], kernel_block_size, blocks, 0)
                tokens = slice(begins[row], begins[row + 1])
                positions = np.array(case["positions"][tokens], dtype=np.int64)
                LOCAL_SLOTS.reference(
                    blocks,
                    positions,
                    int(positions.max(initial=-1)) + 1,
                    kernel_block_size,
                    world_size,
                    rank,
                    config["interleave"],
                    slots[tokens],
                )
            assert slots.tolist() == expected, case["name"]
        num_cases += 1
    assert num_cases == 200


# --- the cases picked by hand -----------------------------------------------------------------------------------------

ENGINE: dict[str, tuple[Exercise, Callable[..., Any]]] = {
    "expand_kernel_blocks": (EXPAND_KERNEL_BLOCKS, appended_by_the_block_table),
    "fast_slot_mapping": (FAST_SLOT_MAPPING, slot_mapping_numpy),
    "local_slots": (LOCAL_SLOTS, local_slots_of_the_engine),
    "slot_mapping_triton": (SLOT_MAPPING_TRITON, slot_mapping_triton),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_triton if "triton" in name else ()) for name in ENGINE]
)
def test_the_engine_does_what_the_cases_ask(name: str) -> None:
    """Slots beyond 2^31, sizes that do not fit: what random inputs do not hit."""
    exercise, engine = ENGINE[name]
    faults = {case.why: fault(exercise, engine, case.inputs) for case in exercise.cases}
    assert not any(faults.values()), faults
