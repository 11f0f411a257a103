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

from dataclasses import dataclass

from pagedlab.kvcache.manager import BlockIds
from pagedlab.request import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request that runs for the first time: everything the worker needs to know of it, sent once."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    block_ids: BlockIds
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class CachedRequestData:
    """A request the worker knows already: only what changed is sent.

    ``new_block_ids`` are *all* of its blocks if ``resumed``, else those it got in this step, or None if it got none.
    ``num_computed_tokens`` is the count before this step.
    """

    request_id: str
    resumed: bool
    new_block_ids: BlockIds | None
    num_computed_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's decision.

    Attributes
    ----------
    scheduled : tuple of (str, int)
        Request id and number of tokens, in scheduling order: running requests first, then resumed and new ones.
    scheduled_new_reqs : tuple of NewRequestData
    scheduled_cached_reqs : tuple of CachedRequestData
        Running requests in the order of the running list, then resumed ones.
    finished_req_ids : frozenset of str
        Requests that ended since the last step; the worker forgets them.
    preempted_req_ids : frozenset of str
        Requests that lost their blocks in this step.
    """

    scheduled: tuple[tuple[str, int], ...] = ()
    scheduled_new_reqs: tuple[NewRequestData, ...] = ()
    scheduled_cached_reqs: tuple[CachedRequestData, ...] = ()
    finished_req_ids: frozenset[str] = frozenset()
    preempted_req_ids: frozenset[str] = frozenset()

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens by request id, in scheduling order (a new dict each time)."""
        return dict(self.scheduled)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(count for _, count in self.scheduled)


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """What one step brought to one request (vLLM: ``EngineCoreOutput``)."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: str | None
