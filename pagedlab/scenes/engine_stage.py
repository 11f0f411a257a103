"""The stage of the scene `step`: where things are, and what they look like.

`EngineStage` holds a `Replay` and what is under way: where each request's tokens of this step are (budget, row, flat
batch, KV cache), where the sampled tokens are. `pagedlab.scenes.engine_step` walks it through the events.

The layout is decided once, for all frames of the step, from a run ahead to the step's end: nothing shifts but what
moves. What does not fit is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pagedlab.events import (
    BlocksAllocated,
    BlocksFreed,
    BlocksTouched,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    SlotsComputed,
    TokenSampled,
)
from pagedlab.scenes.marks import Gap, cell, chips, choose, elide, gap, share, text
from pagedlab.scenes.replay import GROUP, NULL_BLOCK, Replay, RowState
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.words import TokenLabels, counted, label, name, names
from pagedlab.trace import Trace

WIDTH = 584
_BAND_X, _BAND_W = 6, 572
_LEFT, _RIGHT = 88, 572  # where queues, budget and flat batch lie
_HEAD = 24
_CHIP_H = 24
_ROW_PITCH, _ROW_H = 30, 27
_ROW_TOKENS_X, _ROW_TOKENS_END, _ROW_BLOCKS_X = 124, 411, 418
_CELL_H = 24
MAX_ROWS = 6


class EngineStage:
    """The engine as a `Replay` knows it, drawn.

    Parameters
    ----------
    trace : Trace
    step : int
    """

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.step = step
        self.first = next(index for index, record in enumerate(trace.records) if record.step == step)
        self.records = [(index, record) for index, record in enumerate(trace.records) if record.step == step]
        self.block_size = int(trace.settings.get("block_size") or _block_size_seen(trace))
        self.replay = Replay(self.block_size)
        end = Replay(self.block_size)
        for record in trace.records[: self.first]:
            self.replay.apply(record.event)
            end.apply(record.event)
        self.places: dict[str, str] = {}  # where the travelling tokens of a request are: bar, row, flat, kv
        self.sampled: dict[str, TokenSampled] = {}
        self.sample_place: dict[str, str] = {}  # where a sampled token is: flat, row, chip
        self.has_inputs = self.has_slots = False
        self.targets: set[int] = set()
        self._measure(end)

    # --- what stays the same in all frames ------------------------------------------------------------------

    def _measure(self, end: Replay) -> None:
        """Run ahead through the step on ``end``, and lay out the stage for all that will be on it."""
        tokens: set[int | None] = set()
        queues: list[list[str]] = [self.replay.waiting, self.replay.running]
        num_rows, touched_rows = end.num_rows, set[int]()
        used_blocks: list[int] = []
        self.grants: dict[str, range] = {}
        self.owners_in_row: set[str] = set(end.req_id_to_index)
        for _, record in self.records:
            end.apply(record.event)
            num_rows = max(num_rows, end.num_rows, max(end.holes, default=-1) + 1)
            match record.event:
                case RequestScheduled() as event:
                    start = event.num_computed_tokens
                    self.grants[event.request_id] = range(start, start + event.num_scheduled_tokens)
                case RequestPreempted(request_id=request_id):
                    self.grants.pop(request_id, None)
                case RowAdded(row=row) | RowRemoved(row=row):
                    touched_rows.add(row)
                case RowMoved(source=a, target=b) | RowsSwapped(first=a, second=b):
                    touched_rows |= {a, b}
                case (
                    BlocksAllocated(block_ids=ids, group=group)
                    | BlocksTouched(block_ids=ids, group=group)
                    | BlocksFreed(block_ids=ids, group=group)
                ):
                    used_blocks += ids if group == GROUP else ()
                case SlotsComputed(slot_mapping=slots, block_size=size, group=group) if group == GROUP:
                    used_blocks += [slot // size for slot in slots if slot >= 0]
                case TokenSampled(token_id=token):
                    tokens.add(token)
                case _:
                    pass
            queues += [list(end.waiting), list(end.running)]
        self.end = end
        # Several records of a step may add a request: seats are counted from the rows that ever lived in it.
        self.rows = choose(num_rows, touched_rows, MAX_ROWS)
        for state in end.rows.values():
            tokens.update(token for token, _ in state.memory)
        for request in end.requests.values():
            tokens.update(request.tokens)
        self.labels = TokenLabels(self.trace.vocabulary)
        self.cell_w = max(22, self.labels.width(tokens))
        self._plan_tokens()
        self._plan_chips(queues)
        self._plan_bands()
        self._plan_blocks(used_blocks)

    def _plan_tokens(self) -> None:
        """Choose which of this step's tokens are drawn, for the budget and the flat batch alike."""
        budget = self.trace.settings.get("max_num_batched_tokens")
        width = _RIGHT - _LEFT
        self.room = int(width // self.cell_w)
        self.budget_cells = isinstance(budget, int) and budget <= self.room
        room = self.room if self.budget_cells else int((width - 92) // self.cell_w)
        visible = {self._last_row_request(row) for row in self.rows if isinstance(row, int)}
        shown = [request_id for request_id in self.grants if request_id in visible][:MAX_ROWS]
        shown = shown or list(self.grants)[:MAX_ROWS]
        # A request that is drawn needs three cells: a gap, and the last token, which gives the next one.
        need = [min(len(self.grants[request_id]), 3) for request_id in shown]
        while len(need) > 1 and sum(need) > room - (3 if len(need) < len(self.grants) else 0):
            need.pop()
        shown = shown[: len(need)]
        self.left_out = [request_id for request_id in self.grants if request_id not in shown]
        room -= 3 if self.left_out else 0
        counts = [len(self.grants[request_id]) for request_id in shown]
        self.plan: dict[str, list[int | Gap]] = {}
        for request_id, granted in zip(shown, share(counts, room), strict=True):
            window = self.grants[request_id]
            items = elide(len(window), max(granted, 2)) if len(window) > 1 else [0]
            self.plan[request_id] = [
                Gap(item.start + window.start, item.stop + window.start)
                if isinstance(item, Gap)
                else item + window.start
                for item in items
            ]

    def _last_row_request(self, row: int) -> str | None:
        return self.end.rows[row].request_id if row in self.end.rows else None

    def _plan_chips(self, queues: Sequence[Sequence[str]]) -> None:
        """Choose how wide a request in a queue is: with its counts if all fit, else with a short name only."""
        ids = {request_id for queue in queues for request_id in queue}
        most = max((len(queue) for queue in queues), default=0)
        for self.chip_counts, self.chip_name in ((True, 8), (False, 8), (False, 5)):
            longest = max((len(label(request_id, self.chip_name)) for request_id in ids), default=1)
            self.chip_w = 32 + 8 * longest + (8 + 8 * self._count_width(ids) if self.chip_counts else 0)
            self.chip_step = self.chip_w + self.cell_w + 6  # beside each there is room for a sampled token
            self.chip_room = max(2, int((_RIGHT - _LEFT + 6) // self.chip_step))
            if most <= self.chip_room:
                return

    def _count_width(self, ids: set[str]) -> int:
        return max((2 * len(str(len(self.end.request(request_id).tokens))) + 1 for request_id in ids), default=3)

    def _plan_bands(self) -> None:
        y = 6.0
        self.bands: dict[str, tuple[float, float]] = {}
        row_height = sum(18 if isinstance(item, Gap) else _ROW_PITCH for item in self.rows) or _ROW_PITCH
        digits = max((len(str(slot)) for slot in (self.end.slots.slot_mapping if self.end.slots else ())), default=1)
        spots = max((len(str(window.stop)) for window in self.grants.values()), default=1)
        self.stagger = 8 * max(digits, spots) > self.cell_w - 1
        self.line_h = 28 if self.stagger else 16
        for band, height in (
            ("scheduler", _HEAD + 3 * 31 + 2),
            ("batch", _HEAD + row_height + 2),
            ("inputs", _HEAD + _CELL_H + 12 + 2 * self.line_h + 4),
        ):
            self.bands[band] = (y, height)
            y += height + 6
        self.row_y: dict[int, float] = {}
        at = self.bands["batch"][0] + _HEAD
        for item in self.rows:
            if isinstance(item, Gap):
                at += 18
            else:
                self.row_y[item] = at
                at += _ROW_PITCH
        self.kv_top = y

    def _plan_blocks(self, used: Sequence[int]) -> None:
        """Choose which KV blocks are drawn, and where; they stay there in all frames."""
        size = self.block_size
        self.tiny = size > 32
        self.kv_columns = 16 if self.tiny else min(size, 8)
        self.kv_w, self.kv_h = (11, 11) if self.tiny else (max(20, self.cell_w - 2), 22)
        lines = -(-size // self.kv_columns)
        self.block_w = max(self.kv_columns * self.kv_w + 7, 34)
        self.block_h = 20 + lines * (self.kv_h + 2) + 4
        per_line = max(1, int((_BAND_W - 12 + 5) // (self.block_w + 5)))
        # The blocks that are written and not left out come first, then the others of the step, then whoever owns one.
        written = [
            block
            for request_id, items in self.plan.items()
            for item in items
            if isinstance(item, int)
            for block in self.end.request(request_id).block_ids[item // size : item // size + 1]
        ]
        owned = [*self.replay.block_owner, *self.end.block_owner]
        wanted = list(dict.fromkeys((*written, *used, *owned)))
        total = int(self.trace.settings.get("num_blocks", 0)) or max(wanted, default=0) + 1
        most_lines = 2 if self.block_h <= 78 else 1
        kv_lines = max(1, min(most_lines, -(-(len(wanted) + 1) // per_line)))
        room = per_line * kv_lines
        shown = wanted[: room if len(wanted) >= room else room - 1]
        if len(shown) < room and 0 not in shown and total > 0:
            shown.append(0)
        spare = (block for block in range(1, total) if block not in set(wanted))
        while len(shown) < room and (block := next(spare, None)) is not None:
            shown.append(block)
        self.num_blocks_shown, self.num_blocks = len(shown), total
        self.block_at = {
            block: (
                _BAND_X + 6 + (place % per_line) * (self.block_w + 5),
                self.kv_top + _HEAD + (place // per_line) * (self.block_h + 6),
            )
            for place, block in enumerate(sorted(shown))
        }
        self.bands["kv"] = (self.kv_top, _HEAD + kv_lines * (self.block_h + 6) + 2)
        self.height = self.kv_top + self.bands["kv"][1] + 4

    # --- where things are ---------------------------------------------------------------------------------------

    def _chip_xy(self, request_id: str) -> tuple[float, float] | None:
        for line, queue in enumerate((self.replay.waiting, self.replay.running)):
            for at, item in self._chip_places(queue):
                if item == request_id:
                    return _LEFT + at * self.chip_step, self.bands["scheduler"][0] + _HEAD + 31 * line + 1
        return None

    def _chip_places(self, queue: Sequence[str]) -> list[tuple[int, str | Gap]]:
        if len(queue) <= self.chip_room:
            return list(enumerate(queue))
        shown = self.chip_room - 1
        return [*enumerate(queue[:shown]), (shown, Gap(shown, len(queue)))]

    def _line_xs(self, order: Sequence[str]) -> Mapping[tuple[str, int], float]:
        """Where in a line of cells each planned item begins, by request and first position; sets ``line_end``."""
        xs: dict[tuple[str, int], float] = {}
        x = float(_LEFT)
        for request_id in order:
            for item in self.plan.get(request_id, ()):
                xs[request_id, item.start if isinstance(item, Gap) else item] = x
                x += self.cell_w * (2 if isinstance(item, Gap) else 1)
        self.line_end = x
        return xs

    def _bar_order(self) -> list[str]:
        return [event.request_id for event in self.replay.scheduled]

    def _flat_order(self) -> list[str]:
        return list(self.replay.inputs.request_ids) if self.replay.inputs else []

    def _flat_xy(self, request_id: str, position: int) -> tuple[float, float] | None:
        x = self._line_xs(self._flat_order()).get((request_id, position))
        return None if x is None else (x, self.bands["inputs"][0] + _HEAD)

    def _kv_xy(self, slot: int) -> tuple[float, float] | None:
        block, offset = divmod(slot, self.block_size)
        if block not in self.block_at:
            return None
        x, y = self.block_at[block]
        return x + 4 + offset % self.kv_columns * self.kv_w, y + 20 + offset // self.kv_columns * (self.kv_h + 2)

    def _row_items(self, request_id: str) -> list[int | Gap]:
        """Which columns of a request's row are drawn: the same in all frames of the step."""
        total = len(self.end.request(request_id).tokens)
        window = self.grants.get(request_id)
        focus = range(window.start, total) if window and window.start < total else None
        return elide(total, int((_ROW_TOKENS_END - _ROW_TOKENS_X) // self.cell_w), focus)

    def _row_x(self, request_id: str, position: int) -> float:
        x = float(_ROW_TOKENS_X)
        for item in self._row_items(request_id):
            if isinstance(item, Gap):
                if position < item.stop:
                    return x + self.cell_w / 2
                x += 2 * self.cell_w
            else:
                if item >= position:
                    return x
                x += self.cell_w
        return x

    # --- actors -------------------------------------------------------------------------------------------------

    def actors(self, band: str | None) -> Iterator[Actor]:
        yield from self._band_actors(band)
        yield from self._queue_actors()
        yield self._budget()
        yield from self._row_actors()
        yield self._inputs()
        yield from self._block_actors()
        yield from self._travellers()
        yield from self._samples()

    @property
    def num_free_blocks(self) -> int | None:
        """The free blocks now; before anything told their number, counted back from the first event that does."""
        if self.replay.num_free_blocks is not None:
            return self.replay.num_free_blocks
        for record in self.trace:
            match record.event:
                case BlocksAllocated(num_free=free, block_ids=ids):
                    return free + len(ids)
                case BlocksFreed(num_free=free, block_ids=ids):
                    return free - len(ids)
                case _:
                    pass
        return None

    def _band_actors(self, now: str | None) -> Iterator[Actor]:
        free = self.num_free_blocks
        inputs = self.replay.inputs if self.has_inputs else None
        seats = self.trace.settings.get("max_num_seqs")
        all_shown = self.num_blocks_shown >= self.num_blocks
        some = [] if all_shown else [f"{self.num_blocks_shown} of {self.num_blocks:,} shown"]
        taken = f"{len(self.replay.running):,} of {seats:,} seats taken" if isinstance(seats, int) else ""
        facts = {
            "scheduler": ("Scheduler", taken),
            "batch": ("Persistent batch", ""),
            "inputs": (
                "Inputs of one forward pass",
                f"query_start_loc {vector(inputs.query_start_loc)}" if inputs else "",
            ),
            "kv": ("KV cache", " · ".join([*([] if free is None else [f"{free:,} blocks free"]), *some])),
        }
        for band, (title, fact) in facts.items():
            y, height = self.bands[band]
            parts = [
                Part("box", 0, 0, _BAND_W, height, style="band-now" if band == now else "band"),
                text(8, 13, title, "head"),
            ]
            if band == "batch":
                parts.append(text(_ROW_BLOCKS_X - _BAND_X, 13, "block table", "muted"))
            if fact:
                parts.append(text(_BAND_W - 8, 13, fact, "muted right mono" if band == "inputs" else "muted right"))
            yield Actor(f"band:{band}", _BAND_X, y, _BAND_W, height, tuple(parts), layer=0)

    def _queue_actors(self) -> Iterator[Actor]:
        top = self.bands["scheduler"][0] + _HEAD
        parts = [text(14, top + 13, "waiting", "muted"), text(14, top + 44, "running", "muted")]
        for line, queue in enumerate((self.replay.waiting, self.replay.running)):
            if not queue:
                parts.append(text(_LEFT + 2, top + 31 * line + 13, "none", "muted"))
            for at, item in self._chip_places(queue):
                if isinstance(item, Gap):
                    parts.append(
                        text(_LEFT + at * self.chip_step + 4, top + 31 * line + 13, f"+{item.count:,} more", "muted")
                    )
                else:
                    yield self._chip(item, _LEFT + at * self.chip_step, top + 31 * line + 1)
        yield Actor("queues", 0, 0, WIDTH, 10, tuple(parts), layer=0)

    def _chip(self, request_id: str, x: float, y: float) -> Actor:
        request = self.replay.request(request_id)
        shown = label(request_id, self.chip_name)
        total = len(request.tokens)
        parts = [
            Part("box", 0, 0, self.chip_w, _CHIP_H, style="owned", owner=request.index,
                 title=f"{name(request_id, 200)}: {request.num_computed_tokens} of {counted(total, 'token')} computed"),
            Part("swatch", 5, 5, 14, 14, owner=request.index),
            text(25, 12, shown, "strong mono"),
        ]  # fmt: skip
        if self.chip_counts:
            parts.append(text(self.chip_w - 6, 12, f"{request.num_computed_tokens}/{total}", "muted mono right"))
        data: dict[str, str | int] = {
            "request": request_id,
            "queue": "waiting" if request_id in self.replay.waiting else "running",
            "computed": request.num_computed_tokens,
        }
        return Actor(f"chip:{request_id}", x, y, self.chip_w, _CHIP_H, tuple(parts), data=data)

    def _budget(self) -> Actor:
        y = self.bands["scheduler"][0] + _HEAD + 62
        budget = self.trace.settings.get("max_num_batched_tokens")
        parts = [text(14, 13, "budget", "muted")]
        left = self.replay.budget_left
        left = budget if left is None and isinstance(budget, int) else left
        if self.budget_cells and isinstance(budget, int):
            granted = [event.request_id for event in self.replay.scheduled for _ in range(event.num_scheduled_tokens)]
            for at in range(budget):
                who = granted[at] if at < len(granted) else None
                owner = None if who is None else self.replay.request(who).index
                title = f"token {at + 1} of the budget: {'free' if who is None else name(who)}"
                style = "free" if who is None else "stale"
                parts.append(cell(_LEFT + at * self.cell_w, 1, self.cell_w, _CELL_H, "", owner, style, title))
        else:
            parts.append(Part("box", _LEFT - 2, -1, _RIGHT - _LEFT + 2, _CELL_H + 4, style="free"))
            xs = self._line_xs(self._bar_order())
            for request_id in self._bar_order():
                owner = self.replay.request(request_id).index
                for item in self.plan.get(request_id, ()):
                    start, wide = (item.start, 2) if isinstance(item, Gap) else (item, 1)
                    parts.append(cell(xs[request_id, start], 1, wide * self.cell_w, _CELL_H, "", owner, "stale"))
            if left is not None:
                parts.append(text(_RIGHT - 6, 13, f"{left:,} left", "muted right"))
            if self.left_out and (more := [item for item in self.left_out if item in self._bar_order()]):
                parts.append(
                    text(
                        self.line_end + 4, 13, f"+{len(more):,} req.", "muted", f"{counted(len(more), 'request')} more"
                    )
                )
        return Actor(
            "budget", 0, y, WIDTH, _CELL_H + 2, tuple(parts), layer=0, data={"left": "" if left is None else left}
        )

    def _row_actors(self) -> Iterator[Actor]:
        top = self.bands["batch"][0] + _HEAD
        parts: list[Part] = []
        for item in self.rows:
            if isinstance(item, Gap):
                parts.append(text(_ROW_TOKENS_X - 90, top + 9, f"⋯ {counted(item.count, 'row')} more", "muted"))
                top += 18
                continue
            top += _ROW_PITCH
            yield self._track(item)
            state = self.replay.rows.get(item, RowState())
            if state.request_id is not None:
                yield self._row(item, state.request_id)
        if not self.rows:
            parts.append(text(14, top + 13, "no rows yet", "muted"))
        if parts:
            yield Actor("rows", 0, 0, WIDTH, 10, tuple(parts), layer=0)

    def _track(self, row: int) -> Actor:
        state = self.replay.rows.get(row, RowState())
        hole = state.request_id is None and row < self.replay.num_rows
        style = "track" if state.request_id is not None else "hole" if hole else "free"
        width = _RIGHT - 28
        parts = [
            text(-10, _ROW_H / 2, str(row), "index middle mono"),
            Part("box", 0, 0, width, _ROW_H, style=style, title=f"row {row}"),
        ]
        if state.request_id is None:
            parts.append(text(8, _ROW_H / 2, "hole" if hole else "free", "muted"))
            x = float(_ROW_TOKENS_X - 30)
            room = int((_ROW_TOKENS_END - _ROW_TOKENS_X) // self.cell_w)
            for item in elide(len(state.memory), room):
                if isinstance(item, Gap):
                    parts.append(gap(x, 2, 2 * self.cell_w, _ROW_H - 4, item.count))
                    x += 2 * self.cell_w
                else:
                    token, writer = state.memory[item]
                    title = self.labels.title(token, item, writer) + " (stale)"
                    owner = self.replay.request(writer).index
                    parts.append(cell(x, 2, self.cell_w, _ROW_H - 4, self.labels.label(token), owner, "stale", title))
                    x += self.cell_w
        state_name = "live" if state.request_id is not None else style
        return Actor(
            f"track:{row}",
            30,
            self.row_y[row],
            width,
            _ROW_H,
            tuple(parts),
            layer=0,
            data={"row": row, "state": state_name},
        )

    def _row(self, row: int, request_id: str) -> Actor:
        state = self.replay.rows[row]
        owner = self.replay.request(request_id).index
        window = self.grants.get(request_id, range(0))
        known = window.start if window else self.replay.request(request_id).num_computed_tokens
        parts = [
            Part("swatch", 7, _ROW_H / 2 - 7, 14, 14, owner=owner),
            text(27, _ROW_H / 2, label(request_id, 7), "strong mono", name(request_id, 200)),
        ]
        x = float(_ROW_TOKENS_X - 30)
        for item in self._row_items(request_id):
            wide = 2 if isinstance(item, Gap) else 1
            start = item.start if isinstance(item, Gap) else item
            if start >= state.num_tokens:
                break
            if isinstance(item, Gap):
                parts.append(gap(x, 2, 2 * self.cell_w, _ROW_H - 4, min(item.stop, state.num_tokens) - start))
            else:
                token, writer = state.memory[item]
                computed = item < known or (item < window.stop and self._done())
                style = "live" if computed else "next"
                title = self.labels.title(token, item, writer) + ("" if computed else " (not computed yet)")
                parts.append(cell(x, 2, self.cell_w, _ROW_H - 4, self.labels.label(token), owner, style, title))
            x += wide * self.cell_w
        ids = [str(block) for block in state.block_ids]
        widest = max((len(item) for item in ids), default=1)
        parts += chips(
            _ROW_BLOCKS_X - 30, 3, _RIGHT - _ROW_BLOCKS_X - 4, max(26, 8 * widest + 10), _ROW_H - 6, ids, owner, "live"
        )
        data: dict[str, str | int] = {"row": row, "request": request_id, "tokens": state.num_tokens}
        return Actor(f"row:{request_id}", 30, self.row_y[row], _RIGHT - 28, _ROW_H, tuple(parts), layer=1, data=data)

    def _done(self) -> bool:
        """Whether the forward pass of this step is over."""
        return "kv" in self.places.values() or bool(self.sampled)

    def _inputs(self) -> Actor:
        y, _ = self.bands["inputs"]
        parts: list[Part] = []
        inputs = self.replay.inputs if self.has_inputs else None
        if inputs is None:
            parts.append(text(14, _HEAD + 12, "filled in the prepare beat", "muted"))
            return Actor("inputs", 0, y, WIDTH, 10, tuple(parts), layer=0)
        position_y = _HEAD + _CELL_H + 8 + self.line_h / 2
        slot_y = position_y + self.line_h
        parts += [
            text(14, _HEAD + 12, "input_ids", "muted mono"),
            text(14, position_y, "position", "muted mono"),
            *([text(14, slot_y, "slot", "muted mono")] if self.has_slots else []),
        ]
        xs = self._line_xs(self._flat_order())
        slots = self.replay.slots
        place = 0
        for row, request_id in enumerate(inputs.request_ids):
            owner = self.replay.request(request_id).index
            items = self.plan.get(request_id, [])
            first = self.grants.get(request_id, range(0)).start
            for item in items:
                start = item.start if isinstance(item, Gap) else item
                x = xs[request_id, start]
                wide = self.cell_w * (2 if isinstance(item, Gap) else 1)
                parts.append(Part("line", x, _HEAD + _CELL_H + 4, wide - 2, 0, style="owner", owner=owner))
                if isinstance(item, Gap):
                    parts.append(text(x + wide / 2 - 1, position_y, "…", "muted middle"))
                    continue
                at = inputs.query_start_loc[row] + item - first
                parts.append(cell(x, _HEAD, self.cell_w, _CELL_H, "", None, "free"))
                shift = (place % 2 * 13 - 6.5) if self.stagger else 0
                place += 1
                middle = x + self.cell_w / 2 - 1
                parts.append(text(middle, position_y + shift, str(item), "middle mono"))
                if self.has_slots and slots is not None:
                    parts.append(text(middle, slot_y + shift, str(slots.slot_mapping[at]), "middle mono accent"))
        if self.left_out:
            parts.append(text(self.line_end + 4, _HEAD + 12, f"+{len(self.left_out):,} req.", "muted"))
        data: dict[str, str | int] = {"tokens": len(inputs.input_ids), "slots": int(self.has_slots)}
        return Actor("inputs", 0, y, WIDTH, 10, tuple(parts), layer=0, data=data)

    def _block_actors(self) -> Iterator[Actor]:
        for block, (x, y) in self.block_at.items():
            holders = self.replay.holders.get(block, [])
            cached = block in self.replay.cached
            owner = self.replay.request(holders[0]).index if holders else None
            style = "null" if block == NULL_BLOCK else "owned" if holders else "cached" if cached else "free"
            room = int((self.block_w - 16 - 8 * len(str(block))) // 8)
            word = style if not holders else label(holders[0], max(2, room))
            if len(holders) > 1:
                word = f"{label(holders[0], max(2, room - 3))} +{len(holders) - 1}"
            tip = f"block {block}: held by {names(holders)}" if holders else f"block {block}: {style}"
            parts = [
                Part("box", 0, 0, self.block_w, self.block_h, style=style, owner=owner, title=tip),
                text(7, 11, str(block), "mono strong" if holders else "mono muted"),
            ]
            if room >= len(word):
                parts.append(text(self.block_w - 6, 11, word, "muted right mono"))
            parts += [self._kv_cell(block, offset) for offset in range(self.block_size)]
            data: dict[str, str | int] = {
                "block": block,
                "owner": holders[0] if holders else "",
                "holders": len(holders),
                "state": style,
            }
            yield Actor(f"block:{block}", x, y, self.block_w, self.block_h, tuple(parts), layer=1, data=data)

    def _kv_cell(self, block: int, offset: int) -> Part:
        slot = block * self.block_size + offset
        x = 4 + offset % self.kv_columns * self.kv_w
        y = 20 + offset // self.kv_columns * (self.kv_h + 2)
        held = self.replay.kv.get(slot)
        style, words, owner, title = "free", "", None, f"slot {slot}"
        if held is not None:
            token, writer, position = held
            live = self.replay.holds_token(block, offset)
            style, owner = "live" if live else "stale", self.replay.request(writer).index
            words = "" if self.tiny else self.labels.label(token)
            title = f"slot {slot}: K and V of {self.labels.title(token, position, writer)}" + (
                "" if live else " (stale)"
            )
        if slot in self.targets:
            style += " target"
        return Part("cell", x, y, self.kv_w - 1, self.kv_h, words, style, owner, title)

    def _travellers(self) -> Iterator[Actor]:
        """Give the tokens of this step, each on its way from the queue to its slot."""
        bar = self._line_xs(self._bar_order())
        flat = self._line_xs(self._flat_order())
        bar_y = self.bands["scheduler"][0] + _HEAD + 63
        flat_y = self.bands["inputs"][0] + _HEAD
        for request_id, items in self.plan.items():
            place = self.places.get(request_id)
            if place is None:
                continue
            owner = self.replay.request(request_id).index
            tokens = self.replay.request(request_id).tokens
            row = self.replay.req_id_to_index.get(request_id)
            chip = self._chip_xy(request_id)
            for item in items:
                start = item.start if isinstance(item, Gap) else item
                spot: tuple[float, float] | None
                if place == "bar":
                    spot = (bar[request_id, start], bar_y)
                elif place == "row":
                    spot = (self._row_x(request_id, start), self.row_y[row] + 2) if row in self.row_y else None
                elif place == "flat":
                    spot = (flat[request_id, start], flat_y)
                else:
                    spot = self._slot_xy(request_id, start) if isinstance(item, int) else None
                if spot is None:
                    continue
                origin = (chip[0] + self.chip_w / 2, chip[1]) if chip and place == "bar" else None
                if isinstance(item, Gap):
                    if place == "row":
                        continue  # the row counts its own
                    part = gap(0, 0, 2 * self.cell_w, _CELL_H, item.count)
                    yield Actor(
                        f"tok:{request_id}:{start}",
                        *spot,
                        2 * self.cell_w,
                        _CELL_H,
                        (part,),
                        2,
                        {"request": request_id},
                        origin,
                    )
                    continue
                token = tokens[item] if item < len(tokens) else None
                title = self.labels.title(token, item, request_id)
                words = "" if self.tiny and place == "kv" else self.labels.label(token)
                w, h = (
                    (self.kv_w + 1, self.kv_h)
                    if place == "kv"
                    else (self.cell_w, _ROW_H - 4 if place == "row" else _CELL_H)
                )
                yield Actor(
                    f"tok:{request_id}:{item}", *spot, w - 2, h, (cell(0, 0, w, h, words, owner, "live", title),), 2,
                    {"request": request_id, "position": item, "place": place}, origin,
                )  # fmt: skip

    def _slot_xy(self, request_id: str, position: int) -> tuple[float, float] | None:
        blocks = self.replay.request(request_id).block_ids
        column = position // self.block_size
        if column >= len(blocks):
            return None
        return self._kv_xy(blocks[column] * self.block_size + position % self.block_size)

    def _samples(self) -> Iterator[Actor]:
        """The sampled tokens, on their way from the logits to the row and to the request."""
        for request_id, event in self.sampled.items():
            place = self.sample_place.get(request_id)
            window = self.grants.get(request_id)
            if place is None or window is None:
                continue
            owner = self.replay.request(request_id).index
            spot: tuple[float, float] | None = None
            if place == "flat":
                spot = self._flat_xy(request_id, window.stop - 1) if request_id in self.plan else None
            elif place == "row":
                row = self.replay.req_id_to_index.get(request_id)
                if row in self.row_y:
                    spot = (self._row_x(request_id, window.stop), self.row_y[row] + 2)
            elif (chip := self._chip_xy(request_id)) is not None:
                spot = (chip[0] + self.chip_w + 3, chip[1])
            if spot is None:
                continue
            style = "dropped" if event.discarded else "live new"
            title = f"sampled for {name(request_id)}" + (
                ": dropped, it is in the middle of the prompt" if event.discarded else ""
            )
            h = _ROW_H - 4 if place == "row" else _CELL_H
            part = cell(0, 0, self.cell_w, h, self.labels.label(event.token_id), owner, style, title)
            data: dict[str, str | int] = {"request": request_id, "token": event.token_id, "place": place}
            yield Actor(f"new:{request_id}", *spot, self.cell_w - 2, h, (part,), 2, data)


def _block_size_seen(trace: Trace) -> int:
    return next((record.event.block_size for record in trace if isinstance(record.event, SlotsComputed)), 16)


def vector(values: Sequence[int], room: int = 24) -> str:
    """Return numbers as a caption shows an array; one longer than ``room`` characters loses its middle.

    >>> vector([0, 13, 24]), vector(range(100), room=20)
    ('[0, 13, 24]', '[0, 1, 2, …, 98, 99]')
    """
    items = [str(value) for value in values]
    whole = f"[{', '.join(items)}]"
    head = len(items) - 2
    while len(whole) > room and head > 1:
        head -= 1
        whole = f"[{', '.join(items[:head])}, …, {', '.join(items[-2:])}]"
    return whole
