"""The scene `step`: one whole step of the engine through its four beats.

The stage is a map that stays (`pagedlab.scenes.engine_stage`). A token travels over it: from its request's place in
the queue into the budget, into its row, into the flat batch, into its slot of the KV cache.

vLLM counterpart of what is shown: ``vllm/v1/engine/core.py`` (``EngineCore.step``) and what it calls, at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pagedlab.errors import TraceError
from pagedlab.events import (
    BatchUpdated,
    BeatStarted,
    BlocksAllocated,
    BlocksAppended,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    BlockTableCommitted,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    SlotsComputed,
    StepFinished,
    StepStarted,
    TokenAccepted,
    TokenAppended,
    TokenSampled,
)
from pagedlab.scenes import step_captions as captions
from pagedlab.scenes.assembling import assemble, by_kind
from pagedlab.scenes.engine_stage import EngineStage
from pagedlab.scenes.questions import questions_of_step
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.scene import Arrow, Frame, Scene, in_key_order
from pagedlab.scenes.step_captions import Caption, ids_of
from pagedlab.scenes.step_state import MAX_ROWS, WIDTH, StepState
from pagedlab.scenes.words import counted
from pagedlab.trace import Record, Trace

EVENTS = (
    RequestScheduled,
    RequestPreempted,
    BlocksTouched,
    BlocksEvicted,
    BlocksAllocated,
    BlocksCached,
    RowRemoved,
    RowAdded,
    RowMoved,
    RowsSwapped,
    BlocksAppended,
    BatchUpdated,
    InputsPrepared,
    BlockTableCommitted,
    SlotsComputed,
    ForwardFinished,
    TokenSampled,
    TokenAppended,
    TokenAccepted,
    RequestFinished,
    BlocksFreed,
    StepFinished,
)
"""What the scene shows. A frame may show several events at once: a grant and its blocks, the samples of all rows."""

_EVENT_NAMES = {
    "RequestScheduled": "grant",
    "RequestPreempted": "preemption",
    "RowRemoved": "row removed",
    "RowAdded": "row added",
    "RowMoved": "row moved",
    "RowsSwapped": "row swap",
    "BlocksAppended": "block added to row",
    "BatchUpdated": "batch update",
    "InputsPrepared": "inputs",
    "BlockTableCommitted": "table commit",
    "SlotsComputed": "slots",
    "ForwardFinished": "forward pass",
    "TokenSampled": "sampling",
    "TokenAppended": "token in row",
    "TokenAccepted": "token accepted",
    "RequestFinished": "request ends",
    "StepFinished": "end of step",
}

_MAX_GRANTS = 4
_ROW_EVENTS = (RowRemoved, RowAdded, RowMoved, RowsSwapped, BlocksAppended, BatchUpdated)
_INPUT_EVENTS = (InputsPrepared, BlockTableCommitted, SlotsComputed)
_Group = Sequence[tuple[int, Record]]


def step(trace: Trace, step: int = 0) -> Scene:
    """Show one whole step: schedule, prepare, execute, update.

    Parameters
    ----------
    trace : Trace
    step : int
        Which step.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such step, or the recorder saw only a part of it.
    """
    records = trace.of_step(step)
    if not any(isinstance(record.event, StepStarted) for record in records):
        raise TraceError(f"the trace does not hold the beginning of step {step}: record before the engine steps")
    walk = _Walk(trace, step)
    frames = tuple(walk.frames())
    return assemble(
        trace,
        records,
        "step",
        f"Step {step}",
        (WIDTH, walk.stage.height),
        frames,
        walk.state.replay.requests,
        _EVENT_NAMES,
        lambda scene: questions_of_step(scene, trace, step),
    )


class _Walk:
    """Takes the state through the events of its step, and shows the stage after each."""

    def __init__(self, trace: Trace, step: int) -> None:
        self.state = StepState(trace, step)
        self.stage = EngineStage(self.state)
        self._beat_records: dict[str, Record] = {}
        self._num_frames = 0

    def frames(self) -> Iterator[Frame]:
        """Walk through the four beats."""
        beats: dict[str, list[tuple[int, Record]]] = {"schedule": [], "prepare": [], "execute": [], "update": []}
        closing: list[tuple[int, Record]] = []
        for index, record in self.state.records:
            if isinstance(record.event, BeatStarted):
                self._beat_records[record.event.beat] = record
            if isinstance(record.event, StepFinished):
                closing.append((index, record))
                break  # what comes after it, between two steps, belongs to the next one
            if record.beat in beats:
                beats[record.beat].append((index, record))
            else:
                self.state.replay.apply(record.event)
        yield self._frame(
            self.state.first,
            self._beat_records.get("schedule"),
            captions.opening(self.state),
            band="scheduler",
            beat="schedule",
            is_event=False,
        )
        yield from self._schedule_frames(beats["schedule"])
        yield from self._prepare_frames(beats["prepare"])
        yield from self._execute_frames(beats["execute"])
        yield from self._update_frames(beats["update"])
        for index, record in closing:
            self._apply([(index, record)])
            yield self._frame(index, record, captions.closing(self.state), beat="update")

    def _apply(self, group: _Group) -> list[Event]:
        for _, record in group:
            self.state.replay.apply(record.event)
        return [record.event for _, record in group]

    # beat 1 ---------------------------------------------------------------------------------------------------

    def _schedule_frames(self, beat: _Group) -> Iterator[Frame]:
        grants: list[_Group] = []
        pending: list[tuple[int, Record]] = []
        for item in beat:
            if isinstance(item[1].event, BlocksFreed) and grants and not pending and _preemption(grants[-1]):
                grants[-1] = [*grants[-1], item]  # what it loses, right after
                continue
            pending.append(item)
            if isinstance(item[1].event, (RequestScheduled, RequestPreempted)):
                grants.append(pending)
                pending = []
        groups = list(_merge_decodes(grants))
        for at, group in enumerate(groups):
            lost = _preemption(group)
            yield self._granted(group) if lost is None else self._preempted(group, lost, groups[at + 1 :])
        self._apply(pending)
        if beat:
            source = grants[-1][-1][1] if grants else None
            yield self._frame(beat[-1][0], source, captions.decided(self.state), band="scheduler", is_event=False)

    def _granted(self, group: _Group) -> Frame:
        events = self._apply(group)
        who = [event.request_id for event in events if isinstance(event, RequestScheduled)]
        for request_id in who:
            self.state.places[request_id] = "bar"
        blocks = ids_of(events, BlocksTouched, BlocksAllocated)
        focus = (*(f"chip:{request_id}" for request_id in who[:MAX_ROWS]), *(f"block:{block}" for block in blocks))
        return self._frame(*group[-1], captions.granted(events, self.state), band="scheduler", focus=focus)

    def _preempted(self, group: _Group, record: Record, following: Sequence[_Group]) -> Frame:
        event = record.event
        if not isinstance(event, RequestPreempted):
            raise TraceError(f"{event.kind} is no preemption")
        had_free = self.state.num_free_blocks
        had_tokens = self.state.replay.request(event.request_id).num_scheduled_tokens
        events = self._apply(group)
        self.state.places.pop(event.request_id, None)
        freed = ids_of(events, BlocksFreed)
        return self._frame(
            group[-1][0],
            record,
            captions.preempted(
                event,
                self.state,
                freed=freed,
                had_free=had_free,
                had_tokens=had_tokens,
                needed_by=_needed_by(event, following),
            ),
            band="scheduler",
            focus=(f"chip:{event.request_id}", *(f"block:{block}" for block in freed)),
        )

    # beat 2 ---------------------------------------------------------------------------------------------------

    def _prepare_frames(self, beat: _Group) -> Iterator[Frame]:
        rows = [item for item in beat if not isinstance(item[1].event, _INPUT_EVENTS)]
        inputs = [item for item in beat if isinstance(item[1].event, _INPUT_EVENTS)]
        index = self.state.replay.req_id_to_index
        leaving = {record.event.request_id for _, record in rows if isinstance(record.event, RowRemoved)}
        staying = [item for item in self.state.grants if item in index and item not in leaving]
        if staying:
            self.state.places |= dict.fromkeys(staying, "row")
            yield self._frame(
                beat[0][0] if beat else self.state.first,
                self._beat_records.get("prepare"),
                captions.rows_kept(staying, [index[request_id] for request_id in staying]),
                band="batch",
                beat="prepare",
                is_event=False,
                focus=tuple(f"row:{request_id}" for request_id in staying),
            )
        for group in by_kind(rows):
            yield from self._row_frames(group)
        self._apply(inputs)
        yield from self._input_frames(inputs)

    def _row_frames(self, group: _Group) -> Iterator[Frame]:
        kind = type(group[0][1].event)
        if kind not in _ROW_EVENTS:
            self._apply(group)
            return
        together = kind is BlocksAppended or (kind in (RowRemoved, RowAdded) and len(group) > _MAX_GRANTS)
        for part in [group] if together else [[item] for item in group]:
            events = self._apply(part)
            for event in events:
                if isinstance(event, RowAdded) and event.request_id in self.state.grants:
                    self.state.places[event.request_id] = "row"
            caption = captions.rows_changed(events, self.state.grants)
            yield self._frame(*part[-1], caption, band="batch", focus=_row_keys(events))

    def _input_frames(self, group: _Group) -> Iterator[Frame]:
        """The inputs, the commit and the slots, in the order in which one understands them."""
        inputs = self.state.replay.inputs
        if not group or inputs is None:
            return
        last = group[-1][0]
        found: dict[type[Event], Record] = {}
        for _, record in group:
            if getattr(record.event, "group", GROUP) == GROUP:
                found.setdefault(type(record.event), record)
        self.state.places |= dict.fromkeys(self.state.grants, "flat")
        self.state.has_inputs = True
        caption = captions.inputs_prepared(inputs, self.state.grants)
        yield self._frame(last, found.get(InputsPrepared), caption, band="inputs")
        commit = found.get(BlockTableCommitted)
        if commit is not None and isinstance(commit.event, BlockTableCommitted):
            few = commit.event.num_rows <= _MAX_GRANTS
            focus = tuple(f"row:{request_id}" for request_id in inputs.request_ids if few)
            yield self._frame(last, commit, captions.table_committed(commit.event), band="batch", focus=focus)
        computed = found.get(SlotsComputed)
        if computed is not None and self.state.replay.slots:
            self.state.has_slots = True
            self.state.targets = set(self.state.replay.slots.slot_mapping)
            yield self._slots_frame(last, computed, inputs, self.state.replay.slots)

    def _slots_frame(self, index: int, record: Record, inputs: InputsPrepared, slots: SlotsComputed) -> Frame:
        caption, arrows = ("Each token gets its slot in the KV cache.", ""), tuple[Arrow, ...]()
        if (example := self._example(inputs)) is not None:
            at, request_id, position = example
            token = self.state.labels.label(inputs.input_ids[at])
            size, slot = self.state.block_size, slots.slot_mapping[at]
            caption = captions.slots_computed(request_id, token, position, slot, size)
            arrows = self.stage.slot_arrow(request_id, position)
        return self._frame(index, record, caption, band="inputs", arrows=arrows)

    def _example(self, inputs: InputsPrepared) -> tuple[int, str, int] | None:
        """The token to explain: the last one of a row, not of its first block if possible, with a short way to go."""
        found = []
        for row, request_id in enumerate(inputs.request_ids):
            at = inputs.query_start_loc[row + 1] - 1
            if request_id in self.state.plan and at >= inputs.query_start_loc[row]:
                position = inputs.positions[at]
                arrow = self.stage.slot_arrow(request_id, position)
                way = abs(arrow[0].x1 - arrow[0].x2) if arrow else 1e6
                found.append((position < self.state.block_size, way, at, request_id, position))
        return min(found)[2:] if found else None

    # beat 3 ---------------------------------------------------------------------------------------------------

    def _execute_frames(self, beat: _Group) -> Iterator[Frame]:
        for index, record in beat:
            if isinstance(record.event, ForwardFinished):
                self._apply([(index, record)])
                self.state.places |= dict.fromkeys(self.state.grants, "kv")
                self.state.targets = set()
                yield self._frame(index, record, captions.forward_finished(record.event), band="kv")
        sampled = [item for item in beat if isinstance(item[1].event, TokenSampled)]
        if sampled:
            samples = [event for event in self._apply(sampled) if isinstance(event, TokenSampled)]
            self.state.sampled = {event.request_id: event for event in samples}
            self.state.sample_places = dict.fromkeys(self.state.sampled, "flat")
            self.state.places.clear()
            caption = captions.tokens_sampled(samples, self.state.grants, self.state.labels)
            yield self._frame(*sampled[-1], caption, band="inputs")
        appended = [item for item in beat if isinstance(item[1].event, TokenAppended)]
        if appended:
            kept = [event for event in self._apply(appended) if isinstance(event, TokenAppended)]
            for event in self.state.sampled.values():
                if event.discarded:
                    self.state.sample_places.pop(event.request_id, None)
            self.state.sample_places |= {event.request_id: "row" for event in kept}
            focus = tuple(f"row:{event.request_id}" for event in kept[:MAX_ROWS])
            yield self._frame(*appended[-1], captions.tokens_appended(kept), band="batch", focus=focus)

    # beat 4 ---------------------------------------------------------------------------------------------------

    def _update_frames(self, beat: _Group) -> Iterator[Frame]:
        for group in _per_end(beat):
            events = self._apply(group)
            accepted = [event for event in events if isinstance(event, TokenAccepted)]
            ended = next((record for _, record in group if isinstance(record.event, RequestFinished)), None)
            if accepted:
                self.state.sample_places |= {event.request_id: "chip" for event in accepted}
                focus = tuple(f"chip:{event.request_id}" for event in accepted[:MAX_ROWS])
                yield self._frame(*group[-1], captions.tokens_accepted(accepted), band="scheduler", focus=focus)
            elif ended is not None and isinstance(ended.event, RequestFinished):
                yield self._ended(group[-1][0], ended, ended.event, ids_of(events, BlocksFreed))

    def _ended(self, index: int, record: Record, event: RequestFinished, freed: Sequence[int]) -> Frame:
        self.state.sample_places.pop(event.request_id, None)
        replay = self.state.replay
        free = [block for block in freed if block not in replay.holders]
        caption = captions.finished(
            event,
            free=free,
            kept=sorted(set(freed) - set(free)),
            cached=sorted(replay.cached & set(free)),
        )
        return self._frame(index, record, caption, band="scheduler", focus=tuple(f"block:{block}" for block in freed))

    # a frame --------------------------------------------------------------------------------------------------

    def _frame(
        self,
        index: int,
        record: Record | None,
        caption: Caption,
        *,
        band: str | None = None,
        beat: str | None = None,
        is_event: bool = True,
        focus: tuple[str, ...] = (),
        arrows: tuple[Arrow, ...] = (),
    ) -> Frame:
        actors = in_key_order(self.stage.actors(band))
        keys = {actor.key for actor in actors}
        replay = self.state.replay
        subtitle = f"{counted(len(replay.running), 'request')} running · {len(replay.waiting):,} waiting"
        if replay.budget_left is not None:
            used = sum(event.num_scheduled_tokens for event in replay.scheduled)
            subtitle += f" · {used:,} of {used + replay.budget_left:,} tokens granted"
        self._num_frames += 1
        return Frame(
            id=str(self._num_frames - 1),
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=subtitle,
            step=self.state.step,
            beat=beat or (record.beat if record else None),
            event=record.event.kind if record and is_event else None,
            source=(record.source.function, record.source.line) if record and record.source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=index,
        )


# --- how events are grouped into frames -----------------------------------------------------------------------


def _merge_decodes(grants: Sequence[_Group]) -> Iterator[_Group]:
    """Put many single-token grants in a row into one frame."""

    def plain(group: _Group) -> bool:
        event = group[-1][1].event
        taken = any(isinstance(record.event, (BlocksAllocated, BlocksTouched)) for _, record in group)
        return not taken and isinstance(event, RequestScheduled) and event.num_scheduled_tokens == 1

    for is_plain, run in groupby(grants, key=plain):
        items = list(run)
        if is_plain and len(items) > _MAX_GRANTS:
            yield [item for group in items for item in group]
        else:
            yield from items


def _preemption(group: _Group) -> Record | None:
    return next((record for _, record in group if isinstance(record.event, RequestPreempted)), None)


def _needed_by(event: RequestPreempted, following: Sequence[_Group]) -> str:
    """For whom a request lost its blocks: who gets tokens next, or the last victim, which asked for itself."""
    victim = event.request_id
    for group in following:
        for _, record in group:
            if isinstance(record.event, RequestScheduled):
                return record.event.request_id
            if isinstance(record.event, RequestPreempted):
                victim = record.event.request_id
    return victim


def _per_end(group: _Group) -> Iterator[_Group]:
    """Split the update beat, in its own order: tokens taken in, a request's end with the blocks it frees, and so on."""
    part: list[tuple[int, Record]] = []
    for item in group:
        first = part[0][1].event if part else None
        begins_end = isinstance(item[1].event, RequestFinished)
        ends_end = isinstance(item[1].event, TokenAccepted) and isinstance(first, RequestFinished)
        if part and (begins_end or ends_end):
            yield part
            part = []
        if not isinstance(item[1].event, BeatStarted):
            part.append(item)
    if part:
        yield part


def _row_keys(events: Sequence[Event]) -> tuple[str, ...]:
    keys: list[str] = []
    for event in events[:MAX_ROWS]:
        match event:
            case RowRemoved(row=row):
                keys.append(f"track:{row}")
            case RowAdded(request_id=who) | RowMoved(request_id=who) | BlocksAppended(request_id=who):
                keys.append(f"row:{who}")
            case RowsSwapped(first_request_id=one, second_request_id=other):
                keys += [f"row:{one}", f"row:{other}"]
            case _:
                pass
    return tuple(dict.fromkeys(keys))
