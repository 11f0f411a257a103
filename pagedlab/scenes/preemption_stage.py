"""What the scene `preemption` draws: the running list above the waiting queue, the free queue, the account of work.

A request is one line, in either list; its blocks are chips of their own, so that they can fly to the free queue and to
whoever takes them. The victim is the last line of the running list, and the head of the waiting queue is right below.
The layout is decided once, from a look ahead: lists have the height that they will need.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagedlab.scenes.marks import Gap, cell, chip_width, choose, elide, text
from pagedlab.scenes.preemption_state import Held, QueueState
from pagedlab.scenes.replay import NULL_BLOCK
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.words import columns, counted, label, name

WIDTH = 584
_X = 6
_LINE_W = WIDTH - 2 * _X
_HEAD, _PITCH, _H = 24, 32, 28
_BAR_X, _BAR_W, _BAR_H = 90, 88, 12
_COUNT_X, _BLOCKS_X = 250, 260
_MOST_RUNNING, _MOST_WAITING = 7, 3
_QUEUE_X, _CHIP_H = 92, 22
_PANEL_H = 62


@dataclass(frozen=True, slots=True)
class Room:
    """The most that will ever be on the stage: lines of the lists, tokens of a request, the highest block id."""

    running: int
    waiting: int
    tokens: int
    block: int


class PreemptionStage:
    """All of the scene's stage.

    Parameters
    ----------
    state : QueueState
        As the walk goes through it.
    room : Room
    requests : sequence of str
        In the order of their colours.
    victim : str
        The request that the scene is about: its line is always drawn.
    """

    def __init__(self, state: QueueState, room: Room, requests: Sequence[str], victim: str) -> None:
        self.state = state
        self.victim = victim
        self.index = {request_id: at for at, request_id in enumerate(requests)}
        self.needy: str | None = None  # who looks for a block
        self._room = room
        self._running_lines = min(max(1, room.running), _MOST_RUNNING)
        self._waiting_lines = min(max(1, room.waiting), _MOST_WAITING)
        self._waiting_y = _HEAD + self._running_lines * _PITCH + 8
        self._queue_y = self._waiting_y + _HEAD + self._waiting_lines * _PITCH + 10
        self._panel_y = self._queue_y + _CHIP_H + 14
        self.height = self._panel_y + _PANEL_H + 6
        self.chip_w = float(chip_width([room.block]))
        self._keys: dict[tuple[int, str], str] = {}  # of a block in a request's line
        self._free_keys: dict[int, str] = {}
        self._serial: Counter[int] = Counter()

    def owner(self, request_id: str | None) -> int | None:
        """Return the place of a request among the scene's, which gives its colour."""
        return None if request_id is None else self.index.get(request_id)

    # --- actors -------------------------------------------------------------------------------------------

    def actors(self) -> Iterator[Actor]:
        """Give everything that is on the stage."""
        self._follow_blocks()
        state, running = self.state, list(self.state.running)
        if state.leaving is not None:
            running.append(state.leaving)  # it has left the list: drawn behind its end until it has a place again
        yield self._heads()
        yield from self._list("running", running, _HEAD, self._running_lines)
        yield from self._list("waiting", state.waiting, self._waiting_y + _HEAD, self._waiting_lines)
        yield from self._free_queue()
        yield self._panel()

    def _heads(self) -> Actor:
        state = self.state
        seats = state.trace.settings.get("max_num_seqs")
        of_seats = f" of {seats:,} seats" if isinstance(seats, int) else ""
        parts = [
            text(8, 12, "running", "strong"),
            text(74, 12, f"{len(state.running):,}{of_seats}", "muted"),
            text(_COUNT_X, 12, "computed", "muted right"),
            text(_BLOCKS_X, 12, "blocks", "muted"),
            text(8, self._waiting_y + 12, "waiting", "strong"),
            text(74, self._waiting_y + 12, "next first" if len(state.waiting) > 1 else "", "muted"),
        ]
        return Actor("heads", 0, 0, WIDTH, 0, tuple(parts), layer=0)

    def _list(self, word: str, queue: Sequence[str], top: float, most: int) -> Iterator[Actor]:
        wanted = [queue.index(request) for request in (self.victim, self.needy) if request in queue]
        for at, item in enumerate(_fit(len(queue), wanted, most)):
            y = top + at * _PITCH
            if isinstance(item, Gap):
                words = text(30, _H / 2, f"⋯ {counted(item.count, 'request')} more", "muted")
                yield Actor(f"gap:{word}:{at}", _X, y, _LINE_W, _H, (words,), layer=0)
            else:
                yield from self._line(queue[item], word, item, y)
        if not queue:
            yield Actor(f"nobody:{word}", _X, top, _LINE_W, _H, (text(22, _H / 2, "nobody", "muted"),), layer=0)

    def _line(self, request_id: str, queue: str, place: int, y: float) -> Iterator[Actor]:
        request, owner = self.state.request(request_id), self.owner(request_id)
        is_leaving = request_id == self.state.leaving
        box = Part("box", 0, 0, _LINE_W, _H, style="hole" if is_leaving else "track")
        parts = [
            box,
            Part("swatch", 6, 7, 14, 14, owner=owner, title=name(request_id, 200)),
            text(26, _H / 2, label(request_id, 6), "strong mono", name(request_id, 200)),
            *self._bar(request, owner),
            text(_COUNT_X - _X, _H / 2, f"{request.num_computed:,}/{request.num_tokens:,}", "mono right"),
            *self._worker_ids(request, owner),
        ]
        facts: dict[str, str | int] = {
            "request": request_id,
            "queue": "" if is_leaving else queue,
            "place": -1 if is_leaving else place,
            "computed": request.num_computed,
            "tokens": request.num_tokens,
            "granted": request.granted,
            "blocks": " ".join(map(str, request.blocks)),
            "worker": " ".join(map(str, request.worker_blocks)),
            "preemptions": request.num_preemptions,
        }
        yield Actor(f"request:{request_id}", _X, y, _LINE_W, _H, tuple(parts), data=facts, layer=0)
        yield from self._blocks(request, owner, y)

    def _bar(self, request: Held, owner: int | None) -> Iterator[Part]:
        """The tokens as a bar: computed ones are filled, this step's are lit, a mark says how far it once was."""
        x, y = _BAR_X - _X, (_H - _BAR_H) / 2
        scale = _BAR_W / max(1, self._room.tokens)
        width = max(3.0, scale * request.num_tokens)
        is_promised = request.granted and not self.state.forward_is_over
        done = request.start if is_promised else request.num_computed
        tip = f"{request.num_computed} of {counted(request.num_tokens, 'token')} computed"
        yield Part("cell", x, y, width, _BAR_H, style="free", title=tip)
        if done:
            yield Part("swatch", x, y, max(2.0, scale * done), _BAR_H, owner=owner, title=tip)
        if is_promised:
            lit = max(3.0, scale * request.granted)
            tip = f"{counted(request.granted, 'token')} in this step"
            yield Part("cell", x + scale * done, y, lit, _BAR_H, style="target", title=tip)
        if request.reached > done + (request.granted if is_promised else 0):
            yield Part("line", x + scale * request.reached, y - 4, 0, _BAR_H + 8, style="owner", owner=owner,
                       title=f"{request.reached} were computed once")  # fmt: skip

    def _slots(self, count: int) -> list[int | Gap]:
        """Choose which of a request's blocks are drawn; a gap is as wide as two."""
        return elide(count, int((WIDTH - 12 - _BLOCKS_X + 3) // (self.chip_w + 3)))

    def _places(self, count: int) -> Iterator[tuple[float, int | Gap]]:
        x = float(_BLOCKS_X)
        for item in self._slots(count):
            yield x, item
            x += (self.chip_w + 3) * (2 if isinstance(item, Gap) else 1)

    def _worker_ids(self, request: Held, owner: int | None) -> Iterator[Part]:
        """What the worker still has for a request that lost its blocks: ids that are somebody else's by now."""
        old = request.worker_blocks
        if not request.num_preemptions or old == tuple(request.blocks):
            return
        for x, item in self._places(len(old)):
            if isinstance(item, Gap):
                words = f"+{item.count:,}"
                yield text(x - _X + self.chip_w, _H / 2, words, "muted middle mono", "blocks that it once had")
            else:
                tip = f"the worker’s row of {name(request.request_id)}, column {item}: block {old[item]}, given up"
                yield cell(x - _X, 3, self.chip_w + 2, _H - 6, str(old[item]), owner, "dropped", tip)

    def _blocks(self, request: Held, owner: int | None, y: float) -> Iterator[Actor]:
        for x, item in self._places(len(request.blocks)):
            if isinstance(item, Gap):
                words = text(self.chip_w, _H / 2, f"+{item.count:,}", "muted middle mono")
                yield Actor(f"more:{request.request_id}", x, y, 0, 0, (words,))
                continue
            block = request.blocks[item]
            if block == NULL_BLOCK:
                continue
            others = self.state.pool.ref_cnt(block) - 1
            hashed = block in self.state.pool.remembered
            tip = f"{name(request.request_id)}, column {item}: block {block}"
            tip += f", shared with {counted(others, 'other')}" if others else ""
            tip += ", it has a hash" if hashed else ""
            part = cell(0, 0, self.chip_w + 2, _H - 6, str(block), owner, "live", tip)
            facts: dict[str, str | int] = {"block": block, "request": request.request_id, "column": item}
            key = self._keys[block, request.request_id]
            yield Actor(key, x, y + 3, self.chip_w, _H - 6, (part,), data=facts, layer=2)

    # --- blocks keep their identity -------------------------------------------------------------------------

    def _follow_blocks(self) -> None:
        """Give each chip the key under which it travels: from the queue to its holder, and from the last one back."""
        held = {
            (block, request.request_id)
            for request in self.state.requests.values()
            for block in request.blocks
            if block != NULL_BLOCK
        }
        spare = {gone[0]: self._keys.pop(gone) for gone in sorted(self._keys.keys() - held)}
        for block, request_id in sorted(held - self._keys.keys()):
            key = self._free_keys.pop(block, None) or spare.pop(block, None)
            self._keys[block, request_id] = key or self._new_key(block)
        self._free_keys |= {block: key for block, key in spare.items() if self.state.pool.ref_cnt(block) == 0}

    def keys_of(self, block_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the keys of all chips of these blocks, wherever they are now."""
        wanted = set(block_ids)
        held = [key for (block, _), key in self._keys.items() if block in wanted]
        return (*held, *(key for block, key in self._free_keys.items() if block in wanted))

    def _new_key(self, block: int) -> str:
        self._serial[block] += 1
        return f"block:{block}:{self._serial[block]}"

    # --- below the lists ------------------------------------------------------------------------------------

    def _free_queue(self) -> Iterator[Actor]:
        pool, y = self.state.pool, self._queue_y
        queue = list(pool.queue)
        free = -1 if pool.num_free is None else pool.num_free
        parts = [text(2, _CHIP_H / 2, "free queue", "muted")]
        if free >= 0:
            style = "accent right" if free == 0 else "muted right"
            parts.append(text(_LINE_W - 2, _CHIP_H / 2, "0 free: dry" if free == 0 else f"{free:,} free", style))
        room = int((WIDTH - 84 - _QUEUE_X) // (self.chip_w + 3))
        x = float(_QUEUE_X)
        for item in elide(len(queue), room, range(max(1, min(len(queue), room - 4)))):
            if isinstance(item, Gap):
                parts.append(text(x - _X + self.chip_w, _CHIP_H / 2, f"+{item.count:,}", "muted middle mono"))
                x += 2 * (self.chip_w + 3)
                continue
            if queue[item] < 0:
                parts.append(text(x - _X + self.chip_w / 2, _CHIP_H / 2, "…", "muted middle", "not told by the trace"))
            else:
                yield self._free_block(queue[item], item, x, y)
            x += self.chip_w + 3
        facts: dict[str, str | int] = {"free": free, "queue": " ".join("?" if at < 0 else str(at) for at in queue)}
        yield Actor("queue", _X, y, _LINE_W, _CHIP_H, tuple(parts), layer=0, data=facts)

    def _free_block(self, block: int, place: int, x: float, y: float) -> Actor:
        hashed = block in self.state.pool.remembered
        if block not in self._free_keys:
            self._free_keys[block] = self._new_key(block)
        key = self._free_keys[block]
        tip = f"block {block}, place {place} of the free queue" + (": it can still be hit" if hashed else "")
        parts = (
            Part("box", 0, 0, self.chip_w, _CHIP_H, style="cached" if hashed else "free", title=tip),
            text(self.chip_w / 2, _CHIP_H / 2, str(block), "middle mono" + (" strong" if place == 0 else "")),
        )
        facts: dict[str, str | int] = {"block": block, "request": "", "place": place}
        return Actor(key, x, y, self.chip_w, _CHIP_H, parts, data=facts, layer=2)

    def _panel(self) -> Actor:
        """How much was computed, how much of it again, and every preemption so far."""
        state, w = self.state, WIDTH - 2 * _X
        done, again = state.num_computed_tokens, state.num_again
        share = f" ({again / done:.0%})" if again else ""
        parts = [
            Part("box", 0, 0, w, _PANEL_H, style="panel"),
            text(10, 15, f"{counted(done, 'token')} computed so far", "muted"),
            text(w - 10, 15, f"{again:,} of them again{share}", "accent right" if again else "muted right"),
            Part("box", 10, 26, w - 20, 6, style="free"),
        ]
        if again:
            length = max(3.0, (w - 20) * again / done)
            parts.append(Part("box", w - 10 - length, 26, length, 6, style="band-now"))
        parts.append(text(10, 47, "preemptions" if state.losses else "no preemption yet", "muted"))
        parts += self._losses(100.0, w - 10)
        facts: dict[str, str | int] = {"computed": done, "again": again, "preemptions": len(state.losses)}
        return Actor("panel", _X, self._panel_y, w, _PANEL_H, tuple(parts), data=facts)

    def _losses(self, x: float, end: float) -> Iterator[Part]:
        """The last preemptions that there is room for, and how many came before them."""
        losses, told = (
            self.state.losses,
            [f"{label(loss.request_id, 7)} −{loss.num_tokens:,}" for loss in self.state.losses],
        )
        widths = [28 + 8.0 * columns(words) for words in told]
        first = len(losses)
        while first and sum(widths[first - 1 :]) <= end - x - (44 if first > 1 else 0):
            first -= 1
        if first:
            yield text(x, 47, f"{first:,} and", "muted")
            x += 44 + 8 * (len(str(first)) - 1)
        for loss, words, width in zip(losses[first:], told[first:], widths[first:], strict=True):
            tip = f"{name(loss.request_id, 200)} lost {counted(loss.num_tokens, 'computed token')}"
            yield Part("swatch", x, 41, 12, 12, owner=self.owner(loss.request_id), title=tip)
            yield text(x + 16, 47, words, "mono", tip)
            x += width


def _fit(count: int, wanted: Sequence[int], room: int) -> list[int | Gap]:
    """Choose which of so many lines are drawn; a line that counts those left out takes as much room as one of them."""
    for most in range(room, 0, -1):
        items = choose(count, [*wanted, 0, count - 1], most)
        if len(items) <= room:
            break
    return items
