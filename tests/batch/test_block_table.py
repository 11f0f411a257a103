"""Block tables: growing rows inside a fixed array, and what the device sees of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.batch import BlockTable, ContextParallel, CpuGpuBuffer, MultiGroupBlockTable
from pagedlab.batch.block_table import aligned_width
from pagedlab.errors import CapacityError, ConfigError

CPU = torch.device("cpu")


@pytest.fixture
def table() -> BlockTable:
    return BlockTable(block_size=4, max_num_reqs=3, max_num_blocks_per_req=4, max_num_batched_tokens=8, device=CPU)


def test_append_writes_behind_the_live_prefix_and_an_empty_append_does_nothing(table: BlockTable) -> None:
    table.add_row([5, 6], 1)
    table.append_row([], 1)
    table.append_row([7], 1)
    assert table.row(1).tolist() == [5, 6, 7]
    assert table.num_blocks_per_row.tolist() == [0, 3, 0]


def test_add_starts_anew_and_leaves_the_old_tail_stale(table: BlockTable) -> None:
    table.add_row([1, 2, 3, 4], 0)
    table.add_row([9], 0)
    assert table.row(0).tolist() == [9]
    assert table.table.np[0].tolist() == [9, 2, 3, 4]


@pytest.mark.parametrize("operation", ["append_row", "add_row"])
def test_an_overflow_leaves_the_row_as_it_was(table: BlockTable, operation: str) -> None:
    table.add_row([1, 2, 3], 0)
    with pytest.raises(CapacityError, match="4 columns"):
        getattr(table, operation)([7, 8, 9, 10, 11], 0)
    assert table.row(0).tolist() == [1, 2, 3]


def test_clear_zeroes_only_what_was_live(table: BlockTable) -> None:
    table.add_row([1, 2, 3, 4], 0)
    table.add_row([5, 6], 0)
    table.clear_row(0)
    assert table.table.np[0].tolist() == [0, 0, 3, 4]
    assert table.row(0).tolist() == []


def test_move_copies_the_live_prefix_and_leaves_nothing_behind(table: BlockTable) -> None:
    table.add_row([1, 2], 2)
    table.add_row([7, 8, 9], 0)
    table.move_row(2, 0)
    assert table.row(0).tolist() == [1, 2]
    assert table.table.np[0].tolist() == [1, 2, 9, 0]
    assert table.row(2).tolist() == []


def test_swap_exchanges_whole_rows(table: BlockTable) -> None:
    table.add_row([1], 0)
    table.add_row([2, 3], 1)
    table.swap_row(0, 1)
    assert (table.row(0).tolist(), table.row(1).tolist()) == ([2, 3], [1])


def test_nothing_is_seen_on_the_device_before_commit(table: BlockTable) -> None:
    table.add_row([1, 2], 0)
    table.add_row([3], 1)
    assert table.device_tensor(2).sum() == 0
    assert table.commit(1) == 4 * 4
    assert table.device_tensor(2).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0]]


def test_the_slot_mapping_of_the_second_step_holds_nothing_of_the_first(table: BlockTable) -> None:
    """B1, on the table's own persistent buffer."""
    query_start_loc = CpuGpuBuffer((4,), torch.int32, CPU)
    positions = CpuGpuBuffer((8,), torch.int64, CPU)
    table.add_row([2, 5], 0)
    query_start_loc.np[:] = [0, 7, 7, 7]
    positions.np[:] = np.arange(8)
    table.compute_slot_mapping(1, query_start_loc, positions)
    assert table.slot_mapping.gpu.tolist() == [8, 9, 10, 11, 20, 21, 22, -1]
    query_start_loc.np[:] = [0, 1, 1, 1]
    positions.np[0] = 7
    table.compute_slot_mapping(1, query_start_loc, positions)
    assert table.slot_mapping.gpu.tolist() == [23, -1, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "width"), [(72, 4, 32), (128, 16, 8), (129, 16, 16), (10, 256, 1), (100, 24, 5)]
)
def test_the_width_is_aligned_to_128_tokens(max_model_len: int, block_size: int, width: int) -> None:
    assert aligned_width(max_model_len, block_size) == width


def test_groups_get_every_row_operation_and_a_wrong_number_of_groups_is_refused() -> None:
    tables = MultiGroupBlockTable((4, 8), max_num_reqs=3, max_model_len=32, max_num_batched_tokens=8, device=CPU)
    tables.add_row(([1, 2], [3]), 0)
    tables.add_row(([4], [5]), 1)
    tables.append_row(([6], []), 0)
    tables.swap_row(0, 1)
    tables.move_row(1, 2)
    assert [[table.row(row).tolist() for row in range(3)] for table in tables] == [
        [[4], [], [1, 2, 6]],
        [[5], [], [3]],
    ]
    for operation in (tables.add_row, tables.append_row):
        with pytest.raises(CapacityError):
            operation(([9], list(range(99))), 2)  # the second group has no room: the first is not touched either
    assert [table.row(2).tolist() for table in tables] == [[1, 2, 6], [3]]
    tables.clear_row(0)
    assert tables.commit(3) == 3 * 4 * (32 + 16)
    with pytest.raises(ValueError, match="for 1 groups"):
        tables.add_row(([1],), 0)


# --- kernel blocks and context parallelism ----------------------------------------------------------------------


def slots(table: BlockTable, positions: list[int]) -> list[int]:
    """Return the slots of positions of row 0."""
    query_start_loc = CpuGpuBuffer((2,), torch.int32, CPU)
    buffer = CpuGpuBuffer((len(positions),), torch.int64, CPU)
    query_start_loc.np[:] = [0, len(positions)]
    buffer.np[:] = positions
    table.compute_slot_mapping(1, query_start_loc, buffer)
    return table.slot_mapping.np[: len(positions)].tolist()


def one_row(block_size: int, block_ids: list[int], **options: Any) -> BlockTable:
    table = BlockTable(block_size, 1, len(block_ids), 16, CPU, **options)
    table.add_row(block_ids, 0)
    return table


def test_b9_manager_blocks_become_kernel_blocks_side_by_side() -> None:
    table = one_row(32, [4, 1], kernel_block_size=16)
    assert table.row(0).tolist() == [8, 9, 2, 3]
    assert slots(table, [20]) == [148]
    with pytest.raises(ConfigError, match="must divide"):
        one_row(32, [4], kernel_block_size=24)


def test_b9_kernel_blocks_are_not_expanded_twice_when_a_row_moves() -> None:
    table = BlockTable(4, 2, 3, 16, CPU, kernel_block_size=2)
    table.add_row([5], 1)
    table.append_row([7], 1)
    table.move_row(1, 0)
    assert table.row(0).tolist() == [10, 11, 14, 15]


def test_b6_a_group_that_is_not_sharded_has_all_its_slots_on_every_rank() -> None:
    assert slots(one_row(4, [2]), [0, 1, 2, 3]) == [8, 9, 10, 11]
    sharded = one_row(4, [2], context_parallel=ContextParallel(2, 0))
    assert slots(sharded, [0, 1, 2, 3]) == [8, -1, 9, -1]


@pytest.mark.parametrize(
    ("rank", "interleave", "expected"),
    [
        (0, 1, [12, -1, 13, -1, 14, -1, 15, -1, 20, -1]),
        (1, 1, [-1, 12, -1, 13, -1, 14, -1, 15, -1, 20]),
        (0, 2, [12, 13, -1, -1, 14, 15, -1, -1, 20, 21]),
    ],
)
def test_b7_golden_vectors_of_context_parallelism(rank: int, interleave: int, expected: list[int]) -> None:
    table = one_row(4, [3, 5], context_parallel=ContextParallel(2, rank, interleave))
    assert slots(table, list(range(10))) == expected


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
def test_every_token_is_on_exactly_one_rank_and_the_lengths_say_so(
    world: int, interleave: int, block_size: int, length: int
) -> None:
    # vLLM asks for a block that whole stripes fill; anything else would split a stripe between blocks.
    block_size *= interleave
    blocks = list(range(1, 2 + length // (block_size * world)))
    owners = np.zeros(length, dtype=int)
    for rank in range(world):
        context_parallel = ContextParallel(world, rank, interleave)
        table = BlockTable(block_size, 1, len(blocks), max(length, 1), CPU, context_parallel=context_parallel)
        table.add_row(blocks, 0)
        local = np.array(slots(table, list(range(length)))) >= 0
        owners += local
        assert local.sum() == context_parallel.num_local_tokens(np.array([length]))[0]
    assert (owners == 1).all()


@pytest.mark.parametrize("bad", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0)])
def test_ranks_that_cannot_be_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        ContextParallel(*bad)
