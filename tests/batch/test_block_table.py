"""Block tables: growing rows inside a fixed array, alone and in groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.batch import BlockTable, ContextParallel, CpuGpuBuffer, MultiGroupBlockTable, TableSpec
from pagedlab.batch.block_table import STALE
from pagedlab.errors import CapacityError, ConfigError

CPU = torch.device("cpu")
FOUR_COLUMNS = TableSpec(128)  # for max_model_len 512


@pytest.fixture
def table() -> BlockTable:
    return BlockTable(FOUR_COLUMNS, max_num_reqs=3, max_model_len=512, max_num_batched_tokens=8, device=CPU)


def rows_of(table: BlockTable) -> list[list[int]]:
    return [table.row(row).tolist() for row in range(len(table.num_blocks_per_row))]


# --- one row ----------------------------------------------------------------------------------------------------


def test_append_writes_behind_the_live_prefix(table: BlockTable) -> None:
    table.add_row([5, 6], 1)
    table.append_row([7], 1)
    assert rows_of(table) == [[], [5, 6, 7], []]


def test_appending_nothing_does_nothing_even_to_a_full_row(table: BlockTable) -> None:
    table.add_row([5, 6, 7, 8], 1)
    table.commit(3)
    table.append_row([], 1)
    assert rows_of(table) == [[], [5, 6, 7, 8], []]
    assert table.commit(3) == 0


def test_add_starts_anew_and_leaves_the_old_tail_stale(table: BlockTable) -> None:
    table.add_row([1, 2, 3, 4], 0)
    table.add_row([9], 0)
    assert table.row(0).tolist() == [9]
    assert table.table.np[0].tolist() == [9, 2, 3, 4]


@pytest.mark.parametrize(
    "operation",
    [
        lambda table: table.append_row([7, 8], 0),
        lambda table: table.add_row([7, 8, 9, 10, 11], 0),
        lambda table: table.append_each(np.array([7, 8], dtype=np.int32), np.array([0, 1])),
    ],
    ids=["append_row", "add_row", "append_each"],
)
def test_an_overflow_leaves_everything_as_it_was(table: BlockTable, operation: Callable[[BlockTable], None]) -> None:
    table.add_row([1, 2, 3], 0)
    table.add_row([1, 2, 3, 4], 1)
    table.commit(3)
    before = table.table.np.copy()
    with pytest.raises(CapacityError, match=r"row holds \d blocks and cannot take \d more.*4 columns"):
        operation(table)
    assert rows_of(table) == [[1, 2, 3], [1, 2, 3, 4], []]
    np.testing.assert_array_equal(table.table.np, before)
    assert table.commit(3) == 0


@given(data=st.data(), ratio=st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_append_each_does_what_append_row_does_in_each_row(data: st.DataObject, ratio: int) -> None:
    spec = TableSpec(4 * ratio, kernel_block_size=4)
    together, one_by_one = (BlockTable(spec, 4, 64, 8, CPU) for _ in range(2))
    for row in range(4):
        blocks = data.draw(st.lists(st.integers(1, 99), max_size=3))
        for table in (together, one_by_one):
            table.add_row(blocks, row)
    rows = data.draw(st.lists(st.integers(0, 3), unique=True))
    blocks = data.draw(st.lists(st.integers(1, 99), min_size=len(rows), max_size=len(rows)))
    together.append_each(np.array(blocks, dtype=np.int32), np.array(rows, dtype=np.int64))
    for row, block in zip(rows, blocks, strict=True):
        one_by_one.append_row([block], row)
    assert rows_of(together) == rows_of(one_by_one)
    together.commit(4)
    assert together.device_tensor(4).tolist() == together.table.np.tolist()


def test_clear_row_nulls_only_what_was_live(table: BlockTable) -> None:
    table.add_row([1, 2, 3, 4], 0)
    table.add_row([5, 6], 0)
    table.clear_row(0)
    assert table.table.np[0].tolist() == [0, 0, 3, 4]
    assert table.row(0).tolist() == []


def test_move_copies_the_live_prefix_and_clears_the_source(table: BlockTable) -> None:
    """As in 0.33.0; 0.25.1 leaves the source as it was."""
    table.add_row([1, 2], 2)
    table.add_row([7, 8, 9], 0)
    table.move_row(2, 0)
    assert rows_of(table) == [[1, 2], [], []]
    assert table.table.np[[0, 2]].tolist() == [[1, 2, 9, 0], [0, 0, 0, 0]]


def test_moving_a_row_to_where_it_is_changes_nothing(table: BlockTable) -> None:
    table.add_row([1, 2], 1)
    table.move_row(1, 1)
    assert rows_of(table) == [[], [1, 2], []]


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_swap_exchanges_live_entries_and_touches_nothing_behind_the_longer_row(
    table: BlockTable, first: int, second: int
) -> None:
    table.table.np[:] = [[1, 11, 12, 13], [2, 3, 14, 15], [16, 17, 18, 19]]
    table.num_blocks_per_row[:] = [1, 2, 0]
    table.swap_row(first, second)
    assert rows_of(table) == [[2, 3], [1], []]
    assert table.table.np.tolist() == [[2, 3, 12, 13], [1, 11, 14, 15], [16, 17, 18, 19]]


def test_swapping_a_row_with_itself_changes_nothing(table: BlockTable) -> None:
    table.add_row([1, 2], 1)
    table.swap_row(1, 1)
    assert rows_of(table) == [[], [1, 2], []]


def test_clear_nulls_host_and_device_and_keeps_the_counts(table: BlockTable) -> None:
    table.add_row([1, 2], 0)
    table.add_row([3], 1)
    table.commit(2)
    table.add_row([4], 2)
    table.clear()
    assert table.num_blocks_per_row.tolist() == [2, 1, 1]
    assert not table.table.np.any()
    assert not table.device_tensor(3).any()
    assert table.commit(3) == 0


def test_poison_marks_what_is_stale_and_nothing_else(table: BlockTable) -> None:
    table.add_row([1, 2, 3], 0)
    table.add_row([1, 2], 0)
    table.poison()
    assert table.table.np.tolist() == [[1, 2, STALE, STALE], [STALE] * 4, [STALE] * 4]
    assert table.slot_mapping.np.tolist() == table.slot_mapping.gpu.tolist() == [STALE] * 8
    table.commit(3)
    assert table.device_tensor(3).tolist() == table.table.np.tolist()


# --- what a table is like ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_model_len", "spec", "columns"),
    [
        (72, TableSpec(4), 32),
        (128, TableSpec(16), 8),
        (129, TableSpec(16), 16),
        (10, TableSpec(256), 1),
        (257, TableSpec(256), 2),
        (100, TableSpec(24), 5),
        (129, TableSpec(32, kernel_block_size=16), 16),
        (129, TableSpec(16, context_parallel=ContextParallel(2)), 8),
        (257, TableSpec(16, context_parallel=ContextParallel(2)), 16),
        (9999, TableSpec(1, max_blocks=1), 1),
        (9999, TableSpec(16, max_blocks=3), 3),
        (9999, TableSpec(16, kernel_block_size=8, max_blocks=3), 6),
        (9999, TableSpec(1, max_blocks=0), 1),
    ],
)
def test_the_width_is_aligned_to_128_tokens_where_there_are_slots(
    max_model_len: int, spec: TableSpec, columns: int
) -> None:
    assert spec.columns(max_model_len) == columns
    table = BlockTable(spec, 2, max_model_len, 8, CPU)
    assert table.table.np.shape == tuple(table.device_tensor(2).shape) == (2, columns)


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"block_size": True},
        {"block_size": 4, "kernel_block_size": 0},
        {"block_size": 4, "max_blocks": -1},
        {"block_size": 16, "kernel_block_size": 32},
    ],
)
def test_tables_that_cannot_be_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        TableSpec(**settings)


@pytest.mark.parametrize("bad", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0)])
def test_ranks_that_cannot_be_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        ContextParallel(*bad)


@pytest.mark.parametrize(
    ("specs", "max_num_reqs"), [((TableSpec(1),), 2**16), ((TableSpec(2), TableSpec(1), TableSpec(2)), 2**15)]
)
def test_tables_of_more_cells_than_an_int32_counts_are_refused(specs: tuple[TableSpec, ...], max_num_reqs: int) -> None:
    with pytest.raises(ConfigError, match=r"would have 2147483648 cells.*lower max_num_seqs or max_model_len"):
        MultiGroupBlockTable(specs, max_num_reqs, 2**15, 8, CPU)


def test_an_unknown_commit_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="commit_mode is 'some': give one of changed, full"):
        MultiGroupBlockTable((TableSpec(4),), 2, 16, 8, CPU, commit_mode="some")


@pytest.mark.parametrize("max_blocks", [0, 1])
def test_a_group_without_slots_pads_them_all_even_after_poison(max_blocks: int) -> None:
    """Encoder-only layers keep nothing, Mamba layers one state a request."""
    table = BlockTable(TableSpec(1, max_blocks=max_blocks), 2, 64, 8, CPU)
    assert not table.spec.has_slots
    query_start_loc, positions = CpuGpuBuffer((3,), torch.int32, CPU), CpuGpuBuffer((8,), torch.int64, CPU)
    query_start_loc.np[:] = [0, 3, 4]
    table.add_row([7] * max_blocks, 0)
    for _ in range(2):
        table.compute_slot_mapping(2, query_start_loc, positions)
        assert table.slot_mapping.np.tolist() == table.slot_mapping.gpu.tolist() == [-1] * 8
        table.poison()
    with pytest.raises(CapacityError):
        table.append_row([8] * 2, 0)


# --- kernel blocks ----------------------------------------------------------------------------------------------


def test_kernel_blocks_are_not_expanded_twice_when_rows_move() -> None:
    table = BlockTable(TableSpec(4, kernel_block_size=2), 3, 64, 16, CPU)
    table.add_row([5], 1)
    table.append_row([7], 1)
    table.move_row(1, 0)
    table.add_row([9], 2)
    table.swap_row(0, 2)
    assert rows_of(table) == [[18, 19], [], [10, 11, 14, 15]]


def test_a_capacity_error_counts_manager_blocks() -> None:
    table = BlockTable(TableSpec(128, kernel_block_size=32), 1, 512, 8, CPU)
    table.add_row([1, 2, 3], 0)
    with pytest.raises(CapacityError, match=r"row holds 3 blocks and cannot take 2 more.*4 columns"):
        table.append_row([4, 5], 0)
    table.append_row([4], 0)
    assert len(table.row(0)) == 16


# --- groups -----------------------------------------------------------------------------------------------------


def test_groups_get_every_row_operation() -> None:
    tables = MultiGroupBlockTable((TableSpec(4), TableSpec(8)), 3, 32, 8, CPU)
    tables.add_row(([1, 2], [3]), 0)
    tables.add_row(([4], [5]), 1)
    tables.append_row(([6], []), 0)
    tables.swap_row(0, 1)
    tables.move_row(1, 2)
    assert [rows_of(table) for table in tables] == [[[4], [], [1, 2, 6]], [[5], [], [3]]]
    tables.clear_row(2)
    assert [rows_of(tables[group]) for group in range(len(tables))] == [[[4], [], []], [[5], [], []]]
    tables.clear()
    assert not any(table.table.np.any() for table in tables)


@pytest.mark.parametrize("full_group", [0, 1, 2])
@pytest.mark.parametrize("operation", ["add_row", "append_row"])
def test_if_one_group_has_no_room_no_group_changes(operation: str, full_group: int) -> None:
    specs = (TableSpec(4), TableSpec(8, kernel_block_size=4), TableSpec(1, max_blocks=1))
    tables = MultiGroupBlockTable(specs, 2, 32, 8, CPU)
    tables.add_row(([1, 2], [3], []), 0)
    before = [table.table.np.copy() for table in tables]
    too_many = [[9], [9], [9]]
    too_many[full_group] = [9] * 99
    with pytest.raises(CapacityError, match="cannot take 99 more"):
        getattr(tables, operation)(too_many, 0)
    assert [rows_of(table)[0] for table in tables] == [[1, 2], [6, 7], []]
    for table, expected in zip(tables, before, strict=True):
        np.testing.assert_array_equal(table.table.np, expected)


@pytest.mark.parametrize("block_ids", [(), ([1],), ([1], [2], [3])])
@pytest.mark.parametrize("operation", ["add_row", "append_row"])
def test_a_list_of_blocks_for_each_group_is_asked_for(operation: str, block_ids: tuple[list[int], ...]) -> None:
    tables = MultiGroupBlockTable((TableSpec(4), TableSpec(8)), 2, 32, 8, CPU)
    with pytest.raises(ValueError, match=f"for {len(block_ids)} groups were given, and there are 2"):
        getattr(tables, operation)(block_ids, 0)
    assert [rows_of(table) for table in tables] == [[[], []], [[], []]]
