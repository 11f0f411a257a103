"""Attention over paged KV memory by Triton kernels: one writes keys and values to their slots, one attends.

Nothing is gathered: the kernel finds each key through the block table. Nothing is read back by the host and every
launch depends on shapes alone, so that a CUDA graph may hold it.

vLLM counterpart: ``vllm/v1/attention/backends/triton_attn.py`` (``TritonAttentionBackend``) at 0.25.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagedlab.kernels.kv_cache_write import kv_cache_write_triton
from pagedlab.kernels.paged_attention import paged_attention_triton
from pagedlab.runner.attention import KVCache
from pagedlab.runner.metadata import CommonAttentionMetadata


class TritonMetadataBuilder:
    """The kernels read the common metadata as they are."""

    supports_update_block_table = True

    def build(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """Return them."""
        return common

    def update_block_table(
        self, metadata: CommonAttentionMetadata, common: CommonAttentionMetadata
    ) -> CommonAttentionMetadata:
        """Return another group's, with this group's table and slots."""
        return metadata.for_group(common.block_table, common.slot_mapping)


class TritonPagedAttention:
    """The ``attention`` argument of `Decoder`: one step's attention over a `KVCache`."""

    def __init__(self, cache: KVCache, metadata: CommonAttentionMetadata) -> None:
        self._cache = cache
        self._metadata = metadata

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store this step's keys and values, then attend; shapes as `PagedAttention.__call__`."""
        keys, values = self._cache.data[layer]
        metadata = self._metadata
        kv_cache_write_triton(key, value, keys, values, metadata.slot_mapping)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        paged_attention_triton(
            query,
            keys,
            values,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            self._cache.block_size,
            output,
            max_query_len=metadata.max_query_len,
        )
        return output


class TritonAttentionBackend:
    """The backend on a GPU; in Triton's interpreter it runs too, slowly."""

    name = "triton"
    captures_graphs = True

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def make_builder(self, block_size: int) -> TritonMetadataBuilder:
        """Return a builder for a group."""
        return TritonMetadataBuilder()

    def attention(self, metadata: CommonAttentionMetadata) -> TritonPagedAttention:
        """Return the attention of one step."""
        return TritonPagedAttention(self._cache, metadata)
