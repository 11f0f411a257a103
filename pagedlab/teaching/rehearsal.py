"""A rehearsal: the real scheduler and the real blocks, on a modelled clock, with nobody to compute.

A prompt of 40,000 tokens on a large GPU does not fit into a lesson; deciding about it does. A rehearsal runs the
scheduler on visitors who come at given times. No model is asked: each step takes as long as
`pagedlab.trace.time_model.estimate_step` says that it takes on a named GPU, and who has all tokens computed gets one.

>>> writer, reader = Visitor("A", 0, 10, 3), Visitor("B", 1, 5000, 2)
>>> rehearsal = rehearse([writer, reader], budget=2048, seats=4)
>>> rehearsal.trace.num_steps, rehearsal.timeline.requests[1].request_id
(5, 'B')
>>> rehearsal.longest_wait("A") > rehearsal.timeline.step_ends[0]  # A's tokens come with chunks of B's prompt
True

vLLM has no counterpart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import sub
from typing import Any

from pagedlab.config import SchedulerConfig
from pagedlab.errors import IntegrityError, RequestError
from pagedlab.events import BeatStarted, Event, InputsPrepared, Observer, RequestAdded, StepFinished, StepStarted
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.scheduling import Scheduler, SchedulerOutput
from pagedlab.trace import Trace, record
from pagedlab.trace.time_model import (
    GPU,
    GPUS,
    MODELS,
    STEP_OVERHEAD_SECONDS,
    ModelShape,
    RequestTimes,
    StepEstimate,
    StepWork,
    Timeline,
    estimate_step,
)

_ANY_TOKEN = 0
"""Nobody reads what is said in a rehearsal."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who comes at a time.

    Attributes
    ----------
    name : str
        The request id.
    arrival : float
        Milliseconds from the start of the rehearsal.
    num_prompt_tokens, num_output_tokens : int
        How much is asked, and how much is wanted.
    """

    name: str
    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of it.

    Attributes
    ----------
    timeline : Timeline
        Every step and every token, in modelled milliseconds. Visitors are in the order in which they came, each with
        the time of its arrival, be it in the middle of a step.
    trace : Trace
        What scheduler and blocks did.
    """

    timeline: Timeline
    trace: Trace

    def time_to_first_token(self, name: str) -> float:
        """Milliseconds from a visitor's arrival to its first token."""
        return self._of(name).time_to_first_token

    def longest_wait(self, name: str) -> float:
        """The longest pause in a visitor's answer, in milliseconds; 0 if it has only one token."""
        return max(self._of(name).inter_token_latencies, default=0.0)

    def _of(self, name: str) -> RequestTimes:
        found = [request for request in self.timeline.requests if request.request_id == name]
        if not found:
            raise RequestError(f"nobody in this rehearsal is called {name!r}: use the name of one of its visitors")
        return found[0]


class _Stage:
    """An engine without a model, as `record` can watch it."""

    def __init__(self, scheduler: Scheduler, settings: Mapping[str, Any]) -> None:
        self.scheduler = scheduler
        self._settings = settings

    @property
    def observer(self) -> Observer | None:
        return self.scheduler.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.scheduler.observer = self.scheduler.kv_cache_manager.observer = observer

    def describe(self) -> Mapping[str, Any]:
        return self._settings

    def token_text(self, token_id: int) -> str | None:
        return None

    def emit(self, event: Event) -> None:
        if self.observer is not None:
            self.observer(event)


def rehearse(
    visitors: Iterable[Visitor],
    *,
    budget: int = 2048,
    seats: int = 128,
    max_model_len: int | None = None,
    block_size: int = 16,
    num_blocks: int | None = None,
    gpu: GPU = GPUS["H200"],
    model: ModelShape = MODELS["Llama-3-8B"],
    overhead_seconds: float = STEP_OVERHEAD_SECONDS,
    **scheduler_options: Any,
) -> Rehearsal:
    """Let visitors come at their times to a scheduler, until all are served.

    Parameters
    ----------
    visitors : iterable of Visitor
    budget, seats : int
        ``max_num_batched_tokens`` and ``max_num_seqs``.
    max_model_len : int, optional
        None: what the longest visitor needs.
    block_size : int
        Tokens in a block.
    num_blocks : int, optional
        Blocks of the pool, the null block among them; None: enough for all visitors at once.
    gpu, model, overhead_seconds
        On what the steps are timed (`pagedlab.trace.time_model.estimate_step`).
    **scheduler_options
        Further fields of `SchedulerConfig`.

    Returns
    -------
    Rehearsal

    Raises
    ------
    RequestError
        If there are no visitors, or one comes before the start, asks for nothing or has no room for an answer.
    ConfigError
        As `SchedulerConfig` and `Scheduler`.
    DuplicateRequestError
        If two visitors who are there at once have the same name.
    IntegrityError
        If somebody can never be served, because the pool is smaller than its request.
    """
    coming = deque(sorted(visitors, key=lambda visitor: visitor.arrival))
    longest = max((visitor.num_prompt_tokens + visitor.num_output_tokens for visitor in coming), default=0)
    max_model_len = longest if max_model_len is None else max_model_len
    _check(coming, max_model_len)
    if num_blocks is None:
        sizes = (visitor.num_prompt_tokens + visitor.num_output_tokens for visitor in coming)
        num_blocks = 1 + sum(-(-size // block_size) for size in sizes)
    config = SchedulerConfig(budget, seats, **scheduler_options)
    manager = KVCacheManager([FullAttentionSpec(block_size)], num_blocks, max_model_len, enable_caching=False)
    scheduler = Scheduler(config, manager, max_model_len)
    settings = {
        "model": model.name,
        "max_model_len": max_model_len,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "scheduler": type(scheduler).__name__,
        "policy": config.policy,
        "max_num_batched_tokens": budget,
        "max_num_seqs": seats,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": config.enable_chunked_prefill,
    }
    stage = _Stage(scheduler, settings)
    with record(stage) as recorder:
        timeline = _play(stage, coming, lambda work: estimate_step(work, gpu, model, overhead_seconds))
    return Rehearsal(timeline, recorder.trace)


def _check(visitors: Iterable[Visitor], max_model_len: int) -> None:
    """Raise `RequestError` if there is nobody, or somebody who cannot be served."""
    visitors = list(visitors)
    if not visitors:
        raise RequestError("there are no visitors: give at least one")
    for visitor in visitors:
        if visitor.arrival < 0 or visitor.num_prompt_tokens < 1 or visitor.num_output_tokens < 1:
            raise RequestError(f"{visitor}: give an arrival of at least 0 ms, and at least 1 token of each kind")
        if visitor.num_prompt_tokens + visitor.num_output_tokens > max_model_len:
            raise RequestError(f"{visitor} needs more than max_model_len ({max_model_len}): ask for less, or raise it")


def _play(stage: _Stage, coming: deque[Visitor], estimate: Callable[[StepWork], StepEstimate]) -> Timeline:
    """Run steps until everybody is served; return when all things happened."""
    scheduler = stage.scheduler
    now = 0.0
    steps: list[StepEstimate] = []
    starts: list[float] = []
    lives: list[tuple[Visitor, list[float]]] = []
    times: dict[str, list[float]] = {}
    while coming or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[0].arrival)  # nobody is there: the clock goes on to the next who comes
        while coming and coming[0].arrival <= now:
            visitor = coming.popleft()
            _let_in(stage, visitor)
            times[visitor.name] = []
            lives.append((visitor, times[visitor.name]))
        stage.emit(StepStarted(len(steps)))
        stage.emit(BeatStarted("schedule"))
        output = scheduler.schedule()
        if not output.scheduled and not output.preempted_req_ids:
            raise IntegrityError(
                "a step gives nobody any token: the pool is too small for the request that waits first"
            )
        starts.append(now)
        steps.append(estimate(_prepare(stage, output)))
        now += steps[-1].milliseconds
        for name in _update(stage, output):
            times[name].append(now)
        stage.emit(_end_of_step(scheduler, len(steps) - 1))
    ends = tuple(start + step.milliseconds for start, step in zip(starts, steps, strict=True))
    requests = tuple(RequestTimes(visitor.name, visitor.arrival, tuple(tokens)) for visitor, tokens in lives)
    return Timeline(tuple(steps), ends, requests)


def _let_in(stage: _Stage, visitor: Visitor) -> None:
    prompt = (_ANY_TOKEN,) * visitor.num_prompt_tokens
    params = SamplingParams(max_tokens=visitor.num_output_tokens, temperature=0, ignore_eos=True)
    stage.scheduler.add_request(Request(visitor.name, list(prompt), params, visitor.arrival))
    stage.emit(RequestAdded(visitor.name, prompt, visitor.num_output_tokens))


def _prepare(stage: _Stage, output: SchedulerOutput) -> StepWork:
    """Return what the model would have to do; the rows are taken to be in scheduling order."""
    stage.emit(BeatStarted("prepare"))
    requests = [stage.scheduler.requests[name] for name, _ in output.scheduled]
    query_lens = tuple(num_tokens for _, num_tokens in output.scheduled)
    seq_lens = tuple(request.num_computed_tokens for request in requests)  # this step's tokens are in it
    starts = tuple(accumulate(query_lens, initial=0))
    stage.emit(
        InputsPrepared(
            request_ids=tuple(name for name, _ in output.scheduled),
            input_ids=(_ANY_TOKEN,) * starts[-1],
            positions=tuple(chain.from_iterable(map(range, map(sub, seq_lens, query_lens), seq_lens))),
            query_start_loc=starts,
            seq_lens=seq_lens,
            logits_indices=tuple(start - 1 for start in starts[1:]),
            discard=tuple(request.num_computed_tokens < request.num_tokens for request in requests),
        )
    )
    return StepWork(query_lens, seq_lens)


def _update(stage: _Stage, output: SchedulerOutput) -> list[str]:
    """Give a token to everybody who has all tokens computed; return their names."""
    stage.emit(BeatStarted("update"))
    sampled = {}
    for name, _ in output.scheduled:
        request = stage.scheduler.requests[name]
        sampled[name] = () if request.num_computed_tokens < request.num_tokens else (_ANY_TOKEN,)
    stage.scheduler.update_from_output(output, sampled)
    return [name for name, tokens in sampled.items() if tokens]


def _end_of_step(scheduler: Scheduler, index: int) -> StepFinished:
    running, waiting = (
        tuple(request.request_id for request in queue) for queue in (scheduler.running, scheduler.waiting)
    )
    return StepFinished(index, running, waiting, scheduler.kv_cache_manager.num_free_blocks)
