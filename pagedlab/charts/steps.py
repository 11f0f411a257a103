"""What each step of a trace comes to, when its scheduler has decided and the model is about to run.

>>> from pagedlab.events import BlocksAllocated, RequestAdded, RequestScheduled, StepStarted
>>> from pagedlab.trace import Record, Trace
>>> events = [
...     RequestAdded("A", (1, 2, 3), 4),
...     RequestAdded("B", (1, 2), 4),
...     StepStarted(0),
...     BlocksAllocated("A", 0, (1,), 6),
...     RequestScheduled("A", "new", 3, 0, 3, 5),
... ]
>>> trace = Trace.from_records([Record(0, None, event, None) for event in events], settings={"num_blocks": 8})
>>> (step,) = steps_of(trace)
>>> step.num_tokens, step.num_prefill_tokens, step.waiting, step.blocks
(3, 3, 1, Blocks(held=1, cached=0, empty=6))

Blocks are counted at that moment because the requests that end in a step give theirs back before it is over: later,
nobody would see how full memory was. A trace may begin in the middle: what nobody has told yet is taken as 0.

vLLM counterpart: ``SchedulerStats`` in ``vllm/v1/metrics/stats.py`` at 0.25.1, which is taken when the step is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.events import (
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    RequestAborted,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    StepStarted,
)
from pagedlab.scenes.timeline_runs import Grant, Run, ends_scheduling
from pagedlab.trace import Trace


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many blocks of the pool are held by requests, free but cached (they can be hit), and free and empty."""

    held: int
    cached: int
    empty: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes
    ----------
    index : int
        What the engine calls it.
    grants : tuple of Grant
        Who got how many tokens, in order; without what a preemption took back.
    preempted : tuple of str
        Who lost its blocks.
    num_prompt_tokens : int
        How many of the granted tokens are of prompts. A preempted request computes its output again in a prefill, so
        `num_prefill_tokens` may be more.
    waiting : int
        How many requests wait.
    blocks : Blocks or None
        None if the trace's settings do not tell how many there are.
    """

    index: int
    grants: tuple[Grant, ...]
    preempted: tuple[str, ...]
    num_prompt_tokens: int
    waiting: int
    blocks: Blocks | None

    @property
    def num_tokens(self) -> int:
        return sum(grant.num_tokens for grant in self.grants)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(grant.num_tokens for grant in self.grants if grant.is_prefill)


def steps_of(trace: Trace) -> list[Step]:
    """Return the steps of a trace that the recording saw begin.

    Raises
    ------
    TraceError
        If there is none.
    """
    run, books = Run(trace), _Books(setting(trace, "num_blocks"))
    decided: list[tuple[dict[str, int], int, Blocks | None]] = []
    is_decided = True
    for record in trace:
        event = record.event
        if not is_decided and (isinstance(event, StepStarted) or ends_scheduling(event)):
            is_decided = True
            decided.append(books.state())
        is_decided = is_decided and not isinstance(event, StepStarted)
        books.apply(event)
    if not is_decided:  # the recording stopped in the middle of the last step
        decided.append(books.state())
    return [
        Step(
            column.step,
            tuple(column.grants),
            tuple(column.lost),
            sum(of_prompt[grant.request_id] for grant in column.grants),
            waiting,
            blocks,
        )
        for column, (of_prompt, waiting, blocks) in zip(run.columns, decided, strict=True)
    ]


def setting(trace: Trace, key: str) -> int | None:
    """Return a setting that is a number from 1; None if the trace, which may be from a file, does not tell it."""
    value = trace.settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def step_axis(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the layout of an axis of steps: each is as wide as 1, its number in the middle."""
    return {
        "title": {"text": "step (one run of the model)"},
        "range": [steps[0].index - 0.5, steps[-1].index + 0.5],
        **({"dtick": 1} if len(steps) <= 16 else {}),
    }


class _Books:
    """Who waits, and which blocks are held or cached; in all KV cache groups, which share one pool."""

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self.num_free: int | None = None
        self.waiting: set[str] = set()
        self.prompts: dict[str, int] = {}
        self.of_prompt: dict[str, int] = {}  # of the tokens that a request was granted in this step
        self.holders: Counter[int] = Counter()
        self.hashed: set[int] = set()

    def state(self) -> tuple[dict[str, int], int, Blocks | None]:
        """Return each grant's tokens of prompts, the number of those that wait, and the blocks."""
        return dict(self.of_prompt), len(self.waiting), self._blocks()

    def _blocks(self) -> Blocks | None:
        if self.num_blocks is None or self.num_blocks < 2:
            return None
        usable = self.num_blocks - 1  # nobody gets the null block
        free = usable if self.num_free is None else self.num_free
        # Emptying the prefix cache is no event, but it needs a pool that nobody holds anything of.
        cached = min(free, sum(not self.holders[block] for block in self.hashed))
        return Blocks(usable - free, cached, free - cached)

    def apply(self, event: Event) -> None:
        match event:
            case RequestAdded():
                self.prompts[event.request_id] = len(event.prompt_token_ids)
                self.waiting.add(event.request_id)
            case StepStarted():
                self.of_prompt = {}
            case RequestScheduled():
                # Nobody told the prompt of a request that was there before: what it holds is taken as that.
                prompt = self.prompts.setdefault(event.request_id, event.num_tokens)
                left = max(0, prompt - event.num_computed_tokens)
                self.of_prompt[event.request_id] = min(event.num_scheduled_tokens, left)
                self.waiting.discard(event.request_id)
            case RequestPreempted():
                self.waiting.add(event.request_id)
            case RequestFinished() | RequestAborted():
                self.waiting.discard(event.request_id)
            case StepFinished():
                self.waiting, self.num_free = set(event.waiting), event.num_free_blocks
            case BlocksAllocated() | BlocksTouched():
                self.num_free = event.num_free
                self.holders.update(event.block_ids)
            case BlocksFreed():
                self.num_free = event.num_free
                self._give_up(event.block_ids)
            case BlocksCached():
                self.hashed.update(event.block_ids)
            case BlocksEvicted():
                self.hashed.difference_update(event.block_ids)
            case _:
                pass

    def _give_up(self, block_ids: Iterable[int]) -> None:
        for block in block_ids:
            if self.holders[block]:  # else it was taken before the recording began
                self.holders[block] -= 1
