"""Sending block tables to the device: whole rows, or only the cells that changed.

>>> memory = CpuGpuBuffer((8,), torch.int32, torch.device("cpu"))
>>> sender = CellSender(memory)
>>> memory.np[[1, 6]] = [41, 42]
>>> sender.send(np.array([1, 6]))  # bytes that crossed: where and what, four bytes each
16
>>> memory.gpu.tolist()
[0, 41, 0, 0, 0, 0, 42, 0]

vLLM counterpart: ``BlockTable.commit_block_table`` in ``vllm/v1/worker/block_table.py`` at 0.25.1, which copies every
row in use in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer, Fence
from pagedlab.batch.graphs import record_graph
from pagedlab.errors import ConfigError
from pagedlab.events import BlockTableCommitted, Observer
from pagedlab.kernels import power_of_two
from pagedlab.kernels.commit import commit_numpy, commit_triton

if TYPE_CHECKING:
    from pagedlab.batch.block_table import BlockTable

COMMIT_MODES = ("changed", "full")
"""``"changed"`` sends the cells that changed since the last commit, ``"full"`` whole rows. The tables end up equal."""

BYTES_PER_CELL = 8
"""What a changed cell costs on the way: its place and its value, int32 both."""

MIN_GRAPH_CELLS, MAX_GRAPH_CELLS = 64, 4096
"""Sizes that are sent as CUDA graphs."""

Cells = npt.NDArray[np.int64]
"""Flat indices into a table, ``[num_cells]``."""


def cells_of_spans(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the cells of spans, one after the other.

    >>> cells_of_spans(np.array([10, 40]), np.array([3, 2])).tolist()
    [10, 11, 12, 40, 41]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


class _Staging:
    """A pinned buffer for packed cells, its copy on the device, and the graphs that send it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.buffer = CpuGpuBuffer((size,), torch.int32, device)
        self.fence = Fence(device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}


class CellSender:
    """Packs cells into a pinned buffer, sends it in one copy, and has one kernel write them to their places.

    Parameters
    ----------
    memory : CpuGpuBuffer
        ``[cells]`` int32: all tables, one after the other.
    backend : {"numpy", "triton"} or None
        What writes the cells; None: Triton on a GPU, NumPy elsewhere.

    Notes
    -----
    There are two pinned buffers, used in turn, each with a fence: the copy of a step may still be under way when the
    next step packs its cells.

    On a GPU, copy and kernel are a CUDA graph, since two launches cost the host more than the work costs the device. A
    graph has one size: cells are filled up to the next power of two by repeating the first.
    """

    def __init__(self, memory: CpuGpuBuffer, backend: str | None = None) -> None:
        if backend not in (None, "numpy", "triton") or (backend == "numpy" and memory.gpu.is_cuda):
            raise ConfigError(f"the backend of commits is {backend!r}: give 'triton', or 'numpy' on a CPU, or None")
        self._memory = memory
        self._device = memory.gpu.device
        self._backend = backend or ("triton" if self._device.type == "cuda" else "numpy")
        self._staging = [_Staging(0, self._device) for _ in range(2)]

    def send(self, cells: Cells) -> int:
        """Bring cells to the device; return their bytes (not those that fill up a graph)."""
        num_cells = len(cells)
        if num_cells == 0:
            return 0
        size = num_cells
        if self._device.type == "cuda" and num_cells <= MAX_GRAPH_CELLS:
            size = max(MIN_GRAPH_CELLS, power_of_two(num_cells))
        staging = self._next_staging(2 * size)
        packed = staging.buffer.np
        packed[:num_cells] = cells
        if size > num_cells:
            packed[num_cells:size] = cells[0]
        packed[size : 2 * size] = self._memory.np[packed[:size]]
        if self._device.type == "cuda" and num_cells <= MAX_GRAPH_CELLS:
            self._replay(staging, size)
        else:
            self._write(staging.buffer, size)
        staging.fence.record()
        return num_cells * BYTES_PER_CELL

    def _write(self, buffer: CpuGpuBuffer, size: int) -> None:
        """Copy packed cells to the device and write them to their places."""
        buffer.send(2 * size)
        if self._backend == "numpy" and buffer.gpu_np is not None and self._memory.gpu_np is not None:
            commit_numpy(buffer.gpu_np[: 2 * size].reshape(2, -1), self._memory.gpu_np)
        else:
            commit_triton(buffer.gpu[: 2 * size].view(2, size), self._memory.gpu)

    def _replay(self, staging: _Staging, size: int) -> None:
        """Do `_write` as a graph, recorded when it is first needed."""
        if size not in staging.graphs:
            staging.graphs[size], _ = record_graph(lambda: self._write(staging.buffer, size))
        staging.graphs[size].replay()

    def _next_staging(self, size: int) -> _Staging:
        """Return the buffer that was used longest ago, at least ``size`` int32 long, when its copy has run."""
        staging = self._staging.pop(0)
        staging.fence.wait()
        if len(staging.buffer.np) < size:
            staging = _Staging(power_of_two(size), self._device)
        self._staging.append(staging)
        return staging


def commit_tables(tables: Sequence[BlockTable], sender: CellSender, num_reqs: int, mode: str = "changed") -> int:
    """Bring the first ``num_reqs`` rows of all tables on the device up to date.

    Parameters
    ----------
    tables : sequence of BlockTable
        Their memory lies in the sender's, one after the other.
    sender : CellSender
    num_reqs : int
    mode : {"changed", "full"}
        What is sent. Where most cells have changed, whole rows are sent in either mode: that is fewer bytes.

    Returns
    -------
    int
        The bytes that crossed.

    Raises
    ------
    ConfigError
        If there is no such mode.
    """
    if mode not in COMMIT_MODES:
        raise ConfigError(f"commit mode is {mode!r}: give one of {', '.join(COMMIT_MODES)}")
    to_send: list[Cells] = []
    events: list[tuple[Observer, BlockTableCommitted]] = []
    num_bytes, base = 0, 0
    for table in tables:
        cells = table.take_changed(num_reqs)
        full_bytes = num_reqs * table.num_columns * table.table.np.itemsize
        whole_rows = mode == "full" or len(cells) * BYTES_PER_CELL > full_bytes
        if whole_rows:
            table.table.send(num_reqs)
            num_bytes += full_bytes
        elif len(cells):
            to_send.append(cells + base if base else cells)
        base += table.table.np.size
        if table.observer is not None:
            spans = () if whole_rows else _spans(table, cells)
            sent = full_bytes if whole_rows else len(cells) * BYTES_PER_CELL
            mode_used = "full" if whole_rows else "changed"
            events.append((table.observer, BlockTableCommitted(table.group, num_reqs, sent, mode_used, spans)))
    if to_send:
        num_bytes += sender.send(to_send[0] if len(to_send) == 1 else np.concatenate(to_send))
    for observer, event in events:
        observer(event)
    return num_bytes


def _spans(table: BlockTable, cells: Cells) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return changed cells as (row, first column, entries), neighbours together."""
    ordered = np.unique(cells)
    rows, columns = np.divmod(ordered, table.num_columns)
    breaks = np.flatnonzero((np.diff(ordered) != 1) | (np.diff(rows) != 0)) + 1
    return tuple(
        (int(rows[span[0]]), int(columns[span[0]]), tuple(table.table.np[rows[span], columns[span]].tolist()))
        for span in np.split(np.arange(len(ordered)), breaks)
        if len(span)
    )
