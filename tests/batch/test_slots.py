"""From block tables to slots: on the table's own persistent buffers, with kernel blocks and with several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pagedlab.batch.multi_group as multi_group_module
from pagedlab.batch import BlockTable, ContextParallel, CpuGpuBuffer, MultiGroupBlockTable, TableSpec
from pagedlab.errors import ConfigError
from pagedlab.events import Event, SlotsComputed
from pagedlab.kernels import backend
from pagedlab.kernels.slot_mapping import PAD_SLOT_ID

DEVICE = torch.device("cuda" if backend().name == "cuda" else "cpu")
needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
BACKENDS = ["numpy", pytest.param("triton", marks=needs_triton)]


class Slots:
    """A table and the buffers of a step, kept from step to step."""

    def __init__(self, spec: TableSpec, rows: Sequence[Sequence[int]], max_num_tokens: int = 16) -> None:
        most = max(map(len, rows)) * spec.block_size * spec.context_parallel.world_size
        self.table = BlockTable(spec, len(rows), max(most, 1), max_num_tokens, DEVICE)
        for row, block_ids in enumerate(rows):
            self.table.add_row(block_ids, row)
        self.table.commit(len(rows))
        self.query_start_loc = CpuGpuBuffer((len(rows) + 1,), torch.int32, DEVICE)
        self.positions = CpuGpuBuffer((max_num_tokens,), torch.int64, DEVICE)

    def step(self, *positions: Sequence[int], backend: str = "numpy") -> list[int]:
        """Return the whole slot buffer after a step that computes these positions of each row."""
        lengths = [len(row) for row in positions]
        self.query_start_loc.np[0] = 0
        self.query_start_loc.np[1 : 1 + len(lengths)] = np.cumsum(lengths)
        self.positions.np[: sum(lengths)] = [position for row in positions for position in row]
        self.query_start_loc.copy_to_gpu()
        self.positions.copy_to_gpu()
        self.table.compute_slot_mapping(len(lengths), self.query_start_loc, self.positions, backend=backend)
        return self.table.slot_mapping.gpu.tolist()

    def of(self, positions: Sequence[int], backend: str = "numpy") -> list[int]:
        """Return the slots of positions of row 0."""
        return self.step(positions, backend=backend)[: len(positions)]


@pytest.mark.parametrize("later", BACKENDS)
@pytest.mark.parametrize("earlier", BACKENDS)
def test_b1_nothing_of_an_earlier_step_is_left_in_the_slots(earlier: str, later: str) -> None:
    slots = Slots(TableSpec(4), [[2, 5]], max_num_tokens=8)
    assert slots.step(range(7), backend=earlier) == [8, 9, 10, 11, 20, 21, 22, -1]
    assert slots.step([7], backend=later) == [23, -1, -1, -1, -1, -1, -1, -1]
    assert slots.step([], backend=later) == [-1] * 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_of_several_rows_come_in_row_order(backend: str) -> None:
    slots = Slots(TableSpec(4), [[7, 2], [5], [1, 4, 6]], max_num_tokens=8)
    assert slots.step([3, 4], [0], [8, 9, 10], backend=backend) == [31, 8, 20, 24, 25, 26, -1, -1]
    assert slots.step([], [3], [0], backend=backend) == [23, 4, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_poison_leaves_no_trace_in_the_slots(backend: str) -> None:
    slots = Slots(TableSpec(4), [[7, 2], [5]], max_num_tokens=6)
    slots.table.poison()
    slots.table.commit(2)
    assert slots.step([3, 4], [0], backend=backend) == [31, 8, 20, -1, -1, -1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_b6_a_group_that_is_not_sharded_has_all_its_slots_on_every_rank(backend: str) -> None:
    assert Slots(TableSpec(4), [[2]]).of(range(4), backend) == [8, 9, 10, 11]
    sharded = Slots(TableSpec(4, context_parallel=ContextParallel(2, 0)), [[2]])
    assert sharded.of(range(4), backend) == [8, -1, 9, -1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rank", "interleave", "expected"),
    [
        (0, 1, [12, -1, 13, -1, 14, -1, 15, -1, 20, -1]),
        (1, 1, [-1, 12, -1, 13, -1, 14, -1, 15, -1, 20]),
        (0, 2, [12, 13, -1, -1, 14, 15, -1, -1, 20, 21]),
    ],
)
def test_b7_golden_vectors_of_context_parallelism(
    rank: int, interleave: int, expected: list[int], backend: str
) -> None:
    spec = TableSpec(4, context_parallel=ContextParallel(2, rank, interleave))
    assert Slots(spec, [[3, 5]]).of(range(10), backend) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_b8_slots_pass_2_to_the_31(backend: str) -> None:
    slots = Slots(TableSpec(16), [[2**27]])
    assert slots.table.slot_mapping.gpu.dtype == torch.int64
    assert slots.of([0, 15], backend) == [2**31, 2**31 + 15]


@pytest.mark.parametrize("backend", BACKENDS)
def test_b9_manager_blocks_become_kernel_blocks_side_by_side(backend: str) -> None:
    slots = Slots(TableSpec(32, kernel_block_size=16), [[4, 1]])
    assert slots.table.row(0).tolist() == [8, 9, 2, 3]
    assert slots.of([20, 63], backend) == [148, 63]
    assert slots.of([20], backend) == Slots(TableSpec(32), [[4, 1]]).of([20], backend)


def test_b9_kernel_blocks_that_do_not_fill_a_manager_block_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"24 tokens do not fill a block of 32 evenly.*must divide"):
        TableSpec(32, kernel_block_size=24)


@pytest.mark.parametrize("backend", BACKENDS)
def test_b10_prefill_ranks_share_the_memory_too(backend: str) -> None:
    """As in 0.25.1, where the world is pcp * dcp; in newer versions only decode ranks share it: [8, 9, 10, 11]."""
    prefill_ranks, decode_ranks = 2, 1
    of_rank = [
        Slots(TableSpec(4, context_parallel=ContextParallel(prefill_ranks * decode_ranks, rank)), [[2]])
        for rank in range(2)
    ]
    assert of_rank[0].of(range(4), backend) == [8, -1, 9, -1]
    assert of_rank[1].of(range(4), backend) == [-1, 8, -1, 9]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_every_token_is_on_exactly_one_rank_and_the_lengths_say_so(
    world: int, interleave: int, stripes: int, length: int
) -> None:
    block_size = stripes * interleave  # vLLM asks for a block that whole stripes fill
    blocks = list(range(1, 2 + length // (block_size * world)))
    owners = np.zeros(length, dtype=int)
    for rank in range(world):
        context_parallel = ContextParallel(world, rank, interleave)
        slots = Slots(TableSpec(block_size, context_parallel=context_parallel), [blocks], max(length, 1))
        local = np.array(slots.of(range(length)), dtype=int)
        owners += local >= 0
        assert (local >= 0).sum() == context_parallel.num_local_tokens(np.array([length]))[0]
        assert len(set(local[local >= 0])) == (local >= 0).sum(), "two tokens in one slot"
    assert (owners == 1).all()


def test_local_lengths_are_those_of_the_rule() -> None:
    lengths = np.arange(25)
    for rank in range(3):
        expected = [sum(p // 2 % 3 == rank for p in range(length)) for length in lengths]
        assert ContextParallel(3, rank, interleave=2).num_local_tokens(lengths).tolist() == expected


@pytest.mark.parametrize("has_slots", [True, False])
def test_an_observer_is_told_of_slots_where_there_are_any(has_slots: bool) -> None:
    slots = Slots(TableSpec(4, max_blocks=None if has_slots else 1), [[7]], max_num_tokens=4)
    events: list[object] = []
    slots.table.observer = events.append
    slots.step([0, 1])
    assert [(e.group, e.slot_mapping, e.block_size, e.backend) for e in events] == (  # type: ignore[attr-defined]
        [(0, (28, 29), 4, "numpy")] if has_slots else []
    )


def test_pad_is_what_the_contracts_say() -> None:
    assert PAD_SLOT_ID == -1


@needs_triton
def test_the_slots_of_all_groups_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        TableSpec(4, context_parallel=ContextParallel(2, 1)),
        TableSpec(4, max_blocks=0),  # encoder-only: no slots
        TableSpec(8, kernel_block_size=2),
    ]
    launches: list[int] = []
    launch = multi_group_module.slot_mappings_triton

    def counted(*arguments: object) -> None:
        launches.append(1)
        launch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(multi_group_module, "slot_mappings_triton", counted)
    query_start_loc = CpuGpuBuffer((4,), torch.int32, DEVICE)
    positions = CpuGpuBuffer((9,), torch.int64, DEVICE)
    for buffer, values in ((query_start_loc, [0, 3, 4, 4]), (positions, [7, 8, 9, 0, 0, 0, 0, 0, 0])):
        buffer.np[:] = values
        buffer.copy_to_gpu()
    seen: dict[str, list[list[int]]] = {}
    told: dict[str, list[Event]] = {"numpy": [], "triton": []}
    for backend_name in ("numpy", "triton"):
        tables = MultiGroupBlockTable(specs, 3, 16, 9, DEVICE)
        for table in tables:
            table.observer = told[backend_name].append
        tables.add_row([[7, 2], [], [3, 5]], 0)
        tables.add_row([[4], [], [6]], 1)
        tables.commit(2)
        tables.compute_slot_mapping(2, query_start_loc, positions, backend=backend_name)
        seen[backend_name] = [table.slot_mapping.gpu.tolist() for table in tables]
    assert len(launches) == 1
    assert seen["triton"] == seen["numpy"]
    assert seen["triton"][1] == [PAD_SLOT_ID] * 9
    assert seen["triton"][2] == [31, 40, 41, 48] + [PAD_SLOT_ID] * 5
    slots = {
        name: [(event.group, event.slot_mapping) for event in events if isinstance(event, SlotsComputed)]
        for name, events in told.items()
    }
    assert slots["triton"] == slots["numpy"]
    assert [group for group, _ in slots["triton"]] == [0, 2]
