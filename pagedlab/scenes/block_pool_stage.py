"""What the scene `block_pool` draws: counts, who holds how many, the free queue, and every block.

Up to `MAX_CARDS` blocks are cards, and what leaves the queue is seen to travel to its card. More are cells of a grid.
Everything keeps its place but what moves; what does not fit is left out and counted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pagedlab.scenes.block_pool_state import PoolReplay
from pagedlab.scenes.grid import Grid, Look
from pagedlab.scenes.marks import gap, text
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.words import columns, label, name, names

WIDTH = 584
MAX_CARDS = 64
_X, _W = 8, 568
_HOLDERS_TOP, _HOLDER_H = 50, 24
_HOLDER_X, _HOLDER_W, _HOLDERS_A_ROW = 82, 100, 5
_CHIP_H, _CHIP_GAP, _QUEUE_X, _TAIL_W = 24, 3, 52, 40
_LEGEND_X = {"owned": 8, "shared": 132, "cached": 238, "free": 374, "null": 498}
_LEGEND_X_LATE = {"owned": 8, "cached": 152, "free": 296, "unknown": 440}

_WORDS = {
    "owned": "in use",
    "shared": "shared",
    "cached": "cached",
    "free": "empty",
    "null": "null",
    "unknown": "unknown",
}
_ABOUT = {
    "cached": "free, but it remembers its content: it can be hit until it is taken",
    "free": "free, and it remembers nothing",
    "null": "the null block, which is never given out",
    "unknown": "the trace began later and has not told of it",
}


class PoolStage:
    """The stage of one pool.

    Parameters
    ----------
    pool : PoolReplay
        As the scene begins; whoever walks applies events to it.
    requests : sequence of str
        In the order of their colours.
    """

    def __init__(self, pool: PoolReplay, requests: Sequence[str]) -> None:
        self.pool = pool
        self.index = {request_id: at for at, request_id in enumerate(requests)}
        self.has_cards = pool.num_blocks <= MAX_CARDS
        self.leaving: list[int] = []  # blocks that have just left the queue: their entries are over their cards
        self.entering: list[int] = []  # blocks that have just come back
        self._seats: dict[str, int] = {}  # where a holder is written
        self._num_seats = _HOLDERS_A_ROW * (1 if len(requests) <= _HOLDERS_A_ROW else 2)
        self._legend = _LEGEND_X_LATE if pool.unknown else _LEGEND_X
        self._lay_out()
        self._looks: dict[tuple[object, ...], Look] = {}

    def _lay_out(self) -> None:
        num_blocks = self.pool.num_blocks
        self.chip_w = max(28, 8 * len(str(num_blocks - 1)) + 12)
        per_line = (_W + _X - _QUEUE_X - _TAIL_W) // (self.chip_w + _CHIP_GAP)
        lines = 1 if num_blocks - 1 <= per_line or not self.has_cards else 2
        self.per_line, self.room = per_line, per_line * lines
        self.queue_top = _HOLDERS_TOP + _HOLDER_H * (self._num_seats // _HOLDERS_A_ROW) + 8
        self.cards_top = self.queue_top + 24 + lines * (_CHIP_H + 4) + 10
        self.columns, self.card_h = (8, 64) if num_blocks <= 32 else (11, 42)
        self.card_w = (_W + 6) // self.columns - 6
        rows = -(-num_blocks // self.columns)
        self.height = self.cards_top + (rows * (self.card_h + 6) + 2 if self.has_cards else -4)

    # --- what the cells of a grid look like ---------------------------------------------------------------

    def grid(self) -> Grid | None:
        """Return the grid, each cell as the pool is now in most; None if the blocks are cards."""
        if self.has_cards:
            return None
        unknown = bool(self.pool.unknown)
        kinds = [("owned", "in use"), ("owned shared", "shared"), ("cached", "cached"), ("free", "empty")]
        kinds += [("null", "null"), *([("unknown", "unknown")] if unknown else [])]
        usual = "unknown" if unknown else "free"
        return Grid("block", self.pool.num_blocks, Look(usual, title=_ABOUT[usual]), tuple(kinds))

    def cells(self, blocks: Iterable[int]) -> dict[int, Look]:
        """Return how blocks look now; nothing if they are cards."""
        return {} if self.has_cards else {block: self._look(block) for block in blocks}

    def _look(self, block: int) -> Look:
        holders = self.pool.holders.get(block, [])
        state, hashed = self.pool.state(block), block in self.pool.remembered
        key = (state, hashed, *holders)
        if key not in self._looks:
            style = " ".join([state, *(["shared"] if len(holders) > 1 else [])])
            count = f"×{len(holders)}" if len(holders) > 1 else ""
            owner = self.index.get(holders[0]) if holders else None
            self._looks[key] = Look(style, owner, count + ("#" if hashed else ""), self._state_of(block))
        return self._looks[key]

    def _state_of(self, block: int) -> str:
        """Return what there is to say of a block, but for its first holder's name."""
        holders = self.pool.holders.get(block, [])
        if not holders:
            return _ABOUT[self.pool.state(block)]
        shared = f" (and {names(holders[1:], limit=4)})" if len(holders) > 1 else ""
        can_be_hit = "; with a hash: it can be hit" if block in self.pool.remembered else ""
        return f"in use, reference count {len(holders)}{shared}{can_be_hit}"

    def about(self, block: int) -> str:
        """Return all that there is to say of a block."""
        holders, remembered = self.pool.holders.get(block, []), self.pool.remembered.get(block)
        whose = f" of {name(holders[0])}" if holders else ""
        filled = f"; filled by {name(remembered.request_id)}" if remembered is not None and not holders else ""
        return f"block {block}{whose}: {self._state_of(block)}{filled}"

    # --- actors -------------------------------------------------------------------------------------------

    def actors(self) -> Iterator[Actor]:
        """Give everything on the stage."""
        yield from self._counts()
        yield from self._holders()
        yield from self._queue()
        if self.has_cards:
            yield from map(self._card, range(self.pool.num_blocks))

    def _counts(self) -> Iterator[Actor]:
        """Give how many blocks are in each state, in numbers and as a bar."""
        counts = self.pool.counts
        samples: list[Part] = []
        for kind, x in self._legend.items():
            samples += _sample(kind, x)
            number = text(0, 11, f"{_WORDS[kind]} {counts[kind]:,}")
            yield Actor(f"count:{kind}", x + 22, 0, WIDTH - x - 22, 22, (number,), layer=0)
        yield Actor("counts", 0, 0, WIDTH, 22, tuple(samples), layer=0)
        total = self.pool.num_blocks - 1
        left = float(_X)
        for kind in ("owned", "unknown", "cached", "free"):
            width = round(_W * counts[kind] / total, 1)
            if width:
                yield Actor(f"share:{kind}", left, 26, width, 12, (Part("bar", 0, 0, width, 12, style=kind),), layer=0)
            left = round(left + width, 1)

    def _holders(self) -> Iterator[Actor]:
        """Give those who hold blocks, each in a place of its own as long as it does."""
        held = self.pool.num_held
        self._seats = {request_id: seat for request_id, seat in self._seats.items() if request_id in held}
        vacant = iter(sorted(set(range(self._num_seats)) - set(self._seats.values())))
        for request_id in held:
            if request_id not in self._seats and (seat := next(vacant, None)) is not None:
                self._seats[request_id] = seat
        words = [text(_X, 12, "held by", "muted")]
        left_out = len(held) - len(self._seats)
        if left_out:
            words.append(text(_X, 12 + _HOLDER_H, f"+{left_out:,}", "muted", "more"))
        if not held:
            words.append(text(_HOLDER_X, 12, "nobody", "muted"))
        height = _HOLDER_H * (self._num_seats // _HOLDERS_A_ROW)
        yield Actor("holders", 0, _HOLDERS_TOP, WIDTH, height, tuple(words), layer=0)
        for request_id, seat in self._seats.items():
            yield self._holder(request_id, held[request_id], seat)

    def _holder(self, request_id: str, num_blocks: int, seat: int) -> Actor:
        row, column = divmod(seat, _HOLDERS_A_ROW)
        tip = name(request_id, 200)
        number = f"{num_blocks:,}"
        shown = label(request_id, max(3, 8 - len(number)))
        parts = (
            Part("swatch", 0, 4, 14, 14, owner=self.index.get(request_id), title=tip),
            text(19, 11, shown, "strong mono", tip),
            text(26 + 8 * columns(shown), 11, number, "muted mono"),
        )
        facts: dict[str, str | int] = {"request": request_id, "num_blocks": num_blocks}
        x, y = _HOLDER_X + column * _HOLDER_W, _HOLDERS_TOP + row * _HOLDER_H
        return Actor(f"holder:{request_id}", x, y, _HOLDER_W - 8, _HOLDER_H - 2, parts, data=facts)

    # --- the free queue -----------------------------------------------------------------------------------

    def _queue(self) -> Iterator[Actor]:
        """Give the entries of the free queue, head first; of a long one those at both ends."""
        queue, num_free = self.pool.queue, self.pool.num_free
        is_whole = len(queue) == num_free and len(queue) <= self.room
        num_tail = max(2, (self.room - 2) // 4)
        head = list(queue) if is_whole else self.pool.head(self.room - 2 - num_tail)
        tail = [] if is_whole else self.pool.tail(num_tail)
        drawn = [*head, *([] if is_whole else [None] * 2), *tail]
        yield from self._queue_words(head, tail, drawn)
        for place, block in enumerate(drawn):
            if block is not None:
                yield self._entry(block, *self._entry_xy(place))
        if self.has_cards:
            for block in self.leaving:
                yield self._entry(block, *self._card_xy(block), leaves=True)

    def _queue_words(self, head: Sequence[int], tail: Sequence[int], drawn: Sequence[int | None]) -> Iterator[Actor]:
        num_free, top, middle = self.pool.num_free, self.queue_top, _CHIP_H / 2
        words = (
            text(_X, 10, "free queue", "strong"),
            text(_X + 86, 10, "taken from the head; what comes back with a hash goes to the tail", "muted"),
            text(_X, 24 + middle, "head", "muted"),
        )
        yield Actor("queue", 0, top, WIDTH, 24 + _CHIP_H, words, layer=0)
        x, y = self._entry_xy(len(drawn))
        end = text(3, middle, "tail" if drawn else "empty", "muted")
        yield Actor("queue:end", x, y, _TAIL_W, _CHIP_H, (end,), layer=0)
        if None in drawn:
            x, y = self._entry_xy(drawn.index(None))
            hidden = None if num_free is None else num_free - len(head) - len(tail)
            between = (
                gap(0, 0, 2 * self.chip_w, _CHIP_H, hidden)
                if hidden
                else text(self.chip_w, middle, "? … ?", "muted middle mono", _ABOUT["unknown"])
            )
            yield Actor("queue:between", x, y, 2 * self.chip_w, _CHIP_H, (between,), layer=0)

    def _entry_xy(self, place: int) -> tuple[float, float]:
        line, column = divmod(place, self.per_line)
        if line * self.per_line >= self.room:  # behind the last place
            line, column = line - 1, self.per_line
        return _QUEUE_X + column * (self.chip_w + _CHIP_GAP), self.queue_top + 24 + line * (_CHIP_H + 4)

    def _entry(self, block: int, x: float, y: float, *, leaves: bool = False) -> Actor:
        hashed = block in self.pool.remembered
        style = "leaves" if leaves else "cached" if hashed else "free"
        parts = (Part("chip", 0, 0, self.chip_w, _CHIP_H, str(block), style),)
        facts: dict[str, str | int] = {"block": block, "hashed": int(hashed)}
        origin = self._card_xy(block) if self.has_cards and block in self.entering else None
        return Actor(f"queued:{block}", x, y, self.chip_w, _CHIP_H, parts, layer=2, data=facts, origin=origin)

    # --- blocks as cards ----------------------------------------------------------------------------------

    def _card_xy(self, block: int) -> tuple[float, float]:
        row, column = divmod(block, self.columns)
        return _X + column * (self.card_w + 6), self.cards_top + row * (self.card_h + 6)

    def _card(self, block: int) -> Actor:
        pool, w, h = self.pool, self.card_w, self.card_h
        holders, state, remembered = pool.holders.get(block, []), pool.state(block), pool.remembered.get(block)
        writer = remembered.request_id if remembered is not None else None
        owner = self.index.get(holders[0]) if holders else None if writer is None else self.index.get(writer)
        block_hash = remembered.block_hash if remembered is not None else ""
        tip = self.about(block) + (f" ({block_hash[:16]}…)" if block_hash else "")
        tight = h < 50
        number = f"{block} #" if tight and remembered is not None else str(block)
        parts = [
            Part("box", 0, 0, w, h, style=state, owner=owner, title=tip),
            text(7, 13, number, "mono strong" if holders else "mono"),
            *self._whose(holders, state, tight),
        ]
        if remembered is not None and not tight:
            parts.append(text(7, h - 10, f"#{block_hash[:4]}" if block_hash else "#", "muted mono"))
        facts: dict[str, str | int] = {
            "block": block, "state": state, "owner": holders[0] if holders else "", "holders": len(holders),
            "hash": block_hash[:16],
        }  # fmt: skip
        x, y = self._card_xy(block)
        return Actor(f"block:{block}", x, y, w, h, tuple(parts), layer=1, data=facts)

    def _whose(self, holders: Sequence[str], state: str, tight: bool) -> Iterator[Part]:
        """Give the second line of a card: swatches and a name, or the state; and the reference count."""
        y = 30 if tight else 35
        if not holders:
            if not tight:
                yield text(7, y, "?" if state == "unknown" else _WORDS[state], "muted")
            return
        x = 6.0
        for holder in holders[: 1 if tight else 2]:
            yield Part("swatch", x, y - 6, 12, 12, owner=self.index.get(holder), title=name(holder, 200))
            x += 15
        count = f"×{len(holders)}" if len(holders) > 1 else ""
        if tight:
            yield text(x + 1, y, count or label(holders[0], 3), "mono strong" if count else "mono")
            return
        if count:
            yield text(self.card_w - 6, 13, count, "strong right mono")
        yield text(x + 1, y, label(holders[0], 5 if len(holders) == 1 else 3), "mono", name(holders[0], 200))


def _sample(kind: str, x: float) -> Iterator[Part]:
    """Give the mark that stands for a kind of block in the legend."""
    if kind == "shared":
        yield text(x + 8, 11, "×2", "middle mono strong")
    else:
        yield Part("bar", x, 4, 16, 14, style=kind)
