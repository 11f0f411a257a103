"""Which part of a trace the scene `preemption` shows: from the step that preempts to the one that ends the story.

>>> from pagedlab.events import RequestPreempted, StepFinished, StepStarted
>>> from pagedlab.trace import Record, Trace
>>> events = [StepStarted(0), RequestPreempted("A", 3), StepFinished(0, (), ("A",), 4), StepStarted(1)]
>>> plan = plan_of(Trace(tuple(Record(0, None, event, None) for event in events)), preempted_at=1)
>>> plan.victim, plan.shown, plan.resumed_at, plan.how
('A', (range(0, 3), range(3, 4)), None, 'end')

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagedlab.events import (
    ForwardFinished,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    StepFinished,
    StepStarted,
)
from pagedlab.scenes.preemption_stage import Room
from pagedlab.scenes.preemption_state import QueueState
from pagedlab.trace import Trace


@dataclass(frozen=True, slots=True)
class Plan:
    """What is shown.

    Attributes
    ----------
    victim : str
    preempted_at : int
        The record of its preemption.
    resumed_at : int or None
        The record that admits it again.
    shown : tuple of range
        The records of each step.
    how : str
        What ends the story: ``"back"`` (it is where it was), ``"again"`` (preempted again before that), ``"gone"``
        (it ended, or was withdrawn) or ``"end"`` (the trace ends).
    """

    victim: str
    preempted_at: int
    resumed_at: int | None
    shown: tuple[range, ...]
    how: str


def plan_of(trace: Trace, preempted_at: int) -> Plan:
    """Return what is shown of the preemption at a record."""
    event = trace.records[preempted_at].event
    victim = event.request_id if isinstance(event, RequestPreempted) else ""
    steps = list(_steps_of(trace))
    first = next(at for at, step in enumerate(steps) if preempted_at in step)
    resumed_at = _find_resume(trace, preempted_at, victim)
    last, how = _find_end(trace, steps, preempted_at, resumed_at, victim)
    return Plan(victim, preempted_at, resumed_at, tuple(steps[first : last + 1]), how)


def _steps_of(trace: Trace) -> Iterator[range]:
    """Give the records of each step: what happens between two steps goes with the second one."""
    start, has_begun = 0, False
    for at, record in enumerate(trace.records):
        if isinstance(record.event, StepStarted):
            if has_begun:  # the step before failed: it has no end
                yield range(start, at)
                start = at
            has_begun = True
        elif isinstance(record.event, StepFinished):
            yield range(start, at + 1)
            start, has_begun = at + 1, False
    if start < len(trace):
        yield range(start, len(trace))


def _find_resume(trace: Trace, preempted_at: int, victim: str) -> int | None:
    for index in range(preempted_at + 1, len(trace)):
        match trace.records[index].event:
            case RequestScheduled(request_id=request_id) if request_id == victim:
                return index
            case RequestFinished(request_id=request_id) | RequestAdded(request_id=request_id) if request_id == victim:
                return None
            case _:
                pass
    return None


def _find_end(
    trace: Trace, steps: list[range], preempted_at: int, resumed_at: int | None, victim: str
) -> tuple[int, str]:
    """Return the step that is shown last, and what ends the story."""
    state = QueueState(trace)
    for at, step in enumerate(steps):
        for index in step:
            event = trace.records[index].event
            state.apply(event)
            if index <= preempted_at:
                continue
            match event:
                case RequestFinished(request_id=request_id) | RequestAdded(request_id=request_id):
                    if request_id == victim:
                        return at, "gone"
                case RequestPreempted(request_id=request_id):
                    if request_id == victim:
                        return at, "again"
                case ForwardFinished() if resumed_at is not None and index > resumed_at:
                    if state.request(victim).has_caught_up:
                        return at, "back"
                case _:
                    pass
    return len(steps) - 1, "end"


def room_of(trace: Trace, plan: Plan) -> Room:
    """Return how much room the stage will need for what is shown."""
    state = QueueState(trace)
    running, waiting, tokens, block = 1, 1, 1, 0
    for index, record in enumerate(trace.records[: plan.shown[-1].stop]):
        state.apply(record.event)
        if not isinstance(record.event, RowAdded):  # its ids are of several groups, and known already
            block = max([block, *getattr(record.event, "block_ids", ())])
        if index < plan.shown[0].start - 1:
            continue
        is_leaving = state.leaving is not None
        running = max(running, len(state.running) + is_leaving)
        waiting = max(waiting, len(state.waiting) + is_leaving)
        live = (*state.running, *state.waiting)
        tokens = max([tokens, *(state.request(request_id).num_tokens for request_id in live)])
    return Room(running, waiting, tokens, max(block, state.pool.num_blocks - 1))
