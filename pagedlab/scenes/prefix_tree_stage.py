"""What the scene `prefix_tree` draws: the request that asks, the tree of blocks, the free queue.

The request's blocks lie in the columns of the tree, so that a lookup walks down column by column. The layout is decided
once, from a look ahead to the end: a block that is taken, freed or evicted travels, and nothing else moves.

vLLM has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pagedlab.scenes.marks import Gap, chip_width, elide, text
from pagedlab.scenes.prefix_tree_layout import LEFT, ROOT_W, WIDTH, TreeLayout
from pagedlab.scenes.prefix_tree_state import ROOT, Node, Path, Place, TreeState
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.words import TokenLabels, columns, counted, label, name, names, shorten

SHORT_HASH = 4
"""So many hexadecimal digits of a hash are shown."""

_LINE, _WORD_W = 30, 60.0
_QUEUE_X, _CHIP_H = 92, 22
_TITLE = 24


def _request_w(shown: str) -> float:
    return 28.0 + 8 * columns(shown)


@dataclass
class Ask:
    """The request that the stage is about, and how far the lookup of its blocks is.

    ``verdicts`` says of each column ``found``, ``miss`` (not in the map), ``spared`` (there, but the last token must be
    computed) or nothing; ``num_blocks`` are full, ``num_tokens`` are all that it holds.
    """

    path: Path
    num_tokens: int
    num_blocks: int
    is_lookup: bool
    verdicts: dict[int, str] = field(default_factory=dict)


_VERDICTS = {"found": "found", "miss": "not there", "spared": "not taken"}
_STYLES = {"held": "owned", "cached": "cached", "promised": "null", "open": "free"}
_SQUARES = {"cached": "next", "promised": "target", "open": "free"}
_LEGEND = {"held": "held", "promised": "not computed yet", "cached": "free, can be hit", "open": "no hash yet"}


class TreeStage:
    """All of the scene's stage.

    Parameters
    ----------
    state : TreeState
        The tree as the walk goes through it.
    layout : TreeLayout
    requests : sequence of str
        In the order of their colours.
    """

    def __init__(self, state: TreeState, layout: TreeLayout, requests: Sequence[str]) -> None:
        self.state = state
        self.layout = layout
        self.form = layout.form
        self.index = {request_id: at for at, request_id in enumerate(requests)}
        self.labels = TokenLabels(state.trace.vocabulary)
        self.ask: Ask | None = None
        self._dressed: dict[tuple[Node, bool], tuple[Part, ...]] = {}  # most blocks look as in the frame before
        self._at: dict[str, tuple[float, float]] = {}  # where blocks and chips were drawn last: whence they come
        self._ask_y = 4 + _TITLE
        self.tree_y = self._ask_y + self.form.h + 14
        self._requests_y = self.tree_y + layout.height + 4
        self._queue_y = self._requests_y + _LINE
        self._legend_y = self._queue_y + _LINE + 2
        self.height = self._legend_y + 24
        most = max([*state.pool.queue, *state.pool.holders, state.pool.num_blocks - 1])
        self.chip_w = float(chip_width([most]))

    def owner(self, request_id: str) -> int | None:
        """Return the place of a request among the scene's, which gives its colour."""
        return self.index.get(request_id)

    def content(self, tokens: Sequence[int | None], limit: int | None = None) -> str:
        """Return the text of a block's tokens: side by side if each is a character, else with spaces between."""
        words = [self.labels.label(token) for token in tokens]
        shown = ("" if all(columns(word) == 1 for word in words) else " ").join(words)
        return shorten(shown, limit) if limit is not None else shown

    # --- actors -------------------------------------------------------------------------------------------

    def actors(self) -> list[Actor]:
        """Return everything, and note where it is for those that will come from there."""
        nodes = list(self.state.nodes())
        found = [
            *self._asking(),
            self._root(),
            *self._edges(nodes),
            *self._blocks(nodes),
            *self._left_out(nodes),
            *self._queues(),
            *self._free_queue(),
            self._legend(),
        ]
        self._at = {actor.key: (actor.x, actor.y) for actor in found if actor.key.startswith(("block:", "free:"))}
        return found

    def _asking(self) -> Iterator[Actor]:
        ask = self.ask
        if ask is None:
            yield Actor("ask", 0, 0, WIDTH, _TITLE, (text(LEFT, 14, "no request yet", "muted"),), layer=0)
            return
        owner, who = self.owner(ask.path.request_id), ask.path.request_id
        words = f"{counted(ask.num_tokens, 'token')}, {counted(ask.num_blocks, 'full block')}"
        parts = [
            Part("swatch", LEFT, 7, 14, 14, owner=owner, title=name(who, 200)),
            text(LEFT + 20, 14, label(who, 12), "strong mono", name(who, 200)),
            text(LEFT + 28 + 8 * columns(label(who, 12)), 14, words, "muted"),
            text(WIDTH - 8, 14, self._fact(), "muted right"),
        ]
        facts: dict[str, str | int] = {
            "request": who, "tokens": ask.num_tokens, "asked": self.state.num_asked_tokens,
            "found": self.state.num_found_tokens,
        }  # fmt: skip
        yield Actor("ask", 0, 0, WIDTH, _TITLE, tuple(parts), layer=0, data=facts)
        for column in self.layout.x:
            if column * self.state.block_size < ask.num_tokens:
                yield self._asked_block(ask, column)

    def _fact(self) -> str:
        asked, found = self.state.num_asked_tokens, self.state.num_found_tokens
        return f"found so far: {found:,} of {counted(asked, 'token')}" if asked else ""

    def _asked_block(self, ask: Ask, column: int) -> Actor:
        form, full = self.form, column < ask.num_blocks
        tokens = self.state.tokens_of(ask.path, column)[: ask.num_tokens - column * self.state.block_size]
        block_hash = self.state.hash_at(ask.path, column) if full else None
        verdict = ask.verdicts.get(column, "")
        style = {"found": "band-now", "miss": "hole"}.get(verdict, "track" if full else "free")
        told = "" if not ask.is_lookup and not verdict else _VERDICTS.get(verdict, "")
        hashed = self._short(block_hash) if full else "no hash"
        tip = f"{name(ask.path.request_id)}, block {column}: {self.content(tokens)}; hash {block_hash or 'unknown'}"
        parts = [
            Part("box", 0, 0, form.w, form.h, style=style, title=tip if full else f"{self.content(tokens)}: not full")
        ]
        if form.name == "text":
            parts += [
                text(8, 12, self.content(tokens, self._text_room), "mono" if full else "mono muted"),
                text(8, 29, hashed, "mono muted"),
                text(8, 45, told, "accent" if verdict == "found" else "muted"),
            ]
        elif form.name == "number":
            at = self.state.blocks_with(block_hash)[:1] if verdict in ("found", "spared") and block_hash else []
            parts.append(text(form.w / 2, form.h / 2, str(at[0]) if at else "×" if verdict else "", "middle mono"))
        facts: dict[str, str | int] = {
            "request": ask.path.request_id, "column": column, "hash": block_hash or "", "verdict": verdict
        }  # fmt: skip
        return Actor(f"ask:{column}", self.layout.x[column], self._ask_y, form.w, form.h, tuple(parts), data=facts)

    @property
    def _text_room(self) -> int:
        return int((self.form.w - 14) // 8)

    def _short(self, block_hash: str | None) -> str:
        return block_hash[:SHORT_HASH] if block_hash and block_hash[0] != "?" else "?"

    # --- the tree -----------------------------------------------------------------------------------------

    def _root(self) -> Actor:
        h = 24.0
        tip = "the parent of every first block"
        parts = [text(ROOT_W / 2, h / 2, "root", "muted middle", tip)]
        if self.form.name != "square":
            parts.insert(0, Part("box", 0, 0, ROOT_W, h, style="track", title=tip))
        return Actor("root", LEFT, self.tree_y + (self.form.h - h) / 2, ROOT_W, h, tuple(parts))

    def _xy(self, place: Place) -> tuple[float, float] | None:
        xy = self.layout.xy(place) if place in self.layout.places else None
        return (xy[0], xy[1] + self.tree_y) if xy is not None else None

    def _way(self, place: Place, offset: float = 0) -> list[tuple[float, float, float, float]] | None:
        """Return the edge to a place as lines, moved aside a little for each of several that share it."""
        parent, column = self.layout.places[place]
        to = self._xy(place)
        if to is None:
            return None
        if parent == ROOT:
            at = (LEFT + ROOT_W - self.form.w, self.tree_y) if column == 0 else None  # else it was never told
        else:
            at = self._xy(parent)
        if at is None:
            return None
        x, half = at[0] + self.form.w, self.form.h / 2
        y1, y2 = at[1] + half + offset, to[1] + half + offset
        if y1 == y2:
            return [(x, y1, to[0] - x, 0)]
        room = self.form.gap_x / 2
        middle = x + room + max(3 - room, min(room - 3, offset))
        return [(x, y1, middle - x, 0), (middle, y1, 0, y2 - y1), (middle, y2, to[0] - middle, 0)]

    def _edges(self, nodes: Sequence[Node]) -> Iterator[Actor]:
        """The ways between blocks: plain ones, and those that the running requests go, in their colours."""
        places = {node.block: node.place for node in nodes}
        going: dict[Place, list[str]] = {}
        if self.form.name != "square":
            for request_id in self._on_their_way():
                for block in self.state.path(request_id).blocks:
                    if block is not None and block in places:
                        going.setdefault(places[block], []).append(request_id)
        for place in dict.fromkeys(node.place for node in nodes):
            if (ways := self._way(place)) and place not in going:
                yield Actor(f"edge:{place}", 0, 0, 0, 0, tuple(Part("line", *way) for way in ways), layer=0)
        for request_id in dict.fromkeys(item for together in going.values() for item in together):
            parts = [
                Part("line", *way, style="owner", owner=self.owner(request_id))
                for place, together in going.items()
                if request_id in together
                for way in self._way(place, self._aside(together.index(request_id), len(together))) or ()
            ]
            if parts:
                yield Actor(f"path:{request_id}", 0, 0, 0, 0, tuple(parts), layer=0, data={"request": request_id})

    def _aside(self, at: int, count: int) -> float:
        """Return how far from the middle one of several ways runs beside the others."""
        return min(4.0, (self.form.h - 6) / count) * (at - (count - 1) / 2)

    def _on_their_way(self) -> list[str]:
        """Return who holds blocks: those that run, and the one that is being admitted."""
        asks = [self.ask.path.request_id] if self.ask is not None and self.ask.path.blocks else []
        return list(dict.fromkeys([*self.state.running, *asks]))

    def _blocks(self, nodes: Sequence[Node]) -> Iterator[Actor]:
        for node in nodes:
            if (xy := self._xy(node.place)) is not None:
                yield self._block(node, *xy)

    def _block(self, node: Node, x: float, y: float) -> Actor:
        form = self.form
        first = node.rank == 0
        twin_x = 0 if first else form.twin_h / 3
        twin_y = 0 if first else form.h + 2 + (node.rank - 1) * form.twin_h
        w = form.w if first else form.w - twin_x
        h = form.h if first else form.twin_h - 2
        key = f"block:{node.block}"
        facts: dict[str, str | int] = {
            "block": node.block, "hash": node.block_hash or "", "parent": node.parent, "column": node.column,
            "state": node.state, "rank": node.rank, "holders": json.dumps(node.holders),
            "tokens": " ".join("?" if token is None else str(token) for token in node.tokens),
        }  # fmt: skip
        origin = None if key in self._at else self._at.get(f"free:{node.block}")
        if (node, first) not in self._dressed:
            self._dressed[node, first] = tuple(self._dress(node, w, h))
        return Actor(key, x + twin_x, y + twin_y, w, h, self._dressed[node, first], data=facts, origin=origin)

    def _dress(self, node: Node, w: float, h: float) -> Iterator[Part]:
        owner = self.owner(node.holders[0]) if node.holders else None
        style = _STYLES[node.state]
        tip = self._tip(node)
        if self.form.name == "square":
            shown = node.holders[:2] if node.state == "held" else ()
            for at, request_id in enumerate(shown):
                half = w / len(shown)
                yield Part("swatch", at * half, 0, half, h, owner=self.owner(request_id), title=tip)
            if not shown:
                yield Part("cell", 0, 0, w, h, style=_SQUARES[node.state], title=tip)
            return
        yield Part("box", 0, 0, w, h, style=style, owner=owner, title=tip)
        if self.form.name == "number" or node.rank > 0:
            strip = 5 if node.holders else 0
            yield text(w / 2, (h - strip) / 2, str(node.block), "middle mono" + ("" if node.holders else " muted"))
            yield from self._strip(node, w, h)
            return
        yield text(8, 12, self.content(node.tokens, self._text_room), "mono" + ("" if node.holders else " muted"))
        yield text(8, 29, str(node.block), "strong mono")
        of = f"{len(node.tokens)}/{self.state.block_size}" if node.state == "open" else self._short(node.block_hash)
        yield text(w - 7, 29, of, "muted right mono")
        yield from self._names(node, w)

    def _tip(self, node: Node) -> str:
        said = {
            "held": f"held by {names(node.holders)}",
            "cached": "free, and can still be hit",
            "promised": f"{names(node.holders)} will compute it in this step",
            "open": f"held by {names(node.holders)}, not full: no hash",
        }[node.state]
        hashed = f"; hash {node.block_hash}" if node.block_hash else ""
        return f"block {node.block}: {self.content(node.tokens) or 'unknown tokens'}; {said}{hashed}"

    def _strip(self, node: Node, w: float, h: float) -> Iterator[Part]:
        """A strip in the colours of all who hold a block."""
        for at, request_id in enumerate(node.holders[:6]):
            width = (w - 6) / min(len(node.holders), 6)
            yield Part("swatch", 3 + at * width, h - 7, width, 5, owner=self.owner(request_id), title=name(request_id))

    def _names(self, node: Node, w: float) -> Iterator[Part]:
        """Who holds a block: swatches with names, as many as there is room for; the others are counted."""
        x, holders = 7.0, node.holders
        if not holders:
            yield text(8, 45, "free", "muted")
            return
        for at, request_id in enumerate(holders):
            rest = len(holders) - at
            shown = label(request_id, 3 if len(holders) > 1 else max(3, int((w - 24) // 8)))
            width = 15 + 8 * columns(shown)
            more = 8 * len(f"+{rest}")
            if x + width + (more + 4 if rest > 1 else 0) > w - 2 and at > 0:
                yield text(x, 45, f"+{rest}", "muted mono")
                return
            yield Part("swatch", x, 40, 10, 10, owner=self.owner(request_id), title=name(request_id, 200))
            yield text(x + 13, 45, shown, "mono", name(request_id, 200))
            x += width + 5

    def _left_out(self, nodes: Sequence[Node]) -> Iterator[Actor]:
        """Count what there is no room for: lines, and columns of the lines that are drawn."""
        layout = self.layout
        parts = []
        for gap, y in layout.gap_y.items():
            lines = range(gap.start, gap.stop)
            count = sum(layout.line[node.place] in lines for node in nodes)
            words = f"⋯ {counted(gap.count, 'branch', 'branches')} more: {counted(count, 'block')}"
            parts.append(text(LEFT + ROOT_W + 12, self.tree_y + y + 7, words, "muted"))
        hidden: dict[tuple[Gap, int], int] = {}
        for node in nodes:
            if (gap_at := layout.gap_of(node.column)) is not None and layout.line[node.place] in layout.y:
                key = gap_at, layout.line[node.place]
                hidden[key] = hidden.get(key, 0) + 1
        for (gap_at, line), count in hidden.items():
            y = self.tree_y + layout.y[line] + self.form.h / 2
            parts.append(text(layout.gap_x[gap_at] + 2, y, f"+{count:,}", "muted mono"))
        if parts:
            yield Actor("left-out", 0, 0, WIDTH, 0, tuple(parts), layer=0)

    # --- below the tree -----------------------------------------------------------------------------------

    def _queues(self) -> Iterator[Actor]:
        """The requests: those that run and those that wait."""
        queues = {"running": self.state.running, "waiting": self.state.waiting}
        limit = next((limit for limit in (12, 7, 5, 4) if self._width(queues, limit) <= WIDTH - 2 * LEFT), 4)
        most = {"running": 330.0, "waiting": WIDTH - 48.0} if self._width(queues, limit) > WIDTH - 2 * LEFT else {}
        parts, x = [], float(LEFT)
        for word, queue in queues.items():
            parts.append(text(x, 12, word, "muted"))
            x += _WORD_W
            if not queue:
                parts.append(text(x, 12, "nobody", "muted"))
                x += _WORD_W
            for at, request_id in enumerate(queue):
                shown = label(request_id, limit)
                w = _request_w(shown)
                if x + w > most.get(word, float(WIDTH)):
                    parts.append(text(x + 2, 12, f"+{len(queue) - at:,}", "muted mono"))
                    x += 40
                    break
                yield self._request(request_id, word, shown, x, self._requests_y, w)
                x += w + 4
            x += 12
        yield Actor("requests", 0, self._requests_y, WIDTH, 24, tuple(parts), layer=0)

    def _width(self, queues: Mapping[str, Sequence[str]], limit: int) -> float:
        """Return the width of the queues with names of so many columns."""
        of_queues = [sum(_request_w(label(item, limit)) + 4 for item in queue) or _WORD_W for queue in queues.values()]
        return sum(of_queues) + 2 * _WORD_W + 12

    def _request(self, request_id: str, queue: str, shown: str, x: float, y: float, w: float) -> Actor:
        owner = self.owner(request_id)
        parts = (
            Part("box", 0, 0, w, 24, style="owned", owner=owner, title=f"{name(request_id, 200)}: {queue}"),
            Part("swatch", 5, 5, 14, 14, owner=owner),
            text(23, 12, shown, "mono"),
        )
        facts: dict[str, str | int] = {"request": request_id, "queue": queue}
        return Actor(f"request:{request_id}", x, y, w, 24, parts, data=facts)

    def _free_queue(self) -> Iterator[Actor]:
        pool, y = self.state.pool, self._queue_y
        blocks = list(pool.queue)
        known = " ".join("?" if block < 0 else str(block) for block in blocks)
        count = "" if pool.num_free is None else f"{pool.num_free:,} free"
        parts = [text(LEFT, _CHIP_H / 2, "free queue", "muted"), text(WIDTH - 8, _CHIP_H / 2, count, "muted right")]
        room = int((WIDTH - 110 - _QUEUE_X) // (self.chip_w + 3))
        x = float(_QUEUE_X)
        if not blocks:
            parts.append(text(x, _CHIP_H / 2, "empty", "muted"))
        for item in elide(len(blocks), room, range(max(1, min(len(blocks), room - 4)))):
            if isinstance(item, Gap):
                parts.append(text(x + self.chip_w, _CHIP_H / 2, f"+{item.count:,}", "muted middle mono"))
                x += 2 * (self.chip_w + 3)
                continue
            if blocks[item] < 0:
                parts.append(text(x + self.chip_w / 2, _CHIP_H / 2, "…", "muted middle", "not told by the trace"))
            else:
                yield self._free_block(blocks[item], item, x, y)
            x += self.chip_w + 3
        facts: dict[str, str | int] = {"queue": known, "free": -1 if pool.num_free is None else pool.num_free}
        yield Actor("queue", 0, y, WIDTH, _CHIP_H, tuple(parts), layer=0, data=facts)

    def _free_block(self, block: int, place: int, x: float, y: float) -> Actor:
        cached = block in self.state.pool.remembered
        tip = f"block {block}, place {place} of the free queue: " + (
            "it can still be hit" if cached else "it has no hash"
        )
        parts = (
            Part("box", 0, 0, self.chip_w, _CHIP_H, style="cached" if cached else "free", title=tip),
            text(self.chip_w / 2, _CHIP_H / 2, str(block), "middle mono" + (" strong" if place == 0 else "")),
        )
        key = f"free:{block}"
        origin = None if key in self._at else self._at.get(f"block:{block}")
        facts: dict[str, str | int] = {"block": block, "place": place, "cached": int(cached)}
        return Actor(key, x, y, self.chip_w, _CHIP_H, parts, data=facts, origin=origin)

    def _legend(self) -> Actor:
        parts = []
        x = float(LEFT)
        for state, words in _LEGEND.items():
            owner = 0 if state == "held" else None
            if self.form.name != "square":
                parts.append(Part("box", x, 3, 22, 15, style=_STYLES[state], owner=owner))
            elif state == "held":
                parts.append(Part("swatch", x + 6, 6, 10, 10, owner=owner))
            else:
                parts.append(Part("cell", x + 6, 6, 10, 10, style=_SQUARES[state]))
            parts.append(text(x + 28, 11, words, "muted"))
            x += 28 + 7.3 * len(words) + 16
        return Actor("legend", 0, self._legend_y, WIDTH, 22, tuple(parts), layer=0)
