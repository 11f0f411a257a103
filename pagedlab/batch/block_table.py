"""Block tables: for each row, the blocks that hold its tokens; and from them, the slot of each token.

>>> table = BlockTable(
...     TableSpec(block_size=4), max_num_reqs=2, max_model_len=16, max_num_batched_tokens=8, device=torch.device("cpu")
... )
>>> table.add_row([7, 2], row=0)
>>> table.append_row([5], row=0)
>>> table.row(0).tolist()
[7, 2, 5]
>>> table.commit(num_reqs=1), table.device_tensor(1)[:, :4].tolist()  # bytes sent; what kernels see
(24, [[7, 2, 5, 0]])

A row is a growing array inside a fixed one: only its first ``num_blocks_per_row`` entries mean anything, what lies
behind is stale. ``commit`` brings the device, where kernels read, up to date: it sends the cells that changed since the
last commit (`pagedlab.batch.commit`), or whole rows.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``BlockTable``) at 0.25.1. What
differs: an overflow is a `CapacityError` that leaves the row as it was; slot padding starts at
``query_start_loc[num_reqs]``; a moved row leaves nothing behind (as in 0.33.0); a swap exchanges live entries only, so
that its time does not depend on ``max_model_len``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer, rows_as_bytes, swap_prefix
from pagedlab.batch.commit import Cells, CellSender, cells_of_spans, commit_tables
from pagedlab.batch.table_spec import TableSpec
from pagedlab.config import NULL_BLOCK_ID
from pagedlab.errors import CapacityError
from pagedlab.events import Observer, SlotsComputed
from pagedlab.kernels import backend as active_backend
from pagedlab.kernels.slot_mapping import PAD_SLOT_ID, slot_mapping_numpy, slot_mapping_triton

BlockIds = Sequence[int] | npt.NDArray[np.int32]

STALE = -999
"""What poison mode writes wherever nobody may look."""

_BYTES = 4
"""Of an entry."""


class BlockTable:
    """The block table of one KV cache group.

    Parameters
    ----------
    spec : TableSpec
    max_num_reqs, max_model_len, max_num_batched_tokens : int
        Rows; the longest request; the longest step.
    device : torch.device
        Where kernels run.
    group : int
        The KV cache group, for events.
    memory : CpuGpuBuffer, optional
        ``[max_num_reqs, columns]`` int32, part of a larger one that others send; None: the table's own.
    slot_memory : CpuGpuBuffer, optional
        ``[max_num_batched_tokens]`` int64, part of a larger one; None: the table's own.

    Attributes
    ----------
    table : CpuGpuBuffer
        ``[max_num_reqs, columns]`` int32, kernel blocks.
    num_blocks_per_row : numpy.ndarray
        ``[max_num_reqs]`` int32: the live prefix of each row, in kernel blocks.
    slot_mapping : CpuGpuBuffer
        ``[max_num_batched_tokens]`` int64: the slot of each token of this step, then PAD. In a group without slots PAD
        throughout.
    block_size : int
        Tokens in a kernel block: what slots are made of.
    """

    def __init__(
        self,
        spec: TableSpec,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        device: torch.device,
        group: int = 0,
        *,
        memory: CpuGpuBuffer | None = None,
        slot_memory: CpuGpuBuffer | None = None,
    ) -> None:
        self.spec = spec
        self.block_size = spec.kernel_block_size or spec.block_size
        self.blocks_per_kv_block = spec.blocks_per_kv_block
        self.context_parallel = spec.context_parallel
        self.group = group
        self.device = device
        self.observer: Observer | None = None
        columns = spec.columns(max_model_len)
        self.table = memory or CpuGpuBuffer((max_num_reqs, columns), torch.int32, device)
        self.num_columns = columns
        self.num_blocks_per_row = np.zeros(max_num_reqs, dtype=np.int32)
        self.slot_mapping = slot_memory or CpuGpuBuffer((max_num_batched_tokens,), torch.int64, device)
        self.slot_mapping.np[:] = PAD_SLOT_ID
        self.slot_mapping.copy_to_gpu()
        self._num_slots = 0  # behind them the slot mapping is PAD already
        self._cells = self.table.np.reshape(-1)
        # The same memory, for work on one row at a time.
        self._rows = rows_as_bytes(self.table.np)
        self._counts = self.num_blocks_per_row.data
        self._nulls = np.full(columns, NULL_BLOCK_ID, dtype=np.int32).data.cast("B")
        self._sender: CellSender | None = None
        # What the device does not have yet: the first columns of a row, how many; and beside that single cells.
        self._changed_rows: dict[int, int] = {}
        self._changed_cells: list[Cells] = []
        self._null_rows: set[int] = set()  # rows that the device has as padding, whatever the host's row says
        # Columns of a row that were ever written are as many as this says, or as are live now.
        self._extents = [0] * max_num_reqs
        self._cp_arguments: dict[str, Any] = {
            "cp_world_size": self.context_parallel.world_size,
            "cp_rank": self.context_parallel.rank,
            "cp_interleave": self.context_parallel.interleave,
        }

    # --- rows -------------------------------------------------------------------------------------------

    def row(self, row: int) -> npt.NDArray[np.int32]:
        """Return the live prefix of a row (a view)."""
        return self.table.np[row, : self.num_blocks_per_row[row]]

    def append_row(self, block_ids: BlockIds, row: int) -> None:
        """Append blocks to a row.

        Raises
        ------
        CapacityError
            If the row is too short for them; the row is then as it was.
        """
        if len(block_ids):
            start = self._counts[row]
            self.check_room(len(block_ids), start)
            end = self._write(block_ids, row, start)
            if row not in self._changed_rows:
                self._changed_cells.append(np.arange(row * self.num_columns + start, row * self.num_columns + end))
            elif self._changed_rows[row] < end:
                self._changed_rows[row] = end

    def append_each(self, block_ids: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> None:
        """Append one block to each of several rows, at once.

        Parameters
        ----------
        block_ids : ndarray of int32, [n]
            Manager blocks.
        rows : ndarray of int64, [n]
            All different.

        Raises
        ------
        CapacityError
            If a row is full; all rows are then as they were.
        """
        width = self.blocks_per_kv_block
        starts = self.num_blocks_per_row[rows]
        if len(rows) and starts.max() + width > self.num_columns:
            self.check_room(1, int(starts.max()))
        cells = rows * self.num_columns + starts
        if width > 1:
            cells = (cells[:, None] + np.arange(width)).reshape(-1)
        self._cells[cells] = self.expand(block_ids)
        ends = starts + width
        self.num_blocks_per_row[rows] = ends
        self._changed_cells.append(cells)

    def check_room(self, num_blocks: int, num_held: int) -> None:
        """Raise `CapacityError` if a row that holds ``num_held`` kernel blocks cannot take ``num_blocks`` more."""
        if num_held + num_blocks * self.blocks_per_kv_block > self.num_columns:
            raise CapacityError(
                f"a row holds {num_held // self.blocks_per_kv_block} blocks and cannot take {num_blocks} more: the "
                f"table has {self.num_columns // self.blocks_per_kv_block} columns; raise max_model_len"
            )

    def expand(self, block_ids: BlockIds) -> BlockIds:
        """Turn manager blocks into kernel blocks (vLLM: ``map_to_kernel_blocks``)."""
        if self.blocks_per_kv_block == 1:
            return block_ids
        first = np.asarray(block_ids, dtype=np.int64)[:, None] * self.blocks_per_kv_block
        expanded = (first + np.arange(self.blocks_per_kv_block)).reshape(-1)
        if len(expanded) and expanded.max() >= 2**31:
            raise ValueError(f"kernel block {expanded.max()} is more than an int32 holds: use fewer or larger blocks")
        return expanded.astype(np.int32)

    def _write(self, block_ids: BlockIds, row: int, start: int) -> int:
        """Write manager blocks from column ``start`` on, and end the row there; return its end."""
        if self.blocks_per_kv_block > 1:
            block_ids = self.expand(block_ids)
        end = start + len(block_ids)
        self._rows[row][start * _BYTES : end * _BYTES] = packed(block_ids)
        self._counts[row] = end
        return end

    def _changed(self, row: int, end: int) -> None:
        """Remember that the device lacks what now stands in the columns before ``end``."""
        if end > self._changed_rows.get(row, 0):
            self._changed_rows[row] = end

    def add_row(self, block_ids: BlockIds, row: int) -> None:
        """Start a row anew. What lies behind the new entries stays, stale."""
        self.check_room(len(block_ids), 0)
        self.write_row(block_ids, row)

    def write_row(self, block_ids: BlockIds, row: int) -> None:
        """Do `add_row` for a caller that has asked `check_room`."""
        if self._counts[row]:
            self._remember_extent(row)
        self._changed(row, self._write(block_ids, row, 0))

    def _remember_extent(self, row: int) -> None:
        """Keep how far a row was written, before its count is set lower."""
        if self._counts[row] > self._extents[row]:
            self._extents[row] = self._counts[row]

    def clear_row(self, row: int) -> None:
        """Set the live entries to the null block and forget them."""
        num_blocks = self._counts[row]
        num_bytes = num_blocks * _BYTES
        self._rows[row][:num_bytes] = self._nulls[:num_bytes]
        self._remember_extent(row)
        self._counts[row] = 0
        self._changed(row, num_blocks)

    def move_row(self, source: int, target: int) -> None:
        """Copy the live entries of ``source`` to ``target`` and clear ``source``."""
        if source == target:
            return
        num_blocks = self._counts[source]
        num_bytes = num_blocks * _BYTES
        self._rows[target][:num_bytes] = self._rows[source][:num_bytes]
        self._remember_extent(target)
        self._counts[target] = num_blocks
        self._changed(target, num_blocks)
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        """Exchange the live entries of two rows."""
        counts = self._counts
        of_first, of_second = counts[first], counts[second]
        counts[first], counts[second] = of_second, of_first
        longest = of_first if of_first > of_second else of_second
        swap_prefix(self._rows, first, second, longest * _BYTES)
        changed = self._changed_rows
        for row in (first, second):
            if changed.get(row, 0) < longest:
                changed[row] = longest
        if of_first != of_second:  # one of them may now reach further than ever
            self._extents[first] = max(self._extents[first], longest)
            self._extents[second] = max(self._extents[second], longest)

    def clear(self) -> None:
        """Set every entry to the null block, on the host and on the device. Counts stay, as in vLLM."""
        self.table.np[:] = NULL_BLOCK_ID
        self.table.gpu.zero_()
        self._changed_rows.clear()
        self._changed_cells.clear()

    def poison(self) -> None:
        """Overwrite every stale entry with `STALE`: nobody may look at it, so nothing may change."""
        for row, num_blocks in enumerate(self.num_blocks_per_row.tolist()):
            self.table.np[row, num_blocks:] = STALE
            self._changed(row, self.num_columns)
        self._extents = [self.num_columns] * len(self._extents)
        self.slot_mapping.np[:] = self.slot_mapping.gpu[:] = STALE
        self._num_slots = len(self.slot_mapping.np)

    # --- device -----------------------------------------------------------------------------------------

    def commit(self, num_reqs: int, mode: str = "changed") -> int:
        """Bring the first ``num_reqs`` rows on the device up to date; return the bytes that crossed."""
        self._sender = self._sender or CellSender(self.table.part(0, (self._cells.size,)))
        return commit_tables([self], self._sender, num_reqs, mode)

    def pending_cells(self, num_reqs: int) -> Cells:
        """Return the cells of the first ``num_reqs`` rows that the device lacks, each once or more."""
        cells = self._all_of([*self._changed_cells, self._cells_of_rows(num_reqs)])
        return cells[cells < num_reqs * self.num_columns]

    def take_changed(self, num_reqs: int) -> Cells:
        """Return the `pending_cells`, and count them as sent; rows that are not in use now wait."""
        cells = self._all_of(self._changed_cells)
        self._changed_cells = []
        end_of_use = num_reqs * self.num_columns
        if len(cells) and cells.max() >= end_of_use:  # appended, and then the row fell out of use: it waits as a row
            in_use = cells < end_of_use
            for row, column in zip(*np.divmod(cells[~in_use], self.num_columns), strict=True):
                self._changed(int(row), int(column) + 1)
            cells = cells[in_use]
        if self._changed_rows:
            cells = self._all_of([cells, self._cells_of_rows(num_reqs)])
            self._changed_rows = {row: end for row, end in self._changed_rows.items() if row >= num_reqs}
        if self._null_rows:
            self._null_rows = {row for row in self._null_rows if row >= num_reqs}
        return cells

    def _cells_of_rows(self, num_reqs: int) -> Cells:
        """Return the cells of changed rows that are in use."""
        changed = [(row, end) for row, end in self._changed_rows.items() if row < num_reqs]
        if not changed:
            return np.empty(0, dtype=np.int64)
        rows, ends = np.array(changed, dtype=np.int64).T
        return cells_of_spans(rows * self.num_columns, ends)

    @staticmethod
    def _all_of(parts: list[Cells]) -> Cells:
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def pad_rows(self, num_reqs: int, num_reqs_padded: int) -> None:
        """Let the rows behind the live ones name the null block, on the device; the host's rows stay.

        A row is nulled once and then left alone until it is in use again.
        """
        fresh = [row for row in range(num_reqs, num_reqs_padded) if row not in self._null_rows]
        if fresh:
            self.table.gpu[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)
            self._null_rows.update(fresh)
            for row in fresh:
                self._changed(row, max(self._extents[row], self._counts[row]))

    def device_tensor(self, num_reqs: int) -> torch.Tensor:
        """Return the first ``num_reqs`` rows on the device, ``[num_reqs, columns]`` int32."""
        return self.table.gpu[:num_reqs]

    def compute_slot_mapping(
        self,
        num_reqs: int,
        query_start_loc: CpuGpuBuffer,
        positions: CpuGpuBuffer,
        *,
        backend: str = "numpy",
        programs: str = "tokens",
    ) -> None:
        """Compute the slot of every token of this step; everything behind becomes PAD.

        Parameters
        ----------
        num_reqs : int
            Live rows.
        query_start_loc : CpuGpuBuffer
            ``[at least num_reqs + 1]`` int32: where each row's tokens begin.
        positions : CpuGpuBuffer
            ``[max_num_batched_tokens]`` int64: the position of each token in its request.
        backend : {"numpy", "triton"}
            NumPy reads the host arrays and sends the result; Triton reads what is on the device already.
        programs : {"tokens", "requests"}
            What a program of the Triton kernel takes, as `slot_mapping_triton` says.

        Notes
        -----
        vLLM: ``BlockTable.compute_slot_mapping`` and ``_compute_slot_mapping_kernel``.
        """
        num_tokens = int(query_start_loc.np[num_reqs])
        if not self.spec.has_slots:
            self._pad_slots(0)
        elif backend == "numpy":
            # What is PAD already need be neither written nor sent again.
            length = max(num_tokens, self._num_slots)
            slot_mapping_numpy(
                query_start_loc.np[: num_reqs + 1],
                positions.np,
                self.table.np[:num_reqs],
                self.block_size,
                self.slot_mapping.np[:length],
                **self._cp_arguments,
            )
            self.slot_mapping.send(length)
            self._num_slots = num_tokens
        else:
            slot_mapping_triton(
                query_start_loc.gpu[: num_reqs + 1],
                positions.gpu,
                self.table.gpu[:num_reqs],
                self.block_size,
                self.slot_mapping.gpu,
                programs=programs,
                **self._cp_arguments,
            )
            self.slots_are_on_device()
        if self.observer is not None and self.spec.has_slots:
            slots = tuple(self.slot_mapping.gpu[:num_tokens].tolist())
            tier = backend if backend == "numpy" else active_backend().name
            self.observer(SlotsComputed(self.group, slots, self.block_size, tier))

    def slots_are_on_device(self) -> None:
        """A kernel has written the slot mapping: what the host's array holds is not known."""
        self._num_slots = len(self.slot_mapping.np)

    def _pad_slots(self, num_slots: int) -> None:
        """Make everything PAD from ``num_slots`` on."""
        if self._num_slots > num_slots:
            self.slot_mapping.np[num_slots : self._num_slots] = PAD_SLOT_ID
            self.slot_mapping.send(self._num_slots)
            self._num_slots = num_slots


_int32s = functools.lru_cache(maxsize=None)(lambda length: struct.Struct(f"{length}i"))


def packed(block_ids: BlockIds) -> bytes:
    """Return block ids as int32, side by side; `ValueError` if one is not."""
    try:
        return _int32s(len(block_ids)).pack(*block_ids)
    except struct.error as error:
        raise ValueError(f"block ids are whole numbers below 2^31, and {list(block_ids)} are not") from error
