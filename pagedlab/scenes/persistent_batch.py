"""The scene `condense`: rows of the persistent batch leave, arrive and move, and stay dense.

The stage shows each row as it lies in memory: the live prefix of ``token_ids``, the stale rest, the block-table
row; beside it the index ``req_id_to_index``, below it what logits processors will be told.

vLLM counterpart of what is shown: ``vllm/v1/worker/gpu_input_batch.py`` (``InputBatch``) and
``vllm/v1/sample/logits_processor/state.py`` (``BatchUpdateBuilder``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagedlab.errors import TraceError
from pagedlab.events import (
    BatchUpdated,
    BeatStarted,
    BlocksAppended,
    Event,
    RequestFinished,
    RequestPreempted,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
)
from pagedlab.scenes.assembling import assemble
from pagedlab.scenes.marks import Gap, cell, chip_width, chips, choose, elide, gap, text
from pagedlab.scenes.questions import row_moves
from pagedlab.scenes.replay import Replay, RowState
from pagedlab.scenes.row_questions import row_taken
from pagedlab.scenes.scene import Actor, Arrow, Frame, Part, Scene, in_key_order
from pagedlab.scenes.words import TokenLabels, blocks, counted, finish, label, listed, name, names
from pagedlab.trace import Record, Trace

EVENTS = (RowRemoved, RowAdded, RowMoved, RowsSwapped, BlocksAppended, BatchUpdated)
"""What the scene shows, each in a frame of its own; neighbouring ``BlocksAppended`` share one."""

_EVENT_NAMES = {
    "RowMoved": "move",
    "RowRemoved": "removal",
    "RowAdded": "new row",
    "RowsSwapped": "swap",
    "BlocksAppended": "growth",
    "BatchUpdated": "batch update",
}

_WIDTH = 584
_MAX_ROWS = 10
_CARD_X, _CARD_W = 30, 418
_NAME_X, _TOKENS_X, _BLOCKS_X, _BLOCKS_END = 34, 102, 294, 412  # inside the card
_MAP_X = 480
_TOP = 36


def condense(trace: Trace, step: int | None = None) -> Scene:
    """Show how one step changes the rows of the persistent batch.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        Which step; by default the first in which ``condense`` moves a row.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such step, or nothing happens to the rows in it.
    """
    if step is None:
        step = next((record.step for record in trace if isinstance(record.event, RowMoved)), None)
        if step is None:
            raise TraceError(
                "no step of this trace condenses: a row moves when a request leaves while a later row stays. "
                "Record requests of different lengths, or name a step"
            )
    records = trace.of_step(step)
    if not any(isinstance(record.event, EVENTS) for record in records):
        raise TraceError(f"nothing happens to the rows in step {step}: no request comes, goes or grows")
    stage = _Stage(trace, step)
    frames = tuple(stage.frames())
    return assemble(
        trace,
        records,
        "condense",
        "Condense",
        (_WIDTH, stage.height),
        frames,
        stage.replay.requests,
        _EVENT_NAMES,
        lambda scene: (*row_moves(scene, trace, step), *row_taken(scene, trace, step)),
    )


class _Stage:
    """Draws the rows of a `Replay`, and walks it through one step."""

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.step = step
        self.first = next(index for index, record in enumerate(trace.records) if record.step == step)
        self.replay = Replay.of(trace.records[: self.first])
        self.step_records = [
            (index, record) for index, record in enumerate(trace.records) if record.step == step and index >= self.first
        ]
        self.why_gone = self._reasons_to_leave()
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Decide what stays the same in all frames: which rows are shown, and how wide cells are."""
        replay = Replay.of(self.trace.records[: self.first])
        involved: set[int] = set()
        tokens: set[int | None] = set()
        block_ids: set[int] = set()
        ids = dict.fromkeys(replay.req_id_to_index)
        num_rows = replay.num_rows
        for _, record in self.step_records:
            replay.apply(record.event)
            involved |= _rows_of(record.event)
            num_rows = max(num_rows, replay.num_rows, max(replay.holes, default=-1) + 1)
            ids.update(dict.fromkeys(replay.req_id_to_index))
            for row in replay.rows.values():
                tokens.update(token for token, _ in row.memory)
                block_ids.update(row.block_ids)
        self.num_rows = num_rows
        self.labels = TokenLabels(self.trace.vocabulary)
        self.cell_w = self.labels.width(tokens)
        self.chip_w = chip_width(block_ids)
        self.rows = choose(num_rows, involved, _MAX_ROWS)
        self.pitch, self.row_h = (46, 38) if len(self.rows) <= 8 else (36, 30)
        self.y: dict[int, float] = {}
        y = float(_TOP)
        for item in self.rows:
            if isinstance(item, Gap):
                y += 22
            else:
                self.y[item] = y
                y += self.pitch
        self.bottom = y
        self.height = self.bottom + 52
        map_room = max(1, int((self.bottom - _TOP) // 26))
        shown = [request_id for request_id in ids if self._touches(request_id, replay, ids, map_room)]
        self.map_ids = shown[:map_room] if len(shown) <= map_room else shown[: map_room - 1]
        self.map_left_out = len(ids) - len(self.map_ids)

    def _touches(self, request_id: str, replay: Replay, ids: dict[str, None], room: int) -> bool:
        """Whether the index map has a line for this request: all if they fit, else those whose row is shown."""
        if len(ids) <= room:
            return True
        row = replay.req_id_to_index.get(request_id)
        return row is None or row in self.y

    def _reasons_to_leave(self) -> dict[str, str]:
        reasons = {}
        for record in self.trace.records[: self.step_records[-1][0] + 1]:
            match record.event:
                case RequestFinished(request_id=request_id, reason=reason):
                    reasons[request_id] = f"It {finish(reason)} in step {record.step}."
                case RequestPreempted(request_id=request_id):
                    reasons[request_id] = "It was preempted: the scheduler took its blocks."
                case _:
                    pass
        return reasons

    # --- frames -------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        """Walk through the step: before it, each event, and a look ahead of each move."""
        started = next((item for _, item in self.step_records if _begins_prepare(item.event)), None)
        yield self._frame(self.first - 1, started, *self._opening(), kind=None)
        pending: list[tuple[int, Record]] = []
        for place, (index, record) in enumerate(self.step_records):
            event = record.event
            match event:
                case RowMoved():
                    yield self._frame(
                        index - 1,
                        record,
                        f"Row {event.target} is the lowest hole, row {event.source} the highest live row.",
                        f"condense pairs the two: {name(event.request_id)} can drop into the hole, "
                        f"and no other row has to move.",
                        focus=(f"track:{event.target}", f"row:{event.request_id}"),
                        arrows=self._arrow(event.source, event.target),
                        kind=None,
                    )
                case _:
                    pass
            before = self._stale_of(event)
            self.replay.apply(event)
            if not isinstance(event, EVENTS) or (isinstance(event, BlocksAppended) and event.group != 0):
                continue
            if isinstance(event, BlocksAppended):
                pending.append((index, record))
                following = self.step_records[place + 1 :]
                if _next_shown(following) is BlocksAppended:
                    continue
            yield self._event_frame(index, record, before, pending)
            pending = []

    def _opening(self) -> tuple[str, str]:
        live = self.replay.req_id_to_index
        gone = [record.event.request_id for _, record in self.step_records if isinstance(record.event, RowRemoved)]
        change = (
            f"Step {self.step} finds {counted(len(live), 'request')} in rows 0 to {self.replay.num_rows - 1}."
            if live
            else f"Step {self.step} finds an empty batch."
        )
        if not gone:
            return change, "Rows stay from step to step; only what changes is written."
        return change, (
            f"{names(gone)} will not run in this step, so {'its row' if len(gone) == 1 else 'their rows'} "
            f"must go before the inputs are made."
        )

    def _event_frame(self, index: int, record: Record, stale: int, pending: Sequence[tuple[int, Record]]) -> Frame:
        event = record.event
        match event:
            case RowRemoved():
                return self._frame(
                    index, record,
                    f"{name(event.request_id)} leaves row {event.row}, which is now a hole.",
                    f"{self.why_gone.get(event.request_id, 'It gets no tokens in this step.')} Only its index entry "
                    f"and its block ids are cleared; {counted(stale, 'token id')} stay in memory, stale.",
                    focus=(f"track:{event.row}",),
                )  # fmt: skip
            case RowAdded() | RowMoved():
                return self._arrival_frame(index, record, event, stale)
            case RowsSwapped():
                return self._frame(
                    index, record,
                    f"{name(event.first_request_id)} and {name(event.second_request_id)} exchange rows "
                    f"{event.first} and {event.second}.",
                    "Requests that decode go first, so that attention kernels find them together.",
                    focus=(f"row:{event.first_request_id}", f"row:{event.second_request_id}"),
                    arrows=(*self._arrow(event.first, event.second), *self._arrow(event.second, event.first)),
                )  # fmt: skip
            case BlocksAppended():
                return self._growth_frame(index, record, pending)
            case BatchUpdated():
                return self._update_frame(index, record, event)
            case _:
                raise TraceError(f"the condense scene does not show {event.kind}")

    def _arrival_frame(self, index: int, record: Record, event: RowAdded | RowMoved, stale: int) -> Frame:
        """A row gets a tenant, a new one or the last row's; behind its tokens may lie those of an earlier one."""
        row = event.row if isinstance(event, RowAdded) else event.target
        state = self.replay.rows[row]
        tail = len(state.memory) - state.num_tokens
        tokens, block_ids = counted(event.num_tokens, "token id"), counted(len(state.block_ids), "block id")
        arrows: tuple[Arrow, ...] = ()
        if isinstance(event, RowAdded):
            place = "the lowest hole" if stale >= 0 else "the first row behind the others"
            change = f"{name(event.request_id)} is written into row {row}, {place}."
            detail = f"{tokens} and {block_ids} are copied in."
            detail += f" Behind them {counted(tail, 'stale token id')} of an earlier request stay." if tail else ""
        else:
            change = f"{name(event.request_id)} moves from row {event.source} to row {row}."
            detail = (
                f"Its {tokens}, counters and {block_ids} are copied; the index now says {row}. "
                f"Row {event.source} keeps a stale copy of the tokens"
            )
            detail += f"; behind it, row {row} keeps {tail} stale of its old tenant." if tail else "."
            arrows = self._arrow(event.source, row)
        focus = (f"row:{event.request_id}", f"map:{event.request_id}")
        return self._frame(index, record, change, detail, focus=focus, arrows=arrows)

    def _growth_frame(self, index: int, record: Record, pending: Sequence[tuple[int, Record]]) -> Frame:
        grown = [item.event for _, item in pending if isinstance(item.event, BlocksAppended)]
        who = [event.request_id for event in grown]
        first = grown[0]
        join = "joins" if len(first.block_ids) == 1 else "join"
        change = (
            f"{name(first.request_id)} grows: {blocks(first.block_ids)} {join} its block-table row."
            if len(grown) == 1
            else f"{names(who)} grow: new block ids join their block-table rows."
        )
        return self._frame(
            index,
            record,
            change,
            "A row of the block table is a growing array: the ids are written behind the live ones.",
            focus=tuple(f"row:{request_id}" for request_id in dict.fromkeys(who)),
        )

    def _update_frame(self, index: int, record: Record, event: BatchUpdated) -> Frame:
        size = event.batch_size
        dense = f"rows 0 to {size - 1}" if size > 1 else "row 0" if size else "no rows"
        told = [
            *([f"removed {listed([str(row) for row in event.removed])}"] if event.removed else []),
            *([f"added {listed([str(row) for row in event.added])}"] if event.added else []),
            *([f"moved {listed([f'{a}→{b}' for a, b, _ in event.moved])}"] if event.moved else []),
        ]
        change = (
            f"The batch is dense again: {dense}." if event.moved or event.removed else f"The batch is dense: {dense}."
        )
        return self._frame(
            index,
            record,
            change,
            f"Logits processors keep state by row, so they are told: {', '.join(told) or 'nothing changed'}. "
            "A row that was filled again in this step does not count as removed.",
            focus=("update",),
        )

    def _frame(
        self,
        index: int,
        record: Record | None,
        change: str,
        detail: str,
        *,
        focus: tuple[str, ...] = (),
        arrows: tuple[Arrow, ...] = (),
        kind: str | None = "event",
    ) -> Frame:
        actors = in_key_order(self._actors())
        keys = {actor.key for actor in actors}
        live = len(self.replay.req_id_to_index)
        seats = self.trace.settings.get("max_num_seqs")
        holes = counted(len(self._inner_holes()), "hole")
        return Frame(
            id=f"{index}{'' if kind else '+'}",
            actors=actors,
            change=change,
            detail=detail,
            subtitle=f"step {self.step} · {live}{f' of {seats}' if seats else ''} rows live · {holes}",
            step=self.step,
            beat=record.beat if record else None,
            event=record.event.kind if record and kind else None,
            source=(record.source.function, record.source.line) if record and record.source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=index,
        )

    def _inner_holes(self) -> list[int]:
        return [row for row in self.replay.holes if row < self.replay.num_rows]

    def _stale_of(self, event: Event) -> int:
        """How many token ids a removal leaves; for a new row, -1 if it is not a hole."""
        match event:
            case RowRemoved():
                return self.replay.rows[event.row].num_tokens if event.row in self.replay.rows else 0
            case RowAdded():
                return 0 if event.row in self.replay.holes else -1
            case _:
                return 0

    def _arrow(self, source: int, target: int) -> tuple[Arrow, ...]:
        if source not in self.y or target not in self.y:
            return ()
        x, middle = _CARD_X + _CARD_W + 3, self.row_h / 2
        return (Arrow(x, self.y[source] + middle, x, self.y[target] + middle, bend=22),)

    # --- actors -------------------------------------------------------------------------------------------

    def _actors(self) -> Iterator[Actor]:
        yield self._heads()
        for item in self.rows:
            if isinstance(item, Gap):
                continue
            yield self._track(item)
            if (request_id := self.replay.rows.get(item, RowState()).request_id) is not None:
                yield self._live(item, request_id)
        for place, request_id in enumerate(self.map_ids):
            yield self._map_entry(place, request_id)
        yield self._update()

    def _heads(self) -> Actor:
        y = 18
        parts = [
            text(_CARD_X + 8, y, "request", "muted"),
            text(_CARD_X + _TOKENS_X, y, "token_ids", "muted mono"),
            text(_CARD_X + _BLOCKS_X, y, "block table", "muted"),
            text(_MAP_X, y, "req_id → row", "muted mono", "req_id_to_index: where to find a request"),
        ]
        at = _TOP
        for item in self.rows:
            if isinstance(item, Gap):
                parts.append(text(_CARD_X + 8, at + 8, f"⋯ {counted(item.count, 'row')} more, untouched", "muted"))
                at += 22
            else:
                at += self.pitch
        if self.map_left_out:
            y_more = _TOP + 26 * len(self.map_ids) + 12
            parts.append(text(_MAP_X, y_more, f"+{self.map_left_out:,} more", "muted"))
        return Actor("heads", 0, 0, _WIDTH, 24, tuple(parts), layer=0)

    @property
    def _room(self) -> int:
        return int((_BLOCKS_X - _TOKENS_X - 10) // self.cell_w)

    def _cells(self, row: int, count: int, start: int, style: str) -> Iterator[Part]:
        """Cells of a row's memory, columns ``start`` to ``count``, where there is room."""
        memory = self.replay.rows[row].memory
        h = self.row_h - 12
        x = _TOKENS_X + start * self.cell_w
        items = elide(count, self._room) if start == 0 else list(range(start, min(count, self._room)))
        for item in items:
            if isinstance(item, Gap):
                yield gap(x, 6, 2 * self.cell_w, h, item.count)
                x += 2 * self.cell_w
                continue
            token, writer = memory[item]
            title = self.labels.title(token, item, writer) + (" (stale)" if style == "stale" else "")
            yield cell(x, 6, self.cell_w, h, self.labels.label(token), self.replay.requests[writer].index, style, title)
            x += self.cell_w

    def _track(self, row: int) -> Actor:
        """The row as a place: its index, its frame and what is stale in it."""
        state = self.replay.rows.get(row, RowState())
        h = self.row_h
        hole = state.request_id is None and row < self.replay.num_rows
        style = "track" if state.request_id is not None else "hole" if hole else "free"
        parts = [
            text(-12, h / 2, str(row), "index middle mono"),
            Part("box", 0, 0, _CARD_W, h, style=style, title=f"row {row}" + (": a hole" if hole else "")),
        ]
        if state.request_id is None:
            word = "hole" if hole else "free"
            parts.append(text(10, h / 2, word, "muted"))
            parts += self._cells(row, len(state.memory), 0, "stale") if row in self.replay.rows else []
        else:
            parts += self._cells(row, len(state.memory), state.num_tokens, "stale")
        data: dict[str, str | int] = {"row": row, "state": "live" if state.request_id is not None else style}
        return Actor(f"track:{row}", _CARD_X, self.y[row], _CARD_W, h, tuple(parts), layer=0, data=data)

    def _live(self, row: int, request_id: str) -> Actor:
        """The request in the row: what flies when the row moves."""
        state = self.replay.rows[row]
        owner = self.replay.requests[request_id].index
        h = self.row_h
        parts = [
            Part("swatch", 10, h / 2 - 9, 18, 18, owner=owner, title=name(request_id, 200)),
            text(_NAME_X, h / 2, label(request_id, 7), "strong mono", name(request_id, 200)),
            *self._cells(row, state.num_tokens, 0, "live"),
        ]
        ids = [str(block) for block in state.block_ids]
        parts += chips(_BLOCKS_X, 7, _BLOCKS_END - _BLOCKS_X, self.chip_w, h - 14, ids, owner, "live")
        data: dict[str, str | int] = {"row": row, "request": request_id, "tokens": state.num_tokens}
        return Actor(f"row:{request_id}", _CARD_X, self.y[row], _CARD_W, h, tuple(parts), layer=2, data=data)

    def _map_entry(self, place: int, request_id: str) -> Actor:
        row = self.replay.req_id_to_index.get(request_id)
        owner = self.replay.request(request_id).index
        gone = row is None
        parts = (
            *(() if gone else (Part("swatch", 2, 5, 14, 14, owner=owner),)),
            text(21, 12, label(request_id, 6), "mono muted" if gone else "mono", name(request_id, 200)),
            text(76, 12, "→", "muted middle"),
            text(94, 12, "–" if gone else str(row), "mono middle muted" if gone else "strong mono middle"),
        )
        data: dict[str, str | int] = {"request": request_id, "row": "" if row is None else row}
        return Actor(f"map:{request_id}", _MAP_X, _TOP + 26 * place, 100, 24, parts, data=data)

    def _update(self) -> Actor:
        """What logits processors will be told, as it builds up."""
        done = self.replay.update
        removed = list(done.removed) if done else sorted(self.replay.holes, reverse=True)
        added = list(done.added) if done else self.replay.added
        moved = [(a, b) for a, b, _ in (done.moved if done else self.replay.moves)]
        parts = [
            Part("box", 0, 0, _WIDTH - 8 - _CARD_X, 36, style="panel"),
            text(10, 18, "BatchUpdate", "mono muted", "what logits processors are told, once a step"),
        ]
        x = 108.0
        for word, items in (
            ("removed", [str(row) for row in removed]),
            ("added", [str(row) for row in added]),
            ("moved", [f"{a}→{b}" for a, b in moved]),
        ):
            parts.append(text(x, 18, word, "muted"))
            x += 8.4 * len(word) + 8
            for item in elide(len(items), 3, gap_width=1):
                shown = f"+{item.count}" if isinstance(item, Gap) else items[item]
                w = 8 * len(shown) + 12
                parts.append(Part("chip", x, 7, w, 22, shown, "plain"))
                x += w + 3
            if not items:
                parts.append(text(x, 18, "–", "muted"))
                x += 10
            x += 14
        return Actor("update", _CARD_X, self.bottom + 4, _WIDTH - 8 - _CARD_X, 36, tuple(parts))


def _rows_of(event: Event) -> set[int]:
    match event:
        case RowAdded() | RowRemoved():
            return {event.row}
        case RowMoved():
            return {event.source, event.target}
        case RowsSwapped():
            return {event.first, event.second}
        case _:
            return set()


def _begins_prepare(event: Event) -> bool:
    return isinstance(event, BeatStarted) and event.beat == "prepare"


def _next_shown(following: Sequence[tuple[int, Record]]) -> type[Event] | None:
    return next((type(record.event) for _, record in following if isinstance(record.event, EVENTS)), None)
