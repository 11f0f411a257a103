"""What the worker remembers of a request, whether or not it is in the batch right now.

>>> from pagedlab.request import SamplingParams
>>> state = CachedRequestState("A", (72, 105), SamplingParams(), block_ids=((3,),), num_computed_tokens=0)
>>> state.output_token_ids.append(33)
>>> state.num_tokens, state.token_id(2), state.token_id(9)
(3, 33, -1)

A preempted or merely unscheduled request leaves the batch but keeps its state; a finished one loses it.

vLLM counterpart: ``vllm/v1/worker/gpu_input_batch.py`` (``CachedRequestState``) at 0.25.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pagedlab.request import SamplingParams

BlockIdLists = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class CachedRequestState:
    """The logical state of one request.

    Attributes
    ----------
    block_ids : tuple of tuple of int
        All blocks per KV cache group: extended while the request runs, replaced when it resumes.
    output_token_ids : list of int
        The batch holds this same list, so that samplers see what is appended.
    generator : torch.Generator or None
        Only if the request has a seed.
    """

    req_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    block_ids: BlockIdLists
    num_computed_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    generator: torch.Generator | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_id(self, index: int) -> int:
        """Return the token at ``index`` of prompt and output, -1 past the end (vLLM: ``get_token_id``)."""
        if index < self.num_prompt_tokens:
            return self.prompt_token_ids[index]
        if index < self.num_tokens:
            return self.output_token_ids[index - self.num_prompt_tokens]
        return -1

    def extend_block_ids(self, new_block_ids: BlockIdLists) -> None:
        """Append the new blocks of each group."""
        self.block_ids = tuple(old + new for old, new in zip(self.block_ids, new_block_ids, strict=True))
