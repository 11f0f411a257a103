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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor


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
    tokens : Tensor, [rows * query_len] int64
        Their places in the flat batch.
    num_rows, query_len : int
    slots : Tensor, [rows, longest seq_len] int64
        Where the keys of each row are; behind a row's own length they belong to others and are masked.
    mask : Tensor, [rows, 1, query_len, longest seq_len] bool
        True where a query may look: at its own position and before.
    """

    tokens: Tensor
    num_rows: int
    query_len: int
    slots: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What attention needs to know of one step, built once and used by every layer.

    Attributes
    ----------
    written_tokens : Tensor or None
        Places in the flat batch whose K and V are stored; None means all of them (there is no PAD).
    slot_mapping : Tensor, [written tokens] int64
    groups : tuple of QueryGroup
    """

    written_tokens: Tensor | None
    slot_mapping: Tensor
    groups: tuple[QueryGroup, ...]

    @classmethod
    def build(
        cls,
        cache: KVCache,
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        positions: Tensor,
        block_table: Tensor,
        slot_mapping: Tensor,
    ) -> AttentionMetadata:
        """Group the rows of a step by query length.

        Parameters
        ----------
        cache : KVCache
        query_start_loc : ndarray of int32, [num_reqs + 1]
        seq_lens : ndarray of int32, [num_reqs]
            Tokens of each request after this step.
        positions : Tensor, [num_tokens] int64
        block_table : Tensor, [num_reqs, columns] int32
        slot_mapping : Tensor, [num_tokens] int64
            May hold PAD, which is never written.
        """
        device = positions.device
        query_lens = np.diff(query_start_loc)
        groups = []
        for query_len in np.unique(query_lens[query_lens > 0]).tolist():
            rows = np.flatnonzero(query_lens == query_len)
            places = query_start_loc[rows][:, None] + np.arange(query_len)
            tokens = torch.from_numpy(places.reshape(-1).astype(np.int64)).to(device)
            longest = int(seq_lens[rows].max())
            num_blocks = -(-longest // cache.block_size)
            slots = cache.slots(block_table[torch.from_numpy(rows).to(device), :num_blocks])[:, :longest]
            query_positions = positions[tokens].view(len(rows), 1, query_len, 1)
            mask = torch.arange(longest, device=device) <= query_positions
            groups.append(QueryGroup(tokens, len(rows), query_len, slots, mask))
        live = slot_mapping >= 0
        if bool(live.all()):
            return cls(None, slot_mapping, tuple(groups))
        return cls(live.nonzero().squeeze(1), slot_mapping[live], tuple(groups))


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
        for group in self._metadata.groups:
            keys, values = self._cache.read(layer, group.slots)  # [rows, seq, num_kv_heads, head_dim]
            queries = query[group.tokens].view(group.num_rows, group.query_len, *query.shape[1:])
            attended = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=group.mask,
                enable_gqa=True,
            )
            output[group.tokens] = attended.transpose(1, 2).reshape(-1, *query.shape[1:])
        return output
