"""Logits processors: what changes logits by rules of the request's own, with state kept by row.

>>> from pagedlab.batch.update import AddedRow, BatchUpdate, MovedRow, MoveDirection
>>> from pagedlab.request import SamplingParams
>>> processor = LogitBiasLogitsProcessor(torch.device("cpu"))
>>> added = AddedRow(1, SamplingParams(logit_bias={2: 5.0}), (7,), [])
>>> processor.update_state(BatchUpdate(2, removed=(), added=(added,), moved=()))
>>> processor.apply(torch.zeros(2, 3)).tolist()
[[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
>>> processor.update_state(BatchUpdate(1, (0,), (), (MovedRow(1, 0, MoveDirection.UNIDIRECTIONAL),)))
>>> processor.apply(torch.zeros(1, 3)).tolist()
[[0.0, 0.0, 5.0]]

A processor hears of requests only by what changed in the batch (`BatchUpdate`), so most steps cost it nothing. Its
tensors are built when logits come, and again only after its rows have changed.

vLLM counterpart: ``vllm/v1/sample/logits_processor/`` (``LogitsProcessor``, ``builtin.py``, and ``state.py``) at
0.25.1. What differs: logits are not changed in place, so that the sampler can tell who changed them and go back; with
``ignore_eos``, ``min_tokens`` leaves end-of-text alone, which then is a token like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pagedlab.batch.update import AddedRow, BatchUpdate, MoveDirection

T = TypeVar("T")


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen."""

    @property
    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token stays the likeliest, so that greedy rows need not be processed."""

    def update_state(self, update: BatchUpdate | None) -> None:
        """Follow the batch; called once a step, also when nothing changed (None)."""

    def apply(self, logits: Tensor) -> Tensor:
        """Return the processed logits, ``[num_reqs, vocab_size]``: a new tensor, or the same one if all stays."""


def builtin_logits_processors(
    device: torch.device, eos_token_id: int | None = None
) -> tuple[LogitsProcessor, LogitsProcessor, LogitsProcessor]:
    """Return the processors that every batch has, in the order in which they apply."""
    return (
        MinTokensLogitsProcessor(device, eos_token_id),
        LogitBiasLogitsProcessor(device),
        MinPLogitsProcessor(device),
    )


class RowStates(Generic[T]):
    """What is kept of some rows, a dict that follows the batch.

    Parameters
    ----------
    make : callable
        From a new row to its state, None for a row of which nothing is kept.

    Attributes
    ----------
    by_row : dict of int to state
        Only rows of which something is kept.
    """

    def __init__(self, make: Callable[[AddedRow], T | None]) -> None:
        self.by_row: dict[int, T] = {}
        self._make = make

    def follow(self, update: BatchUpdate) -> bool:
        """Apply a change of the batch; return whether a state came, went or moved."""
        states = self.by_row
        changed = False
        if states:
            for row in update.removed:
                changed |= self._put(row, None)
        for added in update.added:
            state = self._make(added)
            if states or state is not None:
                changed |= self._put(added.row, state)
        if states:
            for move in update.moved:
                source, target = states.pop(move.source, None), states.get(move.target)
                changed |= source is not None or target is not None
                self._put(move.target, source)
                if move.direction is MoveDirection.SWAP:
                    self._put(move.source, target)
        return changed

    def _put(self, row: int, state: T | None) -> bool:
        """Make ``state`` that of a row; return whether there is or was one."""
        before = self.by_row.pop(row, None)
        if state is not None:
            self.by_row[row] = state
        return state is not None or before is not None


class MinPLogitsProcessor:
    """Forbids tokens less likely than ``min_p`` times the likeliest. Greedy rows take that one anyway."""

    is_argmax_invariant = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._min_ps = RowStates(self._state_of)
        self._tensors: tuple[Tensor, Tensor] | None = None  # rows [n] int64, their min_p [n, 1] float32

    @staticmethod
    def _state_of(added: AddedRow) -> float | None:
        return added.sampling_params.min_p or None  # a greedy request has none

    def update_state(self, update: BatchUpdate | None) -> None:
        """Follow the batch."""
        if update is not None and self._min_ps.follow(update):
            self._tensors = None

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits with unlikely tokens at -inf."""
        min_ps = self._min_ps.by_row
        if not min_ps:
            return logits
        if self._tensors is None:
            values = torch.tensor(list(min_ps.values()), dtype=torch.float32, device=self._device)
            self._tensors = torch.tensor(list(min_ps), device=self._device), values[:, None]
        rows, min_p = self._tensors
        chosen = logits[rows]
        probs = chosen.softmax(dim=-1)
        unlikely = probs < min_p * probs.amax(dim=-1, keepdim=True)
        return logits.index_copy(0, rows, chosen.masked_fill(unlikely, -torch.inf))


class LogitBiasLogitsProcessor:
    """Adds each request's biases to the logits of its tokens."""

    is_argmax_invariant = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._biases = RowStates(self._state_of)
        self._tensors: tuple[tuple[Tensor, Tensor], Tensor] | None = None  # (rows, tokens), biases [n] float32

    @staticmethod
    def _state_of(added: AddedRow) -> dict[int, float] | None:
        bias = added.sampling_params.logit_bias
        return None if bias is None else dict(bias)

    def update_state(self, update: BatchUpdate | None) -> None:
        """Follow the batch."""
        if update is not None and self._biases.follow(update):
            self._tensors = None

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits with the biases added."""
        if not self._biases.by_row:
            return logits
        if self._tensors is None:
            entries = [(row, *pair) for row, biases in self._biases.by_row.items() for pair in biases.items()]
            values = torch.tensor([bias for _, _, bias in entries], dtype=torch.float32, device=self._device)
            self._tensors = _places([(row, token) for row, token, _ in entries], self._device), values
        places, values = self._tensors
        return logits.index_put(places, values.to(logits.dtype), accumulate=True)


class _Unripe(NamedTuple):
    """A request that must not stop yet."""

    min_tokens: int
    output_token_ids: list[int]  # the live list
    stop_token_ids: frozenset[int]


class MinTokensLogitsProcessor:
    """Forbids what would stop a request until it has ``min_tokens`` outputs; then forgets the request."""

    is_argmax_invariant = False

    def __init__(self, device: torch.device, eos_token_id: int | None = None) -> None:
        self._device = device
        self._eos_token_id = eos_token_id
        self._unripe = RowStates(self._state_of)
        self._places: tuple[Tensor, Tensor] | None = None
        self._minus_infinity = torch.tensor(-torch.inf, device=device)

    def _state_of(self, added: AddedRow) -> _Unripe | None:
        params = added.sampling_params
        if len(added.output_token_ids) >= params.min_tokens:
            return None
        stop_token_ids = set(params.stop_token_ids)
        if self._eos_token_id is not None and not params.ignore_eos:
            stop_token_ids.add(self._eos_token_id)
        if not stop_token_ids:
            return None
        return _Unripe(params.min_tokens, added.output_token_ids, frozenset(stop_token_ids))

    def update_state(self, update: BatchUpdate | None) -> None:
        """Follow the batch, and let go of requests that have their tokens."""
        if update is not None and self._unripe.follow(update):
            self._places = None
        states = self._unripe.by_row
        if states:
            ripe = [row for row, state in states.items() if len(state.output_token_ids) >= state.min_tokens]
            for row in ripe:
                del states[row]
                self._places = None

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits with the stop tokens of unripe requests at -inf."""
        if not self._unripe.by_row:
            return logits
        if self._places is None:
            states = self._unripe.by_row
            pairs = [(row, token) for row, state in states.items() for token in state.stop_token_ids]
            self._places = _places(pairs, self._device)
        return logits.index_put(self._places, self._minus_infinity.to(logits.dtype))


def _places(pairs: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (row, token) pairs as an index into logits: two tensors, each ``[len(pairs)]`` int64."""
    index = torch.tensor(pairs, device=device)
    return index[:, 0], index[:, 1]
