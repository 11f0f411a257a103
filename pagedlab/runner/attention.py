"""Attention over paged KV memory, in plain torch: write K and V to their slots, read them back through the table.

A key lives in slot ``block_id * block_size + offset`` of one flat array per layer. The block table says which blocks,
in which order, make up a request: gathering them gives its keys as if they had always lain side by side.

>>> import torch
>>> cache = KVCache(num_layers=1, num_blocks=3, block_size=2, num_kv_heads=1, head_dim=4)
>>> cache.slots(torch.tensor([[2, 1]])).tolist()  # a request whose first block is 2 and whose second is 1
[[4, 5, 2, 3]]

vLLM counterpart: ``vllm/v1/attention/backend.py`` (``CommonAttentionMetadata``) and its backends, ``TORCH_SDPA`` for
CPU, at 0.25.1. What differs: rows whose queries are equally long are computed together, decodes first of all.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor

from pagedlab.runner.metadata import CommonAttentionMetadata


class KVCache:
    """Keys and values of all layers.

    Parameters
    ----------
    num_layers, num_blocks, block_size, num_kv_heads, head_dim : int
        The null block is among ``num_blocks``.
    dtype : torch.dtype
    device : torch.device

    Attributes
    ----------
    data : Tensor, [num_layers, 2, num_blocks * block_size, num_kv_heads, head_dim]
        Keys are ``data[layer, 0]``, values ``data[layer, 1]``; the third axis is the slot.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.block_size = block_size
        shape = (num_layers, 2, num_blocks * block_size, num_kv_heads, head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the keys and values of tokens; ``slots`` ``[num_tokens]`` int64, none of them PAD."""
        self.data[layer, 0].index_copy_(0, slots, key)
        self.data[layer, 1].index_copy_(0, slots, value)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at ``slots``, each ``[*slots.shape, num_kv_heads, head_dim]``."""
        return self.data[layer, 0][slots], self.data[layer, 1][slots]

    def slots(self, block_ids: Tensor) -> Tensor:
        """Return the slots of whole blocks: ``[rows, blocks]`` int -> ``[rows, blocks * block_size]`` int64."""
        offsets = torch.arange(self.block_size, device=block_ids.device)
        return (block_ids.long()[:, :, None] * self.block_size + offsets).flatten(1)


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Rows of a batch whose queries are equally long.

    Attributes
    ----------
    rows : Tensor, [rows] int64
        Their rows in the batch.
    tokens : Tensor, [rows * query_len] int64
        Their places in the flat batch.
    query_len : int
    places : Tensor, [rows, longest seq_len] int64
        Positions 0, 1, 2 ... of each row's tokens; behind its own length its last one again, which is then masked.
    slots : Tensor, [rows, longest seq_len] int64
        Where the keys of these tokens are.
    mask : Tensor, [rows, 1, query_len, longest seq_len] bool
        True where a query may look: at its own position and before.
    """

    rows: Tensor
    tokens: Tensor
    query_len: int
    places: Tensor
    slots: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What this backend needs to know of one step, built once and used by every layer of a group.

    Attributes
    ----------
    written_tokens : Tensor or None
        Places in the flat batch whose K and V are stored; None means all of them (there is no PAD).
    slot_mapping : Tensor, [written tokens] int64
    query_groups : tuple of QueryGroup
    """

    written_tokens: Tensor | None
    slot_mapping: Tensor
    query_groups: tuple[QueryGroup, ...]


class TorchMetadataBuilder:
    """Builds `AttentionMetadata` of a group (`pagedlab.runner.metadata.AttentionMetadataBuilder`)."""

    supports_update_block_table = True

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def build(self, common: CommonAttentionMetadata) -> AttentionMetadata:
        """Group the live rows of a step by query length."""
        device = common.positions.device
        query_start_loc = common.query_start_loc_cpu[: common.num_reqs + 1]
        seq_lens = common.seq_lens_cpu[: common.num_reqs]
        query_lens = np.diff(query_start_loc)
        groups = []
        for query_len in np.unique(query_lens[query_lens > 0]).tolist():
            rows = np.flatnonzero(query_lens == query_len)
            in_batch = query_start_loc[rows][:, None] + np.arange(query_len)
            tokens = torch.from_numpy(in_batch.reshape(-1).astype(np.int64)).to(device)
            positions = np.arange(seq_lens[rows].max())
            query_positions = common.positions[tokens].view(len(rows), 1, query_len, 1)
            mask = torch.from_numpy(positions).to(device) <= query_positions
            # What lies behind a row's own tokens is somebody else's, or nobody's: it is not even looked at.
            places = torch.from_numpy(np.minimum(positions, seq_lens[rows][:, None].astype(np.int64) - 1)).to(device)
            rows_on_device = torch.from_numpy(rows).to(device)
            slots = self._slots(common.block_table, rows_on_device, places)
            groups.append(QueryGroup(rows_on_device, tokens, query_len, places, slots, mask))
        return AttentionMetadata(*_written(common.slot_mapping), tuple(groups))

    def update_block_table(self, metadata: AttentionMetadata, common: CommonAttentionMetadata) -> AttentionMetadata:
        """Keep who asks and what may be seen; keys are found through another table."""
        groups = tuple(
            dataclasses.replace(group, slots=self._slots(common.block_table, group.rows, group.places))
            for group in metadata.query_groups
        )
        return AttentionMetadata(*_written(common.slot_mapping), groups)

    def _slots(self, block_table: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        block_ids = block_table[rows[:, None], places // self._block_size].long()
        return block_ids * self._block_size + places % self._block_size


def _written(slot_mapping: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the places of the tokens that are stored, None for all, and their slots."""
    live = slot_mapping >= 0
    if bool(live.all()):
        return None, slot_mapping
    return live.nonzero().squeeze(1), slot_mapping[live]


class PagedAttention:
    """The ``attention`` argument of `Decoder`: one step's attention over a `KVCache`."""

    def __init__(self, cache: KVCache, metadata: AttentionMetadata) -> None:
        self._cache = cache
        self._metadata = metadata

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store this step's keys and values, then attend.

        Parameters
        ----------
        layer : int
        query : Tensor, [num_tokens, num_heads, head_dim]
        key, value : Tensor, [num_tokens, num_kv_heads, head_dim]

        Returns
        -------
        Tensor, [num_tokens, num_heads, head_dim]
        """
        written = self._metadata.written_tokens
        if written is not None:
            self._cache.write(layer, self._metadata.slot_mapping, key[written], value[written])
        else:
            self._cache.write(layer, self._metadata.slot_mapping, key, value)
        output = torch.zeros_like(query)
        for group in self._metadata.query_groups:
            keys, values = self._cache.read(layer, group.slots)  # [rows, seq, num_kv_heads, head_dim]
            queries = query[group.tokens].view(len(group.rows), group.query_len, *query.shape[1:])
            attended = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=group.mask,
                enable_gqa=True,
            )
            output[group.tokens] = attended.transpose(1, 2).reshape(-1, *query.shape[1:])
        return output


class TorchAttentionBackend:
    """The backend on a CPU; it runs on a GPU too, and in float64."""

    name = "torch"
    captures_graphs = False

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def make_builder(self, block_size: int) -> TorchMetadataBuilder:
        """Return a builder for a group."""
        return TorchMetadataBuilder(block_size)

    def attention(self, metadata: AttentionMetadata) -> PagedAttention:
        """Return the attention of one step."""
        return PagedAttention(self._cache, metadata)
