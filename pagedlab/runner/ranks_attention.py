"""Attention over keys that several ranks share: each attends to what it has, then the ranks merge their states.

Every rank runs the whole model on the same tokens; only KV memory is divided. A rank writes the keys and values of the
tokens that are its own (the slots of others are PAD), and attention over them gives, for each query and head, an output
and the log of the sum of exponentiated scores. All ranks gather the states of all, and merge them: each then holds
what attention over all keys gives, and they go on with the same numbers.

    rank 0   keys 0, 2, 4 ...   output, lse  ─┐
    rank 1   keys 1, 3, 5 ...   output, lse  ─┴─ all_gather, merge_attention_states

The gathering is ``torch.distributed``'s: gloo between processes on CPUs, NCCL between GPUs.

vLLM counterpart: ``vllm/v1/attention/ops/common.py`` (``cp_lse_ag_out_rs``, ``correct_attn_out``) at 0.25.1, for decode
context parallelism. What differs: the ranks of DCP divide the heads among them as well, so that they gather queries
first and scatter outputs afterwards; here every rank has all heads.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed
from torch import Tensor

from pagedlab.batch import ContextParallel
from pagedlab.errors import ConfigError
from pagedlab.kernels.kv_cache_write import kv_cache_write_triton
from pagedlab.kernels.merge_attention_states import merge_attention_states_torch, merge_attention_states_triton
from pagedlab.kernels.paged_attention import paged_attention_torch, paged_attention_triton
from pagedlab.runner.attention import KVCache
from pagedlab.runner.metadata import CommonAttentionMetadata
from pagedlab.runner.triton_attention import TritonMetadataBuilder


def check_ranks(context_parallel: ContextParallel, group: torch.distributed.ProcessGroup | None) -> None:
    """Raise `ConfigError` unless the processes of ``group`` are the ranks that ``context_parallel`` speaks of."""
    if group is None:
        raise ConfigError(
            f"rank {context_parallel.rank} of {context_parallel.world_size} cannot merge its attention with that of "
            "the others: give a process group of torch.distributed"
        )
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    if (size, rank) != (context_parallel.world_size, context_parallel.rank):
        raise ConfigError(
            f"the process group says rank {rank} of {size}, and context_parallel rank {context_parallel.rank} of "
            f"{context_parallel.world_size}: give both the same"
        )


class RanksAttention:
    """The ``attention`` argument of `Decoder`: one step's attention, merged over all ranks."""

    def __init__(self, backend: RanksAttentionBackend, metadata: CommonAttentionMetadata) -> None:
        self._backend = backend
        self._metadata = metadata

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store this rank's keys and values, attend to them, and merge; shapes as `PagedAttention.__call__`."""
        self._backend.write(layer, key, value, self._metadata.slot_mapping)
        output, lse = self._backend.attend(layer, query, self._metadata)
        return self._backend.merge(output, lse)


class RanksAttentionBackend:
    """The backend of a rank, by the kernels of ``"torch"`` or ``"triton"``.

    Parameters
    ----------
    cache : KVCache
        This rank's part.
    context_parallel : ContextParallel
    group : torch.distributed.ProcessGroup
        The ranks, in order.
    kernels : {"torch", "triton"}
        The references of the kernels, which compute in float64 and slowly, or the kernels.
    """

    captures_graphs = False  # what other ranks do is no part of a graph

    def __init__(
        self, cache: KVCache, context_parallel: ContextParallel, group: torch.distributed.ProcessGroup, kernels: str
    ) -> None:
        self.name = kernels
        self._cache = cache
        self._context_parallel = context_parallel
        self._group = group
        self._triton = kernels == "triton"

    def make_builder(self, block_size: int) -> TritonMetadataBuilder:
        """Return a builder for a group: the kernels read the common metadata as they are."""
        return TritonMetadataBuilder()

    def attention(self, metadata: CommonAttentionMetadata) -> RanksAttention:
        """Return the attention of one step."""
        return RanksAttention(self, metadata)

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Store the keys and values of this rank's tokens; those of others have PAD for a slot."""
        if self._triton:
            keys, values = self._cache.data[layer]
            kv_cache_write_triton(key, value, keys, values, slot_mapping)
        else:
            own = slot_mapping >= 0
            self._cache.write(layer, slot_mapping[own], key[own], value[own])

    def attend(self, layer: int, query: Tensor, metadata: CommonAttentionMetadata) -> tuple[Tensor, Tensor]:
        """Return the state of attention over this rank's keys: ``[num_tokens, num_heads, head_dim]`` and without it."""
        keys, values = self._cache.data[layer]
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        ranks = self._context_parallel
        attend = (
            functools.partial(paged_attention_triton, max_query_len=metadata.max_query_len)
            if self._triton
            else paged_attention_torch
        )
        attend(
            query,
            keys,
            values,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            self._cache.block_size,
            output,
            lse=lse,
            cp_world_size=ranks.world_size,
            cp_rank=ranks.rank,
            cp_interleave=ranks.interleave,
        )
        return output, lse

    def merge(self, output: Tensor, lse: Tensor) -> Tensor:
        """Return what attention over the keys of all ranks gives; every rank must call it."""
        outputs, lses = (
            torch.empty((self._context_parallel.world_size, *state.shape), dtype=state.dtype, device=state.device)
            for state in (output, lse)
        )
        torch.distributed.all_gather(list(outputs.unbind()), output, self._group)
        torch.distributed.all_gather(list(lses.unbind()), lse, self._group)
        merged = torch.empty_like(output)
        if self._triton:
            merge_attention_states_triton(outputs, lses, merged)
        else:
            merge_attention_states_torch(outputs, lses, merged)
        return merged
