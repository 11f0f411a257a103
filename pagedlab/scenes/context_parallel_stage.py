"""What the scene `context_parallel` draws: the request's tokens, the ranks side by side, attention and its merge.

A token is one thing: it lies in the line of tokens, then in its cell on its rank. Columns, blocks and ranks for which
there is no room are left out and counted; the layout is the same in all frames.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pagedlab.scenes.context_parallel_state import RankState, SharedRequest
from pagedlab.scenes.marks import Gap, cell, chip_width, chips, choose, elide, gap, text, with_gaps
from pagedlab.scenes.replay import PAD_SLOT
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.step_state import BAND_W, BAND_X, CELL_H, HEAD, LEFT, RIGHT, WIDTH, first_of, width_of
from pagedlab.scenes.words import TokenLabels, counted, label, name

_BETWEEN = 6
_LINE_H = 18
_MAX_RANKS, _PER_LINE = 8, 4
_BLOCK_HEAD = 20

Facts = dict[str, str | int]


class TokensBand:
    """The request's tokens in order; below each its position, and what each rank computes as its slot."""

    top = 6.0

    def __init__(self, shared: SharedRequest, labels: TokenLabels, ranks: Sequence[int], left_out: int) -> None:
        self.shared = shared
        self.labels = labels
        self.ranks = ranks
        self.left_out = left_out
        self.token_w = labels.width(shared.tokens)
        slots = [slot for rank in shared.ranks for slot in rank.slots.values()]
        widest = max(len(str(number)) for number in (*slots, shared.seq_len - 1, "PAD"))
        self.column_w = max(self.token_w + 2, 8 * widest + 8)
        self.items = self._choose(int((RIGHT - LEFT) // self.column_w))
        self.x: dict[int, float] = {}
        x = float(LEFT)
        for item in self.items:
            self.x[first_of(item)] = x
            x += self.column_w * width_of(item)
        self.drawn = [item for item in self.items if isinstance(item, int)]
        self.slots_y = HEAD + CELL_H + 36
        self.height = self.slots_y + _LINE_H * len(ranks) + 2

    def _choose(self, room: int) -> list[int | Gap]:
        """Choose the tokens that are drawn: the beginning of what is new, and the last one, which is the query."""
        shared, new = self.shared, self.shared.positions
        near = range(new.start, min(new.stop, new.start + room - 4))
        if shared.seq_len <= room or len(near) >= 2 * shared.sharing.interleave or len(near) == len(new):
            return elide(shared.seq_len, room, near)
        # Runs are longer than the line: the first token of each shows more than many tokens of one.
        shown = {shared.seq_len - 1}
        starts = [at for at in new if at == new.start or at % shared.sharing.interleave == 0]
        for position in starts[:room]:
            items = with_gaps({*shown, position}, shared.seq_len)
            if sum(map(width_of, items)) <= room:
                shown.add(position)
        return with_gaps(shown, shared.seq_len)

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        rule = f"rank = {self.shared.sharing.rule('position')}"
        return f"{counted(self.left_out, 'rank')} not shown · {rule}" if self.left_out else rule

    def token_xy(self, position: int) -> tuple[float, float]:
        """Return where a token lies before it is dealt; one that is not drawn lies in its gap."""
        inset = (self.column_w - self.token_w) / 2 - 1
        if position in self.drawn:
            return self.x[position] + inset, self.top + HEAD
        hidden = [item for item in self.items if isinstance(item, Gap) and item.start <= position < item.stop]
        return self.x[hidden[0].start] + self.column_w - self.token_w / 2, self.top + HEAD

    def actors(self, known: Collection[int]) -> Iterator[Actor]:
        """Give the line of tokens, and the slots of the positions that are ``known``."""
        shared, column_w = self.shared, self.column_w
        position_y = HEAD + CELL_H + 14
        parts = [
            text(14, HEAD + CELL_H / 2, label(shared.request_id, 7), "strong mono", name(shared.request_id, 200)),
            text(14, position_y, "position", "muted"),
            text(14, self.slots_y - 7, "slot on", "muted"),
        ]
        for item in self.items:
            x = self.x[first_of(item)]
            if isinstance(item, Gap):
                parts.append(gap(x, HEAD, 2 * column_w, CELL_H, item.count))
                continue
            title = f"position {item}: rank {shared.sharing.rank_of(item)} keeps it"
            parts.append(cell(x + 1, HEAD, column_w - 2, CELL_H, "", None, "free", title))
            style = "middle mono" if item in shared.positions else "middle mono muted"
            parts.append(text(x + column_w / 2 - 1, position_y, str(item), style))
        parts += self._runs(HEAD + CELL_H + 5)
        facts: Facts = {"request": shared.request_id, "tokens": shared.seq_len}
        yield Actor("tokens", 0, self.top, WIDTH, self.slots_y, tuple(parts), layer=0, data=facts)
        for place, rank in enumerate(self.ranks):
            yield from self._slots(shared.ranks[rank], self.slots_y + _LINE_H * (place + 0.5), known)

    def _runs(self, y: float) -> Iterator[Part]:
        """Give a line under each run of tokens that stays together on a rank."""
        sharing = self.shared.sharing
        runs: dict[int, list[float]] = {}
        for position in self.drawn:
            runs.setdefault(sharing.run_of(position), []).append(self.x[position])
        for run, xs in runs.items():
            title = f"run {run}: rank {run % sharing.world_size}"
            yield Part("line", xs[0] + 2, y, xs[-1] - xs[0] + self.column_w - 6, 0, title=title)

    def _slots(self, rank: RankState, y: float, known: Collection[int]) -> Iterator[Actor]:
        words = (text(14, 0, f"rank {rank.rank}", "muted", f"the slots that rank {rank.rank} computes"),)
        yield Actor(f"slots:{rank.rank}", 0, self.top + y, WIDTH, 0, words, layer=0, data={"rank": rank.rank})
        for position in self.drawn:
            if position not in known or position not in rank.slots:
                continue
            slot = rank.slots[position]
            shown, style = ("PAD", "middle mono muted") if slot == PAD_SLOT else (str(slot), "middle mono accent")
            part = text(self.column_w / 2 - 1, 7, shown, style)
            facts: Facts = {"rank": rank.rank, "position": position, "slot": slot}
            key = f"slot:{rank.rank}:{position}"
            yield Actor(key, self.x[position], self.top + y - 7, self.column_w - 2, 14, (part,), 2, facts)


class RankPanel:
    """One rank: its row of the block table, and the cells of the request's blocks in its own memory."""

    def __init__(
        self,
        shared: SharedRequest,
        rank: RankState,
        tokens: TokensBand,
        place: tuple[float, float, float],
        max_height: float,
    ) -> None:
        self.shared = shared
        self.rank = rank
        self.tokens = tokens
        self.x, self.top, self.w = place
        size = shared.sharing.block_size
        width = self.w - 24
        self.tiny = tokens.token_w * min(size, 8) > width or size > 32  # no room for the tokens' text
        self.cell_w, self.cell_h = (11, 11) if self.tiny else (tokens.token_w, 22)
        self.columns = min(size, max(8, int(width // 11 // 8) * 8) if self.tiny else 8)
        self.block_w = max(self.columns * self.cell_w + 8, 40)
        self.block_h = _BLOCK_HEAD + -(-size // self.columns) * (self.cell_h + 2) + 4
        per_line = max(1, int((self.w - 16 + 5) // (self.block_w + 5)))
        count = shared.sharing.column_of(shared.seq_len - 1) + 1
        drawn = [position for position in tokens.drawn if position in shared.positions]
        columns = [shared.sharing.column_of(position) for position in (drawn[0], drawn[max(0, len(drawn) - 2)])]
        # A block that is looked at, and a gap on each side of it, must have room.
        least = 2 if max_height < 100 and 0 in (columns[0], count - 1 - columns[1]) else 3
        room = max(least, per_line * int(max_height // (self.block_h + 5)))
        self.items = elide(count, room, range(columns[0], columns[1] + 1), gap_width=1)
        self.block_xy: dict[int, tuple[float, float]] = {}
        self.gap_h = _LINE_H if per_line == 1 else self.block_h
        x, y = 8.0, 58.0
        for item in self.items:
            if x + self.block_w > self.w - 7:
                x, y = 8.0, y + self.block_h + 5
            self.block_xy[first_of(item)] = x, y
            if per_line == 1:
                y += (_LINE_H if isinstance(item, Gap) else self.block_h) + 5
            else:
                x += self.block_w + 5
        self.height = y + 3 + (0 if per_line == 1 else self.block_h + 5)

    def token_xy(self, position: int) -> tuple[float, float] | None:
        """Return where a token's cell lies; None if its block is not drawn."""
        column, offset = self.shared.sharing.column_of(position), self.shared.sharing.offset_of(position)
        if column not in self.items:
            return None
        x, y = self.block_xy[column]
        left, top = self._cell_xy(offset)
        return self.x + x + left, self.top + y + top

    def _cell_xy(self, offset: int) -> tuple[float, float]:
        return 4 + offset % self.columns * self.cell_w, _BLOCK_HEAD + offset // self.columns * (self.cell_h + 2)

    def actors(self, *, counts: bool, lit: int | None) -> Iterator[Actor]:
        """Give the panel; ``counts`` says how many tokens the rank keeps, ``lit`` is the column that is looked up."""
        rank, shared = self.rank, self.shared
        local = shared.num_local(rank.rank)
        blocks = rank.block_ids[: shared.sharing.column_of(shared.seq_len - 1) + 1]
        said = (f"{local:,} of {shared.seq_len:,} tokens", f"{local:,} of {shared.seq_len:,}", f"{local:,}")
        of = next((words for words in said if 8 * len(words) + 66 <= self.w), said[-1])
        parts = [
            Part("box", 0, 0, self.w, self.height, style="band"),
            text(8, 13, f"rank {rank.rank}", "head"),
            *([text(self.w - 8, 13, of, "accent right")] if counts else []),
            text(8, 40, "row", "muted", f"the request’s row of rank {rank.rank}’s block table"),
            *self._row(blocks, lit),
        ]
        facts: Facts = {
            "rank": rank.rank, "blocks": " ".join(map(str, blocks)), "local": local if counts else -1
        }  # fmt: skip
        yield Actor(f"rank:{rank.rank}", self.x, self.top, self.w, self.height, tuple(parts), layer=0, data=facts)
        for item in self.items:
            x, y = self.block_xy[first_of(item)]
            if isinstance(item, Gap):
                words = gap(0, 0, self.block_w, self.gap_h, item.count)
                yield Actor(f"more:{rank.rank}:{item.start}", self.x + x, self.top + y, 0, 0, (words,), layer=1)
            else:
                yield self._block(item, rank.block_ids[item], self.x + x, self.top + y)

    def _row(self, blocks: Sequence[int], lit: int | None) -> Iterator[Part]:
        chip_w = chip_width(blocks)
        words = [str(block) for block in blocks]
        if lit is None or len(words) * (chip_w + 3) > self.w - 46:
            yield from chips(38, 30, self.w - 46, chip_w, 20, words, self.shared.owner, "live")
            return
        for column, block in enumerate(words):
            style = "live target" if column == lit else "live"
            yield cell(38 + column * (chip_w + 3), 30, chip_w + 2, 20, block, self.shared.owner, style)

    def _block(self, column: int, block: int, x: float, y: float) -> Actor:
        size = self.shared.sharing.block_size
        tip = f"rank {self.rank.rank}, block {block}: column {column} of the row"
        parts = [
            Part("box", 0, 0, self.block_w, self.block_h, style="owned", owner=self.shared.owner, title=tip),
            text(7, 11, str(block), "mono strong"),
        ]
        for offset in range(size):
            left, top = self._cell_xy(offset)
            title = f"rank {self.rank.rank}, slot {block * size + offset}"
            parts.append(cell(left, top, self.cell_w + 1, self.cell_h, "", None, "free", title))
        facts: Facts = {"rank": self.rank.rank, "column": column, "block": block}
        key = f"block:{self.rank.rank}:{column}"
        return Actor(key, x, y, self.block_w, self.block_h, tuple(parts), layer=1, data=facts)


class MergeBand:
    """Attention over the ranks: who sees how many keys, the partial results, the merged one."""

    height = HEAD + 48 + 12 + 26 + 22 + 28 + 8

    def __init__(self, shared: SharedRequest, ranks: Sequence[int], tokens: TokensBand, top: float) -> None:
        self.shared = shared
        self.ranks = ranks
        self.tokens = tokens
        self.top = top
        self.w = (BAND_W - 12 + 6) / len(ranks) - 6
        self.x = {rank: BAND_X + 6 + at * (self.w + 6) for at, rank in enumerate(ranks)}
        self.state_y = HEAD + 48 + 12
        self.merged_words = f"output of {counted(shared.seq_len, 'key')} = Σ exp(lseᵣ − lse) · oᵣ"
        self.merged_w = 8.0 * len(self.merged_words) + 24
        self.merged_xy = ((WIDTH - self.merged_w) / 2, top + self.state_y + 26 + 22)

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        return f"the query of position {self.shared.seq_len - 1}"

    def actors(self, stage: str, token: int | None) -> Iterator[Actor]:
        """Give the band as it is when attention has come to ``stage``: "", "query", "states" or "merged"."""
        for rank, x in self.x.items():
            keys = self.shared.num_local(rank)
            words = counted(keys, "key") if self.w > 80 else str(keys)
            parts = [
                Part("box", 0, 0, self.w, 48, style="panel", title=f"rank {rank} keeps {counted(keys, 'key')}"),
                text(7, 13, f"rank {rank}" if self.w > 120 else f"r{rank}", "strong"),
                text(7, 34, words if stage else "–", "accent" if stage else "muted"),
            ]
            if stage == "merged" and keys:  # what has gone into the merged result was here
                parts.append(text(self.w / 2, self.state_y - HEAD + 13, self._words(rank, keys), "middle mono muted"))
            facts: Facts = {"rank": rank, "keys": keys if stage else -1}
            yield Actor(f"attend:{rank}", x, self.top + HEAD, self.w, 48, tuple(parts), layer=1, data=facts)
            if stage:
                yield self._query(rank, x, token)
            if stage in ("states", "merged"):
                yield self._state(rank, x, keys, merged=stage == "merged")
        if stage == "merged":
            part = Part("chip", 0, 0, self.merged_w, 28, self.merged_words, "live", self.shared.owner)
            data: Facts = {"keys": self.shared.seq_len}
            yield Actor("merged", *self.merged_xy, self.merged_w, 28, (part,), 2, data)

    def _query(self, rank: int, x: float, token: int | None) -> Actor:
        w, position = self.tokens.token_w, self.shared.seq_len - 1
        labels = self.tokens.labels
        title = f"the query of {labels.title(token, position, self.shared.request_id)}"
        part = cell(0, 0, w, CELL_H, labels.label(token), self.shared.owner, "live new", title)
        facts: Facts = {"rank": rank, "position": position}
        place = (x + self.w - w - 4, self.top + HEAD + 12)
        return Actor(
            f"query:{rank}", *place, w - 2, CELL_H, (part,), 2, facts, origin=self.tokens.token_xy(position)
        )  # fmt: skip

    def _state(self, rank: int, x: float, keys: int, *, merged: bool) -> Actor:
        w = min(self.w, 96.0)
        place = (x + (self.w - w) / 2, self.top + self.state_y)
        if merged and keys:
            place = (self.merged_xy[0] + (self.merged_w - w) / 2, self.merged_xy[1] + 1)
        words = self._words(rank, keys)
        title = f"rank {rank}: output and log-sum-exp over {counted(keys, 'key')}" if keys else f"rank {rank}: no keys"
        part = Part("chip", 0, 0, w, 26, words, "live" if keys else "stale", self.shared.owner if keys else None, title)
        data: Facts = {"rank": rank, "keys": keys, "merged": int(merged and keys > 0)}
        return Actor(f"state:{rank}", *place, w, 26, (part,), 1, data)

    def _words(self, rank: int, keys: int) -> str:
        """Name a rank's output and log-sum-exp."""
        if not keys:
            return "lse −∞"
        return f"o{_low(rank)}, lse{_low(rank)}" if self.w > 80 else f"o{_low(rank)}"

    def arrows(self) -> tuple[Arrow, ...]:
        """Return the ways of the states to the merged result."""
        left, top = self.merged_xy
        ends = len(self.x) + 1
        return tuple(
            Arrow(
                x + self.w / 2,
                self.top + self.state_y + 24,
                left + self.merged_w * (at + 1) / ends,
                top - 1,
            )
            for at, (rank, x) in enumerate(self.x.items())
            if self.shared.num_local(rank)
        )


class RanksStage:
    """All of the scene's stage."""

    def __init__(self, shared: SharedRequest) -> None:
        self.shared = shared
        self.labels = TokenLabels(shared.traces[0].vocabulary)
        world_size = shared.sharing.world_size
        last = shared.sharing.rank_of(shared.seq_len - 1)
        ranks = [item for item in choose(world_size, [0, 1, last], _MAX_RANKS) if isinstance(item, int)]
        self.ranks = ranks
        self.tokens = TokensBand(shared, self.labels, ranks, world_size - len(ranks))
        self.panels: dict[int, RankPanel] = {}
        per_line = min(len(ranks), _PER_LINE)
        w = (BAND_W + _BETWEEN) / per_line - _BETWEEN
        top = self.tokens.top + self.tokens.height + _BETWEEN
        for start in range(0, len(ranks), per_line):
            line = ranks[start : start + per_line]
            for at, rank in enumerate(line):
                place = (BAND_X + at * (w + _BETWEEN), top, w)
                max_height = 160.0 if len(ranks) <= per_line else 80.0
                self.panels[rank] = RankPanel(shared, shared.ranks[rank], self.tokens, place, max_height)
            top += self.panels[line[0]].height + _BETWEEN
        spans = [
            range(column * shared.sharing.span, min((column + 1) * shared.sharing.span, shared.seq_len))
            for column in self.panels[0].items
            if isinstance(column, int)
        ]
        self.positions = sorted({*self.tokens.drawn, *(position for span in spans for position in span)})
        self.merge = MergeBand(shared, ranks, self.tokens, top)
        self.height = top + self.merge.height + 4

    def actors(
        self, now: Sequence[str], *, dealt: Collection[int], known: Collection[int], counts: bool, lit: int | None,
        attention: str,
    ) -> Iterator[Actor]:  # fmt: skip
        """Give all that is on the stage.

        Parameters
        ----------
        now : sequence of str
            The bands that are lit: ``tokens``, ``merge``.
        dealt, known : collections of int
            The positions that lie on their ranks, and those whose slots are computed.
        counts : bool
            Whether each rank says how many tokens it keeps.
        lit : int or None
            The column of the block table that is looked up.
        attention : {"", "query", "states", "merged"}
            How far attention has come.
        """
        for key, title, band in (("tokens", "Tokens", self.tokens), ("merge", "Attention", self.merge)):
            yield Actor(
                f"band:{key}", BAND_X, band.top, BAND_W, band.height,
                (
                    Part("box", 0, 0, BAND_W, band.height, style="band-now" if key in now else "band"),
                    text(8, 13, title, "head"),
                    text(BAND_W - 8, 13, band.fact, "muted right" + (" mono" if key == "tokens" else "")),
                ),
                layer=0,
            )  # fmt: skip
        yield from self.tokens.actors(known)
        for panel in self.panels.values():
            yield from panel.actors(counts=counts, lit=lit)
        tokens = self.shared.tokens
        for position in self.positions:
            if (actor := self._token(position, tokens[position], is_dealt=position in dealt)) is not None:
                yield actor
        yield from self.merge.actors(attention, tokens[-1])

    def _token(self, position: int, token: int | None, *, is_dealt: bool) -> Actor | None:
        shared = self.shared
        rank = shared.sharing.rank_of(position)
        panel = self.panels.get(rank)
        xy = (panel.token_xy(position) if panel else None) if is_dealt else self.tokens.token_xy(position)
        if xy is None or (not is_dealt and position not in self.tokens.drawn):
            return None
        w, h, words = self.tokens.token_w, CELL_H, self.labels.label(token)
        if is_dealt and panel is not None:
            w, h, words = panel.cell_w + 1, panel.cell_h, "" if panel.tiny else words
        title = self.labels.title(token, position, shared.request_id)
        part = cell(0, 0, w, h, words, shared.owner, "live", title + (f" (rank {rank})" if is_dealt else ""))
        data: Facts = {"position": position, "rank": rank if is_dealt else -1}
        if is_dealt:
            data["slot"] = shared.slot_of(position)
        return Actor(f"tok:{position}", *xy, w - 2, h, (part,), 1, data, origin=self.tokens.token_xy(position))

    def way(self, position: int) -> tuple[Arrow, ...]:
        """Return the way of a token from the line of tokens to its rank; nothing where it is not drawn."""
        panel = self.panels.get(self.shared.sharing.rank_of(position))
        end = panel.token_xy(position) if panel else None
        if panel is None or end is None or position not in self.tokens.drawn:
            return ()
        x, y = self.tokens.token_xy(position)
        return (Arrow(x + self.tokens.token_w / 2 - 1, y + CELL_H, end[0] + panel.cell_w / 2, end[1] - 1),)


def _low(number: int) -> str:
    """Return a number in subscript.

    >>> _low(10)
    '₁₀'
    """
    return "".join(chr(0x2080 + int(digit)) for digit in str(number))
