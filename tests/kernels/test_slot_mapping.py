"""Slot mapping: the NumPy reference against a slow loop, and the Triton kernel against the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.slot_mapping import (
    PAD_SLOT_ID,
    SlotGroup,
    slot_mapping_numpy,
    slot_mapping_triton,
    slot_mappings_triton,
)

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
GUARD = -777
Form = Callable[..., list[int]]


def slow_loop(
    query_start_loc: list[int], positions: list[int], block_table: list[list[int]], block_size: int, length: int
) -> list[int]:
    """The specification, as anyone can read it."""
    slots = [PAD_SLOT_ID] * length
    for row, blocks in enumerate(block_table):
        for token in range(query_start_loc[row], query_start_loc[row + 1]):
            position = positions[token]
            slots[token] = blocks[position // block_size] * block_size + position % block_size
    return slots


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]], int, int]:
    """Random batches: rows without tokens, arbitrary positions, padding of any length, also none."""
    block_size = draw(st.sampled_from([1, 2, 4, 16, 24, 128]))
    columns = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    query_start_loc = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    last = columns * block_size - 1
    positions = draw(st.lists(st.integers(0, last), min_size=sum(lengths), max_size=sum(lengths)))
    row = st.lists(st.integers(0, 2**31 - 1), min_size=columns, max_size=columns)
    block_table = [draw(row) for _ in lengths]
    return query_start_loc, positions, block_table, block_size, draw(st.integers(0, 40))


def by_numpy(
    query_start_loc: list[int], positions: list[int], block_table: list[list[int]], block_size: int, length: int
) -> list[int]:
    slots = np.full(length, GUARD, dtype=np.int64)
    slot_mapping_numpy(
        np.array(query_start_loc, dtype=np.int32),
        np.array(positions, dtype=np.int64),
        np.array(block_table, dtype=np.int32),
        block_size,
        slots,
    )
    return slots.tolist()


def by_triton(
    query_start_loc: list[int],
    positions: list[int],
    block_table: list[list[int]],
    block_size: int,
    length: int,
    *,
    programs: str = "tokens",
    tile: int = 16,
) -> list[int]:
    """Run a kernel with poisoned output and guard bands on both sides of every buffer."""
    device = "cuda" if backend().name == "cuda" else "cpu"

    def guarded(values: npt.ArrayLike, dtype: torch.dtype) -> torch.Tensor:
        flat = torch.as_tensor(np.array(values), dtype=dtype).reshape(-1)
        buffer = torch.full((len(flat) + 64,), GUARD, dtype=dtype)
        buffer[32 : 32 + len(flat)] = flat
        return buffer.to(device)

    inner = slice(32, -32)
    qsl, pos = guarded(query_start_loc, torch.int32), guarded(positions, torch.int64)
    table = guarded(block_table, torch.int32)
    out = guarded([GUARD] * length, torch.int64)
    slot_mapping_triton(
        qsl[inner],
        pos[inner],
        table[inner].view(len(block_table), -1),
        block_size,
        out[inner],
        programs=programs,
        tile=tile,
    )
    out = out.cpu()
    assert (out[:32] == GUARD).all(), "written before the buffer"
    assert (out[-32:] == GUARD).all(), "written behind the buffer"
    return out[inner].tolist()


@given(batches())
@settings(max_examples=150, deadline=None)
def test_numpy_equals_the_slow_loop(batch: tuple[list[int], list[int], list[list[int]], int, int]) -> None:
    query_start_loc, positions, block_table, block_size, padding = batch
    args = (query_start_loc, positions, block_table, block_size, len(positions) + padding)
    assert by_numpy(*args) == slow_loop(*args)


by_requests = functools.partial(by_triton, programs="requests")


@needs_triton
@given(batches())
@settings(max_examples=40, deadline=None)
def test_triton_equals_numpy(batch: tuple[list[int], list[int], list[list[int]], int, int]) -> None:
    query_start_loc, positions, block_table, block_size, padding = batch
    args = (query_start_loc, positions, block_table, block_size, len(positions) + padding)
    assert by_triton(*args) == by_numpy(*args)
    assert by_requests(*args, tile=4) == by_numpy(*args)


@needs_triton
def test_programs_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="'tokens' or 'requests'"):
        by_triton([0, 1], [0], [[1]], 4, 1, programs="blocks")


FORMS = [
    pytest.param(by_numpy, id="numpy"),
    pytest.param(by_triton, id="tokens", marks=needs_triton),
    pytest.param(by_requests, id="requests", marks=needs_triton),
]


@pytest.mark.parametrize("form", FORMS)
def test_b1_padding_starts_where_the_live_tokens_end(form: Form) -> None:
    """The second step of a request: nothing of the first step's slots is left behind its one token."""
    assert form([0, 7], list(range(7)), [[2, 5]], 4, 7) == [8, 9, 10, 11, 20, 21, 22]
    assert form([0, 1], [7, 1, 2, 3], [[2, 5]], 4, 4) == [23, -1, -1, -1]


@pytest.mark.parametrize("form", FORMS)
def test_b8_slots_beyond_2_to_the_31(form: Form) -> None:
    assert form([0, 1], [0], [[2**27]], 16, 1) == [2**31]
    assert form([0, 1], [15], [[2**31 - 1]], 16, 1) == [(2**31 - 1) * 16 + 15]


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_is_all_padding(form: Form) -> None:
    assert form([0, 0, 0], [], [[1], [2]], 4, 3) == [-1, -1, -1]


@needs_triton
@pytest.mark.parametrize("num_reqs", [1, 2, 255, 256, 257, 300])
def test_rows_are_found_however_many_there_are(num_reqs: int) -> None:
    lengths = np.arange(num_reqs) % 3  # some rows are empty
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(starts[-1]) % 8
    table = 1 + np.arange(2 * num_reqs).reshape(num_reqs, 2)
    args = (starts.tolist(), positions.tolist(), table.tolist(), 4, len(positions) + 3)
    assert by_triton(*args, tile=64) == by_numpy(*args)


def groups_by_both(block_sizes: list[int], lengths: npt.NDArray[np.int64], seed: int, tile: int | None = None) -> None:
    """Hold the slots of several groups, written by one launch, equal to those of the reference, group by group."""
    generator = np.random.default_rng(seed)
    device = "cuda" if backend().name == "cuda" else "cpu"
    query_start_loc = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    num_tokens, max_num_tokens = int(query_start_loc[-1]), int(query_start_loc[-1]) + 37
    positions = np.full(max_num_tokens, GUARD, dtype=np.int64)
    positions[:num_tokens] = generator.integers(0, 64, size=num_tokens)
    groups, tables, expected = [], [], []
    first_cell = 5  # nothing says that the first table begins where memory begins
    for index, block_size in enumerate(block_sizes):
        world_size = int(generator.integers(1, 4))
        parallel = (world_size, int(generator.integers(world_size)), int(generator.choice([1, block_size])))
        columns = -(-64 // (block_size * world_size)) + index
        table = generator.integers(0, 2**31 - 1, size=(len(lengths), columns)).astype(np.int32)
        groups.append(SlotGroup(first_cell, columns, 2 * index, block_size, *parallel))
        slots = np.empty(max_num_tokens, dtype=np.int64)
        names = ("cp_world_size", "cp_rank", "cp_interleave")
        slot_mapping_numpy(
            query_start_loc, positions, table, block_size, slots, **dict(zip(names, parallel, strict=True))
        )
        tables.append(table)
        expected.append(slots.tolist())
        first_cell += table.size
    memory = torch.full((first_cell + 5,), GUARD, dtype=torch.int32)
    for group, table in zip(groups, tables, strict=True):
        memory[group.first_cell : group.first_cell + table.size] = torch.from_numpy(table.reshape(-1))
    out = torch.full((2 * len(groups) + 1, max_num_tokens), GUARD, dtype=torch.int64, device=device)
    slot_mappings_triton(
        torch.from_numpy(query_start_loc).to(device),
        torch.from_numpy(positions).to(device),
        memory.to(device),
        groups,
        out[: 2 * len(groups)],
        tile=tile,
    )
    assert [out[group.slot_row].tolist() for group in groups] == expected
    assert (out[1::2] == GUARD).all(), "written into a row that is nobody's"
    assert (out[-1] == GUARD).all(), "written behind the last row"


@needs_triton
@given(
    st.lists(st.sampled_from([1, 2, 4, 16]), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None)
def test_one_launch_writes_the_slots_of_every_group(block_sizes: list[int], lengths: list[int], seed: int) -> None:
    groups_by_both(block_sizes, np.array(lengths), seed, tile=32)


@needs_triton
def test_no_group_no_launch() -> None:
    slots = torch.full((1, 4), GUARD, dtype=torch.int64)
    slot_mappings_triton(torch.zeros(2, dtype=torch.int32), torch.zeros(4), torch.zeros(4), (), slots)
    assert (slots == GUARD).all()


@pytest.mark.gpu
@pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
@pytest.mark.parametrize("most", [2, 400])
def test_the_compiled_kernel_writes_every_group(most: int) -> None:
    groups_by_both([16, 32, 16, 64], np.random.default_rng(1).integers(0, most, size=500), seed=2)


@pytest.mark.gpu
@pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
def test_compiled_kernel_at_real_size() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 400, size=1000)
    query_start_loc = np.concatenate([[0], np.cumsum(lengths)])
    positions = generator.integers(0, 512 * 16, size=query_start_loc[-1])
    table = generator.integers(0, 2**31 - 1, size=(1000, 512))
    args = (query_start_loc.tolist(), positions.tolist(), table.tolist(), 16, len(positions) + 5000)
    assert by_triton(*args, tile=1024) == by_numpy(*args)
    assert by_requests(*args, tile=1024) == by_numpy(*args)
