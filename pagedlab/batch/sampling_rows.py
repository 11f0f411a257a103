"""How each row is to be sampled: settings beside the scalars of the row store, and what the sampler is told.

>>> from pagedlab.request import SamplingParams
>>> rows = RowStore(max_num_reqs=4, device=torch.device("cpu"))
>>> sampling = SamplingRows(rows, max_num_reqs=4, vocab_size=50, device=torch.device("cpu"))
>>> sampling.add("A", 0, SamplingParams(temperature=0.5, top_k=3, allowed_token_ids=(7, 9)))
>>> int(rows.top_k[0]), sorted(sampling.top_k_reqs), int(sampling.allowed_token_ids_mask.np[0].sum())
(3, ['A'], 48)
>>> sampling.move(0, 2)
>>> sampling.allowed_token_ids_mask.np.sum(axis=1).tolist()  # the row it left forbids nothing
[0, 0, 48, 0]

What most requests do not use is kept by request id in sets, or by row in dicts, so that a batch without it pays
nothing.

vLLM counterpart: the sampling part of ``InputBatch`` in ``vllm/v1/worker/gpu_input_batch.py`` at 0.25.1. What differs:
the mask of allowed tokens is exchanged on a swap and left behind by nobody (0.25.1 has both defects; as in 0.33.0).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer
from pagedlab.batch.logits_processors import LogitsProcessor
from pagedlab.batch.row_store import RowStore
from pagedlab.batch.sampling_metadata import SamplingMetadata, TokenSequences
from pagedlab.errors import IntegrityError
from pagedlab.request import SamplingParams

T = TypeVar("T")


class SamplingRows:
    """Sampling settings by row.

    Parameters
    ----------
    rows : RowStore
        Where scalars are written; whoever moves a row there calls `move` here.
    max_num_reqs, vocab_size : int
    device : torch.device
    logits_processors : sequence of LogitsProcessor
        Passed on to the sampler; the batch keeps them up to date.

    Attributes
    ----------
    greedy_reqs, random_reqs, top_p_reqs, top_k_reqs : set of str
    frequency_penalty_reqs, presence_penalty_reqs, repetition_penalty_reqs, allowed_token_reqs : set of str
        Which requests use what.
    num_logprobs : dict of str to int
        By request; the vocabulary size where all are wanted.
    generators : dict of int to torch.Generator
        By row.
    bad_words_token_ids : dict of int to tuple of tuple of int
        By row.
    allowed_token_ids_mask : CpuGpuBuffer or None, [max_num_reqs, vocab_size] bool
        True means *forbidden*; all False in a row that allows everything, and in a free one. Made when first needed.
    """

    def __init__(
        self,
        rows: RowStore,
        max_num_reqs: int,
        vocab_size: int,
        device: torch.device,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self._rows = rows
        self._shape = (max_num_reqs, vocab_size)
        self._device = device
        self.logits_processors = tuple(logits_processors)
        self.greedy_reqs: set[str] = set()
        self.random_reqs: set[str] = set()
        self.top_p_reqs: set[str] = set()
        self.top_k_reqs: set[str] = set()
        self.frequency_penalty_reqs: set[str] = set()
        self.presence_penalty_reqs: set[str] = set()
        self.repetition_penalty_reqs: set[str] = set()
        self.allowed_token_reqs: set[str] = set()
        self.num_logprobs: dict[str, int] = {}
        self.generators: dict[int, torch.Generator] = {}
        self.bad_words_token_ids: dict[int, TokenSequences] = {}
        self.allowed_token_ids_mask: CpuGpuBuffer | None = None
        self._optional_sets = (
            self.top_p_reqs,
            self.top_k_reqs,
            self.frequency_penalty_reqs,
            self.presence_penalty_reqs,
            self.repetition_penalty_reqs,
            self.allowed_token_reqs,
        )
        self._with_options: set[str] = set()  # requests that are in one of these sets, or in num_logprobs

    @property
    def penalty_reqs(self) -> set[str]:
        """Requests that use any of the three penalties."""
        return self.frequency_penalty_reqs | self.presence_penalty_reqs | self.repetition_penalty_reqs

    def add(self, req_id: str, row: int, params: SamplingParams, generator: torch.Generator | None = None) -> None:
        """Write a request's settings into a free row."""
        rows, vocab_size = self._rows, self._shape[1]
        keeps_all = not 0 < params.top_k < vocab_size
        rows.temperature[row] = temperature = params.temperature
        rows.top_p[row] = params.top_p
        rows.top_k[row] = vocab_size if keeps_all else params.top_k
        rows.frequency_penalty[row] = params.frequency_penalty
        rows.presence_penalty[row] = params.presence_penalty
        rows.repetition_penalty[row] = params.repetition_penalty
        (self.random_reqs if temperature else self.greedy_reqs).add(req_id)
        if not params.is_plain:
            self._add_options(req_id, row, params, keeps_all)
        if params.bad_words_token_ids:
            self.bad_words_token_ids[row] = params.bad_words_token_ids
        if generator is not None:
            self.generators[row] = generator

    def _add_options(self, req_id: str, row: int, params: SamplingParams, keeps_all: bool) -> None:
        """Write down what most requests do not use."""
        self._with_options.add(req_id)
        uses = (
            params.top_p < 1,
            not keeps_all,
            params.frequency_penalty != 0,
            params.presence_penalty != 0,
            params.repetition_penalty != 1,
            params.allowed_token_ids is not None,
        )
        for members in itertools.compress(self._optional_sets, uses):
            members.add(req_id)
        if params.logprobs is not None:
            self.num_logprobs[req_id] = self._shape[1] if params.logprobs == -1 else params.logprobs
        if params.allowed_token_ids is not None:
            mask = self._mask()
            mask[row] = True
            mask[row, list(params.allowed_token_ids)] = False

    def _mask(self) -> npt.NDArray[np.bool_]:
        if self.allowed_token_ids_mask is None:
            self.allowed_token_ids_mask = CpuGpuBuffer(self._shape, torch.bool, self._device)
        mask: npt.NDArray[np.bool_] = self.allowed_token_ids_mask.np
        return mask

    def remove(self, req_id: str, row: int) -> None:
        """Forget a request's settings; scalars stay, stale."""
        self.greedy_reqs.discard(req_id)
        self.random_reqs.discard(req_id)
        if req_id in self._with_options:
            self._with_options.remove(req_id)
            if req_id in self.allowed_token_reqs:
                self._mask()[row] = False
            for members in self._optional_sets:
                members.discard(req_id)
            self.num_logprobs.pop(req_id, None)
        self.bad_words_token_ids.pop(row, None)
        self.generators.pop(row, None)

    def move(self, source: int, target: int) -> None:
        """Follow a row into a free one."""
        if source in self.generators:
            _swap_keys(self.generators, source, target)
        if source in self.bad_words_token_ids:
            _swap_keys(self.bad_words_token_ids, source, target)
        if self.allowed_token_ids_mask is not None:
            mask = self.allowed_token_ids_mask.np
            mask[target] = mask[source]
            mask[source] = False

    def swap(self, first: int, second: int) -> None:
        """Follow two rows that change places."""
        if self.generators:
            _swap_keys(self.generators, first, second)
        if self.bad_words_token_ids:
            _swap_keys(self.bad_words_token_ids, first, second)
        if self.allowed_token_ids_mask is not None:
            mask = self.allowed_token_ids_mask.np
            mask[[first, second]] = mask[[second, first]]

    def make_metadata(
        self,
        req_ids: Sequence[str],
        token_ids: npt.NDArray[np.int32],
        outputs: Sequence[list[int]],
        is_token_ids: npt.NDArray[np.bool_] | None = None,
    ) -> SamplingMetadata:
        """Gather what the sampler needs; a part that nobody uses is not made.

        Parameters
        ----------
        req_ids : sequence of str
            By row, without holes.
        token_ids : ndarray of int32, [max_num_reqs, max_model_len]
            Prompts first.
        outputs : sequence of list of int
            By row, the live lists.
        is_token_ids : ndarray of bool, [max_num_reqs, max_model_len], optional
            False where a prompt is embeddings.
        """
        num_reqs, rows = len(req_ids), self._rows
        penalized = bool(self.frequency_penalty_reqs or self.presence_penalty_reqs or self.repetition_penalty_reqs)
        if self.random_reqs or penalized:
            rows.copy_to_gpu()
        mask = None
        if self.allowed_token_reqs and self.allowed_token_ids_mask is not None:
            mask = self.allowed_token_ids_mask.copy_to_gpu(num_reqs)

        num_logprobs = {}
        if self.num_logprobs:
            wanted = enumerate(map(self.num_logprobs.get, req_ids))
            num_logprobs = {row: count for row, count in wanted if count is not None}

        def device(name: str) -> torch.Tensor:
            return rows.device_view(name)[:num_reqs]

        return SamplingMetadata(
            temperature=device("temperature") if self.random_reqs else None,
            top_p=device("top_p") if self.top_p_reqs else None,
            top_k=device("top_k") if self.top_k_reqs else None,
            generators=self.generators,
            frequency_penalties=device("frequency_penalty") if penalized else None,
            presence_penalties=device("presence_penalty") if penalized else None,
            repetition_penalties=device("repetition_penalty") if penalized else None,
            prompt_token_ids=self._prompts(num_reqs, token_ids, is_token_ids) if penalized else None,
            output_token_ids=tuple(outputs) if penalized or self.bad_words_token_ids else (),
            allowed_token_ids_mask=mask,
            bad_words_token_ids=self.bad_words_token_ids,
            num_logprobs=num_logprobs,
            logits_processors=self.logits_processors,
        )

    def _prompts(
        self, num_reqs: int, token_ids: npt.NDArray[np.int32], is_token_ids: npt.NDArray[np.bool_] | None
    ) -> torch.Tensor:
        """Return all prompts, ``[num_reqs, longest]`` int64; the vocabulary size where there is no token."""
        lengths = self._rows.num_prompt_tokens[:num_reqs]
        longest = int(lengths.max()) if num_reqs else 0
        prompts = token_ids[:num_reqs, :longest].astype(np.int64)
        prompts[np.arange(longest) >= lengths[:, None]] = self._shape[1]
        if is_token_ids is not None:
            prompts[~is_token_ids[:num_reqs, :longest]] = self._shape[1]
        return torch.from_numpy(prompts).to(self._device)

    def check_integrity(self, req_ids: Sequence[str]) -> None:
        """Prove that only requests of the batch have settings, and that free rows forbid nothing.

        Raises
        ------
        IntegrityError
            If not.
        """
        live = set(req_ids)
        if self.greedy_reqs | self.random_reqs != live or self.greedy_reqs & self.random_reqs:
            raise IntegrityError(f"requests {sorted(live)} should be greedy or random, each one of the two")
        for members in (*self._optional_sets, self.num_logprobs.keys(), self._with_options):
            if not live >= members:
                raise IntegrityError(f"{sorted(members - live)} have sampling settings and are not in the batch")
        for by_row in (self.generators, self.bad_words_token_ids):
            if any(row >= len(req_ids) for row in by_row):
                raise IntegrityError(f"rows {sorted(by_row)} have sampling settings, of {len(req_ids)} in use")
        if self.allowed_token_ids_mask is not None:
            masked = np.flatnonzero(self.allowed_token_ids_mask.np.any(axis=1)).tolist()
            allowed = {row for row, req_id in enumerate(req_ids) if req_id in self.allowed_token_reqs}
            if not set(masked) <= allowed:
                raise IntegrityError(f"rows {sorted(set(masked) - allowed)} forbid tokens that their requests allow")


def _swap_keys(by_row: dict[int, T], first: int, second: int) -> None:
    """Exchange what is kept for two rows, which may be nothing."""
    of_first, of_second = by_row.pop(first, None), by_row.pop(second, None)
    if of_first is not None:
        by_row[second] = of_first
    if of_second is not None:
        by_row[first] = of_second
