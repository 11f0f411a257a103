"""What the scene `slot_mapping` draws: the flat batch, the block table, the sum, the KV cache, the kernel's programs.

The flat batch and the KV cache are the bands of the scene `step`. What does not fit is left out and counted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagedlab.events import InputsPrepared, SlotsComputed
from pagedlab.scenes.block_table_state import TableReplay, TableRow
from pagedlab.scenes.inputs_band import InputsBand
from pagedlab.scenes.kv_cache_band import KVCacheBand
from pagedlab.scenes.marks import Gap, cell, elide, gap, text
from pagedlab.scenes.replay import PAD_SLOT
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.step_state import BAND_W, BAND_X, CELL_H, HEAD, LEFT, RIGHT, WIDTH, StepState, first_of, width_of
from pagedlab.scenes.words import counted, label, name

_BETWEEN = 6
_ROW_H, _PITCH, _ENTRIES_X, _ENTRIES_END = 24, 26, 104, 312
_SUM_X, _SUM_W = 322, BAND_X + BAND_W - 322
_LINE_H = 18


@dataclass(frozen=True)
class Token:
    """A token of the flat batch on its way to a slot.

    ``at`` is its place in the flat batch, ``row`` that of its request in the block table.
    """

    at: int
    row: int
    request_id: str
    position: int
    slot: int
    size: int

    @property
    def column(self) -> int:
        return self.position // self.size

    @property
    def offset(self) -> int:
        return self.position % self.size

    @property
    def block(self) -> int:
        return self.slot // self.size


class TableBand:
    """The rows of the block table whose tokens are drawn; ``top`` is where the band begins."""

    def __init__(self, state: StepState, table: TableReplay, tokens: Sequence[Token], top: float) -> None:
        self.state = state
        self.table = table
        self.top = top
        rows = sorted(state.replay.req_id_to_index[who] for who in state.plan if who in state.replay.req_id_to_index)
        self.y = {row: top + HEAD + 18 + _PITCH * at for at, row in enumerate(rows)}
        self.height = max(HEAD + 20 + _PITCH * len(rows), SumBand.height)
        blocks = [block for row in rows for block in table.rows.get(row, TableRow()).live]
        self.chip_w = max(28, 8 * max((len(str(block)) for block in blocks), default=1) + 10)
        used = {token.column for token in tokens}
        count = max((table.rows.get(row, TableRow()).num_blocks for row in rows), default=0)
        focus = range(min(used), min(max(used) + 1, count)) if used else None
        self.columns = elide(count, int((_ENTRIES_END - _ENTRIES_X) // self.chip_w), focus if focus else None)
        self.x: dict[int, float] = {}
        self.gaps: list[tuple[Gap, float]] = []
        x = float(_ENTRIES_X)
        for item in self.columns:
            if isinstance(item, Gap):
                self.gaps.append((item, x))
            else:
                self.x[item] = x
            x += self.chip_w * width_of(item)

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        rest = self.state.replay.num_rows - len(self.y)
        return f"{counted(rest, 'row')} more" if rest > 0 else ""

    def entry_xy(self, row: int, column: int) -> tuple[float, float] | None:
        """Return where an entry lies; None if it is not drawn."""
        return (self.x[column], self.y[row]) if row in self.y and column in self.x else None

    def actors(self, lit: Sequence[tuple[int, int]]) -> Iterator[Actor]:
        heads = [text(14, HEAD + 8, "column", "muted")]
        heads += [
            text(x + self.chip_w / 2 - 1, HEAD + 8, str(column), "muted middle mono") for column, x in self.x.items()
        ]
        yield Actor("columns", 0, self.top, WIDTH, 20, tuple(heads), layer=0)
        for row, y in self.y.items():
            yield from self._row(row, y, set(lit))

    def _row(self, row: int, y: float, lit: set[tuple[int, int]]) -> Iterator[Actor]:
        state = self.table.rows.get(row, TableRow())
        who = state.request_id or ""
        owner = self.state.replay.request(who).index if who else None
        parts = [
            text(18, _ROW_H / 2, str(row), "index middle mono"),
            *([Part("swatch", 32, _ROW_H / 2 - 7, 14, 14, owner=owner)] if owner is not None else []),
            text(51, _ROW_H / 2, label(who, 6), "strong mono", name(who, 200)),
        ]
        for item, x in self.gaps:
            hidden = min(item.stop, state.num_blocks) - item.start
            if hidden > 0:
                parts.append(gap(x, 0, 2 * self.chip_w, _ROW_H, hidden))
        facts: dict[str, str | int] = {"row": row, "request": who}
        yield Actor(f"row:{row}", 0, y, WIDTH, _ROW_H, tuple(parts), layer=0, data=facts)
        for column, block in enumerate(state.live):
            if (xy := self.entry_xy(row, column)) is not None:
                style = "live target" if (row, column) in lit else "live"
                title = f"row {row}, column {column}: block {block}"
                part = cell(0, 0, self.chip_w, _ROW_H, str(block), owner, style, title)
                data: dict[str, str | int] = {"row": row, "column": column, "block": block}
                yield Actor(f"entry:{row}:{column}", *xy, self.chip_w - 2, _ROW_H, (part,), data=data)


class SumBand:
    """The arithmetic of the token that is on its way, at the right of the block table; ``top`` is where it begins."""

    height = HEAD + 6 * _LINE_H + 2

    def __init__(self, top: float, size: int) -> None:
        self.top = top
        self.fact = f"size = {size}"

    def actors(self, token: Token | None, known: int) -> Iterator[Actor]:
        """Give the first ``known`` of the three sums for a token; each has its rule above it."""
        size = token.size if token else 0
        lines = [
            ("column", "position // size", token and f"{token.position} // {size} = {token.column}"),
            ("offset", "position % size", token and f"{token.position} % {size} = {token.offset}"),
            ("slot", "block · size + offset", token and f"{token.block} · {size} + {token.offset} = {token.slot}"),
        ]
        parts: list[Part] = []
        for at, (word, rule, values) in enumerate(lines):
            y = HEAD + 8 + 2 * at * _LINE_H
            now = token is not None and at < known
            parts.append(text(10, y, word, "strong mono" if now else "muted mono"))
            parts.append(text(64, y, f"= {rule}", "mono" if now else "muted mono"))
            if now and values:
                parts.append(text(64, y + _LINE_H - 1, f"= {values}", "accent mono"))
        facts: dict[str, str | int] = {} if token is None else {"slot": token.slot if known > 2 else "", "at": token.at}
        yield Actor("sum", _SUM_X, self.top, _SUM_W, self.height, tuple(parts), data=facts)


class ProgramsBand:
    """Which program of the kernel computes which tokens; ``top`` is where the band begins."""

    height = HEAD + 52

    def __init__(self, state: StepState, inputs: InputsPrepared, top: float) -> None:
        self.state = state
        self.inputs = inputs
        self.top = top
        self.num_tokens = inputs.query_start_loc[-1]
        budget = state.budget
        self.max_tokens = max(budget or 0, self.num_tokens)
        self.tile = tile_of(self.max_tokens)
        self.num_tiles = -(-self.max_tokens // self.tile)

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        return f"{self.num_tokens:,} tokens, {self.max_tokens - self.num_tokens:,} padding"

    def actors(self) -> Iterator[Actor]:
        width = RIGHT - LEFT
        scale = width / max(1, self.max_tokens)
        starts = self.inputs.query_start_loc
        parts = [
            text(14, HEAD + 10, "a request", "muted", "vLLM 0.25.1: one program a request, one for the padding"),
            text(14, HEAD + 36, "a tile", "muted", "pagedlab: one program a tile of tokens"),
            Part("box", LEFT, HEAD, width, 20, style="free", title="padding: one program"),
        ]
        for row, who in enumerate(self.inputs.request_ids):
            x, w = LEFT + starts[row] * scale, (starts[row + 1] - starts[row]) * scale
            if w > 0:
                owner = self.state.replay.request(who).index
                tip = f"program {row}: {name(who)}, {counted(starts[row + 1] - starts[row], 'token')}"
                parts.append(Part("swatch", x, HEAD + 2, max(1.5, w - 1), 16, owner=owner, title=tip))
        shown = elide(self.num_tiles, 32, gap_width=1)
        for item in shown:
            first, stop = (item.start, item.stop) if isinstance(item, Gap) else (item, item + 1)
            x = LEFT + first * self.tile * scale
            w = min(self.max_tokens, stop * self.tile) * scale + LEFT - x - 1
            is_live = first * self.tile < self.num_tokens
            tip = f"program {first}: tokens {first * self.tile} to {min(self.max_tokens, stop * self.tile) - 1}"
            words = f"+{item.count:,}" if isinstance(item, Gap) else str(first)
            shown_words = words if w >= 8 * len(words) + 2 else ""
            parts.append(cell(x, HEAD + 26, w + 1, 20, shown_words, None, "target" if is_live else "free", tip))
        facts: dict[str, str | int] = {
            "tile": self.tile, "tiles": self.num_tiles, "requests": len(self.inputs.request_ids),
            "tokens": self.num_tokens, "padding": self.max_tokens - self.num_tokens,
        }  # fmt: skip
        yield Actor("programs", 0, self.top, WIDTH, self.height, tuple(parts), layer=0, data=facts)


def tile_of(max_num_tokens: int) -> int:
    """Return the tokens of a program of the kernel, as ``kernels/slot_mapping.py`` chooses them.

    >>> tile_of(2048), tile_of(2**16), tile_of(2**18)
    (64, 128, 256)
    """
    if max_num_tokens <= 2**14:
        return 64
    return 128 if max_num_tokens < 2**18 else 256


Band = InputsBand | TableBand | SumBand | KVCacheBand | ProgramsBand


class SlotStage:
    """Lays the bands out, and draws the state as it is now."""

    def __init__(
        self,
        state: StepState,
        table: TableReplay,
        tokens: Sequence[Token],
        inputs: InputsPrepared,
        slots: SlotsComputed,
    ) -> None:
        self.state = state
        self.inputs_event, self.slots_event = inputs, slots
        self.inputs = InputsBand(state, 6.0)
        self.table = TableBand(state, table, tokens, self.inputs.top + self.inputs.height + _BETWEEN)
        self.sum = SumBand(self.table.top, slots.block_size)
        self.kv_cache = KVCacheBand(state, self.table.top + self.table.height + _BETWEEN)
        self.programs = ProgramsBand(state, inputs, self.kv_cache.top + self.kv_cache.height + _BETWEEN)
        self.height = self.programs.top + self.programs.height + 4

    def actors(
        self, now: Sequence[str], *, shown: set[int], lit: Sequence[tuple[int, int]], token: Token | None, known: int
    ) -> Iterator[Actor]:
        """Give all that is on the stage: the slots of the places ``shown``, and ``known`` of a token's sums."""
        bands: dict[str, tuple[str, Band, float, float]] = {
            "inputs": ("Flat batch", self.inputs, BAND_X, BAND_W),
            "table": ("Block table", self.table, BAND_X, _SUM_X - BAND_X - _BETWEEN),
            "sum": ("Slot", self.sum, _SUM_X, _SUM_W),
            "kv": ("KV cache", self.kv_cache, BAND_X, BAND_W),
            "programs": ("Programs", self.programs, BAND_X, BAND_W),
        }
        for key, (title, band, x, w) in bands.items():
            height, fact = self.table.height if key == "sum" else band.height, band.fact
            mono = " mono" if key in ("inputs", "sum") else ""
            parts = [
                Part("box", 0, 0, w, height, style="band-now" if key in now else "band"),
                text(8, 13, title, "head"),
                *([text(w - 8, 13, fact, f"muted right{mono}")] if fact else []),
            ]
            yield Actor(f"band:{key}", x, band.top, w, height, tuple(parts), layer=0)
        yield from self.inputs.actors()
        yield from self._tokens()
        yield from self._slots(shown)
        yield from self.table.actors(lit)
        yield from self.sum.actors(token, known)
        yield from self.kv_cache.actors()
        yield from self.programs.actors()

    def _tokens(self) -> Iterator[Actor]:
        state = self.state
        for request_id, items in state.plan.items():
            request = state.replay.request(request_id)
            for item in items:
                if (xy := self.inputs.token_xy(request_id, first_of(item))) is None:
                    continue
                w = state.cell_w * width_of(item)
                data: dict[str, str | int] = {"request": request_id}
                if isinstance(item, Gap):
                    part = gap(0, 0, w, CELL_H, item.count)
                else:
                    token = request.tokens[item] if item < len(request.tokens) else None
                    title = state.labels.title(token, item, request_id)
                    part = cell(0, 0, w, CELL_H, state.labels.label(token), request.index, "live", title)
                    data["position"] = item
                yield Actor(f"tok:{request_id}:{first_of(item)}", *xy, w - 2, CELL_H, (part,), 1, data)

    def _slots(self, shown: set[int]) -> Iterator[Actor]:
        """Give the slots that are known so far, in the line below the positions."""
        band, inputs = self.inputs, self.inputs_event
        y = band.top + HEAD + CELL_H + 8 + 1.5 * band.line_h
        yield Actor("slots", 0, y, WIDTH, 0, (text(14, 0, "slot", "muted mono"),), layer=0)
        place = 0
        for row, request_id in enumerate(inputs.request_ids):
            first = self.state.grants.get(request_id, range(0)).start
            for item in self.state.plan.get(request_id, ()):
                if isinstance(item, Gap):
                    continue
                shift = (place % 2 * 13 - 6.5) if band.stagger else 0.0  # as the band does with positions
                place += 1
                at = inputs.query_start_loc[row] + item - first
                xy = band.token_xy(request_id, item)
                if at not in shown or xy is None or at >= len(self.slots_event.slot_mapping):
                    continue
                slot = self.slots_event.slot_mapping[at]
                words = "PAD" if slot == PAD_SLOT else str(slot)
                part = text(self.state.cell_w / 2 - 1, 7, words, "middle mono accent")
                data: dict[str, str | int] = {"request": request_id, "position": item, "slot": slot}
                yield Actor(
                    f"slot:{request_id}:{item}", xy[0], y + shift - 7, self.state.cell_w - 2, 14, (part,), 2, data
                )

    def arrows(self, token: Token, known: int) -> tuple[Arrow, ...]:
        """Return the ways of a token so far: to its entry of the table, from there to its slot."""
        start = self.inputs.token_xy(token.request_id, token.position)
        entry = self.table.entry_xy(token.row, token.column)
        slot = self.kv_cache.slot_xy(token.slot)
        ways: list[Arrow] = []
        if start is not None and entry is not None and known > 0:
            middle = entry[0] + self.table.chip_w / 2 - 1
            bottom = self.inputs.top + self.inputs.height - 4
            ways.append(Arrow(start[0] + self.state.cell_w / 2 - 1, bottom, middle, entry[1] - 2))
        if entry is not None and slot is not None and known > 2:
            middle = entry[0] + self.table.chip_w / 2 - 1
            ways.append(Arrow(middle, entry[1] + _ROW_H, slot[0] + self.kv_cache.cell_w / 2, slot[1] - 1))
        return tuple(ways)
