"""Slot mapping: where in KV memory each token of a step belongs.

>>> slots = np.empty(6, dtype=np.int64)
>>> slot_mapping_numpy(
...     query_start_loc=np.array([0, 3, 4]),  # row 0 has tokens 0..2, row 1 has token 3
...     positions=np.array([2, 3, 4, 8, 0, 0]),  # their positions in their requests; the rest is unused
...     block_table=np.array([[7, 2, 0], [5, 1, 4]]),
...     block_size=4,
...     slot_mapping=slots,
... )
>>> slots.tolist()
[30, 31, 8, 16, -1, -1]

``slot = block_table[row, position // block_size] * block_size + position % block_size``, and PAD for every entry
from ``query_start_loc[num_reqs]`` on. PAD itself is never divided: in Python ``-1 // 4`` is -1, in Triton it is 0.

vLLM counterpart: ``_compute_slot_mapping_kernel`` in ``vllm/v1/worker/block_table.py`` at 0.25.1. What differs: it runs
one program a request and one for padding; we run one for each tile of tokens, which finds its rows by binary search,
so that a long prompt is not the work of one program. Padding starts where the live tokens end (0.25.1 starts at the
padded count and leaves stale slots between).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedlab.kernels import backend

if TYPE_CHECKING:
    import torch

PAD_SLOT_ID = -1
"""The slot of a token that must not be written."""


def slot_mapping_numpy(
    query_start_loc: npt.NDArray[np.integer],
    positions: npt.NDArray[np.integer],
    block_table: npt.NDArray[np.integer],
    block_size: int,
    slot_mapping: npt.NDArray[np.int64],
    *,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
) -> None:
    """Fill ``slot_mapping``; the reference of `slot_mapping_triton`.

    Parameters
    ----------
    query_start_loc : ndarray of int, [num_reqs + 1]
        Where each row's tokens begin; non-decreasing; the last entry is the number of live tokens.
    positions : ndarray of int, [at least query_start_loc[-1]]
        Each token's position in its request.
    block_table : ndarray of int, [num_reqs, columns]
        Block ids of each row.
    block_size : int
        Tokens in a block.
    slot_mapping : ndarray of int64, [max_num_batched_tokens]
        Overwritten from end to end.
    cp_world_size, cp_rank, cp_interleave : int
        Context parallelism: a block spans ``block_size * cp_world_size`` tokens of a request, of which this rank keeps
        every ``cp_world_size``-th run of ``cp_interleave``; tokens of other ranks get PAD.
    """
    num_tokens = int(query_start_loc[-1])
    rows = np.repeat(np.arange(len(block_table)), np.diff(query_start_loc))  # [num_tokens]
    columns, places = np.divmod(positions[:num_tokens], block_size * cp_world_size)  # places in the virtual block
    runs, within = np.divmod(places, cp_interleave)
    rounds, rank = np.divmod(runs, cp_world_size)
    block_ids = block_table[rows, columns].astype(np.int64)  # int64 first: id * size may pass 2^31
    slots = block_ids * block_size + rounds * cp_interleave + within
    slot_mapping[:num_tokens] = np.where(rank == cp_rank, slots, PAD_SLOT_ID)
    slot_mapping[num_tokens:] = PAD_SLOT_ID


if backend().has_triton:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["num_reqs", "max_num_tokens"])
    def _slot_mapping_kernel(
        num_reqs,
        max_num_tokens,
        query_start_loc_ptr,  # [num_reqs + 1] int32
        positions_ptr,  # [max_num_tokens] int64
        block_table_ptr,  # [num_reqs, block_table_stride] int32
        block_table_stride,
        slot_mapping_ptr,  # [max_num_tokens] int64
        BLOCK_SIZE: tl.constexpr,
        PAD_ID: tl.constexpr,
        CP_WORLD_SIZE: tl.constexpr,
        CP_RANK: tl.constexpr,
        CP_INTERLEAVE: tl.constexpr,
        TILE: tl.constexpr,
        SEARCH_STEPS: tl.constexpr,
    ):
        """One program a tile of tokens, padding included; each token finds its row."""
        tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
        live = tokens < tl.load(query_start_loc_ptr + num_reqs)

        # The row of a token is the last one that begins at or before it. Invariant: it is in [low, high).
        low = tl.zeros([TILE], dtype=tl.int32)
        high = low + num_reqs
        for _ in tl.static_range(SEARCH_STEPS):
            middle = (low + high) // 2
            begins_later = tl.load(query_start_loc_ptr + middle, mask=live, other=0) > tokens
            high = tl.where(begins_later, middle, high)
            low = tl.where(begins_later, low, middle)

        positions = tl.load(positions_ptr + tokens, mask=live, other=0)
        places = positions % (BLOCK_SIZE * CP_WORLD_SIZE)  # in the virtual block, which spans all ranks
        local = live & ((places // CP_INTERLEAVE) % CP_WORLD_SIZE == CP_RANK)
        cells = low.to(tl.int64) * block_table_stride + positions // (BLOCK_SIZE * CP_WORLD_SIZE)
        block_ids = tl.load(block_table_ptr + cells, mask=local, other=0).to(tl.int64)
        offsets = places // (CP_WORLD_SIZE * CP_INTERLEAVE) * CP_INTERLEAVE + places % CP_INTERLEAVE
        slots = tl.where(local, block_ids * BLOCK_SIZE + offsets, PAD_ID)
        tl.store(slot_mapping_ptr + tokens, slots, mask=tokens < max_num_tokens)


def slot_mapping_triton(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    *,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
    tile: int = 128,
) -> None:
    """Fill ``slot_mapping`` with one launch: one program for each ``tile`` tokens, padding shared by all.

    Parameters
    ----------
    query_start_loc : Tensor, [num_reqs + 1] int32
    positions : Tensor, [at least query_start_loc[-1]] int64
    block_table : Tensor, [num_reqs, columns] int32
        Rows may be part of a wider tensor; entries of a row lie side by side.
    block_size : int
    slot_mapping : Tensor, [max_num_batched_tokens] int64
        Overwritten from end to end.
    cp_world_size, cp_rank, cp_interleave : int
        As in `slot_mapping_numpy`.
    tile : int
        Tokens a program handles at a time; a power of two.

    Raises
    ------
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `slot_mapping_numpy`.
    """
    tier = backend()
    if not tier.has_triton:
        raise RuntimeError(f"the Triton kernel cannot run here: {tier.reason}; use slot_mapping_numpy")
    if tier.name == "cuda" and not slot_mapping.is_cuda:
        raise RuntimeError(
            "the compiled Triton kernel cannot read CPU tensors: use slot_mapping_numpy, or set TRITON_INTERPRET=1"
        )
    num_reqs = query_start_loc.shape[0] - 1
    max_num_tokens = slot_mapping.shape[0]
    if max_num_tokens == 0:
        return
    launch: Any = _slot_mapping_kernel[(-(-max_num_tokens // tile),)]
    launch(
        num_reqs,
        max_num_tokens,
        query_start_loc,
        positions,
        block_table,
        block_table.stride(0),
        slot_mapping,
        BLOCK_SIZE=block_size,
        PAD_ID=PAD_SLOT_ID,
        CP_WORLD_SIZE=cp_world_size,
        CP_RANK=cp_rank,
        CP_INTERLEAVE=cp_interleave,
        TILE=tile,
        SEARCH_STEPS=num_reqs.bit_length(),
    )
