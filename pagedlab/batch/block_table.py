"""Block tables: for each row, the blocks that hold its tokens; and from them, the slot of each token.

>>> table = BlockTable(
...     block_size=4, max_num_reqs=2, max_num_blocks_per_req=4, max_num_batched_tokens=8, device=torch.device("cpu")
... )
>>> table.add_row([7, 2], row=0)
>>> table.append_row([5], row=0)
>>> table.row(0).tolist()
[7, 2, 5]
>>> table.commit(num_reqs=1), table.device_tensor(1).tolist()  # bytes sent; what kernels see
(16, [[7, 2, 5, 0]])

A row is a growing array inside a fixed one: only its first ``num_blocks_per_row`` entries mean anything, what lies
behind is stale. ``commit`` sends rows to the device, where kernels read them.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``BlockTable``, ``MultiGroupBlockTable``) at 0.25.1. What
differs: an overflow is a `CapacityError` that leaves the row as it was; slot padding starts at
``query_start_loc[num_reqs]``; a moved row leaves nothing behind (as in 0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer
from pagedlab.batch.context_parallel import ContextParallel
from pagedlab.config import NULL_BLOCK_ID
from pagedlab.errors import CapacityError, ConfigError
from pagedlab.events import BlockTableCommitted, Observer, SlotsComputed
from pagedlab.kernels import backend as active_backend
from pagedlab.kernels.slot_mapping import slot_mapping_numpy, slot_mapping_triton

BlockIds = Sequence[int] | npt.NDArray[np.int32]
BlockIdsPerGroup = Sequence[Sequence[int]]

_WIDTH_ALIGNMENT_TOKENS = 128
"""Some attention kernels read a row of the table in pieces of this many tokens."""


def aligned_width(max_model_len: int, block_size: int) -> int:
    """Return the columns of a block table: enough for ``max_model_len``, rounded up to 128 tokens.

    >>> aligned_width(max_model_len=72, block_size=4)
    32
    """
    num_blocks = -(-max_model_len // block_size)
    alignment = max(1, _WIDTH_ALIGNMENT_TOKENS // block_size)
    return -(-num_blocks // alignment) * alignment


class BlockTable:
    """The block table of one KV cache group.

    Parameters
    ----------
    block_size : int
        Tokens in a block of the KV cache manager.
    max_num_reqs, max_num_blocks_per_req : int
        Rows, and manager blocks in a row.
    max_num_batched_tokens : int
        Length of the slot mapping.
    device : torch.device
        Where kernels run.
    group : int
        The KV cache group, for events.
    kernel_block_size : int, optional
        Tokens in a block as the attention kernel knows it; must divide ``block_size``. Each manager block is then
        ``block_size / kernel_block_size`` blocks of the kernel, side by side, in the table and in the slots.
    context_parallel : ContextParallel, optional
        This rank's part of the tokens; None: all.

    Raises
    ------
    ConfigError
        If ``kernel_block_size`` does not divide ``block_size``.

    Attributes
    ----------
    table : CpuGpuBuffer
        ``[max_num_reqs, max_num_blocks_per_req]`` int32.
    num_blocks_per_row : numpy.ndarray
        ``[max_num_reqs]`` int32: the live prefix of each row.
    slot_mapping : CpuGpuBuffer
        ``[max_num_batched_tokens]`` int64: the slot of each token of this step, then PAD.
    """

    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks_per_req: int,
        max_num_batched_tokens: int,
        device: torch.device,
        group: int = 0,
        *,
        kernel_block_size: int | None = None,
        context_parallel: ContextParallel | None = None,
    ) -> None:
        kernel_block_size = kernel_block_size or block_size
        if block_size % kernel_block_size:
            raise ConfigError(
                f"a kernel's blocks of {kernel_block_size} tokens do not fill a block of {block_size} evenly: "
                "kernel_block_size must divide block_size"
            )
        self.block_size = kernel_block_size
        self.blocks_per_kv_block = block_size // kernel_block_size
        self.context_parallel = context_parallel or ContextParallel()
        max_num_blocks_per_req *= self.blocks_per_kv_block
        self.group = group
        self.device = device
        self.observer: Observer | None = None
        self.table = CpuGpuBuffer((max_num_reqs, max_num_blocks_per_req), torch.int32, device)
        self.num_blocks_per_row = np.zeros(max_num_reqs, dtype=np.int32)
        self.slot_mapping = CpuGpuBuffer((max_num_batched_tokens,), torch.int64, device)
        self._cp_arguments = {
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
        self.check_room(len(block_ids), int(self.num_blocks_per_row[row]), row)
        if self.blocks_per_kv_block > 1:
            block_ids = self._expand(block_ids)
        self._append(block_ids, row)

    def check_room(self, num_blocks: int, num_held: int, row: int) -> None:
        """Raise `CapacityError` if a row that holds ``num_held`` kernel blocks cannot take ``num_blocks`` more."""
        columns = self.table.np.shape[1]
        if num_held + num_blocks * self.blocks_per_kv_block > columns:
            raise CapacityError(
                f"row {row} holds {num_held // self.blocks_per_kv_block} blocks and cannot take {num_blocks} more: "
                f"the table has {columns // self.blocks_per_kv_block} columns; raise max_model_len"
            )

    def _expand(self, block_ids: BlockIds) -> npt.NDArray[np.int32]:
        """Return the kernel's blocks of manager blocks: ``b`` becomes ``b * r, ..., b * r + r - 1``."""
        first = np.asarray(block_ids, dtype=np.int32) * np.int32(self.blocks_per_kv_block)
        expanded: npt.NDArray[np.int32] = np.add.outer(first, np.arange(self.blocks_per_kv_block, dtype=np.int32))
        return expanded.reshape(-1)

    def _append(self, block_ids: BlockIds, row: int) -> None:
        start = int(self.num_blocks_per_row[row])
        end = start + len(block_ids)
        self.table.np[row, start:end] = block_ids
        self.num_blocks_per_row[row] = end

    def add_row(self, block_ids: BlockIds, row: int) -> None:
        """Start a row anew. What lies behind the new entries stays, stale."""
        self.check_room(len(block_ids), 0, row)
        self.num_blocks_per_row[row] = 0
        self.append_row(block_ids, row)

    def clear_row(self, row: int) -> None:
        """Set the live entries to the null block and forget them."""
        self.row(row)[:] = NULL_BLOCK_ID
        self.num_blocks_per_row[row] = 0

    def move_row(self, source: int, target: int) -> None:
        """Copy the live entries of ``source`` to ``target`` and clear ``source``."""
        self.num_blocks_per_row[target] = 0
        self._append(self.row(source), target)  # kernel blocks already
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        """Exchange two whole rows."""
        pair, reverse = [first, second], [second, first]
        self.table.np[pair] = self.table.np[reverse]
        self.num_blocks_per_row[pair] = self.num_blocks_per_row[reverse]

    # --- device -----------------------------------------------------------------------------------------

    def commit(self, num_reqs: int) -> int:
        """Send the first ``num_reqs`` rows to the device; return the bytes that crossed."""
        self.table.copy_to_gpu(num_reqs)
        num_bytes = self.table.np[:num_reqs].nbytes
        if self.observer is not None:
            self.observer(BlockTableCommitted(self.group, num_reqs, num_bytes))
        return num_bytes

    def device_tensor(self, num_reqs: int) -> torch.Tensor:
        """Return the first ``num_reqs`` rows on the device, ``[num_reqs, columns]`` int32."""
        return self.table.gpu[:num_reqs]

    def compute_slot_mapping(
        self, num_reqs: int, query_start_loc: CpuGpuBuffer, positions: CpuGpuBuffer, *, backend: str = "numpy"
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

        Notes
        -----
        vLLM: ``BlockTable.compute_slot_mapping`` and ``_compute_slot_mapping_kernel``.
        """
        if backend == "numpy":
            slot_mapping_numpy(
                query_start_loc.np[: num_reqs + 1],
                positions.np,
                self.table.np[:num_reqs],
                self.block_size,
                self.slot_mapping.np,
                **self._cp_arguments,
            )
            self.slot_mapping.copy_to_gpu()
        else:
            slot_mapping_triton(
                query_start_loc.gpu[: num_reqs + 1],
                positions.gpu,
                self.table.gpu[:num_reqs],
                self.block_size,
                self.slot_mapping.gpu,
                **self._cp_arguments,
            )
        if self.observer is not None:
            num_tokens = int(query_start_loc.np[num_reqs])
            slots = tuple(self.slot_mapping.gpu[:num_tokens].tolist())
            tier = backend if backend == "numpy" else active_backend().name
            self.observer(SlotsComputed(self.group, slots, self.block_size, tier))


class MultiGroupBlockTable:
    """One `BlockTable` per KV cache group; every row operation is done in all of them.

    Parameters
    ----------
    block_sizes : sequence of int
        Tokens in a block, per group.
    max_num_reqs, max_model_len, max_num_batched_tokens : int
        Rows; the longest request; the longest step.
    device : torch.device
    """

    def __init__(
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        device: torch.device,
    ) -> None:
        self._tables = tuple(
            BlockTable(
                block_size,
                max_num_reqs,
                aligned_width(max_model_len, block_size),
                max_num_batched_tokens,
                device,
                group,
            )
            for group, block_size in enumerate(block_sizes)
        )

    def __getitem__(self, group: int) -> BlockTable:
        return self._tables[group]

    def __iter__(self) -> Iterator[BlockTable]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def add_row(self, block_ids: BlockIdsPerGroup, row: int) -> None:
        """Start a row anew in every group; `CapacityError`, and no group changed, if one has no room."""
        for table, ids in self._with_groups(block_ids):
            table.check_room(len(ids), 0, row)
        for table, ids in self._with_groups(block_ids):
            table.add_row(ids, row)

    def append_row(self, block_ids: BlockIdsPerGroup, row: int) -> None:
        """Append to a row in every group; `CapacityError`, and no group changed, if one has no room."""
        for table, ids in self._with_groups(block_ids):
            table.check_room(len(ids), int(table.num_blocks_per_row[row]), row)
        for table, ids in self._with_groups(block_ids):
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

    def commit(self, num_reqs: int) -> int:
        """Send the first ``num_reqs`` rows of every group; return the bytes that crossed."""
        num_bytes = 0
        for table in self._tables:
            num_bytes += table.commit(num_reqs)
        return num_bytes

    def _with_groups(self, block_ids: BlockIdsPerGroup) -> Iterator[tuple[BlockTable, Sequence[int]]]:
        if len(block_ids) != len(self._tables):
            raise ValueError(f"block ids for {len(block_ids)} groups were given, and there are {len(self._tables)}")
        return zip(self._tables, block_ids, strict=True)
