"""What the scheduler decided: one immutable value that could cross a process boundary.

>>> import pickle
>>> output = SchedulerOutput(scheduled=(("A", 3),))
>>> pickle.loads(pickle.dumps(output)).num_scheduled_tokens
{'A': 3}

vLLM counterpart: ``vllm/v1/core/sched/output.py`` (``SchedulerOutput``, ``NewRequestData``,
``CachedRequestData``) at 0.25.1. What differs: every part is a tuple, since vLLM's lists are extended in place
after they are handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from pagedlab.kvcache.manager import BlockIds
from pagedlab.request import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request that the worker does not know: everything it needs to know of it, sent once.

    ``output_token_ids`` is empty but for a request that has to start anew after a step failed.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    block_ids: BlockIds
    num_computed_tokens: int
    lora_id: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Shifted(Sequence[int]):
    """A column of numbers that have all grown by the same amount; equal to the tuple of the sums.

    >>> Shifted((3, 7), 2) == (5, 9), Shifted((3, 7), 2)[1]
    (True, 9)
    """

    base: tuple[int, ...]
    shift: int

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        part = self.base[index]
        return part + self.shift if isinstance(part, int) else Shifted(part, self.shift)

    def __len__(self) -> int:
        return len(self.base)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, Shifted)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class CachedRequestData:
    """Requests the worker knows already: only what changed is sent, column by column.

    Attributes
    ----------
    req_ids : tuple of str
        Running requests in the order of the running list, then resumed ones.
    resumed_req_ids : frozenset of str
        Those of them that come back after preemption.
    new_block_ids : tuple of (str, BlockIds)
        Who got blocks, in the same order: those of this step, or *all* of its blocks for a resumed request. Who got
        none is not listed (vLLM: a list with None).
    num_computed_tokens : sequence of int
        Per request, before this step.
    num_output_tokens : sequence of int
        Per request.
    """

    req_ids: tuple[str, ...] = ()
    resumed_req_ids: frozenset[str] = frozenset()
    new_block_ids: tuple[tuple[str, BlockIds], ...] = ()
    num_computed_tokens: Sequence[int] = ()
    num_output_tokens: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's decision.

    Attributes
    ----------
    scheduled : tuple of (str, int)
        Request id and number of tokens, in scheduling order: running requests first, then resumed and new ones.
    scheduled_new_reqs : tuple of NewRequestData
    scheduled_cached_reqs : CachedRequestData
    finished_req_ids : frozenset of str
        Requests that ended since the last step; the worker forgets them.
    preempted_req_ids : frozenset of str
        Requests that lost their blocks in this step.
    total_num_scheduled_tokens : int
        The sum over ``scheduled``; computed if it is not given.
    """

    scheduled: tuple[tuple[str, int], ...] = ()
    scheduled_new_reqs: tuple[NewRequestData, ...] = ()
    scheduled_cached_reqs: CachedRequestData = CachedRequestData()
    finished_req_ids: frozenset[str] = frozenset()
    preempted_req_ids: frozenset[str] = frozenset()
    total_num_scheduled_tokens: int = -1

    def __post_init__(self) -> None:
        if self.total_num_scheduled_tokens == -1:
            object.__setattr__(self, "total_num_scheduled_tokens", sum(count for _, count in self.scheduled))

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens by request id, in scheduling order (a new dict each time)."""
        return dict(self.scheduled)


class OneTokenEach(Mapping[str, tuple[int, ...]]):
    """New tokens by request where every request got exactly one: a mapping like any other, kept as two columns.

    >>> OneTokenEach(("A", "B"), [7, 9])["B"]
    (9,)
    """

    __slots__ = ("_by_request", "req_ids", "token_ids")

    def __init__(self, req_ids: tuple[str, ...], token_ids: list[int]) -> None:
        self.req_ids = req_ids
        self.token_ids = token_ids
        self._by_request: dict[str, tuple[int, ...]] | None = None

    def __getitem__(self, req_id: str) -> tuple[int, ...]:
        if self._by_request is None:
            self._by_request = dict(zip(self.req_ids, zip(self.token_ids, strict=True), strict=True))
        return self._by_request[req_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.req_ids)

    def __len__(self) -> int:
        return len(self.req_ids)

    def __repr__(self) -> str:
        return f"OneTokenEach({dict(self)})"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought (vLLM: ``EngineCoreOutputs``).

    Attributes
    ----------
    new_token_ids : mapping of str to tuple of int
        Accepted tokens by request, in scheduling order; who got none is not listed.
    finish_reasons : mapping of str to str
        Requests that ended with this step, and why: ``"stop"`` or ``"length"``.
    """

    new_token_ids: Mapping[str, tuple[int, ...]]
    finish_reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model held a sampled token, by its raw logits (vLLM: ``Logprob``, one for each token).

    Attributes
    ----------
    token_id : int
        The sampled token.
    logprob : float
        The natural logarithm of its probability.
    rank : int
        How many tokens are at least as likely, itself among them: 1 is the likeliest.
    top : tuple of (int, float)
        The likeliest tokens and their log-probabilities, likeliest first; as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """What the worker sends back for a step (vLLM: ``ModelRunnerOutput`` in ``vllm/v1/outputs.py``).

    Attributes
    ----------
    sampled_token_ids : mapping of str to tuple of int
        New tokens by request, in batch order; empty for a partial prefill.
    logprobs : mapping of str to tuple of TokenLogprobs
        One for each of its new tokens, for the requests that want them.
    """

    sampled_token_ids: Mapping[str, tuple[int, ...]]
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
