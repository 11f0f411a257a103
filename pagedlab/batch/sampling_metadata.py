"""What the sampler needs of the batch: built lazily, and only when the batch has changed.

>>> SamplingMetadata().all_greedy
True

Every part that no row uses is None (or empty), so that the sampler skips its work altogether.

vLLM counterpart: ``vllm/v1/sample/metadata.py`` (``SamplingMetadata``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pagedlab.batch.logits_processors import LogitsProcessor

TokenSequences = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """One batch's sampling settings, on the device, in row order.

    Attributes
    ----------
    temperature : Tensor or None, [num_reqs] float32
        0 for greedy rows; None if all are greedy.
    top_p : Tensor or None, [num_reqs] float32
    top_k : Tensor or None, [num_reqs] int32
        The vocabulary size where a row keeps all tokens.
    generators : mapping of int to torch.Generator
        By row, for requests with a seed.
    frequency_penalties, presence_penalties, repetition_penalties : Tensor or None, [num_reqs] float32
        All three, or none of them.
    prompt_token_ids : Tensor or None, [num_reqs, longest prompt] int64
        Padded with the vocabulary size; only with penalties.
    output_token_ids : sequence of list of int
        Each row's live output; empty unless penalties or bad words need it.
    allowed_token_ids_mask : Tensor or None, [num_reqs, vocab_size] bool
        True means *forbidden*.
    bad_words_token_ids : mapping of int to tuple of tuple of int
        By row: token sequences that must not appear.
    num_logprobs : mapping of int to int
        By row, for requests that want log-probabilities: how many beside that of the sampled token.
    logits_processors : sequence of LogitsProcessor
        Keyed by row, up to date with the batch.
    """

    temperature: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    generators: Mapping[int, torch.Generator] = field(default_factory=dict)
    frequency_penalties: torch.Tensor | None = None
    presence_penalties: torch.Tensor | None = None
    repetition_penalties: torch.Tensor | None = None
    prompt_token_ids: torch.Tensor | None = None
    output_token_ids: Sequence[list[int]] = ()
    allowed_token_ids_mask: torch.Tensor | None = None
    bad_words_token_ids: Mapping[int, TokenSequences] = field(default_factory=dict)
    num_logprobs: Mapping[int, int] = field(default_factory=dict)
    logits_processors: Sequence[LogitsProcessor] = ()

    @property
    def all_greedy(self) -> bool:
        """Whether every row takes its likeliest token; True for an empty batch."""
        return self.temperature is None

    @property
    def max_num_logprobs(self) -> int | None:
        """The most log-probabilities a row wants beside the sampled token's; None if no row wants any."""
        return max(self.num_logprobs.values(), default=None)
