"""Bringing block tables to the device: all that changed, no more than whole rows, and an event that says what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.batch import BlockTable, CpuGpuBuffer, MultiGroupBlockTable, TableSpec
from pagedlab.batch.commit import BYTES_PER_CELL, CellSender, cells_of_spans
from pagedlab.errors import ConfigError
from pagedlab.events import BlockTableCommitted, Event
from pagedlab.kernels import backend

CPU = torch.device("cpu")
NUM_ROWS, COLUMNS = 4, 32  # TableSpec(4)
BACKENDS = [
    "numpy",
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(
            backend().name != "interpreter", reason=f"needs Triton's interpreter: {backend().reason}"
        ),
    ),
]


def make_tables(*specs: TableSpec, mode: str = "changed", backend: str | None = None) -> MultiGroupBlockTable:
    return MultiGroupBlockTable(
        specs or (TableSpec(4),), NUM_ROWS, 64, 8, CPU, commit_mode=mode, commit_backend=backend
    )


def watched(tables: MultiGroupBlockTable) -> list[BlockTableCommitted]:
    events: list[Event] = []
    for table in tables:
        table.observer = events.append
    return events  # type: ignore[return-value]


def device_of(table: BlockTable) -> npt.NDArray[np.int32]:
    return table.table.gpu.numpy().copy()


# --- cells --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5))))
def test_cells_of_spans_are_the_cells_one_by_one(spans: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([span[i] for span in spans], dtype=np.int64) for i in range(2))
    expected = [start + index for start, length in spans for index in range(length)]
    assert cells_of_spans(starts, lengths).tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sender_writes_the_cells_it_is_given_and_no_other(backend: str) -> None:
    memory = CpuGpuBuffer((40,), torch.int32, CPU)
    sender = CellSender(memory, backend)
    memory.gpu[:] = -7
    memory.np[:] = np.arange(100, 140)
    expected = [-7] * 40
    for cells in ([3], [39, 0, 3], list(range(5, 30)), [1, 1, 2]):  # its buffers have to grow in between
        for cell in cells:
            expected[cell] = 100 + cell
        assert sender.send(np.array(cells, dtype=np.int64)) == BYTES_PER_CELL * len(cells)
        assert memory.gpu.tolist() == expected


def test_no_cells_cost_nothing() -> None:
    memory = CpuGpuBuffer((4,), torch.int32, CPU)
    memory.np[:] = 1
    assert CellSender(memory).send(np.empty(0, dtype=np.int64)) == 0
    assert memory.gpu.tolist() == [0] * 4


# --- commit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["changed", "full"])
def test_nothing_is_seen_on_the_device_before_commit(mode: str) -> None:
    tables = make_tables(mode=mode)
    tables.add_row([[1, 2]], 0)
    assert not device_of(tables[0]).any()
    tables.commit(1)
    assert device_of(tables[0])[0, :3].tolist() == [1, 2, 0]


@pytest.mark.parametrize("mode", ["changed", "full"])
def test_rows_behind_those_in_use_wait_until_they_are_in_use(mode: str) -> None:
    tables = make_tables(mode=mode)
    tables.add_row([[1, 2]], 0)
    tables.add_row([[3]], 1)
    tables[0].append_each(np.array([4], dtype=np.int32), np.array([1]))
    tables.commit(1)
    assert device_of(tables[0])[:, :2].tolist() == [[1, 2], [0, 0], [0, 0], [0, 0]]
    tables.append_row([[5]], 0)
    tables.commit(2)
    assert device_of(tables[0])[:, :3].tolist() == [[1, 2, 5], [3, 4, 0], [0, 0, 0], [0, 0, 0]]


def test_the_full_mode_sends_whole_rows_each_time() -> None:
    tables = make_tables(TableSpec(4), TableSpec(8), mode="full")
    for _ in range(2):
        assert tables.commit(3) == 3 * (32 + 16) * 4
    assert tables.commit(0) == 0


def test_the_changed_mode_sends_each_change_once() -> None:
    tables = make_tables(TableSpec(4), TableSpec(8, kernel_block_size=4))
    tables.add_row([[1, 2], [3]], 0)
    assert tables.commit(NUM_ROWS) == 4 * BYTES_PER_CELL  # two blocks, and one of two kernel blocks
    assert tables.commit(NUM_ROWS) == 0
    tables.append_row([[], [4]], 0)
    assert tables.commit(NUM_ROWS) == 2 * BYTES_PER_CELL


def test_where_most_cells_changed_whole_rows_are_sent_since_that_is_less() -> None:
    tables = make_tables()
    events = watched(tables)
    tables.add_row([range(1, 17)], 0)
    assert tables.commit(1) == 16 * BYTES_PER_CELL  # as much as the row has: no reason to change
    tables.add_row([range(1, 18)], 0)
    assert tables.commit(1) == COLUMNS * 4
    assert [(event.mode, event.num_bytes, bool(event.changed)) for event in events] == [
        ("changed", 128, True),
        ("full", 128, False),
    ]
    assert device_of(tables[0])[0, :18].tolist() == [*range(1, 18), 0]
    assert tables.commit(1) == 0  # whole rows count as sent


def test_each_group_is_sent_in_the_cheaper_way() -> None:
    tables = make_tables(TableSpec(4), TableSpec(8))
    events = watched(tables)
    tables.add_row([range(1, 33), [7]], 0)
    assert tables.commit(1) == 32 * 4 + BYTES_PER_CELL
    assert [(event.group, event.mode, event.num_bytes) for event in events] == [(0, "full", 128), (1, "changed", 8)]
    assert [device_of(table)[0, :2].tolist() for table in tables] == [[1, 2], [7, 0]]


def test_an_unknown_mode_is_refused_before_anything_is_sent() -> None:
    table = BlockTable(TableSpec(4), 2, 64, 8, CPU)
    table.add_row([3], 0)
    with pytest.raises(ConfigError, match="commit mode is 'half': give one of changed, full"):
        table.commit(1, "half")
    assert table.commit(1) == BYTES_PER_CELL


@pytest.mark.parametrize("mode", ["changed", "full"])
def test_padded_rows_name_the_null_block_on_the_device_until_they_are_used_again(mode: str) -> None:
    tables = make_tables(mode=mode)
    (table,) = tables
    for row in range(3):
        tables.add_row([[row + 1] * 3], row)
    tables.commit(3)
    table.pad_rows(1, 3)
    assert table.device_tensor(4)[:, :3].tolist() == [[1] * 3, [0] * 3, [0] * 3, [0] * 3]
    assert table.row(2).tolist() == [3] * 3
    table.pad_rows(2, 1)  # nothing to pad
    tables.commit(3)
    assert table.device_tensor(4)[:, :3].tolist() == [[1] * 3, [2] * 3, [3] * 3, [0] * 3]


@pytest.mark.parametrize(
    "shorten", [("add_row", [9], 2), ("move_row", 0, 2)], ids=["by a new request", "by one that moves there"]
)
def test_also_stale_entries_of_a_padded_row_are_the_same_in_both_modes(shorten: tuple[object, ...]) -> None:
    devices = []
    for mode in ("changed", "full"):
        tables = make_tables(mode=mode)
        (table,) = tables
        tables.add_row([[1, 2]], 0)
        tables.add_row([range(11, 21)], 2)
        tables.commit(3)
        apply(table, shorten)
        tables.commit(3)
        table.pad_rows(1, 3)
        tables.commit(3)
        np.testing.assert_array_equal(device_of(table), table.table.np)
        assert table.table.np[2, 9] == 20
        devices.append(device_of(table).tobytes())
    assert devices[0] == devices[1]


@pytest.mark.parametrize("poison", [False, True])
def test_what_waits_for_rows_that_are_not_in_use_does_not_grow_from_step_to_step(poison: bool) -> None:
    """Two decodes, padded to four rows, for a long time: the other two rows are to be sent once, if ever."""
    tables = make_tables()
    (table,) = tables
    for row in range(NUM_ROWS):
        tables.add_row([[row + 1] * 20], row)
    tables.commit(NUM_ROWS)
    waiting = []
    for _ in range(20):
        if poison:
            table.poison()
        table.pad_rows(2, NUM_ROWS)
        tables.commit(2)
        waiting.append(len(table.pending_cells(NUM_ROWS)))
    assert waiting[-1] == waiting[1] <= 2 * COLUMNS * 2
    tables.commit(NUM_ROWS)
    assert table.device_tensor(NUM_ROWS).tolist() == table.table.np.tolist()


def test_a_decode_step_sends_less_than_a_hundredth_of_whole_rows() -> None:
    """1,024 rows of 8,192 columns; one row in sixteen gets a block."""
    num_rows, columns, block_size = 1024, 8192, 16
    by_mode = {}
    for mode in ("changed", "full"):
        tables = MultiGroupBlockTable(
            [TableSpec(block_size)], num_rows, columns * block_size, num_rows, CPU, commit_mode=mode
        )
        for row in range(num_rows):
            tables.add_row([[row + 1] * 40], row)
        tables.commit(num_rows)
        tables[0].append_each(np.arange(64, dtype=np.int32), np.arange(0, num_rows, 16))
        by_mode[mode] = tables.commit(num_rows)
    assert by_mode["full"] == num_rows * columns * 4
    assert by_mode["changed"] == 64 * BYTES_PER_CELL
    assert by_mode["changed"] < by_mode["full"] / 100


# --- the event ----------------------------------------------------------------------------------------------------


def test_the_event_says_which_entries_were_sent() -> None:
    tables = make_tables(TableSpec(4), TableSpec(8))
    tables.add_row([[1, 2], [3]], 0)
    tables.add_row([[4], [5]], 1)
    tables.commit(2)
    events = watched(tables)
    tables.append_row([[6], [7, 8]], 1)
    tables.append_row([[9], []], 0)
    tables.commit(2)
    assert events == [
        BlockTableCommitted(0, 2, 2 * BYTES_PER_CELL, "changed", ((0, 2, (9,)), (1, 1, (6,)))),
        BlockTableCommitted(1, 2, 2 * BYTES_PER_CELL, "changed", ((1, 1, (7, 8)),)),
    ]
    events.clear()
    tables.commit(2)
    assert events == [BlockTableCommitted(group, 2, 0, "changed", ()) for group in range(2)]


def test_entries_of_neighbouring_rows_are_spans_of_their_own() -> None:
    tables = make_tables()
    tables.add_row([range(1, 33)], 0)
    tables.commit(NUM_ROWS)
    events = watched(tables)
    tables[0].clear_row(0)
    tables.append_row([[5]], 1)  # the cell behind the last of row 0
    tables.commit(NUM_ROWS)
    assert events[0].changed == ((0, 0, (0,) * 32), (1, 0, (5,)))


blocks = st.lists(st.integers(1, 10**6), min_size=1, max_size=5)
row_numbers = st.integers(0, NUM_ROWS - 1)
operations = st.one_of(
    st.tuples(st.just("add_row"), blocks, row_numbers),
    st.tuples(st.just("append_row"), blocks, row_numbers),
    st.tuples(st.just("clear_row"), row_numbers),
    st.tuples(st.just("move_row"), row_numbers, row_numbers),
    st.tuples(st.just("swap_row"), row_numbers, row_numbers),
    st.tuples(st.just("append_each"), st.lists(row_numbers, unique=True, min_size=1)),
)


def apply(table: BlockTable, operation: Sequence[object]) -> None:
    name, *arguments = operation
    if name == "append_each":
        (rows,) = arguments
        table.append_each(np.array([7 + row for row in rows], dtype=np.int32), np.array(rows))  # type: ignore[attr-defined]
    else:
        getattr(table, str(name))(*arguments)


@pytest.mark.parametrize("spec", [TableSpec(4), TableSpec(4, kernel_block_size=2)])
@pytest.mark.parametrize(
    "operation",
    [
        ("add_row", [7], 2),
        ("append_row", [7, 8], 2),
        ("append_each", [0, 2]),
        ("clear_row", 2),
        ("move_row", 0, 2),
        ("move_row", 2, 0),
        ("swap_row", 0, 2),
        ("swap_row", 2, 3),
    ],
)
def test_each_operation_alone_reaches_the_device(operation: tuple[object, ...], spec: TableSpec) -> None:
    """Of a table that is up to date, and again when the next operation finds that one's change waiting."""
    for before in (operation, ("append_row", [9], 2), ("add_row", [9, 9], 0), ("swap_row", 1, 2)):
        tables = make_tables(spec)
        (table,) = tables
        for row in range(NUM_ROWS):
            tables.add_row([[10 * row + n for n in range(1, row + 2)]], row)
        tables.commit(NUM_ROWS)
        if before is not operation:
            apply(table, before)
        apply(table, operation)
        tables.commit(NUM_ROWS)
        np.testing.assert_array_equal(device_of(table), table.table.np)


@given(
    steps=st.lists(st.tuples(st.lists(operations, max_size=6), st.integers(0, NUM_ROWS)), max_size=5),
    spec=st.sampled_from([TableSpec(4), TableSpec(4, kernel_block_size=2)]),
)
@settings(max_examples=120, deadline=None)
def test_what_was_sent_makes_the_old_device_table_the_new_one(
    steps: list[tuple[list[tuple[object, ...]], int]], spec: TableSpec
) -> None:
    """The spans of an event are all of what changed, counted in bytes; and the device then has what the host has."""
    tables = MultiGroupBlockTable([spec], NUM_ROWS, 1024, 8, CPU)
    (table,) = tables
    for row in range(NUM_ROWS - 1):
        tables.add_row([[100 * row + n for n in range(row + 1, 5)]], row)
    tables.commit(NUM_ROWS)
    events = watched(tables)
    for step, num_reqs in steps:
        for operation in step:
            apply(table, operation)
        before = device_of(table)
        num_bytes = tables.commit(num_reqs)
        event, after = events.pop(), device_of(table)
        np.testing.assert_array_equal(after[:num_reqs], table.table.np[:num_reqs])
        np.testing.assert_array_equal(after[num_reqs:], before[num_reqs:])
        assert (event.group, event.num_rows, event.num_bytes) == (0, num_reqs, num_bytes)
        if event.mode == "full":
            assert event.changed == ()
            assert num_bytes == num_reqs * table.num_columns * 4
            continue
        for row, column, entries in event.changed:
            before[row, column : column + len(entries)] = entries
        np.testing.assert_array_equal(before, after)
        num_cells = sum(len(entries) for _, _, entries in event.changed)
        assert num_bytes >= num_cells * BYTES_PER_CELL
        assert num_bytes % BYTES_PER_CELL == 0


@given(st.lists(st.lists(row_numbers, min_size=1, max_size=4, unique=True), max_size=6))
@settings(max_examples=40, deadline=None)
def test_of_a_step_that_only_appends_exactly_the_cells_that_differ_are_sent(steps: list[list[int]]) -> None:
    tables = make_tables()
    (table,) = tables
    for row in range(NUM_ROWS):
        tables.add_row([[1] * row], row)
    tables.commit(NUM_ROWS)
    events = watched(tables)
    for step, rows in enumerate(steps):
        before = device_of(table)
        if step % 2:
            for row in rows:
                table.append_row([50 + step, 60], row)
        else:
            table.append_each(np.full(len(rows), 50 + step, dtype=np.int32), np.array(rows))
        num_bytes = tables.commit(NUM_ROWS)
        differing = {(int(row), int(column)) for row, column in np.argwhere(before != device_of(table))}
        spans = events.pop().changed
        sent = [(row, column + index) for row, column, entries in spans for index in range(len(entries))]
        assert set(sent) == differing
        assert num_bytes == len(sent) * BYTES_PER_CELL == len(differing) * BYTES_PER_CELL


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_groups_are_sent_together_each_to_its_own_place(backend: str) -> None:
    tables = make_tables(TableSpec(4), TableSpec(1, max_blocks=1), TableSpec(8, kernel_block_size=4), backend=backend)
    for step in range(4):
        for row in range(NUM_ROWS):
            if step == 0:
                tables.add_row([[row + 1], [row + 11], [row + 21]], row)
            else:
                tables.append_row([[step], [], [step + 5] * (row % 2)], row)
        tables.swap_row(step % 3, 3)
        tables.commit(NUM_ROWS)
        for table in tables:
            np.testing.assert_array_equal(device_of(table), table.table.np)


def test_rows_that_wait_cost_nothing_until_they_are_used_again() -> None:
    """The batch shrinks: what is pending of the other rows is kept by row, and padding nulls a row once."""
    table = BlockTable(TableSpec(4), 64, 2048, 64, torch.device("cpu"))
    for row in range(64):
        table.add_row(range(1, 400), row)
    table.commit(16)
    for _ in range(3):
        table.pad_rows(16, 32)
        assert len(table.take_changed(16)) == 0
        assert sum(map(len, table._changed_cells)) == 0
        assert len(table._changed_rows) == 48
    assert len(table.take_changed(64)) == 48 * 399
