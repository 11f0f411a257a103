"""What attention needs to know of a step, per KV cache group: built once, shared where groups are alike.

>>> pad_to_capture_size(num_tokens=5, capture_sizes=(1, 2, 4, 8)), pad_to_capture_size(9, (1, 2, 4, 8))
(8, 9)

`CommonAttentionMetadata` is what every backend gets; a builder makes the backend's own metadata of it. Two groups of
one spec differ in nothing but block table and slots, so the second takes the first one's metadata and puts in its own.

vLLM counterpart: ``vllm/v1/attention/backend.py`` (``CommonAttentionMetadata``, ``AttentionMetadataBuilder``), the
cache of ``GPUModelRunner._build_attention_metadata`` and ``mamba_get_block_table_tensor`` in
``vllm/v1/attention/backends/utils.py`` at 0.25.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagedlab.batch import ContextParallel, TableSpec
from pagedlab.errors import ConfigError
from pagedlab.kvcache import EncoderOnlySpec, FullAttentionSpec, KVCacheSpec, MambaSpec
from pagedlab.model.decoder import Attention


@dataclass(frozen=True, slots=True)
class CommonAttentionMetadata:
    """One group's view of a step. Rows and tokens behind the live ones are padding, as `docs/contracts.md` says.

    Attributes
    ----------
    query_start_loc : Tensor, [num_reqs_padded + 1] int32
    query_start_loc_cpu : ndarray, the same
    seq_lens : Tensor, [num_reqs_padded] int32
    seq_lens_cpu : ndarray, the same
    num_reqs, num_tokens : int
        Live ones.
    max_query_len : int
    positions : Tensor, [num_tokens_padded] int64
    block_table : Tensor, [num_reqs_padded, columns] int32
    slot_mapping : Tensor, [num_tokens_padded] int64
    """

    query_start_loc: Tensor
    query_start_loc_cpu: npt.NDArray[np.int32]
    seq_lens: Tensor
    seq_lens_cpu: npt.NDArray[np.int32]
    num_reqs: int
    num_tokens: int
    max_query_len: int
    positions: Tensor
    block_table: Tensor
    slot_mapping: Tensor

    @property
    def max_seq_len(self) -> int:
        """The tokens of the longest request after this step."""
        return int(self.seq_lens_cpu.max(initial=0))

    def for_group(self, block_table: Tensor, slot_mapping: Tensor) -> CommonAttentionMetadata:
        """Return the same step as another group sees it."""
        return dataclasses.replace(self, block_table=block_table, slot_mapping=slot_mapping)


class AttentionMetadataBuilder(Protocol):
    """Makes a backend's metadata."""

    supports_update_block_table: bool

    def build(self, common: CommonAttentionMetadata) -> Any:
        """Build metadata from scratch."""

    def update_block_table(self, metadata: Any, common: CommonAttentionMetadata) -> Any:
        """Return a copy of another group's metadata with this group's block table and slots."""


class AttentionBackend(Protocol):
    """Attention over one KV cache.

    Attributes
    ----------
    name : str
    captures_graphs : bool
        Whether a CUDA graph may hold its forward pass.
    """

    name: str
    captures_graphs: bool

    def make_builder(self, block_size: int) -> AttentionMetadataBuilder:
        """Return what makes the metadata of a group whose kernel blocks have ``block_size`` tokens."""

    def attention(self, metadata: Any) -> Attention:
        """Return the attention of one step, as the model calls it once a layer."""


def build_group_metadata(
    groups: Sequence[tuple[Hashable, AttentionMetadataBuilder, CommonAttentionMetadata]],
) -> tuple[Any, ...]:
    """Build every group's metadata; a group whose spec and kind of builder were there before only swaps its table in.

    Parameters
    ----------
    groups : sequence of (spec, builder, common)
    """
    first_of: dict[Hashable, Any] = {}
    built = []
    for spec, builder, common in groups:
        key = (spec, type(builder))
        if key in first_of and builder.supports_update_block_table:
            metadata = builder.update_block_table(first_of[key], common)
        else:
            metadata = first_of[key] = builder.build(common)
        built.append(metadata)
    return tuple(built)


def table_spec(spec: KVCacheSpec, context_parallel: ContextParallel) -> TableSpec:
    """Return what the block table of a KV cache group is like.

    Only full attention is spread over ranks: a window or a state is kept whole on each of them.
    """
    if isinstance(spec, MambaSpec):
        return TableSpec(spec.block_size, max_blocks=1)
    if isinstance(spec, EncoderOnlySpec):
        return TableSpec(spec.block_size, max_blocks=0)
    if isinstance(spec, FullAttentionSpec):
        return TableSpec(spec.block_size, context_parallel=context_parallel)
    return TableSpec(spec.block_size)


def pad_to_capture_size(num_tokens: int, capture_sizes: Sequence[int]) -> int:
    """Return the smallest captured size that holds ``num_tokens``; ``num_tokens`` itself if none does."""
    return min((size for size in capture_sizes if size >= num_tokens), default=num_tokens)


def mamba_block_table(
    block_table: Tensor, seq_lens: Tensor, block_size: int, cache_mode: str = "none", num_spec_tokens: int = 0
) -> Tensor:
    """Return the state indices of each row (vLLM: ``mamba_get_block_table_tensor``).

    Parameters
    ----------
    block_table : Tensor, [num_reqs, columns] int32
    seq_lens : Tensor, [num_reqs] int
        0 for a padded row, which keeps its first column, the null block.
    block_size : int
        Tokens between two kept states.
    cache_mode : {"none", "align"}
        ``"none"``: one state a request, the table as it is. ``"align"``: states are kept at block boundaries, and the
        newest is that of the block of the last token.
    num_spec_tokens : int
        Draft tokens; each has a state of its own behind the newest.

    Returns
    -------
    Tensor, [num_reqs, columns] or [num_reqs, 1 + num_spec_tokens]

    Raises
    ------
    ConfigError
        If there is no such mode, or the table has not enough columns.
    """
    if cache_mode == "none":
        return block_table
    if cache_mode != "align":
        raise ConfigError(f"the cache mode of Mamba states is {cache_mode!r}: give 'none' or 'align'")
    first = ((seq_lens.long() - 1) // block_size).clamp(min=0)
    columns = first[:, None] + torch.arange(1 + num_spec_tokens, device=block_table.device)
    if columns.numel() and not block_table.is_cuda and int(columns.max()) >= block_table.shape[1]:
        raise ConfigError(
            f"a request of {int(seq_lens.max())} tokens and {num_spec_tokens} drafts needs column {int(columns.max())} "
            f"of a table with {block_table.shape[1]}: raise max_model_len"
        )
    return block_table.gather(1, columns)
