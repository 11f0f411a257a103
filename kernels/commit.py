"""Commit: write changed cells of the block tables into their device copy.

    packed   where | 5   6   21        the flat index of each changed cell
             what  | 42  17  9         what it holds now

A step of decodes changes one cell in one row of sixteen. Sending whole tables moves megabytes to change bytes; here the
host packs the changed cells into one buffer, one copy brings them over, and one kernel writes them to their places.

vLLM counterpart: none in the V1 runner of 0.25.1, whose ``BlockTable.commit_block_table`` copies all rows in use. The
idea is that of ``StagedWriteTensor.apply_write`` of its runner V2 (``vllm/v1/worker/gpu/buffer_utils.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedlab.kernels import backend, require_triton

if TYPE_CHECKING:
    import torch


def commit_numpy(packed: npt.NDArray[np.int32], table: npt.NDArray[np.int32]) -> None:
    """Write changed cells; the reference of `commit_triton`.

    Parameters
    ----------
    packed : ndarray of int32, [2, num_cells]
        Where, and what. A cell may come twice, with the same value.
    table : ndarray of int32, [cells]
        Changed in place.
    """
    where, what = packed
    table[where] = what


if backend().has_triton:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["num_cells"])
    def _commit_kernel(packed_ptr, num_cells, table_ptr, TILE: tl.constexpr):
        """One program a tile of cells."""
        cells = tl.program_id(0) * TILE + tl.arange(0, TILE)
        live = cells < num_cells
        where = tl.load(packed_ptr + cells, mask=live, other=0).to(tl.int64)
        what = tl.load(packed_ptr + num_cells + cells, mask=live, other=0)
        tl.store(table_ptr + where, what, mask=live)


def commit_triton(packed: torch.Tensor, table: torch.Tensor, *, tile: int = 256) -> None:
    """Write changed cells with one launch.

    Parameters
    ----------
    packed : Tensor, [2, num_cells] int32
        Contiguous: where, then what.
    table : Tensor, [cells] int32
        Changed in place.
    tile : int
        Cells a program writes; a power of two.

    Raises
    ------
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `commit_numpy`.
    """
    require_triton(table, "commit_numpy")
    num_cells = packed.shape[1]
    if num_cells == 0:
        return
    launch: Any = _commit_kernel[(-(-num_cells // tile),)]
    launch(packed, num_cells, table, TILE=tile)
