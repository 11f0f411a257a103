"""The scene `preemption`: the pool runs dry, the last that came gives up its blocks, waits, and computes all again.

It spans the steps from the one in which a request is preempted to the one in which it is where it was. A frame shows
the running list above the waiting queue, whose head is right below the victim; each request's blocks; the free queue;
and how much of all work was done twice.

vLLM counterpart of what is shown: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.schedule``, ``_preempt_request``)
and ``vllm/v1/worker/gpu_model_runner.py`` (``_update_states``, which replaces a resumed request's block ids) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from pagedlab.errors import TraceError
from pagedlab.events import (
    BeatStarted,
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    ForwardFinished,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowRemoved,
    StepFinished,
    StepStarted,
)
from pagedlab.scenes import preemption_words as words
from pagedlab.scenes.assembling import assemble, line_with
from pagedlab.scenes.block_pool_state import requests_of
from pagedlab.scenes.preemption_plan import plan_of, room_of
from pagedlab.scenes.preemption_questions import Asked, questions_of_preemption
from pagedlab.scenes.preemption_stage import WIDTH, PreemptionStage
from pagedlab.scenes.preemption_state import QueueState
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.scene import Frame, Scene, in_key_order
from pagedlab.scenes.step_captions import ids_of
from pagedlab.scenes.words import counted, name
from pagedlab.trace import Record, Trace

_EVENT_NAMES = {
    "RequestPreempted": "preemption",
    "BlocksFreed": "release",
    "RequestScheduled": "grant",
    "BlocksTouched": "hit",
    "BlocksAllocated": "new block",
    "RowRemoved": "removal",
    "RowAdded": "new row",
    "ForwardFinished": "forward pass",
    "StepFinished": "step",
}


def preemption(trace: Trace, nth: int = 0) -> Scene:
    """Show one preemption from the step in which it happens to the one in which its victim is where it was.

    Parameters
    ----------
    trace : Trace
    nth : int
        Which preemption of the trace, from 0.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such preemption.
    """
    found = [index for index, record in enumerate(trace.records) if isinstance(record.event, RequestPreempted)]
    if not found:
        raise TraceError(
            "nobody is preempted in this trace: record an engine with fewer blocks, CacheConfig(num_blocks=…), than "
            "its requests need"
        )
    if not 0 <= nth < len(found):
        has = counted(len(found), "preemption")
        raise TraceError(f"nth is {nth}, and the trace has {has}: give a number from 0 to {len(found) - 1}")
    walk = _Walk(trace, found[nth])
    frames = tuple(walk.frames())
    return assemble(
        trace,
        walk.records,
        "preemption",
        "Preemption",
        (WIDTH, walk.stage.height),
        frames,
        walk.requests,
        _EVENT_NAMES,
        lambda _: questions_of_preemption(walk.victim, walk.asked),
    )


class _Walk:
    """Takes queues and blocks through the steps, and shows the stage at each change."""

    def __init__(self, trace: Trace, preempted_at: int) -> None:
        self.trace = trace
        self.plan = plan_of(trace, preempted_at)
        self.victim = self.plan.victim
        shown = self.plan.shown
        self.records = trace.records[shown[0].start : shown[-1].stop]
        self.requests = tuple(requests_of(trace))
        self.state = QueueState(trace)
        self.at = 0
        self.stage = PreemptionStage(self.state, room_of(trace, self.plan), self.requests, self.victim)
        self.asked = Asked(by_priority=self.state.by_priority)
        self.shown: list[Frame] = []
        self._given_up: list[int] = []
        self._num_found = 0
        self._quiet: list[tuple[int, int, str]] = []  # steps in which the victim only waits: step, record, why

    def _event(self, index: int) -> Event:
        return self.trace.records[index].event

    # --- frames ---------------------------------------------------------------------------------------------

    def frames(self) -> list[Frame]:
        """Walk through the steps."""
        plan = self.plan
        started = [at for at in plan.shown[0] if isinstance(self._event(at), StepStarted)]
        self._apply_to(started[0] + 1 if started else plan.shown[0].start)
        self._show(words.opening(self.state, self._step_of(plan.preempted_at)), None)
        self._dry_step(plan.shown[0])
        for step in plan.shown[1:]:
            if plan.resumed_at is None or plan.resumed_at >= step.stop:
                self._waiting_step(step)
            elif plan.resumed_at in step:
                self._show_quiet()
                self._resuming_step(step, plan.resumed_at)
            else:
                self._later_step(step)
        self._show_quiet()
        self._apply_to(plan.shown[-1].stop)
        num_steps = self._step_of(self.at - 1) - self._step_of(plan.preempted_at)
        victim = self.state.request(self.victim)
        self._show(words.closing(victim, self.state, plan.how, num_steps, self._num_found), None)
        return self.shown

    def _step_of(self, index: int) -> int:
        return self.trace.records[index].step

    def _apply_to(self, end: int) -> None:
        for index in range(self.at, end):
            self.state.apply(self._event(index))
        self.at = max(self.at, end)

    # --- the step in which the pool runs dry ----------------------------------------------------------------

    def _dry_step(self, step: range) -> None:
        since = step.start
        decided = False
        for index in step:
            match self._event(index):
                case RequestPreempted() as event:
                    since = self._show_grants(since, index)
                    self._show_preemption(event, index, step)
                    since = self.at
                case RequestScheduled(request_id=self.stage.needy):
                    since = self._show_grants(since, index + 1)
                case BeatStarted(beat=beat) if beat != "schedule" and not decided:
                    decided = True
                    self._show_grants(since, index)
                    self._apply_to(index + 1)
                    if self.state.waiting:
                        caption = words.nobody_admitted(self.state)
                        self._show(caption, index, looks_at=(self.plan.preempted_at, "not preempted"))
                case ForwardFinished() as event:
                    self._show_rows_removed(index)
                    self._show_forward(event, index, self.state.preempted)
                case RequestFinished(reason=reason) as event:
                    self._show_end(event.request_id, reason, index, step)
                case _:
                    pass
        self._apply_to(step.stop)
        self._given_up = []

    def _show_grants(self, since: int, until: int) -> int:
        """Show the grants of some records in one frame, if there are any; return from where on none is shown."""
        grants = [at for at in range(since, until) if isinstance(self._event(at), RequestScheduled)]
        if not grants:
            return since
        self._apply_to(grants[-1] + 1)
        events = [self._event(at) for at in range(since, grants[-1] + 1)]
        who = [event.request_id for event in events if isinstance(event, RequestScheduled)]
        ids = ids_of(events, BlocksAllocated)
        caption = words.granted(events, self.state, self._given_up)
        self.stage.needy = None
        self._show(caption, grants[-1], focus=[f"request:{request_id}" for request_id in who], blocks=ids)
        return grants[-1] + 1

    def _needy(self, index: int, step: range) -> tuple[str, int | None]:
        """Return for whom somebody is preempted, and how many blocks it needs; who preempts itself gets none."""
        needed, last = 0, self.victim
        for at in range(index, step.stop):
            match self._event(at):
                case RequestPreempted(request_id=last):
                    pass
                case BlocksAllocated(block_ids=ids):
                    needed += len(ids)
                case RequestScheduled(request_id=request_id):
                    return request_id, needed or None
                case BeatStarted():
                    break
                case _:
                    pass
        return last, None

    def _show_preemption(self, event: RequestPreempted, index: int, step: range) -> None:
        needy, needed = self._needy(index, step)
        again = self.stage.needy == needy
        self.stage.needy = needy
        self._apply_to(index)
        if index == self.plan.preempted_at:
            self.asked.needy, self.asked.dry_frame = needy, len(self.shown)
            self.asked.held = {item: len(self.state.request(item).blocks) for item in self.state.running}
        caption = words.dry(needy, needed, self.state, again=again)
        focus = [f"request:{needy}", "queue"]
        self._show(caption, index - 1, focus=focus, looks_at=(index, ".allocate_slots("))
        self._apply_to(index + 1)
        victim = self.state.request(event.request_id)
        key = f"request:{event.request_id}"
        self._show(words.preempted(victim, needy, self.state), index, focus=[key])
        freed = index
        while freed + 1 < step.stop and _frees(self._event(freed + 1), event.request_id):
            freed += 1
        if freed > index:
            ids = ids_of(map(self._event, range(index + 1, freed + 1)), BlocksFreed)
            self._apply_to(freed + 1)
            self._given_up += ids
            if ids:
                self._show(words.freed(ids, self.state), freed, blocks=ids)
        self.state.settle()
        self._show(words.requeued(victim, self.state), freed, focus=[key], looks_at=(freed, ".requeue("))

    def _show_rows_removed(self, until: int) -> None:
        removed = [
            (event.request_id, event.row, at)
            for at in range(self.at, until)
            if isinstance(event := self._event(at), RowRemoved) and event.request_id in self.state.preempted
        ]
        if not removed:
            return
        self._apply_to(removed[-1][2] + 1)
        focus = [f"request:{request_id}" for request_id, _, _ in removed]
        rows = [(request_id, row) for request_id, row, _ in removed]
        self._show(words.row_removed(rows, self.state), removed[-1][2], focus=focus)

    def _show_forward(self, event: ForwardFinished, index: int, without: Sequence[str]) -> None:
        before = self.state.num_again
        self._apply_to(index + 1)
        self._show(words.forward(event, self.state.num_again - before, without), index, focus=["panel"])

    def _show_end(self, request_id: str, reason: str, index: int, step: range) -> None:
        freed = index
        while freed + 1 < step.stop and _frees(self._event(freed + 1), request_id):
            freed += 1
        ids = ids_of(map(self._event, range(index + 1, freed + 1)), BlocksFreed)
        self._apply_to(freed + 1)
        if ids:
            self._show(words.ended(request_id, reason, ids, self.state), freed, blocks=ids)

    # --- the steps in which the victim waits ------------------------------------------------------------------

    def _waiting_step(self, step: range) -> None:
        """Show a step at its end; steps in which nothing happens but that everybody computes are told together."""
        if any(_is_news(self._event(index)) for index in step):
            self._show_quiet()
        decided: list[str] = []
        ended: list[tuple[str, str, list[int]]] = []
        why, before = "", list(self.state.running)
        end = None
        for index in step:
            self._apply_to(index + 1)
            match self._event(index):
                case StepStarted():
                    before = list(self.state.running)
                case RequestPreempted(request_id=request_id, num_computed_tokens=lost):
                    decided.append(f"{name(request_id)} is preempted and loses {counted(lost, 'computed token')}")
                case RequestScheduled(request_id=request_id, status="new" | "resumed" as status):
                    decided.append(f"{name(request_id)} {'is admitted' if status == 'new' else 'resumes'}")
                case RequestFinished(request_id=request_id, reason=reason):
                    ended.append((request_id, reason, self._freed_by(index)))
                case BeatStarted(beat=beat) if beat != "schedule" and not why:
                    why = words.why_it_waits(self.victim, before, self.state)
                case StepFinished(index=number):
                    end = (number, index, why)
                case _:
                    pass
        if end is None or self.victim not in self.state.waiting:
            return  # the recording ends in the middle of the step, the step failed, or the victim has left
        if decided or ended:
            told = words.all_ended(ended, self.state)
            self._show(words.waits([end[0]], self.victim, end[2], decided, told), end[1])
        else:
            self._quiet.append(end)

    def _freed_by(self, index: int) -> list[int]:
        behind = map(self._event, range(index + 1, len(self.trace)))
        return ids_of(takewhile(lambda event: isinstance(event, BlocksFreed), behind), BlocksFreed)

    def _show_quiet(self) -> None:
        """Show the uneventful steps so far as one frame."""
        if self._quiet:
            _, index, why = self._quiet[-1]
            steps = [number for number, _, _ in self._quiet]
            self._quiet = []
            self._show(words.waits(steps, self.victim, why), index)

    # --- the way back -----------------------------------------------------------------------------------------

    def _resuming_step(self, step: range, resumed_at: int) -> None:
        since = resumed_at
        while since - 1 in step and isinstance(
            self._event(since - 1), (BlocksTouched, BlocksAllocated, BlocksEvicted, BlocksCached)
        ):
            since -= 1
        self._show_grants(step.start, since)
        self._apply_to(since)
        victim = self.state.request(self.victim)
        old = victim.worker_blocks
        key = f"request:{self.victim}"
        self.asked.look_frame = len(self.shown)
        caption = words.next_to_resume(victim, self.state)
        self._show(caption, since - 1, focus=[key], looks_at=(resumed_at, ".waiting.peek("))
        evicted: list[int] = []
        for index in range(since, resumed_at):
            event = self._event(index)
            self._apply_to(index + 1)
            match event:
                case BlocksTouched(group=group, block_ids=ids) if group == GROUP:
                    self._show(words.found_again(ids, victim, self.state), index, blocks=ids)
                case BlocksEvicted(block_ids=ids):
                    evicted += ids
                case BlocksAllocated(group=group, block_ids=ids) if group == GROUP:
                    self._show(words.taken_again(ids, victim, old, evicted), index, blocks=ids)
                case _:
                    pass
        self._apply_to(resumed_at + 1)
        grant = self._event(resumed_at)
        if isinstance(grant, RequestScheduled):
            self.asked.grant, self.asked.victim, self.asked.resumed_frame = grant, victim, len(self.shown)
            self._num_found = grant.num_computed_tokens
            self._show(words.resumed(grant, victim), resumed_at, focus=[key])
        self._show_new_row(step, resumed_at, old)

    def _show_new_row(self, step: range, resumed_at: int, old: tuple[int, ...]) -> None:
        self._show_grants(resumed_at + 1, step.stop)
        for index in range(self.at, step.stop):
            match self._event(index):
                case RowAdded(request_id=self.victim, row=row, block_ids=ids):
                    self._apply_to(index + 1)
                    new = ids[GROUP] if ids else ()
                    self.asked.old_ids, self.asked.new_ids, self.asked.row_frame = old, new, len(self.shown)
                    self._show(words.replaced(old, new, self.victim, row), index, focus=[f"request:{self.victim}"])
                case ForwardFinished() as event:
                    self._show_forward(event, index, ())
                case _:
                    pass
        self._apply_to(step.stop)

    def _later_step(self, step: range) -> None:
        """Show a step in which the victim goes on computing what it had lost."""
        for index in step:
            self._apply_to(index + 1)
            event = self._event(index)
            victim = self.state.request(self.victim)
            if isinstance(event, ForwardFinished) and not victim.has_caught_up and self.victim in self.state.running:
                caption = words.catching_up(self.trace.records[index].step, event, victim)
                self._show(caption, index, focus=[f"request:{self.victim}", "panel"])

    def _show(
        self,
        caption: words.Caption,
        index: int | None,
        *,
        focus: Sequence[str] = (),
        blocks: Sequence[int] = (),
        looks_at: tuple[int, str] | None = None,
    ) -> None:
        """Add a frame that shows the record at ``index``.

        One without an index shows no event; one that ``looks_at`` a record shows the line of its function with these
        words, which ran and emitted nothing.
        """
        actors = in_key_order(self.stage.actors())
        keys = {actor.key for actor in actors}
        shown = self.at - 1 if index is None else index
        record: Record | None = self.trace.records[shown] if shown >= 0 else None
        source = record.source if record is not None and index is not None else None
        if looks_at is not None:
            source = line_with(self.trace, self.trace.records[looks_at[0]], looks_at[1])
        step = max(0, self.state.step)
        free = self.state.pool.num_free
        told = "" if free is None else f" · {counted(free, 'free block')}"
        frame = Frame(
            id=f"{len(self.shown)}:{shown}",
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {step} · {len(self.state.running):,} running, {len(self.state.waiting):,} waiting{told}",
            step=step,
            event=record.event.kind if record is not None and index is not None and looks_at is None else None,
            source=(source.function, source.line) if source is not None else None,
            focus=tuple(key for key in (*focus, *self.stage.keys_of(blocks)) if key in keys),
            record=shown,
        )
        self.shown.append(frame)


def _is_news(event: Event) -> bool:
    """Whether somebody comes, goes or is pushed out."""
    match event:
        case RequestPreempted() | RequestFinished() | RequestScheduled(status="new" | "resumed"):
            return True
        case _:
            return False


def _frees(event: Event, request_id: str) -> bool:
    return isinstance(event, BlocksFreed) and event.request_id == request_id
