"""The bands of the scene `paged_attention`: the batch, memory, the keys of one request, the programs, all rows.

What does not fit is left out and counted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from pagedlab.scenes.kv_cache_band import KVCacheBand
from pagedlab.scenes.marks import Gap, cell, elide, gap, text
from pagedlab.scenes.paged_attention_state import AttentionStep, Reading
from pagedlab.scenes.paged_attention_work import Division
from pagedlab.scenes.replay import NULL_BLOCK
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.step_state import BAND_W, BAND_X, CELL_H, HEAD, LEFT, RIGHT, WIDTH, first_of, width_of
from pagedlab.scenes.words import counted, label, name

_ROW_H, _PITCH = 24, 26
_QUERIES_X, _ENTRIES_X, _ENTRIES_END = 104, 214, 506
_BLOCK_GAP = 6
_MASK_H, _MASK_PITCH, _MAX_QUERIES = 13, 17, 5
_SEGMENTS_END, _OUTPUT_X, _OUTPUT_W = 446.0, 494.0, 78.0
_MAX_TILES = 3
_BARS_H = 60.0

Facts = dict[str, str | int]


class BatchBand:
    """The rows that are drawn: their query tokens, their row of the block table, the keys they have read."""

    def __init__(self, step: AttentionStep, shown: Sequence[Reading], small: Reading | None, top: float) -> None:
        self.step = step
        self.top = top
        self.shown = shown
        self.y = {reading.row: top + HEAD + 18 + _PITCH * at for at, reading in enumerate(shown)}
        self.height = HEAD + 20.0 + _PITCH * len(shown)
        self.cell_w = step.state.cell_w
        blocks = [block for reading in shown for block in reading.row_blocks]
        self.chip_w = max(28, 8 * max(len(str(block)) for block in blocks) + 10)
        count = max(reading.columns.stop for reading in shown)
        near = small.columns.stop if small else min(reading.columns.stop for reading in shown)
        self.columns = elide(count, int((_ENTRIES_END - _ENTRIES_X) // self.chip_w), range(near))
        self.x: dict[int, float] = {}
        x = float(_ENTRIES_X)
        for item in self.columns:
            self.x[first_of(item)] = x
            x += self.chip_w * width_of(item)

    def fact(self, done: Collection[int]) -> str:
        """Return what the band's head says at its right: how many keys the rows in ``done`` have read."""
        left_out = len(self.step.readings) - len(self.shown)
        read = sum(reading.num_keys for reading in self.step.readings if reading.row in done)
        said = f"{read:,} of {counted(self.step.num_keys, 'key')} read"
        return f"{counted(left_out, 'row')} more · {said}" if left_out else said

    def entry_xy(self, row: int, column: int) -> tuple[float, float] | None:
        """Return where an entry of the table lies; None if it is not drawn."""
        return (self.x[column], self.y[row]) if row in self.y and column in self.columns else None

    def query_xy(self, row: int) -> tuple[float, float]:
        """Return where a row's query tokens begin."""
        return float(_QUERIES_X), self.y[row]

    def actors(self, current: Reading | None, read: Collection[int], done: Collection[int]) -> Iterator[Actor]:
        """Give the rows; ``read`` are the columns that the current one has read, ``done`` the rows that have."""
        y = HEAD + 8
        heads = [text(_QUERIES_X, y, "queries", "muted"), text(RIGHT - 6, y, "keys", "muted right")]
        for item in self.columns:
            x = self.x[first_of(item)] + self.chip_w * width_of(item) / 2 - 1
            heads.append(text(x, y, "…" if isinstance(item, Gap) else str(item), "muted middle mono"))
        yield Actor("columns", 0, self.top, WIDTH, 20, tuple(heads), layer=0)
        for reading in self.shown:
            is_now = current is not None and current.row == reading.row
            yield self._row(reading, is_done=reading.row in done)
            yield from self._queries(reading)
            yield from self._entries(reading, read if is_now else ())

    def _row(self, reading: Reading, *, is_done: bool) -> Actor:
        owner = self._owner(reading)
        keys = f"{reading.num_keys:,}" if is_done else "–"
        parts = [
            text(18, _ROW_H / 2, str(reading.row), "index middle mono"),
            Part("swatch", 32, _ROW_H / 2 - 7, 14, 14, owner=owner),
            text(51, _ROW_H / 2, label(reading.request_id, 6), "strong mono", name(reading.request_id, 200)),
            text(RIGHT - 6, _ROW_H / 2, keys, "accent right mono" if is_done else "muted right mono"),
        ]
        parts += [
            gap(self.x[item.start], 0, 2 * self.chip_w, _ROW_H, hidden)
            for item in self.columns
            if isinstance(item, Gap) and (hidden := min(item.stop, reading.columns.stop) - item.start) > 0
        ]
        facts: Facts = {
            "row": reading.row, "request": reading.request_id, "queries": reading.query_len,
            "keys": reading.num_keys if is_done else -1,
        }  # fmt: skip
        return Actor(f"row:{reading.row}", 0, self.y[reading.row], WIDTH, _ROW_H, tuple(parts), layer=0, data=facts)

    def _queries(self, reading: Reading) -> Iterator[Actor]:
        room = max(3, int((_ENTRIES_X - _QUERIES_X - 6) // self.cell_w))
        tokens = self.step.state.replay.request(reading.request_id).tokens
        labels = self.step.state.labels
        x, y = self.query_xy(reading.row)
        for item in elide(reading.query_len, room):
            position = reading.queries.start + first_of(item)
            facts: Facts = {"row": reading.row, "position": position}
            w = self.cell_w * width_of(item)
            if isinstance(item, Gap):
                part = gap(0, 0, w, _ROW_H, item.count)
            else:
                token = tokens[position] if position < len(tokens) else None
                title = labels.title(token, position, reading.request_id)
                part = cell(0, 0, self.cell_w, _ROW_H, labels.label(token), self._owner(reading), "live", title)
            key = f"{'asks' if isinstance(item, Gap) else 'ask'}:{reading.row}:{position}"
            yield Actor(key, x, y, w - 2, _ROW_H, (part,), 1, facts)
            x += w

    def _entries(self, reading: Reading, read: Collection[int]) -> Iterator[Actor]:
        for column in range(reading.columns.stop):
            if (xy := self.entry_xy(reading.row, column)) is None:
                continue
            block = reading.row_blocks[column]
            seen = column in reading.columns
            style = ("live target" if column in read else "live") if seen else "stale"
            title = f"row {reading.row}, column {column}: block {block}" + ("" if seen else ", before the window")
            part = cell(0, 0, self.chip_w, _ROW_H, str(block), self._owner(reading), style, title)
            facts: Facts = {
                "row": reading.row, "column": column, "block": block, "state": "read" if column in read else style
            }  # fmt: skip
            yield Actor(
                f"entry:{reading.row}:{column}", *xy, self.chip_w - 2, _ROW_H, (part,), layer=1, data=facts
            )  # fmt: skip

    def _owner(self, reading: Reading) -> int:
        return self.step.state.replay.request(reading.request_id).index


class MemoryBand(KVCacheBand):
    """The KV cache as it lies in memory: small blocks, so that many have room; lit are the slots that were read."""

    def __init__(
        self, step: AttentionStep, shown: Sequence[Reading], small: Reading | None, top: float, lines: int
    ) -> None:
        self.state = step.state
        self.top = top
        self.tiny = True
        size = self.state.block_size
        self.columns = min(size, 8 if size <= 32 else 16)
        self.cell_w = self.cell_h = 13 if size <= 16 else 9
        self.block_w = max(self.columns * self.cell_w + 7, 56)
        self.block_h = 20 + -(-size // self.columns) * (self.cell_h + 2) + 4
        self._ratio = size // step.slots.block_size or 1
        read = [*(small.blocks if small else ()), *_in_turn([_ends_first(reading.blocks) for reading in shown])]
        self._place([block // self._ratio for block in read], max(1, min(lines, int(190 // (self.block_h + 6)))))

    def _place(self, read: Sequence[int], lines: int) -> None:
        """Choose which blocks are drawn: those that are read, then others that are held, then any; by their number."""
        held = [*self.state.replay.block_owner, *sorted(self.state.replay.cached)]
        wanted = [block for block in dict.fromkeys((*read, *held)) if block != NULL_BLOCK]
        self.num_blocks = int(self.state.trace.settings.get("num_blocks", 0)) or max(wanted, default=0) + 1
        per_line = max(1, int((BAND_W - 12 + 5) // (self.block_w + 5)))
        room = per_line * min(lines, -(-(len(wanted) + per_line // 2) // per_line))
        chosen = wanted[:room]
        known = set(wanted)
        spare = (block for block in range(1, self.num_blocks) if block not in known)
        while len(chosen) < min(room, self.num_blocks - 1) and (block := next(spare, None)) is not None:
            chosen.append(block)
        self.block_xy = {
            block: (
                BAND_X + 6 + (place % per_line) * (self.block_w + 5),
                self.top + HEAD + (place // per_line) * (self.block_h + 6),
            )
            for place, block in enumerate(sorted(chosen))
        }
        self.height = HEAD + -(-len(chosen) // per_line) * (self.block_h + 6) + 2

    def kernel_block_xy(self, reading: Reading, column: int) -> tuple[float, float] | None:
        """Return where the first slot of a column's block lies; None if it is not drawn."""
        return self.slot_xy(reading.row_blocks[column] * reading.size)


def _ends_first(blocks: Sequence[int]) -> list[int]:
    """Return blocks with the first and the last one in front.

    >>> _ends_first([7, 2, 5, 9])
    [7, 9, 2, 5]
    """
    return list(dict.fromkeys([*blocks[:1], *blocks[-1:], *blocks]))


def _in_turn(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return one item of each row, then a second one of each, and so on.

    >>> _in_turn([[1, 2, 3], [7], [8, 9]])
    [1, 7, 8, 2, 9, 3]
    """
    return [item for column in zip_longest(*rows) for item in column if item is not None]


class KeysBand:
    """The keys of one request in the order of its row, and below them what each of its queries sees."""

    def __init__(self, step: AttentionStep, shown: Sequence[Reading], memory: MemoryBand, top: float) -> None:
        self.step = step
        self.memory = memory
        self.top = top
        self.lines = {reading.row: KeyLine(reading, step.state.cell_w) for reading in shown}
        most = max(min(reading.query_len, _MAX_QUERIES) for reading in shown)
        self.has_word = max(reading.seq_len for reading in shown) <= 10_000  # longer numbers need its room
        self.mask_y = HEAD + 22 + CELL_H + 8
        self.height = self.mask_y + _MASK_PITCH * most + 4

    def actors(self, current: Reading | None, read: Collection[int]) -> Iterator[Actor]:
        """Give the keys of the columns that were read, and how far each query has come with them."""
        heads = [text(14, HEAD + 9, "block", "muted"), text(14, HEAD + 22 + CELL_H / 2, "key", "muted")]
        if self.has_word:
            tip = "which keys the query at a position sees"
            heads.append(text(14, self.mask_y + _MASK_H / 2, "seen", "muted", tip))
        yield Actor("keys", 0, self.top, WIDTH, 10, tuple(heads), layer=0)
        if current is None:
            return
        line = self.lines[current.row]
        for item in line.items:
            column = current.columns.start + first_of(item)
            if isinstance(item, Gap):
                hidden = range(column, column + item.count)
                if any(at in read for at in hidden):
                    part = gap(0, 22, line.block_w, CELL_H, item.count)
                    facts: Facts = {"row": current.row, "columns": item.count}
                    yield Actor(
                        f"hidden:{current.row}:{column}", line.x[column], self.top + HEAD, line.block_w, 46, (part,), 1,
                        facts,
                    )  # fmt: skip
            elif column in read:
                yield self._keys(current, line, column)
        for place, position in enumerate(line.queries):
            yield self._query(current, line, position, place, read)

    def _keys(self, reading: Reading, line: KeyLine, column: int) -> Actor:
        """Return a block's keys: those that are read, and what of the block is not."""
        block, offsets = reading.row_blocks[column], reading.offsets(column)
        state = self.step.state
        request = state.replay.request(reading.request_id)
        chip_w = min(line.block_w, 8 * len(str(block)) + 14)
        parts = [Part("chip", (line.block_w - chip_w) / 2, 0, chip_w, 18, str(block), "live", request.index)]
        for part, style, why in (
            (range(offsets.start), "dropped", "before the window: not seen"),
            (offsets, "live", ""),
            (range(offsets.stop, reading.size), "next", "not written yet: masked"),
        ):
            if line.has_text:
                for offset in part:
                    position = column * reading.size + offset
                    token = request.tokens[position] if position < len(request.tokens) and style != "next" else None
                    words = "" if style == "next" else state.labels.label(token)
                    title = why or f"K and V of {state.labels.title(token, position, reading.request_id)}"
                    owner = None if style == "next" else request.index
                    parts.append(cell(offset * line.key_w, 22, line.key_w, CELL_H, words, owner, style, title))
            elif part:
                title = why or f"{counted(len(part), 'key')} of {name(reading.request_id)}"
                owner = None if style == "next" else request.index
                w = len(part) * line.key_w
                parts.append(cell(part.start * line.key_w, 22, w + 1, CELL_H, "", owner, style, title))
        facts: Facts = {
            "row": reading.row, "column": column, "block": block, "read": len(offsets), "first": offsets.start
        }  # fmt: skip
        return Actor(
            f"keys:{reading.row}:{column}", line.x[column], self.top + HEAD, line.block_w, 46, tuple(parts), 2, facts,
            origin=self.memory.kernel_block_xy(reading, column),
        )  # fmt: skip

    def _query(self, reading: Reading, line: KeyLine, position: int, place: int, read: Collection[int]) -> Actor:
        """Return one query's line of the mask: which of the keys read so far it sees."""
        y = self.top + self.mask_y + _MASK_PITCH * place
        owner = self.step.state.replay.request(reading.request_id).index
        seen = reading.seen_by(position)
        parts = [text(LEFT - 8, _MASK_H / 2, str(position), "right mono", f"the query at position {position}")]
        count = 0
        for column in read:
            first = column * reading.size
            run = range(max(seen.start, first), min(seen.stop, first + reading.size))
            count += len(run)
            if column not in line.x or not line.draws(column):
                continue
            x, w = line.x[column], reading.size * line.key_w
            parts.append(cell(x, 0, w + 1, _MASK_H, "", None, "free"))
            if run:
                title = f"the query at position {position} sees {run.start} to {run.stop - 1}"
                run_x = x + (run.start - first) * line.key_w
                parts.append(Part("swatch", run_x, 0, len(run) * line.key_w - 1, _MASK_H, owner=owner, title=title))
        facts: Facts = {"row": reading.row, "position": position, "sees": count}
        return Actor(f"query:{reading.row}:{position}", 0, y, RIGHT, _MASK_H, tuple(parts), 1, facts)

    def fact(self, current: Reading | None) -> str:
        """Return what the band's head says at its right: whose keys these are."""
        if current is None:
            return ""
        whose, drawn = label(current.request_id, 16), len(self.lines[current.row].queries)
        if drawn == current.query_len:
            return f"of {whose}"
        return f"of {whose}, for {drawn} of its {current.query_len:,} queries"

    def column_xy(self, reading: Reading, column: int) -> tuple[float, float] | None:
        """Return where a column's keys go, in the middle of their upper edge; None if they are not drawn."""
        line = self.lines[reading.row]
        return (line.x[column] + line.block_w / 2, self.top + HEAD) if line.draws(column) else None


class KeyLine:
    """Where the keys of one reading lie in a line: with their text where there is room, else ever smaller.

    ``queries`` are those of its positions that have a line of the mask: evenly spread, the ends among them.
    """

    def __init__(self, reading: Reading, text_w: float) -> None:
        self.reading = reading
        room, count = RIGHT - LEFT, len(reading.columns)
        widths: list[float] = [text_w, 12, 9, 7, 5]
        fitting = [w for w in widths if count * (reading.size * w + _BLOCK_GAP) <= room]
        self.key_w = fitting[0] if fitting else _narrow(reading.size)
        self.has_text = self.key_w == text_w
        self.block_w = reading.size * self.key_w
        self.items = elide(count, int(room // (self.block_w + _BLOCK_GAP)), gap_width=1)
        lines = min(reading.query_len, _MAX_QUERIES)
        last = reading.query_len - 1
        self.queries = [reading.queries.start + round(at * last / max(1, lines - 1)) for at in range(lines)]
        self.x = {
            reading.columns.start + first_of(item): LEFT + at * (self.block_w + _BLOCK_GAP)
            for at, item in enumerate(self.items)
        }

    def draws(self, column: int) -> bool:
        """Whether there is room for a column's keys."""
        return column - self.reading.columns.start in self.items


def _narrow(size: int) -> float:
    """Return the width of a key where not all of a request's keys have room."""
    return next((w for w in (12.0, 9.0, 7.0, 5.0) if size * w <= 120), 72 / size)


def most_columns(size: int) -> int:
    """Return how many blocks of ``size`` keys have room side by side."""
    return int((RIGHT - LEFT) // (size * _narrow(size) + _BLOCK_GAP))


class ProgramsBand:
    """Which program reads which keys: query tiles by splits; the partial results of a tile become one output."""

    def __init__(self, step: AttentionStep, shown: Sequence[Reading], top: float) -> None:
        self.step = step
        self.top = top
        tiles = [division.query_tiles for reading in shown if (division := step.divisions.get(reading.row))]
        self.height = HEAD + 26.0 * min(max(tiles, default=1), _MAX_TILES) + 4

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        if not self.step.divisions:
            return "for each KV head"
        return f"Triton, {counted(self.step.processors, 'multiprocessor')}, for each KV head"

    def actors(self, current: Reading | None, stage: str) -> Iterator[Actor]:
        """Give the programs of a reading as far as it has come: "", "read", or "merged"."""
        if current is None or not stage:
            return
        division = self.step.divisions.get(current.row)
        for place, item in enumerate(elide(division.query_tiles if division else 1, _MAX_TILES, gap_width=1)):
            y = self.top + HEAD + 26 * place
            if isinstance(item, Gap):
                words = text(LEFT, 11, f"{counted(item.count, 'more tile')} of queries", "muted")
                yield Actor(f"tiles:{current.row}", 0, y, WIDTH, 22, (words,), layer=1, data={"tiles": item.count})
            else:
                yield from self._tile(current, division, item, y, merged=stage == "merged")

    def _tile(
        self, reading: Reading, division: Division | None, tile: int, y: float, *, merged: bool
    ) -> Iterator[Actor]:
        queries = division.queries_of(tile) if division else reading.queries
        seen = reading.seen_by(queries.start).start  # a program takes whole tiles; what lies before is masked
        parts = division.splits_of(tile) if division else [reading.keys]
        splits = [range(max(seen, part.start), max(seen, part.stop)) for part in parts]
        owner = self.step.state.replay.request(reading.request_id).index
        first, last = queries.start, queries.stop - 1
        what = "the query" if len(reading.queries) == 1 else f"tile {tile}" if division else "queries"
        where = f"position {first}" if first == last else f"positions {first} to {last}"
        yield Actor(
            f"tile:{reading.row}:{tile}", 0, y, WIDTH, 22, (text(14, 11, what, "muted", where),), layer=1,
            data={"tile": tile, "first": first, "last": last, "splits": len(splits)},
        )  # fmt: skip
        items = elide(len(splits), 17, gap_width=1)
        w = (_SEGMENTS_END - LEFT) / len(items)
        for at, item in enumerate(items):
            x = LEFT + at * w
            if isinstance(item, Gap):
                words = gap(0, 0, w, 22, item.count)
                yield Actor(f"splits:{reading.row}:{tile}", x, y, w, 22, (words,), layer=1, data={"splits": item.count})
                continue
            keys = splits[item]
            said = f"{keys.start}–{keys.stop - 1}" if keys else "none"
            said = said if w > 8 * len(said) + 8 else str(item) if w > 8 * len(str(item)) + 2 else ""
            title = f"program {item}: keys {keys.start} to {keys.stop - 1}" if keys else f"program {item}: no keys"
            box = Part("box", 0, 0, w - 3, 22, style="panel", title=title)
            facts: Facts = {"tile": tile, "split": item, "first": keys.start, "stop": keys.stop}
            key = f"split:{reading.row}:{tile}:{item}"
            yield Actor(key, x, y, w - 3, 22, (box, text((w - 3) / 2, 11, said, "middle mono")), 0, facts)
            if len(splits) > 1 and keys:
                at_x, part_w = (_OUTPUT_X, _OUTPUT_W) if merged else (x, w - 3)
                mark = Part("swatch", 0, 18, part_w, 4, owner=owner, title="a partial result")
                data: Facts = {"tile": tile, "split": item, "merged": int(merged)}
                yield Actor(f"part:{reading.row}:{tile}:{item}", at_x, y, part_w, 22, (mark,), 1, data)
        if merged or len(splits) == 1:
            part = Part("chip", 0, 0, _OUTPUT_W, 22, "output", "live", owner)
            yield Actor(f"output:{reading.row}:{tile}", _OUTPUT_X, y, _OUTPUT_W, 22, (part,), 2, {"tile": tile})

    def arrows(self, reading: Reading) -> tuple[Arrow, ...]:
        """Return the way of the results, tile by tile, to the outputs."""
        division = self.step.divisions.get(reading.row)
        items = elide(division.query_tiles if division else 1, _MAX_TILES, gap_width=1)
        return tuple(
            Arrow(_SEGMENTS_END + 4, self.top + HEAD + 26 * at + 11, _OUTPUT_X - 4, self.top + HEAD + 26 * at + 11)
            for at, item in enumerate(items)
            if not isinstance(item, Gap)
        )


class OverviewBand:
    """All rows of a large batch: a bar for each, as high as the keys that it reads are many."""

    height = HEAD + _BARS_H + 22

    def __init__(self, step: AttentionStep, top: float) -> None:
        self.step = step
        self.top = top
        self.most = max(reading.num_keys for reading in step.readings)
        self.per_bar = -(-len(step.readings) // 480)
        self.bars = [
            max(step.readings[start : start + self.per_bar], key=lambda reading: reading.num_keys)
            for start in range(0, len(step.readings), self.per_bar)
        ]
        self.w = (RIGHT - LEFT) / len(self.bars)

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        bar = "a bar is a row" if self.per_bar == 1 else f"a bar is the longest of {self.per_bar} rows"
        return f"{bar}, at most {counted(self.most, 'key')}"

    def actors(self, current: Reading | None) -> Iterator[Actor]:
        """Give the bars, and a mark below the one of the current row."""
        bottom = HEAD + _BARS_H
        parts = [
            text(14, HEAD + 7, f"{self.most:,}", "muted mono"),
            text(14, bottom - 5, "0", "muted mono"),
            Part("line", LEFT, bottom + 1, RIGHT - LEFT, 0),
        ]
        for at, reading in enumerate(self.bars):
            h = max(1.5, _BARS_H * reading.num_keys / self.most)
            owner = self.step.state.replay.request(reading.request_id).index
            title = f"row {reading.row}, {name(reading.request_id)}: {counted(reading.num_keys, 'key')}"
            w = max(0.8, self.w - (1 if self.w > 3 else 0))
            parts.append(Part("swatch", LEFT + at * self.w, bottom - h, w, h, owner=owner, title=title))
        facts: Facts = {
            "rows": len(self.step.readings), "most": self.most,
            "keys": " ".join(str(reading.num_keys) for reading in self.bars),
        }  # fmt: skip
        yield Actor("bars", 0, self.top, WIDTH, self.height, tuple(parts), layer=0, data=facts)
        if current is not None:
            at = self.step.readings.index(current) // self.per_bar
            x = LEFT + (at + 0.5) * self.w
            side = " right" if x > WIDTH / 2 else ""
            words = f"row {current.row}, {label(current.request_id, 10)}"
            mark = (
                Part("line", 0, 0, 0, 8, style="owner", owner=self.step.state.replay.request(current.request_id).index),
                text(-6 if side else 6, 8, words, f"accent{side}"),
            )
            yield Actor("bar", x, self.top + bottom + 3, 0, 16, mark, 2, {"row": current.row})
