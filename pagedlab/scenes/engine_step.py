"""The scene `step`: one whole step of the engine through its four beats.

The stage is a map that stays: the scheduler with its queues and budget on top, the rows of the persistent batch,
the flat inputs of the forward pass, the KV cache below. A token travels over it: from its request's place in the
queue into the budget, into its row, into the flat batch, into its slot of the KV cache.

vLLM counterpart of what is shown: ``vllm/v1/engine/core.py`` (``EngineCore.step``) and what it calls, at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from pagedlab.errors import TraceError
from pagedlab.events import (
    BatchUpdated,
    BeatStarted,
    BlocksAllocated,
    BlocksAppended,
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
from pagedlab.scenes.counterparts import sources_of
from pagedlab.scenes.engine_stage import MAX_ROWS, WIDTH, EngineStage, vector
from pagedlab.scenes.questions import questions_of_step
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.scene import Arrow, Frame, Scene, in_key_order
from pagedlab.scenes.words import counted, listed, name, names
from pagedlab.trace import Record, Trace

EVENTS = (
    RequestScheduled,
    RequestPreempted,
    BlocksTouched,
    BlocksAllocated,
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
    stage = _Walk(trace, step)
    frames = tuple(stage.frames())
    scene = Scene(
        "step",
        f"Step {step}",
        WIDTH,
        stage.height,
        frames,
        tuple(stage.replay.requests),
        sources_of(trace, records),
        {kind: word for kind, word in _EVENT_NAMES.items() if any(frame.event == kind for frame in frames)},
    )
    return replace(scene, asked=tuple(questions_of_step(scene, trace, step)))


class _Walk(EngineStage):
    """Takes a stage through the events of its step, one frame after another."""

    def frames(self) -> Iterator[Frame]:
        """Walk through the four beats."""
        beats: dict[str, list[tuple[int, Record]]] = {"schedule": [], "prepare": [], "execute": [], "update": []}
        closing: list[tuple[int, Record]] = []
        self.beat_records: dict[str, Record] = {}
        for index, record in self.records:
            if isinstance(record.event, BeatStarted):
                self.beat_records[record.event.beat] = record
            if isinstance(record.event, StepFinished):
                closing.append((index, record))
                break  # what comes after it, between two steps, belongs to the next one
            if record.beat in beats:
                beats[record.beat].append((index, record))
            else:
                self.replay.apply(record.event)
        yield self._opening()
        yield from self._schedule_frames(beats["schedule"])
        yield from self._prepare_frames(beats["prepare"])
        yield from self._execute_frames(beats["execute"])
        yield from self._update_frames(beats["update"])
        for index, record in closing:
            self._apply([(index, record)])
            yield self._closing(index, record)

    def _apply(self, group: _Group) -> None:
        for _, record in group:
            self.replay.apply(record.event)

    def _opening(self) -> Frame:
        running, waiting = self.replay.running, self.replay.waiting
        who = [
            *([f"{counted(len(running), 'request')} already run{'s' if len(running) == 1 else ''}"] if running else []),
            *([f"{counted(len(waiting), 'request')} wait{'s' if len(waiting) == 1 else ''}"] if waiting else []),
        ]
        budget = self.trace.settings.get("max_num_batched_tokens")
        return self._frame(
            self.first,
            self.beat_records.get("schedule"),
            f"Step {self.step} begins: {listed(who) if who else 'nothing to do'}.",
            "First the scheduler decides, without asking the model: it shares out "
            + (f"a budget of {counted(budget, 'token')}" if isinstance(budget, int) else "the token budget")
            + ", running requests first, then waiting ones in order.",
            band="scheduler",
            beat="schedule",
            event=None,
        )

    # beat 1 ---------------------------------------------------------------------------------------------------

    def _schedule_frames(self, beat: _Group) -> Iterator[Frame]:
        grants: list[_Group] = []
        pending: list[tuple[int, Record]] = []
        for item in beat:
            if isinstance(item[1].event, BlocksFreed) and grants and not pending and _is_preemption(grants[-1]):
                grants[-1] = [*grants[-1], item]  # what it loses, right after
                continue
            pending.append(item)
            if isinstance(item[1].event, (RequestScheduled, RequestPreempted)):
                grants.append(pending)
                pending = []
        for group in _merge_decodes(grants):
            self._apply(group)
            lost = [record.event for _, record in group if isinstance(record.event, RequestPreempted)]
            yield self._preempted(group, lost[0]) if lost else self._granted(group)
        self._apply(pending)
        if beat:
            yield self._decided(beat[-1][0], grants)

    def _granted(self, group: _Group) -> Frame:
        grants = [record.event for _, record in group if isinstance(record.event, RequestScheduled)]
        blocks = [
            block
            for _, record in group
            if isinstance(record.event, BlocksAllocated) and record.event.group == GROUP
            for block in record.event.block_ids
        ]
        hits = [
            block
            for _, record in group
            if isinstance(record.event, BlocksTouched) and record.event.group == GROUP
            for block in record.event.block_ids
        ]
        for event in grants:
            self.places[event.request_id] = "bar"
        last = grants[-1]
        left = f"{counted(last.budget_left, 'token')} of the budget {'is' if last.budget_left == 1 else 'are'} left."
        if len(grants) > 1:
            change = f"{names([event.request_id for event in grants])} get one token each."
            detail = f"Each has one token that is not computed yet: the one it sampled last. {left}"
        else:
            change, detail = self._grant_words(last, blocks), f"{self._grant_reason(last, hits)} {left}"
        return self._frame(
            group[-1][0],
            group[-1][1],
            change,
            detail,
            band="scheduler",
            focus=(
                *(f"chip:{event.request_id}" for event in grants[:MAX_ROWS]),
                *(f"block:{block}" for block in blocks),
            ),
        )

    def _grant_words(self, event: RequestScheduled, blocks: Sequence[int]) -> str:
        who, tokens = name(event.request_id), counted(event.num_scheduled_tokens, "token")
        them = "it" if event.num_scheduled_tokens == 1 else "them"
        room = f", and {_blocks(blocks)} to keep {them} in" if blocks else ""
        match event.status:
            case "new":
                return f"{who} is admitted: it gets {tokens}{room}."
            case "resumed":
                return f"{who} resumes: it gets {tokens}{room}."
            case _:
                return f"{who} gets {tokens}{room}."

    def _grant_reason(self, event: RequestScheduled, hits: Sequence[int]) -> str:
        todo = event.num_tokens - event.num_computed_tokens
        computed = event.num_computed_tokens
        if hits:
            return (
                f"Its first {counted(computed, 'token')} {_are(computed)} in the cache: it shares {_blocks(hits)} and "
                f"computes only what follows."
            )
        held = f"Of its {counted(event.num_tokens, 'token')} {computed} {_are(computed)} computed"
        if event.num_scheduled_tokens < todo and not computed:
            return (
                f"Its prompt of {todo} does not fit whole: the budget cuts it to a chunk. The rest runs in later steps."
            )
        if event.num_scheduled_tokens < todo:
            return f"{held}; {todo} are wanted, but the budget cuts them to a chunk of {event.num_scheduled_tokens}."
        if todo == 1 and event.status == "running":
            return "Only its newest token is not computed yet."
        return (
            f"{held}: all the other {todo} fit." if event.num_computed_tokens else f"Its whole prompt of {todo} fits."
        )

    def _preempted(self, group: _Group, event: RequestPreempted) -> Frame:
        self.places.pop(event.request_id, None)
        freed = [
            block
            for _, record in group
            if isinstance(record.event, BlocksFreed) and record.event.group == GROUP
            for block in record.event.block_ids
        ]
        record = next(record for _, record in group if isinstance(record.event, RequestPreempted))
        return self._frame(
            group[-1][0],
            record,
            f"{name(event.request_id)} is preempted: the pool has run dry.",
            f"The last of the running gives up {_blocks(freed) if freed else 'its blocks'} and goes to the head of the "
            f"waiting queue. Its {counted(event.num_computed_tokens, 'computed token')} must be computed again"
            + (", but for what is still in the cache by then." if self.replay.cached & set(freed) else "."),
            band="scheduler",
            focus=(f"chip:{event.request_id}", *(f"block:{block}" for block in freed)),
        )

    def _decided(self, index: int, grants: Sequence[_Group]) -> Frame:
        total = sum(len(window) for window in self.grants.values())
        waiting = self.replay.waiting
        change = f"The scheduler is done: {counted(total, 'token')} of {counted(len(self.grants), 'request')} will run."
        if not self.grants:
            change = "The scheduler is done: nothing can run in this step."
        if waiting:
            detail = f"{names(waiting)} {'waits' if len(waiting) == 1 else 'wait'}: {self._why_wait()}."
        else:
            detail = (
                "Prompt tokens and output tokens come out of one budget: there is no prefill step and no decode step."
            )
        return self._frame(index, grants[-1][-1][1] if grants else None, change, detail, band="scheduler", event=None)

    def _why_wait(self) -> str:
        seats = self.trace.settings.get("max_num_seqs")
        preempted = any(isinstance(record.event, RequestPreempted) for _, record in self.records)
        if preempted:
            return "a step that preempts admits nobody"
        if self.replay.budget_left == 0:
            return "the budget is spent"
        if isinstance(seats, int) and len(self.replay.running) >= seats:
            return f"all {counted(seats, 'seat')} are taken"
        first = self.replay.request(self.replay.waiting[0])
        free = self.replay.num_free_blocks or 0
        if -(-len(first.tokens) // self.block_size) > free:
            return f"the first needs more blocks than are free ({free:,})"
        return "nobody is admitted in this step"

    # beat 2 ---------------------------------------------------------------------------------------------------

    def _prepare_frames(self, beat: _Group) -> Iterator[Frame]:
        before = beat[0][0] if beat else self.first
        rows = [
            item for item in beat if not isinstance(item[1].event, (InputsPrepared, BlockTableCommitted, SlotsComputed))
        ]
        inputs = [
            item for item in beat if isinstance(item[1].event, (InputsPrepared, BlockTableCommitted, SlotsComputed))
        ]
        staying = [request_id for request_id in self.grants if request_id in self.replay.req_id_to_index]
        leaving = {record.event.request_id for _, record in rows if isinstance(record.event, RowRemoved)}
        staying = [request_id for request_id in staying if request_id not in leaving]
        if staying:
            for request_id in staying:
                self.places[request_id] = "row"
            at = [str(self.replay.req_id_to_index[request_id]) for request_id in staying]
            yield self._frame(
                before,
                self.beat_records.get("prepare"),
                f"{names(staying)} {'keeps its row' if len(at) == 1 else 'keep their rows'} {listed(at)}.",
                "The batch is persistent: what was written there in earlier steps stays, and nothing is copied again.",
                band="batch",
                beat="prepare",
                event=None,
                focus=tuple(f"row:{request_id}" for request_id in staying),
            )
        for group in _by_kind(rows):
            yield from self._row_frames(group)
        self._apply(inputs)
        yield from self._input_frames(inputs)

    def _row_frames(self, group: _Group) -> Iterator[Frame]:
        kind = type(group[0][1].event)
        if kind not in (RowRemoved, RowAdded, RowMoved, RowsSwapped, BlocksAppended, BatchUpdated):
            self._apply(group)
            return
        together = kind is BlocksAppended or (kind in (RowRemoved, RowAdded) and len(group) > _MAX_GRANTS)
        for part in [group] if together else [[item] for item in group]:
            self._apply(part)
            index, record = part[-1]
            events = [item.event for _, item in part]
            yield self._frame(index, record, *self._row_words(events), band="batch", focus=self._row_focus(events))

    def _row_words(self, events: Sequence[Event]) -> tuple[str, str]:
        event = events[0]
        who = [getattr(item, "request_id", "") for item in events]
        match event:
            case RowRemoved():
                change = (
                    f"{name(event.request_id)} leaves row {event.row}: a hole."
                    if len(events) == 1
                    else f"{names(who)} leave their rows: holes."
                )
                return change, "They do not run in this step. What they wrote stays in memory, stale." if len(
                    events
                ) > 1 else "It does not run in this step. What it wrote stays in memory, stale."
            case RowAdded():
                for request_id in who:
                    if request_id in self.grants:
                        self.places[request_id] = "row"
                if len(events) > 1:
                    return f"{names(who)} are written into the batch.", "Each takes the lowest free row."
                tokens = counted(event.num_tokens, "token")
                part = self.grants.get(event.request_id)
                some = f" Only {len(part)} of them run now." if part and len(part) < event.num_tokens else ""
                return (
                    f"{name(event.request_id)} is written into row {event.row}, the lowest free one.",
                    f"All its {tokens} and its block ids are copied once, and stay there until it ends.{some}",
                )
            case RowMoved():
                return (
                    f"{name(event.request_id)} moves from row {event.source} to row {event.target}.",
                    "condense: the highest live row drops into the lowest hole, so that rows stay dense.",
                )
            case RowsSwapped():
                return (
                    f"{name(event.first_request_id)} and {name(event.second_request_id)} exchange rows.",
                    "Requests that decode go first.",
                )
            case BlocksAppended():
                grown = [block for item in events if isinstance(item, BlocksAppended) for block in item.block_ids]
                return (
                    f"{names(dict.fromkeys(who))} {'grows' if len(set(who)) == 1 else 'grow'}: {_blocks(grown)} "
                    f"{'joins' if len(grown) == 1 else 'join'} the block table.",
                    "The tokens of this step need room that the blocks held so far do not have.",
                )
            case BatchUpdated(batch_size=size, added=added, removed=removed, moved=moved):
                told = [
                    f"{word}: {len(part)}"
                    for part, word in ((added, "added"), (removed, "removed"), (moved, "moved"))
                    if part
                ]
                return (
                    f"The batch is ready: {counted(size, 'row')}, no hole.",
                    f"Rows {', '.join(told)}; logits processors, with state by row, are told." if told
                    else "Nothing moved: the rows are those of the step before.",
                )  # fmt: skip
            case _:
                raise TraceError(f"the step scene does not show {event.kind}")

    def _row_focus(self, events: Sequence[Event]) -> tuple[str, ...]:
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

    def _input_frames(self, group: _Group) -> Iterator[Frame]:
        """The inputs, the commit and the slots, in the order in which one understands them."""
        if not group:
            return
        last = group[-1][0]
        found: dict[type[Event], Record] = {}
        for _, record in group:
            if getattr(record.event, "group", GROUP) == GROUP:
                found.setdefault(type(record.event), record)
        inputs = self.replay.inputs
        if inputs is None:
            return
        for request_id in self.grants:
            self.places[request_id] = "flat"
        self.has_inputs = True
        order = (
            "" if list(inputs.request_ids) == list(self.grants) else " They stand in the order of rows, not of grants."
        )
        yield self._frame(
            last,
            found.get(InputsPrepared),
            f"{counted(len(inputs.input_ids), 'token')} of {counted(len(inputs.request_ids), 'request')} "
            f"become one flat batch.",
            f"query_start_loc {vector(inputs.query_start_loc, room=60)} says where each row begins; each token keeps "
            f"its position in its request.{order}",
            band="inputs",
        )
        commit = found.get(BlockTableCommitted)
        if commit is not None and isinstance(commit.event, BlockTableCommitted):
            rows, sent = commit.event.num_rows, counted(commit.event.num_bytes, "byte")
            yield self._frame(
                last,
                commit,
                f"{counted(rows, 'row')} of the block table {'goes' if rows == 1 else 'go'} to the device: {sent}.",
                "Kernels will read there which blocks hold a request's tokens.",
                band="batch",
                focus=tuple(f"row:{request_id}" for request_id in inputs.request_ids if rows <= _MAX_GRANTS),
            )
        computed = found.get(SlotsComputed)
        if computed is not None and self.replay.slots:
            self.has_slots = True
            self.targets = set(self.replay.slots.slot_mapping)
            yield self._slots_frame(last, computed, inputs)

    def _slots_frame(self, index: int, record: Record, inputs: InputsPrepared) -> Frame:
        slots = self.replay.slots
        size = self.block_size
        example = self._example(inputs)
        detail, arrows = "", tuple[Arrow, ...]()
        if example is not None and slots is not None:
            at, request_id, position = example
            slot = slots.slot_mapping[at]
            column, offset = divmod(position, size)
            token = self.labels.label(inputs.input_ids[at])
            detail = (
                f"{name(request_id)}’s “{token}” has position {position}: column {position} // {size} = {column} of "
                f"its block-table row says block {slot // size}, offset {position} % {size} = {offset}, "
                f"so slot {slot // size}·{size} + {offset} = {slot}."
            )
            start, end = self._flat_xy(request_id, position), self._kv_xy(slot)
            if start and end:
                arrows = (
                    Arrow(start[0] + self.cell_w / 2 - 1, self.bands["inputs"][0] + self.bands["inputs"][1] - 4,
                          end[0] + self.kv_w / 2, end[1] - 1),
                )  # fmt: skip
        return self._frame(
            index, record, "Each token gets its slot in the KV cache.", detail, band="inputs", arrows=arrows
        )

    def _example(self, inputs: InputsPrepared) -> tuple[int, str, int] | None:
        """The token to explain: the last one of a row, not of its first block if possible, with a short way to go."""
        found = []
        for row, request_id in enumerate(inputs.request_ids):
            at = inputs.query_start_loc[row + 1] - 1
            if request_id in self.plan and at >= inputs.query_start_loc[row]:
                position = inputs.positions[at]
                start, end = self._flat_xy(request_id, position), self._slot_xy(request_id, position)
                way = abs(start[0] - end[0]) if start and end else 1e6
                found.append((position < self.block_size, way, at, request_id, position))
        return min(found)[2:] if found else None

    # beat 3 ---------------------------------------------------------------------------------------------------

    def _execute_frames(self, beat: _Group) -> Iterator[Frame]:
        for index, record in beat:
            if isinstance(record.event, ForwardFinished):
                self._apply([(index, record)])
                for request_id in self.grants:
                    self.places[request_id] = "kv"
                self.targets = set()
                yield self._forward(index, record, record.event)
        sampled = [item for item in beat if isinstance(item[1].event, TokenSampled)]
        appended = [item for item in beat if isinstance(item[1].event, TokenAppended)]
        self._apply(sampled)
        if sampled:
            for _, record in sampled:
                if isinstance(record.event, TokenSampled):
                    self.sampled[record.event.request_id] = record.event
                    self.sample_place[record.event.request_id] = "flat"
            self.places.clear()
            yield self._sampled_frame(sampled)
        self._apply(appended)
        if appended:
            kept = [record.event for _, record in appended if isinstance(record.event, TokenAppended)]
            for event in kept:
                self.sample_place[event.request_id] = "row"
            for request_id, sample in self.sampled.items():
                if sample.discarded:
                    self.sample_place.pop(request_id, None)
            yield self._frame(
                appended[-1][0],
                appended[-1][1],
                f"{'The new token is' if len(kept) == 1 else 'The new tokens are'} written at the end of "
                f"{'its row' if len(kept) == 1 else 'their rows'}.",
                "Known, but not computed: K and V of a new token are written when it runs, in the next step.",
                band="batch",
                focus=tuple(f"row:{event.request_id}" for event in kept[:MAX_ROWS]),
            )

    def _forward(self, index: int, record: Record, event: ForwardFinished) -> Frame:
        once = (
            f"The model runs once over {counted(event.num_tokens, 'token')} of {counted(event.num_reqs, 'request')}: "
            f"{1000 * event.seconds:,.1f} ms."
        )
        return self._frame(
            index,
            record,
            once,
            "Each token’s K and V are written into its slot; to attend, each reads the blocks of its own request.",
            band="kv",
        )

    def _sampled_frame(self, group: _Group) -> Frame:
        events = [record.event for _, record in group if isinstance(record.event, TokenSampled)]
        kept = [event for event in events if not event.discarded]
        dropped = [event.request_id for event in events if event.discarded]
        if kept:
            pairs = [f"{name(event.request_id)} → {self.labels.quoted(event.token_id)}" for event in kept]
            change = f"The last token of each row gives the next one: {listed(pairs)}."
        else:
            change = "Nothing that is sampled counts yet."
        detail = (
            f"{names(dropped)} {'is' if len(dropped) == 1 else 'are'} in the middle of the prompt: "
            f"what {'is' if len(dropped) == 1 else 'was'} sampled there is dropped."
            if dropped
            else "logits_indices picks these positions; the others were computed only for their K and V."
            if len(self.grants) < sum(len(window) for window in self.grants.values())
            else "In a step that only decodes, each row has one token in and one token out."
        )
        return self._frame(group[-1][0], group[-1][1], change, detail, band="inputs")

    # beat 4 ---------------------------------------------------------------------------------------------------

    def _update_frames(self, beat: _Group) -> Iterator[Frame]:
        for group in _per_end(beat):
            self._apply(group)
            accepted = [record.event for _, record in group if isinstance(record.event, TokenAccepted)]
            ended = [record.event for _, record in group if isinstance(record.event, RequestFinished)]
            if accepted:
                yield self._accepted(group, accepted)
            elif ended:
                yield self._ended(group, ended[0])

    def _accepted(self, group: _Group, events: Sequence[TokenAccepted]) -> Frame:
        for event in events:
            self.sample_place[event.request_id] = "chip"
        who = names([event.request_id for event in events])
        return self._frame(
            group[-1][0],
            group[-1][1],
            f"The scheduler takes in {counted(len(events), 'new token')}: of {who}.",
            "A request is its tokens, and is one longer now. Whether it has reached its end is checked at once.",
            band="scheduler",
            focus=tuple(f"chip:{event.request_id}" for event in events[:MAX_ROWS]),
        )

    def _ended(self, group: _Group, event: RequestFinished) -> Frame:
        self.sample_place.pop(event.request_id, None)
        freed = [
            block
            for _, record in group
            if isinstance(record.event, BlocksFreed) and record.event.group == GROUP
            for block in record.event.block_ids
        ]
        how = {"stop": "wrote its end token", "length": "has as many tokens as it may have"}.get(
            event.reason, "was aborted"
        )
        record = next(record for _, record in group if isinstance(record.event, RequestFinished))
        cached = sorted(block for block in freed if block in self.replay.cached and block not in self.replay.holders)
        return self._frame(
            group[-1][0],
            record,
            f"{name(event.request_id)} is finished after {counted(event.num_output_tokens, 'output token')}: it {how}.",
            (f"{_blocks(freed).capitalize()} {_are(len(freed))} free at once, tail first. " if freed else "")
            + (f"What {_blocks(cached)} hold{'s' if len(cached) == 1 else ''} can still be found. " if cached else "")
            + "Its row in the batch stays until the next step removes it.",
            band="scheduler",
            focus=tuple(f"block:{block}" for block in freed),
        )

    def _closing(self, index: int, record: Record) -> Frame:
        running, waiting = len(self.replay.running), len(self.replay.waiting)
        free = self.replay.num_free_blocks or 0
        return self._frame(
            index,
            record,
            f"Step {self.step} is over: {counted(running, 'request')} running, {waiting:,} waiting.",
            f"{counted(free, 'block')} {_are(free)} free. The next step starts from here: rows and blocks stay.",
            beat="update",
        )

    def _frame(
        self,
        index: int,
        record: Record | None,
        change: str,
        detail: str,
        *,
        band: str | None = None,
        beat: str | None = None,
        event: str | None = "",
        focus: tuple[str, ...] = (),
        arrows: tuple[Arrow, ...] = (),
    ) -> Frame:
        actors = in_key_order(self.actors(band))
        keys = {actor.key for actor in actors}
        self._count = getattr(self, "_count", -1) + 1
        kind = record.event.kind if record and event == "" else None
        left = self.replay.budget_left
        used = sum(event.num_scheduled_tokens for event in self.replay.scheduled)
        subtitle = f"{counted(len(self.replay.running), 'request')} running · {len(self.replay.waiting):,} waiting"
        if left is not None:
            subtitle += f" · {used:,} of {used + left:,} tokens granted"
        return Frame(
            id=str(self._count),
            actors=actors,
            change=change,
            detail=detail,
            subtitle=subtitle,
            step=self.step,
            beat=beat or (record.beat if record else None),
            event=kind,
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


def _is_preemption(group: _Group) -> bool:
    return any(isinstance(record.event, RequestPreempted) for _, record in group)


def _by_kind(group: _Group) -> Iterator[_Group]:
    kind: Callable[[tuple[int, Record]], Any] = lambda item: type(item[1].event)  # noqa: E731
    for _, run in groupby(group, key=kind):
        yield list(run)


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


def _blocks(block_ids: Sequence[int]) -> str:
    if len(block_ids) == 1:
        return f"block {block_ids[0]}"
    return f"blocks {listed([str(block) for block in block_ids])}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
