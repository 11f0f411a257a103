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

from collections.abc import Mapping
from dataclasses import dataclass

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
    num_computed_tokens : tuple of int
        Per request, before this step.
    num_output_tokens : tuple of int
        Per request.
    """

    req_ids: tuple[str, ...] = ()
    resumed_req_ids: frozenset[str] = frozenset()
    new_block_ids: tuple[tuple[str, BlockIds], ...] = ()
    num_computed_tokens: tuple[int, ...] = ()
    num_output_tokens: tuple[int, ...] = ()


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
    """

    scheduled: tuple[tuple[str, int], ...] = ()
    scheduled_new_reqs: tuple[NewRequestData, ...] = ()
    scheduled_cached_reqs: CachedRequestData = CachedRequestData()
    finished_req_ids: frozenset[str] = frozenset()
    preempted_req_ids: frozenset[str] = frozenset()

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens by request id, in scheduling order (a new dict each time)."""
        return dict(self.scheduled)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum([count for _, count in self.scheduled])


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
