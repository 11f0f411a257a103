"""Paged attention: each new token attends to its request's keys and values, wherever in KV memory their blocks lie.

>>> import torch
>>> keys = torch.tensor([[0.0], [0.0], [9.0], [0.0], [5.0], [0.0]]).view(6, 1, 1)  # 3 blocks of 2 slots, head size 1
>>> values = 10 * torch.arange(6.0).view(6, 1, 1)
>>> output = torch.empty(1, 1, 1)
>>> paged_attention_torch(
...     torch.zeros(1, 1, 1),  # a query that likes all keys equally
...     keys,
...     values,
...     query_start_loc=torch.tensor([0, 1]),
...     seq_lens=torch.tensor([3]),  # the request's third token
...     block_table=torch.tensor([[2, 0]]),  # tokens 0 and 1 are in block 2, token 2 is in block 0
...     block_size=2,
...     output=output,
... )
>>> output.item()  # the mean of values 4, 5 and 0
30.0

Prefill chunks and decodes are computed in one batch. A program takes one KV head, a tile of queries (all query heads
that share the KV head lie in one tile, so that keys are read once for them) and a stretch of keys, tile after tile,
with the running softmax: the highest score so far, the sum of exponentials relative to it, and the weighted sum of
values. `pagedlab.kernels.attention_work` says who takes what; requests that were cut are merged by a second kernel.

Short queries (decodes, a few drafted tokens) and long ones (prefill chunks) want different tiles: memory is the limit
of the first, arithmetic of the second. A batch that can have both takes a launch for each.

vLLM counterpart: the unified attention kernel, ``vllm/v1/attention/ops/triton_unified_attention.py``. What differs: how
requests are split is decided on the device by actual lengths, for each request on its own, not for the whole batch by
the host; decodes beside a chunk are split as well; ranks of context parallelism see their part of the keys.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend, power_of_two, require_triton
from pagedlab.kernels.attention_work import (
    ANY_LENGTH,
    AttentionTiles,
    choose_tiles,
    max_partials,
)

if TYPE_CHECKING:
    import torch

if backend().has_triton:
    from pagedlab.kernels.paged_attention_kernels import merge_splits_kernel, paged_attention_kernel

MAX_HEAD_DIM = 256
INTERPRETED_PROCESSORS = 4
"""Multiprocessors of the interpreter, as if: enough that requests are cut."""


def paged_attention_torch(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    output: torch.Tensor,
    *,
    lse: torch.Tensor | None = None,
    scale: float | None = None,
    sliding_window: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
) -> None:
    """Attend token by token, computing in float64; the reference of `paged_attention_triton`.

    Parameters
    ----------
    query : Tensor, [num_tokens, num_heads, head_dim]
    key_cache, value_cache : Tensor, [num_slots, num_kv_heads, head_dim]
        ``num_heads`` is a multiple of ``num_kv_heads``: neighbouring query heads share a KV head.
    query_start_loc : Tensor, [num_reqs + 1] int32
        Where each row's tokens begin in ``query``; what is behind the last is padding.
    seq_lens : Tensor, [num_reqs] int32
        Tokens of each request after this step; its last ``query_len`` are in ``query``, and their keys in the cache.
    block_table : Tensor, [num_reqs, columns] int32
        Block ids of each row. What is behind a request's last block is never looked at.
    block_size : int
        Tokens in a block (on each rank).
    output : Tensor, [num_tokens, num_heads, head_dim]
        Overwritten from end to end; zeros for padding and for queries that see no key.
    lse : Tensor, [num_tokens, num_heads], optional
        Overwritten with the log of the sum of exponentiated scores, -inf where there are none: what
        `merge_attention_states_torch` needs.
    scale : float, optional
        Scores are multiplied by it; by default ``head_dim ** -0.5``.
    sliding_window : int, optional
        A query sees its own token and the ``sliding_window - 1`` before it.
    cp_world_size, cp_rank, cp_interleave : int
        Context parallelism, as in `slot_mapping_numpy`: only this rank's keys are here, though ``seq_lens`` counts all.
        ``block_size`` is a multiple of ``cp_interleave``.
    """
    import torch

    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key_cache.shape[1]
    output.zero_()
    if lse is not None:
        lse.fill_(-torch.inf)
    starts = query_start_loc.tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        positions = torch.arange(seq_len, device=query.device)
        positions = positions[positions // cp_interleave % cp_world_size == cp_rank]  # whose keys are here
        columns, places = positions // (block_size * cp_world_size), positions % (block_size * cp_world_size)
        offsets = places // (cp_world_size * cp_interleave) * cp_interleave + places % cp_interleave
        slots = block_table[row, columns].long() * block_size + offsets
        keys = key_cache[slots].double().repeat_interleave(group, dim=1)  # [keys here, num_heads, head_dim]
        values = value_cache[slots].double().repeat_interleave(group, dim=1)
        for token in range(starts[row], starts[row + 1]):
            position = seq_len - (starts[row + 1] - token)
            seen = positions <= position
            if sliding_window is not None:
                seen &= positions > position - sliding_window
            if not seen.any():
                continue
            scores = torch.einsum("hd,khd->hk", query[token].double(), keys[seen]) * scale
            output[token] = torch.einsum("hk,khd->hd", scores.softmax(dim=1), values[seen])
            if lse is not None:
                lse[token] = scores.logsumexp(dim=1)


def paged_attention_triton(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    output: torch.Tensor,
    *,
    max_query_len: int,
    lse: torch.Tensor | None = None,
    scale: float | None = None,
    sliding_window: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
    short: AttentionTiles | None = None,
    long: AttentionTiles | None = None,
) -> None:
    """Attend with two launches for decodes (attention, merge of splits), four where prefill chunks may be among them.

    Nothing is read back by the host, and grids depend on shapes and ``max_query_len`` only: a CUDA graph of this call
    is right for any contents of its tensors.

    Parameters
    ----------
    query : Tensor, [num_tokens, num_heads, head_dim] float16, bfloat16 or float32
        Tokens may be apart (a part of a wider tensor); the heads of a token lie side by side.
    key_cache, value_cache : Tensor, [num_slots, num_kv_heads, head_dim], of the same dtype
        ``num_heads`` is a multiple of ``num_kv_heads``, ``head_dim`` at most 256.
    query_start_loc : Tensor, [num_reqs + 1] int32
    seq_lens : Tensor, [num_reqs] int32
    block_table : Tensor, [num_reqs, columns] int32
        Rows may be part of a wider tensor; entries of a row lie side by side.
    block_size : int
    output : Tensor, [num_tokens, num_heads, head_dim], of the same dtype
        Overwritten from end to end; zeros for padding and for queries that see no key.
    max_query_len : int
        No row has more tokens in this step.
    lse : Tensor, [num_tokens, num_heads] float32, optional
        Overwritten, -inf where there is no key.
    scale : float, optional
        By default ``head_dim ** -0.5``.
    sliding_window : int, optional
        At least 1. Not together with context parallelism, which leaves such layers whole on each rank.
    cp_world_size, cp_rank, cp_interleave : int
        As in `paged_attention_torch`.
    short, long : AttentionTiles, optional
        The launches for short and long queries; by default what `choose_tiles` says.

    Raises
    ------
    ConfigError
        If the tensors or settings do not fit together; nothing has been written.
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `paged_attention_torch`.
    """
    import torch

    require_triton(output, "paged_attention_torch")
    _check(query, key_cache, value_cache, query_start_loc, seq_lens, block_table, output, lse)
    if sliding_window is not None and (sliding_window < 1 or cp_world_size > 1):
        raise ConfigError(
            f"a sliding window is 1 token or more, and on one rank; given {sliding_window} on {cp_world_size} ranks"
        )
    if block_size % cp_interleave:
        raise ConfigError(f"a block must be a multiple of the interleave; given {block_size} and {cp_interleave}")
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    num_reqs = seq_lens.shape[0]
    if num_tokens == 0:
        return
    shape = (query.element_size(), head_dim, group)
    processors = _processors(query.device.index) if query.is_cuda else INTERPRETED_PROCESSORS
    short = short or choose_tiles(*shape, long=False, processors=processors)
    long = long or choose_tiles(*shape, long=True, processors=processors)
    short_len = short.query_rows // group  # the longest query that one tile of the short launch holds
    launches = [(short, 0, short_len)]
    if max_query_len > short_len:
        launches.append((long, short_len, ANY_LENGTH))
    for tiles, above, up_to in launches:
        queries = tiles.query_rows // group
        workers = max(1, tiles.programs // num_kv_heads)
        query_tiles = num_reqs if above == 0 else num_tokens // queries + min(num_reqs, num_tokens // (above + 1))
        places = max_partials(workers)
        max_cuts = places // 2
        cuts = seq_lens.new_empty((1 + max_cuts, 4))
        partial = query.new_empty((places, num_kv_heads, tiles.query_rows, head_dim), dtype=torch.float32)
        partial_lse = partial.new_empty((places, num_kv_heads, tiles.query_rows))
        constants = {
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "DIMS": max(16, power_of_two(head_dim)),
            "QUERY_ROWS": tiles.query_rows,
            "QUERIES": queries,
            "HAS_LSE": lse is not None,
        }
        attend: Any = paged_attention_kernel[(num_kv_heads * (query_tiles + workers),)]
        attend(
            query,
            key_cache,
            value_cache,
            query_start_loc,
            seq_lens,
            block_table,
            output,
            lse,
            partial,
            partial_lse,
            cuts,
            num_reqs,
            num_tokens,
            workers,
            (head_dim**-0.5 if scale is None else scale) * math.log2(math.e),
            query.stride(0),
            block_table.stride(0),
            key_cache.stride(0),
            BLOCK_SIZE=block_size,
            WINDOW=sliding_window or 0,
            CP_WORLD_SIZE=cp_world_size,
            CP_RANK=cp_rank,
            CP_INTERLEAVE=cp_interleave,
            ROWS=max(power_of_two(num_reqs), 64),
            KEYS=tiles.keys,
            ABOVE=above,
            UP_TO=up_to,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            **constants,
        )
        if block_table.shape[1] * block_size <= tiles.keys:
            continue  # no request is long enough to be cut
        used_rows = min(queries, max_query_len) * group
        merge: Any = merge_splits_kernel[(max_cuts * num_kv_heads * used_rows,)]
        merge(
            partial,
            partial_lse,
            cuts,
            query_start_loc,
            output,
            lse,
            USED_ROWS=used_rows,
            SPLITS=16,
            num_warps=4,
            **constants,
        )


@functools.cache
def _processors(device: int | None) -> int:
    """Return the number of multiprocessors of a CUDA device."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _check(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Raise `ConfigError` unless the tensors fit together."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    if query.dtype.itemsize not in (2, 4) or not query.dtype.is_floating_point:
        raise ConfigError(f"the kernel computes float16, bfloat16 and float32; query is {query.dtype}")
    if head_dim > MAX_HEAD_DIM or num_heads % num_kv_heads:
        raise ConfigError(
            f"heads are at most {MAX_HEAD_DIM} wide and a multiple of the KV heads;"
            f" given {num_heads} of {head_dim} for {num_kv_heads} KV heads"
        )
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache), ("output", output)):
        if tensor.dtype != query.dtype or tensor.shape[-1] != head_dim:
            raise ConfigError(
                f"{name} has heads of {tensor.shape[-1]} {tensor.dtype}, query of {head_dim} {query.dtype}"
            )
    for name, tensor in (("query", query), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.stride(1) != head_dim or tensor.stride(2) != 1:
            raise ConfigError(
                f"the heads of a token must lie side by side in {name}; its strides are {tensor.stride()}"
            )
    if key_cache.shape != value_cache.shape or key_cache.stride() != value_cache.stride():
        raise ConfigError("key_cache and value_cache must have the same layout")
    results = (output,) if lse is None else (output, lse)
    if output.shape != query.shape or not all(tensor.is_contiguous() for tensor in results):
        raise ConfigError("output must have the shape of query, and output and lse must be contiguous")
    if lse is not None and lse.shape != query.shape[:2]:
        raise ConfigError(f"lse must be {[num_tokens, num_heads]}; it is {list(lse.shape)}")
    num_reqs = seq_lens.shape[0]
    if query_start_loc.shape[0] != num_reqs + 1 or block_table.shape[0] < num_reqs:
        raise ConfigError(
            f"{num_reqs} rows need {num_reqs + 1} entries of query_start_loc and {num_reqs} rows of block_table;"
            f" given {query_start_loc.shape[0]} and {block_table.shape[0]}"
        )
