"""What the scene `block_table` draws: the host's table, the device's copy beside it, and what a commit sends.

The layout is decided once, from a look ahead to the end of the step: nothing shifts but what moves. Rows and columns
for which there is no room are left out and counted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pagedlab.events import BlocksAppended, BlockTableCommitted, Event, RowAdded, RowMoved, RowRemoved, RowsSwapped
from pagedlab.scenes.block_table_state import (
    BYTES_PER_CELL,
    BYTES_PER_ENTRY,
    Entry,
    TableReplay,
    TableRow,
    table_columns,
    tables_of,
)
from pagedlab.scenes.marks import Gap, cell, chip_width, choose, gap, text
from pagedlab.scenes.replay import NULL_BLOCK
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.words import counted, label, name
from pagedlab.trace import Record, Trace

WIDTH = 584
CARD_X = 30
_HOST_X, _HOST_W = 104, 228  # where the host's entries begin, and how wide they are; the device's are as wide
_CARD_W = _HOST_X - CARD_X + _HOST_W
_DEVICE_X = CARD_X + _CARD_W + 20
_HEAD_H, _GAP_H, _PANEL_H = 46, 20, 64
_MAX_ROWS = {1: 9, 2: 5, 3: 4}
_BAR_W = WIDTH - 8 - CARD_X - 20
TableCell = tuple[int, int]


class TablePanel:
    """One KV cache group: its table on the host and on the device; ``top`` is where it begins.

    Parameters
    ----------
    table : TableReplay
        As the step begins; the walk applies events to it.
    ahead : TableReplay
        As the step begins; it is run to the end of the step.
    """

    def __init__(
        self,
        table: TableReplay,
        ahead: TableReplay,
        step_records: Sequence[tuple[int, Record]],
        requests: Sequence[str],
        top: float,
        *,
        max_rows: int,
        title: str,
    ) -> None:
        self.table = table
        self.group = table.group
        self.top = top
        self.title = title
        self.index = {request_id: at for at, request_id in enumerate(requests)}
        self.num_committed = 0  # rows that the last commit covered: those that kernels read
        self.sending: dict[TableCell, str] = {}  # cells on their way: "host" or "device"
        self._look_ahead(ahead, step_records, max_rows)

    def _look_ahead(self, ahead: TableReplay, step_records: Sequence[tuple[int, Record]], max_rows: int) -> None:
        rows, used, ids = set[int](), Counter[TableCell](), {NULL_BLOCK}
        for _, record in step_records:
            before = {row: ahead.row(row).num_blocks for row in rows_of(record.event, self.group)}
            ahead.apply(record.event)
            rows |= before.keys()
            for row, num_blocks in before.items():
                used.update((row, column) for column in range(num_blocks, ahead.row(row).num_blocks))
                used.update(ahead.behind(row))
            used.update(_sent(record.event, self.group))
        for state in ahead.rows.values():
            ids.update(entry.block for entry in (*state.host, *state.device) if entry is not None)
        self.chip_w = chip_width(ids)
        # Blocks of the manager that are several of the kernel stand a little apart.
        ratio = ahead.blocks_per_kv_block
        self.apart = 5 if 1 < ratio <= 4 else 0
        room = int((_HOST_W - 4) // (self.chip_w + self.apart / ratio))
        self.rows = _fit_rows(max(ahead.rows, default=-1) + 1, rows, max_rows)
        drawn = {item for item in self.rows if isinstance(item, int)}
        self.columns = _fit_columns(ahead.num_columns_used, [cell for cell in used if cell[0] in drawn], room)
        self.x: dict[int, float] = {}
        x = 0.0
        for item in self.columns:
            if isinstance(item, Gap):
                x += 2 * self.chip_w
            else:
                self.x[item] = x
                x += self.chip_w + (self.apart if (item + 1) % ratio == 0 else 0)
        self.changing = rows
        self.pitch, self.row_h = (34, 30) if len(self.rows) <= 6 else (30, 26)
        self.y: dict[int, float] = {}
        y = self.top + _HEAD_H
        for item in self.rows:
            if isinstance(item, Gap):
                y += _GAP_H
            else:
                self.y[item] = y
                y += self.pitch
        self.bottom = y + (24 if not self.rows else 0)

    def owner(self, request_id: str | None) -> int | None:
        """Return the place of a request among the scene's, which gives its colour."""
        return self.index.get(request_id) if request_id is not None else None

    def arrow(self, source: int, target: int) -> tuple[Arrow, ...]:
        """Return the way of a row that moves on the host."""
        if source not in self.y or target not in self.y:
            return ()
        x, middle = CARD_X + _CARD_W + 2, self.row_h / 2
        return (Arrow(x, self.y[source] + middle, x, self.y[target] + middle, bend=14),)

    def way(self, row: int, columns: Sequence[int]) -> tuple[Arrow, ...]:
        """Return the way of a row's cells from the host to the device: from behind the last to before the first."""
        drawn = [self.x[column] for column in columns if column in self.x]
        if row not in self.y or not drawn:
            return ()
        y = self.y[row] + self.row_h / 2
        return (Arrow(_HOST_X + max(drawn) + self.chip_w, y, _DEVICE_X + 2 + min(drawn), y),)

    def is_drawn(self, row: int, column: int) -> bool:
        """Whether there is room for a cell."""
        return row in self.y and column in self.x

    # --- actors -------------------------------------------------------------------------------------------

    def actors(self) -> Iterator[Actor]:
        yield self._heads()
        for row in self.y:
            state = self.table.rows.get(row, TableRow())
            yield self._track(row, state)
            yield self._device(row, state)
            if state.request_id is not None:
                yield self._live(row, state, state.request_id)
        for (row, column), place in self.sending.items():
            if self.is_drawn(row, column):
                yield self._traveller(row, column, place)

    def _heads(self) -> Actor:
        parts = [
            text(CARD_X, 14, self.title, "strong"),
            text(_HOST_X, 14, "host (CPU)", "muted"),
            text(_DEVICE_X, 14, "device (GPU): what kernels read", "muted"),
        ]
        for column, x in self.x.items():
            middle = x + self.chip_w / 2 - 1
            parts += [text(left + middle, 34, str(column), "muted middle mono") for left in (_HOST_X, _DEVICE_X + 4)]
        at = float(_HEAD_H)
        for item in self.rows:
            if isinstance(item, Gap):
                changed = len(self.changing & set(range(item.start, item.stop)))
                some = f", {changed} of them change" if changed else ", untouched"
                parts.append(text(CARD_X + 8, at + 8, f"⋯ {counted(item.count, 'row')} more{some}", "muted"))
            at += _GAP_H if isinstance(item, Gap) else self.pitch
        if not self.rows:
            parts.append(text(CARD_X + 8, at + 8, "no rows yet", "muted"))
        return Actor(f"heads:{self.group}", 0, self.top, WIDTH, _HEAD_H, tuple(parts), layer=0)

    def _entries(self, entries: Sequence[Entry | None], columns: range, left: float, row: int, side: str) -> list[Part]:
        """Give the drawn entries of these columns, and how many a gap hides."""
        parts = []
        for item in self.columns:
            if isinstance(item, Gap):
                count = min(item.stop, columns.stop) - max(item.start, columns.start)
                if count > 0 and item.start >= columns.start:  # else live ones are counted there already
                    x = left + (self._x_of_gap(item))
                    parts.append(gap(x, 4, 2 * self.chip_w, self.row_h - 8, count))
            elif item in columns and item < len(entries) and (entry := entries[item]) is not None:
                parts.append(self._entry(entry, left + self.x[item], row, item, side))
        return parts

    def _x_of_gap(self, item: Gap) -> float:
        before = [x for column, x in self.x.items() if column < item.start]
        return before[-1] + self.chip_w if before else 0.0

    def _entry(self, entry: Entry, x: float, row: int, column: int, side: str) -> Part:
        state = self.table.rows.get(row, TableRow())
        behind = self.table.is_behind(row, column)
        live = column < state.num_blocks and (side == "host" or (not behind and row < self.num_committed))
        null = entry.block == NULL_BLOCK
        nobodys = null or (entry.owner is None and not live)
        style = ("free" if nobodys else "live" if live else "stale") + (" new" if side == "host" and behind else "")
        what = "the null block" if null else f"block {entry.block}"
        if (ratio := self.table.blocks_per_kv_block) > 1 and not null:
            what = f"kernel block {entry.block}, part {entry.block % ratio} of manager block {entry.block // ratio}"
        note = "" if live else ", not live"
        if side == "host" and behind:
            note += ", the device does not have it"
        title = f"{side}, row {row}, column {column}: {what}{note}"
        return cell(x, 3, self.chip_w, self.row_h - 6, str(entry.block), self.owner(entry.owner), style, title)

    def _track(self, row: int, state: TableRow) -> Actor:
        """The row as a place on the host: its index, and what lies behind the live entries."""
        hole = state.request_id is None and row < self.table.num_live_rows
        style = "track" if state.request_id is not None else "hole" if hole else "free"
        parts = [
            text(-12, self.row_h / 2, str(row), "index middle mono"),
            Part(
                "box", 0, 0, _CARD_W, self.row_h, style=style, title=f"host, row {row}" + (": a hole" if hole else "")
            ),
        ]
        if state.request_id is None:
            parts.append(text(10, self.row_h / 2, style, "muted"))
        behind = range(state.num_blocks, len(state.host))
        parts += self._entries(state.host, behind, _HOST_X - CARD_X, row, "host")
        facts: dict[str, str | int] = {
            "group": self.group, "row": row, "state": "live" if style == "track" else style,
            "stale": _join(state.host[state.num_blocks :]),
        }  # fmt: skip
        return Actor(
            f"track:{self.group}:{row}", CARD_X, self.y[row], _CARD_W, self.row_h, tuple(parts), layer=0, data=facts
        )

    def _live(self, row: int, state: TableRow, request_id: str) -> Actor:
        """The request in the row and its live entries: what moves when the row moves."""
        parts = (
            Part("swatch", 7, self.row_h / 2 - 7, 14, 14, owner=self.owner(request_id), title=name(request_id, 200)),
            text(26, self.row_h / 2, label(request_id, 5), "strong mono", name(request_id, 200)),
            *self._entries(state.host, range(state.num_blocks), _HOST_X - CARD_X, row, "host"),
        )
        facts: dict[str, str | int] = {
            "group": self.group, "row": row, "request": request_id, "blocks": _join(state.host[: state.num_blocks])
        }  # fmt: skip
        return Actor(
            f"row:{self.group}:{request_id}", CARD_X, self.y[row], _CARD_W, self.row_h, parts, layer=1, data=facts
        )

    def _device(self, row: int, state: TableRow) -> Actor:
        read = row < self.num_committed
        width = WIDTH - 8 - _DEVICE_X
        title = f"device, row {row}: " + ("kernels read it" if read else "no kernel reads it")
        parts = (
            Part("box", 0, 0, width, self.row_h, style="track" if read else "free", title=title),
            *self._entries(state.device, range(len(state.device)), 4, row, "device"),
        )
        facts: dict[str, str | int] = {
            "group": self.group, "row": row, "read": int(read), "blocks": _join(state.device)
        }  # fmt: skip
        return Actor(
            f"device:{self.group}:{row}", _DEVICE_X, self.y[row], width, self.row_h, parts, layer=0, data=facts
        )

    def _traveller(self, row: int, column: int, place: str) -> Actor:
        """A cell that is sent: first over the host's entry, then over the device's."""
        entry = self.table.row(row).host[column] or Entry(NULL_BLOCK, None)
        style = "free new" if entry.block == NULL_BLOCK else "live new"
        left = _HOST_X if place == "host" else _DEVICE_X + 4
        title = f"sent: row {row}, column {column}, {entry.block}"
        h = self.row_h - 6
        parts = (cell(0, 0, self.chip_w, h, str(entry.block), self.owner(entry.owner), style, title),)
        facts: dict[str, str | int] = {
            "group": self.group, "row": row, "column": column, "block": entry.block, "place": place
        }  # fmt: skip
        return Actor(
            f"sent:{self.group}:{row}:{column}", left + self.x[column], self.y[row] + 3, self.chip_w, h, parts,
            layer=2, data=facts,
        )  # fmt: skip


class Meter:
    """The panel below the tables: what a commit sends, beside what whole rows (or cells) would take."""

    def __init__(self, trace: Trace, top: float) -> None:
        self.trace = trace
        self.top = top
        self.height = _PANEL_H
        self.event: BlockTableCommitted | None = None
        self.num_differing = 0

    def whole_rows(self, group: int, num_rows: int) -> tuple[int, str] | None:
        """Return the bytes of whole rows, and how to say it; None if the trace does not tell the columns."""
        if (known := table_columns(self.trace, group)) is None:
            return None
        columns, exact = known
        least = "" if exact else "at least "  # the table is rounded up
        num_bytes = num_rows * columns * BYTES_PER_ENTRY
        rows = counted(num_rows, "row")
        return num_bytes, f"{least}{rows} × {counted(columns, 'column')} × {BYTES_PER_ENTRY} = {num_bytes:,} bytes"

    def actor(self, num_rows: int, pending: int, group: int) -> Actor:
        """Return the panel, before a commit (``pending`` cells differ) or after it."""
        event = self.event
        whole = self.whole_rows(group, num_rows)
        sent_whole = event is not None and event.mode == "full"
        if event is not None and event.mode == "changed":
            num_cells = event.num_bytes // BYTES_PER_CELL
        else:
            num_cells = self.num_differing if event is not None else pending
        cells = num_cells * BYTES_PER_CELL
        if event is None:  # what it takes is for the commit to tell
            lines = [
                ("changed cells", 0, f"{num_cells:,} differ so far" if num_cells else "none so far", False),
                ("whole rows", 0, counted(num_rows, "row"), True),
            ]
        else:
            lines = [
                ("changed cells", cells, f"{counted(num_cells, 'cell')} × {BYTES_PER_CELL} = {cells:,} bytes", False),
                ("whole rows", *(whole or (0, "the trace does not tell how wide a row is")), True),
            ]
        most = max([1, *(num_bytes for _, num_bytes, _, _ in lines)])
        parts = [Part("box", 0, 0, WIDTH - 8 - CARD_X, _PANEL_H, style="panel")]
        for at, (word, _, words, is_whole) in enumerate(lines):
            y = 18 + 28 * at
            is_sent = event is not None and is_whole == sent_whole
            parts.append(text(10, y, word, "strong" if is_sent else "muted"))
            parts.append(text(122, y, words, "accent mono" if is_sent else "muted mono"))
        for at, (_, num_bytes, _, is_whole) in enumerate(lines):
            is_sent = event is not None and is_whole == sent_whole
            length = max(3.0, _BAR_W * num_bytes / most) if num_bytes else 0.0
            if length:
                bar = (
                    Part("box", 10, 27 + 28 * at, length, 6, style="band-now")
                    if is_sent
                    else Part("chip", 10, 27 + 28 * at, length, 6)
                )
                parts.append(bar)
        facts: dict[str, str | int] = {
            "mode": event.mode if event else "", "bytes": event.num_bytes if event else -1, "cells": num_cells
        }  # fmt: skip
        return Actor("meter", CARD_X, self.top, WIDTH - 8 - CARD_X, _PANEL_H, tuple(parts), data=facts)


class TableStage:
    """All of the scene's stage: up to three groups, and the meter."""

    def __init__(self, trace: Trace, first: int, step_records: Sequence[tuple[int, Record]], requests: Sequence[str]):
        tables, aheads = tables_of(trace), tables_of(trace)
        self.num_groups = len(tables)
        num_committed: dict[int, int] = {}
        for record in trace.records[:first]:
            for table in (*tables, *aheads):
                table.apply(record.event)
            if isinstance(record.event, BlockTableCommitted):
                num_committed[record.event.group] = record.event.num_rows
        shown = min(self.num_groups, max(_MAX_ROWS))
        self.panels: list[TablePanel] = []
        top = 0.0
        for table, ahead in zip(tables[:shown], aheads[:shown], strict=True):
            title = "row" if self.num_groups == 1 else f"group {table.group}"
            panel = TablePanel(
                table, ahead, step_records, requests, top, max_rows=_MAX_ROWS[shown], title=title
            )  # fmt: skip
            panel.num_committed = num_committed.get(table.group, 0)
            self.panels.append(panel)
            top = panel.bottom + 4
        self.left_out = self.num_groups - shown
        self.meter = Meter(trace, top + 6)
        self.height = self.meter.top + _PANEL_H + (26 if self.left_out else 6)

    def panel(self, group: int) -> TablePanel | None:
        """Return the panel of a group, None if it is not drawn."""
        return next((panel for panel in self.panels if panel.group == group), None)

    def actors(self, group: int, num_rows: int) -> Iterator[Actor]:
        for panel in self.panels:
            yield from panel.actors()
        shown = self.panel(group) or self.panels[0]
        yield self.meter.actor(num_rows, len(shown.table.pending(num_rows)), shown.group)
        if self.left_out:
            words = text(CARD_X + 8, 10, f"⋯ {counted(self.left_out, 'group')} more", "muted")
            yield Actor("groups", 0, self.meter.top + _PANEL_H + 2, WIDTH, 20, (words,), layer=0)


def _fit_rows(count: int, wanted: set[int], room: int) -> list[int | Gap]:
    """Choose rows; two lines that count rows left out take about as much room as a row."""
    for most in range(room, 0, -1):
        items = choose(count, wanted, most)
        num_gaps = sum(isinstance(item, Gap) for item in items)
        if len(items) - num_gaps + 2 * max(0, num_gaps - 1) / 3 <= room:
            break
    return items


def _fit_columns(count: int, cells: Sequence[TableCell], room: int) -> list[int | Gap]:
    """Choose columns: those in which most of these cells lie; a gap is as wide as two."""
    by_use = [column for column, _ in Counter(column for _, column in cells).most_common()]
    for most in range(max(1, room), 0, -1):
        items = choose(count, by_use[:most], most)
        if sum(2 if isinstance(item, Gap) else 1 for item in items) <= room:
            break
    return items


def cells_sent_by(event: BlockTableCommitted) -> list[TableCell]:
    """Return the cells that a commit of changed cells names."""
    return [(row, start + at) for row, start, ids in event.changed for at in range(len(ids))]


def _sent(event: Event, group: int) -> list[TableCell]:
    return cells_sent_by(event) if isinstance(event, BlockTableCommitted) and event.group == group else []


def rows_of(event: Event, group: int) -> set[int]:
    """Return the rows that an event changes."""
    match event:
        case RowAdded(row=row) | RowRemoved(row=row):
            return {row}
        case BlocksAppended(row=row, group=its):
            return {row} if its == group else set()
        case RowMoved(source=one, target=other) | RowsSwapped(first=one, second=other):
            return {one, other}
        case BlockTableCommitted(changed=changed, group=its):
            return {row for row, _, _ in changed} if its == group else set()
        case _:
            return set()


def _join(entries: Sequence[Entry | None]) -> str:
    return " ".join("?" if entry is None else str(entry.block) for entry in entries)
