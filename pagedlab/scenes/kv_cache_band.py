"""The band of the scene `step` that shows the KV cache: blocks, who holds them, and what lies in their slots."""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.scenes.marks import cell, text
from pagedlab.scenes.replay import NULL_BLOCK
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.step_state import BAND_W, BAND_X, HEAD, StepState
from pagedlab.scenes.words import columns, label, names

_BLOCK_HEAD = 20


class KVCacheBand:
    """The blocks; ``top`` is where the band begins."""

    def __init__(self, state: StepState, top: float) -> None:
        self.state = state
        self.top = top
        size = state.block_size
        self.tiny = size > 32  # no room for the tokens' text
        self.columns = 16 if self.tiny else min(size, 8)
        self.cell_w, self.cell_h = (11, 11) if self.tiny else (max(20, state.cell_w - 2), 22)
        self.block_w = max(self.columns * self.cell_w + 7, 34)
        self.block_h = _BLOCK_HEAD + -(-size // self.columns) * (self.cell_h + 2) + 4
        self._choose_blocks()

    def _choose_blocks(self) -> None:
        """Choose which blocks are drawn, and where; they stay there in all frames."""
        state, size = self.state, self.state.block_size
        per_line = max(1, int((BAND_W - 12 + 5) // (self.block_w + 5)))
        # The blocks that are written and not left out come first, then the others of the step, then whoever owns one.
        written = [
            block
            for request_id, items in state.plan.items()
            for item in items
            if isinstance(item, int)
            for block in state.end.request(request_id).block_ids[item // size : item // size + 1]
        ]
        owned = [*state.replay.block_owner, *state.end.block_owner]
        wanted = list(dict.fromkeys((*written, *state.used_blocks, *owned)))
        self.num_blocks = int(state.trace.settings.get("num_blocks", 0)) or max(wanted, default=0) + 1
        most_lines = 2 if self.block_h <= 78 else 1
        lines = max(1, min(most_lines, -(-(len(wanted) + 1) // per_line)))
        room = per_line * lines
        shown = wanted[: room if len(wanted) >= room else room - 1]
        if len(shown) < room and NULL_BLOCK not in shown and self.num_blocks > 0:
            shown.append(NULL_BLOCK)
        known = set(wanted)
        spare = (block for block in range(1, self.num_blocks) if block not in known)
        while len(shown) < room and (block := next(spare, None)) is not None:
            shown.append(block)
        self.block_xy = {
            block: (
                BAND_X + 6 + (place % per_line) * (self.block_w + 5),
                self.top + HEAD + (place // per_line) * (self.block_h + 6),
            )
            for place, block in enumerate(sorted(shown))
        }
        self.height = HEAD + lines * (self.block_h + 6) + 2

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        free, shown = self.state.num_free_blocks, len(self.block_xy)
        some = [] if shown >= self.num_blocks else [f"{shown} of {self.num_blocks:,} shown"]
        return " · ".join([*([] if free is None else [f"{free:,} blocks free"]), *some])

    def slot_xy(self, slot: int) -> tuple[float, float] | None:
        """Return where a slot lies; None if its block is not drawn."""
        block, offset = divmod(slot, self.state.block_size)
        if block not in self.block_xy:
            return None
        x, y = self.block_xy[block]
        left, top = self._cell_xy(offset)
        return x + left, y + top

    def token_xy(self, request_id: str, position: int) -> tuple[float, float] | None:
        """Return the slot of a token, as its request's blocks say."""
        blocks, size = self.state.replay.request(request_id).block_ids, self.state.block_size
        column = position // size
        return self.slot_xy(blocks[column] * size + position % size) if column < len(blocks) else None

    def _cell_xy(self, offset: int) -> tuple[float, float]:
        return 4 + offset % self.columns * self.cell_w, _BLOCK_HEAD + offset // self.columns * (self.cell_h + 2)

    def actors(self) -> Iterator[Actor]:
        return (self._block(block, *xy) for block, xy in self.block_xy.items())

    def _block(self, block: int, x: float, y: float) -> Actor:
        replay = self.state.replay
        holders = replay.holders.get(block, [])
        cached = block in replay.cached
        owner = replay.request(holders[0]).index if holders else None
        style = "null" if block == NULL_BLOCK else "owned" if holders else "cached" if cached else "free"
        number = f"{block} #" if cached and holders else str(block)
        room = int((self.block_w - 16 - 8 * len(number)) // 8)
        word = style if not holders else label(holders[0], max(2, room))
        if len(holders) > 1:
            word = f"{label(holders[0], max(2, room - 3))} +{len(holders) - 1}"
        tip = f"block {block}: held by {names(holders)}" if holders else f"block {block}: {style}"
        tip += " (# it has a hash, and can be hit)" if cached else ""
        parts = [
            Part("box", 0, 0, self.block_w, self.block_h, style=style, owner=owner, title=tip),
            text(7, 11, number, "mono strong" if holders else "mono muted"),
        ]
        if room >= columns(word):
            parts.append(text(self.block_w - 6, 11, word, "muted right mono"))
        parts += [self._slot(block, offset) for offset in range(self.state.block_size)]
        data: dict[str, str | int] = {
            "block": block,
            "owner": holders[0] if holders else "",
            "holders": len(holders),
            "state": style,
        }
        return Actor(f"block:{block}", x, y, self.block_w, self.block_h, tuple(parts), layer=1, data=data)

    def _slot(self, block: int, offset: int) -> Part:
        replay, labels = self.state.replay, self.state.labels
        slot = block * self.state.block_size + offset
        held = replay.kv.get(slot)
        style, words, owner, title = "free", "", None, f"slot {slot}"
        if held is not None:
            token, writer, position = held
            live = replay.holds_token(block, offset)
            style, owner = "live" if live else "stale", replay.request(writer).index
            words = "" if self.tiny else labels.label(token)
            title = f"slot {slot}: K and V of {labels.title(token, position, writer)}" + ("" if live else " (stale)")
        if slot in self.state.targets:
            style += " target"
        return cell(*self._cell_xy(offset), self.cell_w + 1, self.cell_h, words, owner, style, title)
