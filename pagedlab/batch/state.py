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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.errors import RequestError
from pagedlab.request import SamplingParams

BlockIdLists = Sequence[Sequence[int]]
"""Blocks, one sequence per KV cache group."""


class CachedRequestState:
    """The logical state of one request.

    Parameters
    ----------
    req_id : str
    prompt_token_ids : tuple of int or None
        None if the prompt is given as embeddings.
    sampling_params : SamplingParams
    block_ids : sequence of sequences of int
        All blocks per KV cache group.
    num_computed_tokens : int
    output_token_ids : list of int, optional
    generator : torch.Generator, optional
        Only if the request has a seed.
    lora_id : int
        0 for none.
    prompt_embeds : Tensor, [num_prompt_tokens, hidden_size], optional
        The prompt instead of token ids.

    Attributes
    ----------
    block_ids : list of list of int
        Extended while the request runs, replaced when it resumes.
    output_token_ids : list of int
        The batch holds this same list, so that samplers see what is appended.

    Raises
    ------
    RequestError
        Unless exactly one form of the prompt is given.
    """

    __slots__ = (
        "_prompt_bytes",
        "block_ids",
        "generator",
        "lora_id",
        "num_computed_tokens",
        "num_prompt_tokens",
        "output_token_ids",
        "prompt_embeds",
        "prompt_token_ids",
        "req_id",
        "sampling_params",
    )

    def __init__(
        self,
        req_id: str,
        prompt_token_ids: tuple[int, ...] | None,
        sampling_params: SamplingParams,
        block_ids: BlockIdLists,
        num_computed_tokens: int,
        output_token_ids: list[int] | None = None,
        generator: torch.Generator | None = None,
        *,
        lora_id: int = 0,
        prompt_embeds: torch.Tensor | None = None,
    ) -> None:
        prompt = prompt_embeds if prompt_token_ids is None else prompt_token_ids
        if prompt is None or (prompt_token_ids is not None and prompt_embeds is not None):
            raise RequestError(f"request {req_id!r}: give its prompt as token ids or as embeddings, one of the two")
        self.req_id = req_id
        self.prompt_token_ids = prompt_token_ids
        self.prompt_embeds = prompt_embeds
        self.num_prompt_tokens = len(prompt)
        self.sampling_params = sampling_params
        self.replace_block_ids(block_ids)
        self.num_computed_tokens = num_computed_tokens
        self.output_token_ids = [] if output_token_ids is None else output_token_ids
        self.generator = generator
        self.lora_id = lora_id
        self._prompt_bytes: memoryview | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def prompt_bytes(self) -> memoryview:
        """The prompt as int32, as it stands in a row; made once. Zeros if it is given as embeddings."""
        if self._prompt_bytes is None:
            ids = self.prompt_token_ids or [0] * self.num_prompt_tokens
            self._prompt_bytes = self._int32(ids).data.cast("B")
        return self._prompt_bytes

    @property
    def output_array(self) -> npt.NDArray[np.int32]:
        """The outputs as ``[num_output_tokens]`` int32, made anew each time."""
        return self._int32(self.output_token_ids)

    def _int32(self, token_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        try:
            return np.array(token_ids, dtype=np.int32)
        except (OverflowError, ValueError) as error:
            raise RequestError(f"request {self.req_id!r} holds what is no token id: {error}") from error

    def token_id(self, index: int) -> int:
        """Return the token at ``index`` of prompt and output, -1 past the end (vLLM: ``get_token_id``).

        Raises
        ------
        ValueError
            If it is in a prompt that was given as embeddings, which has no token ids.
        """
        if index < self.num_prompt_tokens:
            if self.prompt_token_ids is None:
                raise ValueError(f"request {self.req_id!r}: its prompt is embeddings, so token {index} has no id")
            return self.prompt_token_ids[index]
        if index < self.num_tokens:
            return self.output_token_ids[index - self.num_prompt_tokens]
        return -1

    def extend_block_ids(self, new_block_ids: BlockIdLists) -> None:
        """Append the new blocks of each group."""
        for held, new in zip(self.block_ids, new_block_ids, strict=True):
            held.extend(new)

    def replace_block_ids(self, block_ids: BlockIdLists) -> None:
        """Take other blocks instead, as a resumed request does."""
        self.block_ids = [list(ids) for ids in block_ids]
