"""The block tables of all KV cache groups, in one memory: what is done to a row is done to it in each of them.

>>> specs = [TableSpec(block_size=4), TableSpec(block_size=8)]
>>> tables = MultiGroupBlockTable(specs, 2, max_model_len=16, max_num_batched_tokens=8, device=torch.device("cpu"))
>>> tables.add_row([[7, 2], [3]], row=1)
>>> tables[0].row(1).tolist(), tables[1].row(1).tolist()
([7, 2], [3])

One memory holds them, one after the other, and another their slot mappings: a commit is one copy and one kernel, and
the slots of all groups are one kernel more.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``MultiGroupBlockTable``) at 0.25.1. What differs: it copies
and launches once a group; a row operation that one group has no room for changes none of them here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from pagedlab.batch.block_table import BlockTable, packed
from pagedlab.batch.buffers import CpuGpuBuffer
from pagedlab.batch.commit import COMMIT_MODES, CellSender, commit_tables
from pagedlab.batch.table_spec import TableSpec
from pagedlab.errors import ConfigError
from pagedlab.events import SlotsComputed
from pagedlab.kernels import backend as active_backend
from pagedlab.kernels.slot_mapping import SlotGroup, slot_mappings_triton

BlockIdsPerGroup = Sequence[Sequence[int]]


class MultiGroupBlockTable:
    """One `BlockTable` per KV cache group; every row operation is done in all of them.

    Parameters
    ----------
    specs : sequence of TableSpec
        One per group.
    max_num_reqs, max_model_len, max_num_batched_tokens : int
        Rows; the longest request; the longest step.
    device : torch.device
    commit_mode : {"changed", "full"}
        What `commit` sends.
    commit_backend : {"numpy", "triton"}, optional
        What writes changed cells on the device; None: Triton on a GPU, NumPy elsewhere.

    Raises
    ------
    ConfigError
        If the tables together would have 2^31 cells or more.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        device: torch.device,
        *,
        commit_mode: str = "changed",
        commit_backend: str | None = None,
    ) -> None:
        if commit_mode not in COMMIT_MODES:
            raise ConfigError(f"commit_mode is {commit_mode!r}: give one of {', '.join(COMMIT_MODES)}")
        self.commit_mode = commit_mode
        shapes = [(max_num_reqs, spec.columns(max_model_len)) for spec in specs]
        num_cells = sum(map(math.prod, shapes))
        if num_cells >= 2**31:
            raise ConfigError(
                f"the block tables of {max_num_reqs} rows and {max_model_len} tokens a row would have {num_cells} "
                "cells, more than an int32 counts: lower max_num_seqs or max_model_len, or raise block_size"
            )
        self._memory = CpuGpuBuffer((num_cells,), torch.int32, device)
        self._slots = CpuGpuBuffer((len(specs), max_num_batched_tokens), torch.int64, device)
        starts = [sum(map(math.prod, shapes[:group])) for group in range(len(specs))]
        self._tables = tuple(
            BlockTable(
                spec,
                max_num_reqs,
                max_model_len,
                max_num_batched_tokens,
                device,
                group,
                memory=self._memory.part(start, shape),
                slot_memory=self._slots.part(group * max_num_batched_tokens, (max_num_batched_tokens,)),
            )
            for group, (spec, start, shape) in enumerate(zip(specs, starts, shapes, strict=True))
        )
        self._sender = CellSender(self._memory, commit_backend)
        self._slot_groups = tuple(
            SlotGroup(
                start,
                table.num_columns,
                table.group,
                table.block_size,
                table.context_parallel.world_size,
                table.context_parallel.rank,
                table.context_parallel.interleave,
            )
            for table, start in zip(self._tables, starts, strict=True)
            if table.spec.has_slots
        )

    def __getitem__(self, group: int) -> BlockTable:
        return self._tables[group]

    def __iter__(self) -> Iterator[BlockTable]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def check_room(self, block_ids: BlockIdsPerGroup, row: int | None = None) -> None:
        """Raise `CapacityError` if a row (None: one that starts anew) cannot take these blocks in every group.

        `ValueError` if there is not one list of blocks for each group, or an id is no int32.
        """
        if len(block_ids) != len(self._tables):
            raise ValueError(
                f"block ids for {len(block_ids)} groups were given, and there are {len(self._tables)}: give one list "
                "for each group, in their order"
            )
        for table, ids in zip(self._tables, block_ids, strict=True):
            table.check_room(len(ids), 0 if row is None else int(table.num_blocks_per_row[row]))
            if len(self._tables) > 1:  # a single table refuses bad ids itself, before anything has changed
                packed(table.expand(ids))

    def add_row(self, block_ids: BlockIdsPerGroup, row: int) -> None:
        """Start a row anew in every group; `CapacityError`, and no group changed, if one has no room."""
        self.check_room(block_ids)
        self.write_row(block_ids, row)

    def write_row(self, block_ids: BlockIdsPerGroup, row: int) -> None:
        """Do `add_row` for a caller that has asked `check_room`."""
        for table, ids in zip(self._tables, block_ids, strict=True):
            table.write_row(ids, row)

    def append_row(self, block_ids: BlockIdsPerGroup, row: int) -> None:
        """Append to a row in every group; `CapacityError`, and no group changed, if one has no room."""
        self.check_room(block_ids, row)
        for table, ids in zip(self._tables, block_ids, strict=True):
            table.append_row(ids, row)

    def clear_row(self, row: int) -> None:
        for table in self._tables:
            table.clear_row(row)

    def move_row(self, source: int, target: int) -> None:
        for table in self._tables:
            table.move_row(source, target)

    def swap_row(self, first: int, second: int) -> None:
        for table in self._tables:
            table.swap_row(first, second)

    def clear(self) -> None:
        """Set every entry of every group to the null block."""
        for table in self._tables:
            table.clear()

    def commit(self, num_reqs: int) -> int:
        """Bring the first ``num_reqs`` rows of every group on the device up to date; return the bytes that crossed."""
        return commit_tables(self._tables, self._sender, num_reqs, self.commit_mode)

    def compute_slot_mapping(
        self, num_reqs: int, query_start_loc: CpuGpuBuffer, positions: CpuGpuBuffer, *, backend: str = "numpy"
    ) -> None:
        """Do `BlockTable.compute_slot_mapping` for every group; with Triton in one launch.

        Parameters
        ----------
        num_reqs : int
        query_start_loc, positions : CpuGpuBuffer
            As there.
        backend : {"numpy", "triton"}
        """
        if backend == "numpy":
            for table in self._tables:
                table.compute_slot_mapping(num_reqs, query_start_loc, positions)
            return
        slot_mappings_triton(
            query_start_loc.gpu[: num_reqs + 1], positions.gpu, self._memory.gpu, self._slot_groups, self._slots.gpu
        )
        num_tokens = int(query_start_loc.np[num_reqs])
        for table in self._tables:
            if not table.spec.has_slots:
                continue  # all PAD, now as before
            table.slots_are_on_device()
            if table.observer is not None:
                slots = tuple(table.slot_mapping.gpu[:num_tokens].tolist())
                table.observer(SlotsComputed(table.group, slots, table.block_size, active_backend().name))
