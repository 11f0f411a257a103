"""Dividing the work of attention: which program attends which queries to which keys.

A request of 131,072 tokens beside 63 of 2,048: if each were the work of one program (for each head), 63 programs would
be done while one is at 2 % of its keys. So requests are cut along their keys, by what there really is to do:

>>> work = divide_work_numpy(query_lens=[1, 1, 1], seq_lens=[4096, 256, 0], keys_per_tile=64, workers=4)
>>> [(item.row, item.split, item.num_splits) for item in work]
[(0, 0, 4), (0, 1, 4), (0, 2, 4), (0, 3, 4), (1, 0, 1), (2, 0, 1)]

The unit is a tile of keys. ``share = all tiles / workers`` is what each worker should do; a request gets as many splits
as it has shares. One that is longer than a share by a quarter or less stays whole: cutting costs a merge. Long queries
(prefills) are cut into tiles of queries as well; each of these is an item of its own.

All of this happens on the device, in each program, from ``query_start_loc`` and ``seq_lens``: the host does not know
them when it replays a CUDA graph. It knows how many items there can be, from shapes alone: a query tile each, and no
more than ``workers`` cuts.

vLLM counterpart: the scheduler metadata of FlashAttention 3 (``vllm/v1/attention/backends/flash_attn.py``), which a
kernel of its own computes before a step. What differs: no step before the kernel, and no buffer to keep.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pagedlab.kernels import backend, power_of_two

ANY_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WorkItem:
    """What one program does (for one KV head).

    Attributes
    ----------
    row : int
        Row of the batch.
    query_tile : int
        Which tile of the row's queries.
    split, num_splits : int
        Which of how many equal parts of the keys that these queries see.
    place : int
        Where the partial result waits to be merged: counts the items of rows that are cut. -1: nothing to merge.
    """

    row: int
    query_tile: int
    split: int
    num_splits: int
    place: int


def divide_work_numpy(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    queries_per_tile: int = 1,
    keys_per_tile: int = 64,
    workers: int = 64,
    above: int = 0,
    up_to: int = ANY_LENGTH,
    window: int = 0,
) -> list[WorkItem]:
    """Return the items of a step, in the order of programs; the reference of `find_work`.

    Parameters
    ----------
    query_lens, seq_lens : sequence of int, [num_reqs]
        Tokens of this step, and of the request after it (on this rank).
    queries_per_tile, keys_per_tile : int
    workers : int
        How many programs (for each KV head) the work should be enough for.
    above, up_to : int
        Rows with ``above < query_len <= up_to`` count; the others are another launch's.
    window : int
        A query sees at most so many keys; 0 for all.
    """
    rows = [row for row, length in enumerate(query_lens) if above < length <= up_to]
    query_tiles = {row: -(-query_lens[row] // queries_per_tile) for row in rows}
    key_tiles = {}
    for row in rows:
        seen = seq_lens[row] if window == 0 else min(seq_lens[row], window + queries_per_tile)
        key_tiles[row] = -(-seen // keys_per_tile)
    cost = sum(query_tiles[row] * key_tiles[row] for row in rows)
    share = max(-(-cost // workers), 1)
    items = []
    place = 0
    for row in rows:
        num_splits = max(1, (4 * key_tiles[row] + 3 * share - 1) // (4 * share))  # ceil(tiles / share - 1/4)
        for query_tile in reversed(range(query_tiles[row])):  # the last tile sees most keys: it begins first
            for split in range(num_splits):
                items.append(WorkItem(row, query_tile, split, num_splits, place if num_splits > 1 else -1))
                place += num_splits > 1
    return items


def max_partials(workers: int) -> int:
    """Return how many items can belong to rows that are cut, at most.

    Such a row has more than 5/4 of a share, and less than ``tiles / share + 3/4`` splits: at most 8/5 for each share.
    """
    return -(-8 * workers // 5)


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How a launch is shaped: tile sizes, and how many programs it should make of the work.

    Attributes
    ----------
    query_rows : int
        Rows of a query tile (tokens times query heads that share a KV head); a power of two.
        For tensor cores 16 or more; 64 or more to use those of Hopper fully.
    keys : int
        Keys of a tile; a power of two, 16 or more.
    programs : int
        Programs that fill the machine; the work is cut for as many.
    num_warps, num_stages : int
        Of the compiled kernel.
    """

    query_rows: int
    keys: int
    programs: int
    num_warps: int
    num_stages: int


@functools.cache
def choose_tiles(itemsize: int, head_dim: int, group: int, *, long: bool, processors: int) -> AttentionTiles:
    """Return the shape of a launch, from shapes alone.

    Parameters
    ----------
    itemsize : int
        Bytes of an element: 2, or 4 for float32.
    head_dim : int
    group : int
        Query heads that share a KV head.
    long : bool
        Whether this launch is for long queries (prefill chunks) rather than short ones (decodes).
    processors : int
        Multiprocessors of the device.
    """
    heads, dims = power_of_two(group), power_of_two(head_dim)
    if not long:
        # Memory is the limit. 32 KB of keys and values a tile and four programs a processor keep it busy: more need
        # registers that are not there, fewer ask for too little at a time.
        rows, keys = max(16, heads), min(max(16384 // (dims * itemsize), 16), 256)
        return AttentionTiles(rows, keys, 4 * processors, num_warps=max(2, rows // 16), num_stages=2)
    # Arithmetic is the limit, and the running sums fill the registers.
    if itemsize == 4 and dims > 128:
        return AttentionTiles(max(32, heads), 16, 2 * processors, num_warps=4, num_stages=2)
    if itemsize == 4:
        return AttentionTiles(max(128, heads), 32, processors, num_warps=8, num_stages=2)
    if dims > 128:
        return AttentionTiles(max(128, heads), 64, processors, num_warps=8, num_stages=2)
    rows = max(64, heads)
    return AttentionTiles(rows, 64, 2 * processors, num_warps=rows // 16, num_stages=3)


if backend().has_triton:
    import triton
    import triton.language as tl

    @triton.jit
    def keys_before(position, CP_WORLD_SIZE: tl.constexpr, CP_RANK: tl.constexpr, CP_INTERLEAVE: tl.constexpr):
        """Return how many of a request's first ``position`` tokens are on this rank; scalar or vector, int32."""
        if CP_WORLD_SIZE == 1:
            return position
        stripe: tl.constexpr = CP_WORLD_SIZE * CP_INTERLEAVE
        rest = position % stripe - CP_RANK * CP_INTERLEAVE
        return position // stripe * CP_INTERLEAVE + tl.minimum(tl.maximum(rest, 0), CP_INTERLEAVE)

    @triton.jit
    def find_work(
        item,
        num_reqs,
        query_start_loc_ptr,  # [num_reqs + 1] int32
        seq_lens_ptr,  # [num_reqs] int32
        workers,
        ROWS: tl.constexpr,  # a power of two, num_reqs or more
        QUERIES_PER_TILE: tl.constexpr,
        KEYS_PER_TILE: tl.constexpr,
        ABOVE: tl.constexpr,
        UP_TO: tl.constexpr,
        WINDOW: tl.constexpr,
        CP_WORLD_SIZE: tl.constexpr,
        CP_RANK: tl.constexpr,
        CP_INTERLEAVE: tl.constexpr,
    ):
        """Return ``(row, query_tile, split, num_splits, place, cut, num_cuts)``; no item: ``row >= num_reqs``.

        ``place`` and ``cut``: how many items that were cut, and how many query tiles that were, come before this one;
        ``num_cuts``: how many query tiles are cut in all.
        """
        rows = tl.arange(0, ROWS)
        inside = rows < num_reqs
        starts = tl.load(query_start_loc_ptr + rows, mask=inside, other=0)
        query_lens = tl.load(query_start_loc_ptr + rows + 1, mask=inside, other=0) - starts
        seen = keys_before(tl.load(seq_lens_ptr + rows, mask=inside, other=0), CP_WORLD_SIZE, CP_RANK, CP_INTERLEAVE)
        if WINDOW > 0:
            seen = tl.minimum(seen, WINDOW + QUERIES_PER_TILE)
        counts = (query_lens > ABOVE) & (query_lens <= UP_TO)
        query_tiles = tl.where(counts, (query_lens + QUERIES_PER_TILE - 1) // QUERIES_PER_TILE, 0)
        key_tiles = (seen + KEYS_PER_TILE - 1) // KEYS_PER_TILE
        cost = tl.sum(query_tiles * key_tiles, 0)
        share = tl.maximum((cost + workers - 1) // workers, 1)
        splits = tl.maximum((4 * key_tiles + 3 * share - 1) // (4 * share), 1)
        items = query_tiles * splits
        row = tl.sum((tl.cumsum(items, 0) <= item).to(tl.int32), 0)  # rows that end at or before this item

        here = rows == row
        num_splits = tl.maximum(tl.sum(tl.where(here, splits, 0), 0), 1)
        before = rows < row
        within = item - tl.sum(tl.where(before, items, 0), 0)  # the how-manieth of its row
        query_tile = tl.sum(tl.where(here, query_tiles, 0), 0) - 1 - within // num_splits
        place = tl.sum(tl.where(before & (splits > 1), items, 0), 0) + within
        cut = tl.sum(tl.where(before & (splits > 1), query_tiles, 0), 0) + within // num_splits
        num_cuts = tl.sum(tl.where(splits > 1, query_tiles, 0), 0)
        return row, query_tile, within % num_splits, num_splits, place, cut, num_cuts
