"""Why a request gets nothing in a step: the scheduler's own conditions, in words.

>>> from pagedlab.events import RequestScheduled
>>> why_waits({"max_num_seqs": 2}, ["A"], ["B"], Replay.of([RequestScheduled("A", "running", 8, 0, 8, budget_left=0)]))
'the budget is spent'
>>> why_waits({"scheduler": "StaticBatchScheduler"}, ["A"], ["B"], Replay())
'static batching: nobody joins until the batch is empty'

vLLM counterpart: the conditions of the second loop of ``Scheduler.schedule``, ``vllm/v1/core/sched/scheduler.py`` at
0.25.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagedlab.scenes.replay import Replay
from pagedlab.scenes.words import are, counted, name


def is_static(settings: Mapping[str, Any]) -> bool:
    """Whether the trace is one of static batching."""
    return settings.get("scheduler") == "StaticBatchScheduler"


def batch_is_closed(settings: Mapping[str, Any], running_before: Sequence[str]) -> bool:
    """Whether nobody may join in a step that began with these requests running, whatever is free."""
    return is_static(settings) and bool(running_before)


def why_waits(
    settings: Mapping[str, Any], running_before: Sequence[str], waiting: Sequence[str], decided: Replay
) -> str:
    """Return why the first of those who still wait was not admitted; whoever does not fit blocks all behind it.

    Parameters
    ----------
    settings : mapping
        `Trace.settings`.
    running_before : sequence of str
        Who ran as the step began.
    waiting : sequence of str
        Who waits when the scheduler is done, next first.
    decided : Replay
        The engine when the scheduler is done.
    """
    seats = settings.get("max_num_seqs")
    left = decided.budget_left
    if batch_is_closed(settings, running_before):
        return "static batching: nobody joins until the batch is empty"
    if decided.preempted:
        return "a step that preempts admits nobody"
    if left == 0:
        return "the budget is spent"
    if isinstance(seats, int) and len(decided.running) >= seats:
        return f"all {counted(seats, 'seat')} are taken" if seats > 1 else "the only seat is taken"
    if left is not None and settings.get("enable_chunked_prefill") is False and waiting:
        todo = len(decided.request(waiting[0]).tokens)
        if todo > left:
            prompt = f"{name(waiting[0])}’s {counted(todo, 'token')}"
            return f"{prompt} do not fit the {left:,} left of the budget, and may not be cut"
    free = decided.num_free_blocks
    return "too few blocks are free for it" + ("" if free is None else f" ({free:,} {are(free)})")


def why_passed_over(decided: Replay) -> str:
    """Return why a running request got no tokens although it kept its blocks."""
    if decided.budget_left == 0:
        return "the budget is spent on those before"
    if decided.preempted:
        return f"the round ended with {name(decided.preempted[-1])}, which found no blocks"
    return "it has no token to compute"
