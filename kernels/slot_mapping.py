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
one program a request and one for padding. That kernel is here too, but the engine runs another: one program for each
tile of tokens, which finds its rows itself, so that a long prompt is not the work of one program; and it does so once
for all KV cache groups, where 0.25.1 launches once a group. In both, padding starts where the live tokens end (0.25.1
starts at the padded count and leaves stale slots between).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend, require_triton

if TYPE_CHECKING:
    import torch

_LANDMARKS = 16
"""Rows whose beginnings a program looks at together, where time is latency."""

_FEW_TOKENS = 2**14
"""Up to so many tokens a launch is over before memory is busy: loads that wait for each other are what counts."""

REQUEST_TILE = 1024
"""Tokens that a program of a request takes at a time, if nothing else is asked for."""

PAD_SLOT_ID = -1
"""The slot of a token that must not be written."""


class SlotGroup(NamedTuple):
    """One KV cache group, as the kernel is told of it when it is compiled.

    Attributes
    ----------
    first_cell : int
        Where its block table begins in the memory that holds all of them.
    columns : int
        The cells from one row of it to the next.
    slot_row : int
        The row of the slot mappings that is its own.
    block_size : int
        Tokens in a block.
    cp_world_size, cp_rank, cp_interleave : int
        As in `slot_mapping_numpy`.
    """

    first_cell: int
    columns: int
    slot_row: int
    block_size: int
    cp_world_size: int = 1
    cp_rank: int = 0
    cp_interleave: int = 1


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
    columns, offsets = np.divmod(positions[:num_tokens], block_size * cp_world_size)  # offsets in the virtual block
    slots = slot_mapping[:num_tokens]
    slots[:] = block_table[rows, columns]  # int64 before anything else: id * size may pass 2^31
    slots *= block_size
    if cp_world_size == 1:
        slots += offsets
    else:
        runs, within = np.divmod(offsets, cp_interleave)
        rounds, rank = np.divmod(runs, cp_world_size)
        slots += rounds * cp_interleave + within
        slots[rank != cp_rank] = PAD_SLOT_ID
    slot_mapping[num_tokens:] = PAD_SLOT_ID


if backend().has_triton:
    import triton
    import triton.language as tl

    from pagedlab.kernels.interpreting import loop_bound

    @triton.jit
    def _slots_of(
        positions,
        rows,
        live,
        block_tables_ptr,
        PAD_ID: tl.constexpr,
        GROUPS: tl.constexpr,  # a tuple of `SlotGroup`
        group: tl.constexpr,
    ):
        """Return a group's slots of tokens at ``positions`` of ``rows``; PAD for those not live or not local."""
        FIRST_CELL: tl.constexpr = GROUPS[group][0]
        COLUMNS: tl.constexpr = GROUPS[group][1]
        BLOCK_SIZE: tl.constexpr = GROUPS[group][3]
        CP_WORLD_SIZE: tl.constexpr = GROUPS[group][4]
        CP_RANK: tl.constexpr = GROUPS[group][5]
        CP_INTERLEAVE: tl.constexpr = GROUPS[group][6]
        places = positions % (BLOCK_SIZE * CP_WORLD_SIZE)  # in the virtual block, which spans all ranks
        local = live & ((places // CP_INTERLEAVE) % CP_WORLD_SIZE == CP_RANK)
        cells = FIRST_CELL + rows.to(tl.int64) * COLUMNS + positions // (BLOCK_SIZE * CP_WORLD_SIZE)
        block_ids = tl.load(block_tables_ptr + cells, mask=local, other=0).to(tl.int64)
        offsets = places // (CP_WORLD_SIZE * CP_INTERLEAVE) * CP_INTERLEAVE + places % CP_INTERLEAVE
        return tl.where(local, block_ids * BLOCK_SIZE + offsets, PAD_ID)

    @triton.jit(do_not_specialize=["num_reqs", "max_num_tokens"])
    def _by_tokens_kernel(
        num_reqs,
        max_num_tokens,
        query_start_loc_ptr,  # [num_reqs + 1] int32
        positions_ptr,  # [max_num_tokens] int64
        block_tables_ptr,  # [cells] int32, the tables of all groups
        slot_mappings_ptr,  # [groups, max_num_tokens] int64
        PAD_ID: tl.constexpr,
        GROUPS: tl.constexpr,
        TILE: tl.constexpr,
        LANDMARKS: tl.constexpr,
        STRIDE: tl.constexpr,
        SEARCH_STEPS: tl.constexpr,
    ):
        """One program a tile of tokens, padding included; each token finds its row, once for all groups."""
        tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
        live = tokens < tl.load(query_start_loc_ptr + num_reqs)
        positions = tl.load(positions_ptr + tokens, mask=live, other=0)

        # The row of a token is the last one that begins at or before it. A few rows, evenly spaced, are looked at
        # together; then a binary search, with the row in [row, high), since each of its loads waits for the one before.
        if LANDMARKS > 0:
            landmarks = tl.arange(0, LANDMARKS) * STRIDE
            begins = tl.load(query_start_loc_ptr + landmarks, mask=landmarks < num_reqs, other=2147483647)
            passed = tl.sum((begins[None, :] <= tokens[:, None]).to(tl.int32), axis=1)
            row = tl.maximum(passed - 1, 0) * STRIDE
            high = tl.minimum(row + STRIDE, num_reqs)
        else:
            row = tl.zeros([TILE], dtype=tl.int32)
            high = row + num_reqs
        for _ in tl.static_range(SEARCH_STEPS):
            middle = (row + high) // 2
            begins_later = tl.load(query_start_loc_ptr + middle) > tokens
            high = tl.where(begins_later, middle, high)
            row = tl.where(begins_later, row, middle)

        for group in tl.static_range(len(GROUPS)):
            slots = _slots_of(positions, row, live, block_tables_ptr, PAD_ID, GROUPS, group)
            own = slot_mappings_ptr + tl.cast(max_num_tokens, tl.int64) * GROUPS[group][2]
            tl.store(own + tokens, slots, mask=tokens < max_num_tokens)

    @triton.jit(do_not_specialize=["max_num_tokens"])
    def _by_requests_kernel(
        max_num_tokens,
        query_start_loc_ptr,  # [num_reqs + 1] int32
        positions_ptr,  # [max_num_tokens] int64
        block_table_ptr,  # [num_reqs, columns] int32
        slot_mapping_ptr,  # [max_num_tokens] int64
        PAD_ID: tl.constexpr,
        GROUPS: tl.constexpr,  # one
        TILE: tl.constexpr,
    ):
        """One program a request, tile after tile of its tokens, and a last one for the padding."""
        row = tl.program_id(0)
        is_request = row < tl.num_programs(0) - 1
        first = tl.load(query_start_loc_ptr + row)
        last = tl.load(query_start_loc_ptr + row + 1, mask=is_request, other=max_num_tokens)
        for tile in range(loop_bound(tl.cdiv(last - first, TILE))):
            tokens = first + tile * TILE + tl.arange(0, TILE)
            live = (tokens < last) & is_request
            positions = tl.load(positions_ptr + tokens, mask=live, other=0)
            slots = _slots_of(positions, row, live, block_table_ptr, PAD_ID, GROUPS, 0)
            tl.store(slot_mapping_ptr + tokens, slots, mask=tokens < last)


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
    programs: str = "tokens",
    tile: int | None = None,
) -> None:
    """Fill ``slot_mapping`` of one group.

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
    programs : {"tokens", "requests"}
        ``"tokens"``: one program for each ``tile`` tokens, padding shared by all. ``"requests"``: one a request and one
        for the padding, as vLLM 0.25.1 has it; a long prompt is then the work of one program.
    tile : int, optional
        Tokens a program handles at a time, a power of two; None: as fits the number of tokens.

    Raises
    ------
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `slot_mapping_numpy`.
    ConfigError
        If ``programs`` is something else.
    """
    group = SlotGroup(0, block_table.stride(0), 0, block_size, cp_world_size, cp_rank, cp_interleave)
    if programs == "tokens":
        slot_mappings_triton(query_start_loc, positions, block_table, (group,), slot_mapping[None], tile=tile)
        return
    if programs != "requests":
        raise ConfigError(f"programs is {programs!r}: give 'tokens' or 'requests'")
    require_triton(slot_mapping, "slot_mapping_numpy")
    launch: Any = _by_requests_kernel[(query_start_loc.shape[0],)]
    tensors = (query_start_loc, positions, block_table, slot_mapping)
    launch(slot_mapping.shape[0], *tensors, PAD_ID=PAD_SLOT_ID, GROUPS=(tuple(group),), TILE=tile or REQUEST_TILE)


def slot_mappings_triton(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_tables: torch.Tensor,
    groups: Sequence[SlotGroup],
    slot_mappings: torch.Tensor,
    *,
    tile: int | None = None,
) -> None:
    """Fill the slot mappings of several groups with one launch.

    Parameters
    ----------
    query_start_loc : Tensor, [num_reqs + 1] int32
    positions : Tensor, [at least query_start_loc[-1]] int64
    block_tables : Tensor, int32
        The memory that holds the block table of every group.
    groups : sequence of SlotGroup
        Whose slot mappings are wanted. Each other sequence compiles a kernel of its own.
    slot_mappings : Tensor, [more than the largest slot_row, max_num_batched_tokens] int64
        Contiguous. The rows of ``groups`` are overwritten from end to end.
    tile : int, optional
        As in `slot_mapping_triton`.

    Raises
    ------
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `slot_mapping_numpy` for each group.
    """
    require_triton(slot_mappings, "slot_mapping_numpy")
    num_reqs = query_start_loc.shape[0] - 1
    max_num_tokens = slot_mappings.shape[1]
    if max_num_tokens == 0 or not groups:
        return
    tile = tile or token_tile(max_num_tokens)
    landmarks = _LANDMARKS if max_num_tokens <= _FEW_TOKENS else 0
    search_steps = (max(1, -(-num_reqs // max(1, landmarks))) - 1).bit_length()
    launch: Any = _by_tokens_kernel[(-(-max_num_tokens // tile),)]
    launch(
        num_reqs,
        max_num_tokens,
        query_start_loc,
        positions,
        block_tables,
        slot_mappings,
        PAD_ID=PAD_SLOT_ID,
        GROUPS=tuple(map(tuple, groups)),
        TILE=tile,
        LANDMARKS=landmarks,
        STRIDE=1 << search_steps,
        SEARCH_STEPS=search_steps,
    )


def token_tile(max_num_tokens: int) -> int:
    """Return how many tokens a program of tokens takes: few where there are few, so that all multiprocessors work.

    >>> token_tile(256), token_tile(2**18)
    (64, 256)
    """
    if max_num_tokens <= _FEW_TOKENS:
        return 64
    return 128 if max_num_tokens < 2**18 else 256
