"""One engine on the stage of the scene `timeline`: its requests, its seats and its budget, step by step.

A `Lane` is told one `Moment` after the other and draws what is so now. What it draws of a step that is over comes from
the run; of the step that goes on, from the moments.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pagedlab.scenes.marks import text
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.timeline_axis import LEFT, RIGHT, WIDTH, Axis
from pagedlab.scenes.timeline_rows import Place, share_rows
from pagedlab.scenes.timeline_runs import SCHEDULE, Column, Grant, Moment, Run
from pagedlab.scenes.words import counted, label, name

HEAD = 25.0
_GAP = 7.0
_MOST_SEATS = 8
_NAME_X = 14.0


class Lane:
    """An engine's part of the stage.

    Parameters
    ----------
    number : int
        Its place among the engines, from the top.
    run : Run
    title : str
    axis : Axis
    owners : mapping of str to int
        Each request's place in `Scene.requests`.
    top : float
        Where it begins.
    most_rows : int
        How many requests are drawn at once.
    """

    def __init__(
        self, number: int, run: Run, title: str, axis: Axis, owners: Mapping[str, int], top: float, most_rows: int
    ) -> None:
        self.number, self.run, self.title, self.axis, self.owners = number, run, title, axis, owners
        small = len(axis.edges) > 1
        self.pitch = 20.0 if small else 23.0
        self.most_rows = most_rows
        self.num_rows = min(len(run.requests), most_rows)
        self.num_seats = max((len(column.seats) for column in run.columns), default=0)
        self.seat_h = (7.0 if small else 10.0) if self.num_seats <= _MOST_SEATS else 36.0 / self.num_seats
        self.bar_h = 40.0 if small else 64.0
        self.top = top
        self.rows_y = top + HEAD
        self.seats_y = self.rows_y + self.pitch * self.num_rows + _GAP
        self.bar_y = self.seats_y + self.seat_h * self.num_seats + _GAP
        self.height = self.bar_y + self.bar_h - top
        most = max((column.num_tokens for column in run.columns), default=1)
        self.budget = max(run.budget or most, most, 1)
        self._lives = _lives(run)
        self._labels = {request_id: label(request_id, 7) for request_id in run.requests}
        self._names = {request_id: name(request_id, 60) for request_id in run.requests}
        self._busy: dict[str, list[int]] = {}
        for at, column in enumerate(run.columns):
            for request_id in (*(grant.request_id for grant in column.grants), *column.lost):
                self._busy.setdefault(request_id, []).append(at)
        self._places: dict[float, Mapping[str, Place]] = {}
        self._left_out: dict[float, int] = {}
        self._past: dict[tuple[int, float], list[Actor]] = {}
        self.now = -1
        self.running: tuple[str | None, ...] = (None,) * self.num_seats
        self.current = Column(0, [], [], [])
        self._spells: dict[str, list[tuple[int, int | None]]] = {}
        self._ended: dict[tuple[str, int], None] = {}
        self._lost: set[tuple[int, str]] = set()

    @property
    def end(self) -> float:
        """When the step that runs now ends."""
        return self.axis.edges[self.number][max(self.now, 0) + 1]

    # --- what happens -----------------------------------------------------------------------------------------

    def apply(self, moment: Moment) -> None:
        """Take what happened."""
        self.running = moment.seats + (None,) * (self.num_seats - len(moment.seats))
        if moment.phase == SCHEDULE:
            if moment.column > self.now:
                self.now = moment.column
                self.current = Column(self.run.columns[moment.column].step, [], [], [])
            self.current.seats = list(self.running)
            self.current.grants = [grant for grant in self.current.grants if grant.request_id not in moment.lost]
            self.current.grants += moment.grants
            self.current.lost += moment.lost
        for request_id in moment.arrived:
            self._spells.setdefault(request_id, []).append((moment.column, None))
        for request_id in moment.lost:
            self._spells.setdefault(request_id, []).append((moment.column, None))
            self._lost.add((moment.column, request_id))
        for grant in moment.grants:
            self._close(grant.request_id, moment.column)
        for request_id in moment.ended:
            self._close(request_id, moment.column)
            self._ended[request_id, moment.column] = None

    def _close(self, request_id: str, column: int) -> None:
        spells = self._spells.get(request_id, [])
        if spells and spells[-1][1] is None:
            spells[-1] = (spells[-1][0], column)

    # --- where things are -------------------------------------------------------------------------------------

    def places(self, start: float) -> Mapping[str, Place]:
        """Return which requests have a row on a page, and from when on."""
        if start not in self._places:
            shown = self.axis.columns(self.number, start)
            there = [
                request_id
                for request_id in sorted(self.run.requests, key=self.owners.__getitem__)
                if any(first < shown.stop and last >= shown.start for first, last in self._lives[request_id])
            ]
            self._places[start] = share_rows(there, self._busy, shown, self.most_rows)
            self._left_out[start] = len(there) - len(self._places[start])
        return self._places[start]

    def rows(self, start: float) -> Mapping[str, float]:
        """Return where on a page the rows of the requests are."""
        return {item: self.rows_y + self.pitch * place.row for item, place in self.places(start).items()}

    def key(self, kind: str, *rest: str | int) -> str:
        """Return the key of an actor of this engine."""
        return ":".join([kind, str(self.number), *map(str, rest)])

    def focus(self, moment: Moment) -> Iterator[str]:
        """Give the keys of what a moment is about."""
        for grant in moment.grants:
            yield self.key("cell", moment.column, grant.request_id)
        for request_id in moment.arrived:
            yield self.key("name", request_id)
        for request_id in moment.lost:
            yield self.key("lost", moment.column, request_id)
        for request_id in moment.ended:
            yield self.key("end", moment.column, request_id)
        if moment.kind is None and moment.phase == SCHEDULE:
            yield self.key("seats", moment.column)

    # --- actors -----------------------------------------------------------------------------------------------

    def actors(self, start: float) -> Iterator[Actor]:
        """Give everything of this engine on the page that begins at ``start``."""
        yield self._head(start)
        yield from self._name_tags(start)
        yield from self._waits(start)
        for column in self.axis.columns(self.number, start):
            if column < self.now:
                if (column, start) not in self._past:
                    self._past[column, start] = list(self._column(column, self.run.columns[column], start, now=False))
                yield from self._past[column, start]
            elif column == self.now:
                yield from self._column(column, self.current, start, now=True)
                place = self.axis.column(self.number, column, start)
                if place:
                    h = self.height - HEAD + 4
                    parts = (Part("box", 0, 0, place[1], h, style="band-now"),)
                    yield Actor(self.key("now"), place[0], self.rows_y - 2, place[1], h, parts, layer=0)
        yield from self._ends(start)

    def _head(self, start: float) -> Actor:
        top = HEAD - 12
        tokens = f"{self.current.num_tokens:,}" + (f" of {self.run.budget:,}" if self.run.budget else "")
        seats = len(self.running) - self.running.count(None)
        waiting = sum(spells[-1][1] is None for spells in self._spells.values() if spells)
        of_seats = f" of {self.run.num_seats:,}" if self.run.num_seats else ""
        fact = f"{tokens} tokens, {seats:,}{of_seats} seats, {waiting:,} waiting" if self.now >= 0 else ""
        parts = [
            text(_NAME_X, top, self.title, "head"),
            text(RIGHT, top, fact, "muted right"),
            text(_NAME_X, self.seats_y - self.top + self.seat_h * self.num_seats / 2, "seats", "muted"),
            text(_NAME_X, self.bar_y - self.top + self.bar_h / 2 - 8, "budget", "muted"),
            text(_NAME_X, self.bar_y - self.top + self.bar_h / 2 + 8, f"{self.budget:,}", "muted mono"),
        ]
        self.places(start)
        if more := self._left_out[start]:
            y = self.rows_y - self.top + self.pitch * (self.most_rows - 0.5)
            parts.append(text(_NAME_X, y, f"+{more:,} more", "muted", f"{counted(more, 'request')} without a row"))
        data: dict[str, str | int] = {
            "tokens": self.current.num_tokens, "seats": seats, "waiting": waiting, "step": self.current.step,
        }  # fmt: skip
        return Actor(self.key("lane"), 0, self.top, WIDTH, self.height, tuple(parts), layer=0, data=data)

    def _name_tags(self, start: float) -> Iterator[Actor]:
        for request_id in self._tenants(start):
            y = self.rows_y + self.pitch * self.places(start)[request_id].row
            is_gone = any(item == request_id for item, _ in self._ended) and not self._is_there(request_id)
            h = self.pitch
            parts = (
                Part("swatch", 0, h / 2 - 6, 12, 12, owner=self.owners[request_id]),
                text(17, h / 2, self._labels[request_id], "mono muted" if is_gone else "strong mono",
                     self._names[request_id]),
            )  # fmt: skip
            state = "gone" if is_gone else "running" if request_id in self.running else "waiting"
            data: dict[str, str | int] = {"request": request_id, "state": state}
            yield Actor(self.key("name", request_id), _NAME_X, y, LEFT - _NAME_X - 6, h, parts, data=data)

    def _tenants(self, start: float) -> Iterator[str]:
        """Give whose name each row bears: of those that came, the last whose time in it has begun."""
        there = {*self._spells, *(grant.request_id for grant in self.current.grants), *filter(None, self.running)}
        tenants: dict[int, str] = {}
        for request_id, place in sorted(self.places(start).items(), key=lambda item: item[1].since):
            has_come = request_id in there or any(first < self.now for first, _ in self._lives[request_id])
            if has_come and (place.row not in tenants or place.since <= self.now):
                tenants[place.row] = request_id
        yield from tenants.values()

    def _is_there(self, request_id: str) -> bool:
        spells = self._spells.get(request_id, [])
        return request_id in self.running or bool(spells and spells[-1][1] is None)

    def _waits(self, start: float) -> Iterator[Actor]:
        """A line for each time that a request waited, with a tick where it came."""
        edges = self.axis.edges[self.number]
        rows = self.rows(start)
        for request_id, place in self.places(start).items():
            y = rows[request_id]
            for at, (first, last) in enumerate(self._spells.get(request_id, ())):
                begin = edges[min(first, len(edges) - 1)]
                is_before = begin < max(start, edges[place.since])
                begin = max(begin, edges[place.since])
                end = edges[min(max(first, self.now + 1) if last is None else last, len(edges) - 1)]
                if end < max(start, begin) or begin > start + self.axis.visible:
                    continue
                x, right = self.axis.x(begin, start), self.axis.x(end, start)
                if (first, request_id) in self._lost:  # the mark of the loss stands in the way
                    x = min(right, x + self._width(first, start))
                parts = [Part("line", 0, self.pitch / 2, right - x, 0)] if right > x else []
                if at == 0 and not is_before:
                    owner = self.owners[request_id]
                    parts.append(
                        Part("line", -1, 3, 0, self.pitch - 6, "", "owner", owner, f"{self._names[request_id]} comes")
                    )
                data: dict[str, str | int] = {"request": request_id, "from": first, "to": -1 if last is None else last}
                if parts:
                    key = self.key("wait", request_id, at)
                    yield Actor(key, x, y, right - x, self.pitch, tuple(parts), layer=0, data=data)

    def _width(self, column: int, start: float) -> float:
        place = self.axis.column(self.number, column, start)
        return place[1] if place else 0.0

    def _ends(self, start: float) -> Iterator[Actor]:
        rows = self.rows(start)
        edges = self.axis.edges[self.number]
        for request_id, column in self._ended:
            time = edges[min(column, len(edges) - 1)]
            if request_id in rows and start <= time <= start + self.axis.visible:
                h = self.pitch
                title = f"{self._names[request_id]} ends"
                part = Part("line", 3, 2, 0, h - 4, "", "owner", self.owners[request_id], title)
                data: dict[str, str | int] = {"request": request_id, "column": column}
                x = self.axis.x(time, start) - 4
                yield Actor(self.key("end", column, request_id), x, rows[request_id], 6, h, (part,), data=data)

    def _column(self, column: int, state: Column, start: float, *, now: bool) -> Iterator[Actor]:
        """What one step did: a cell in each row, the seats, the budget."""
        place = self.axis.column(self.number, column, start)
        if place is None:
            return
        x, w = place
        rows = {
            item: self.rows_y + self.pitch * place.row
            for item, place in self.places(start).items()
            if place.since <= column < place.until
        }
        for grant in state.grants:
            if grant.request_id in rows:
                yield self._cell(column, grant, x, w, rows[grant.request_id])
        for request_id in state.lost:
            if request_id in rows:
                title = f"{self._names[request_id]} is preempted in step {state.step}"
                part = text(w / 2, self.pitch / 2, "×", "accent middle", title)
                data: dict[str, str | int] = {"request": request_id, "step": state.step}
                key = self.key("lost", column, request_id)
                yield Actor(key, x, rows[request_id], w, self.pitch, (part,), data=data)
        yield self._seats(column, state, x, w)
        yield from self._budget(column, state, x, w, rows, now=now)

    def _cell(self, column: int, grant: Grant, x: float, w: float, y: float) -> Actor:
        owner, h = self.owners[grant.request_id], self.pitch
        title = self._about(grant, self.run.columns[column].step)
        thick = h - 2 if grant.is_prefill else 6.0
        wide = max(w - 2, 1)
        part = (
            Part("cell", 0, 0, wide, thick, _fitting(grant.num_tokens, wide), "live", owner, title)
            if grant.is_prefill
            else Part("swatch", 0, 0, wide, thick, owner=owner, title=title)
        )
        data: dict[str, str | int] = {
            "request": grant.request_id, "step": self.run.columns[column].step, "tokens": grant.num_tokens,
            "kind": "prefill" if grant.is_prefill else "decode",
        }  # fmt: skip
        origin = (LEFT - w, y)
        key, y = self.key("cell", column, grant.request_id), y + (h - thick) / 2
        return Actor(key, x + 1, y, wide, thick, (part,), data=data, origin=origin)

    def _seats(self, column: int, state: Column, x: float, w: float) -> Actor:
        seats = [*state.seats, *[None] * (self.num_seats - len(state.seats))]
        h = self.seat_h
        taken = len(seats) - seats.count(None)
        if self.num_seats <= _MOST_SEATS:
            parts = tuple(
                Part("box", 1, h * at + 1, max(w - 2, 1), h - 2, style="hole", title=f"seat {at}: idle")
                if who is None
                else Part("swatch", 1, h * at + 1, max(w - 2, 1), h - 2, owner=self.owners[who],
                          title=f"seat {at}: {self._names[who]}")
                for at, who in enumerate(seats)
            )  # fmt: skip
        else:
            title = f"{taken:,} of {counted(len(seats), 'seat')} taken"
            full = h * len(seats)
            parts = (
                Part("box", 1, 0, max(w - 2, 1), full, style="hole", title=title),
                Part("cell", 1, full - h * taken, max(w - 2, 1), h * taken, style="live", title=title),
            )
        data: dict[str, str | int] = {"step": state.step, "taken": taken, "idle": len(seats) - taken}
        return Actor(self.key("seats", column), x, self.seats_y, w, h * len(seats), parts, layer=0, data=data)

    def _budget(
        self, column: int, state: Column, x: float, w: float, rows: Mapping[str, float], *, now: bool
    ) -> Iterator[Actor]:
        """The budget of a step; while the step goes on, what each request got of it is a thing of its own."""
        left = self.budget - state.num_tokens
        title = f"step {state.step}: {state.num_tokens:,} of {self.budget:,} tokens, {left:,} left"
        parts = [Part("cell", 1, 0, max(w - 2, 1), self.bar_h, style="free", title=title)]
        for grant, (y, h) in zip(state.grants, self._stack(state.grants), strict=True):
            part = self._segment(grant, w, h, state.step)
            if not now:
                parts.append(Part(part.kind, part.x, y, part.w, part.h, part.text, part.style, part.owner, part.title))
                continue
            data: dict[str, str | int] = {"request": grant.request_id, "tokens": grant.num_tokens}
            origin = (x, rows[grant.request_id]) if grant.request_id in rows else None
            key = self.key("seg", column, grant.request_id)
            yield Actor(key, x, self.bar_y + y, w, h, (part,), data=data, origin=origin)
        facts: dict[str, str | int] = {"step": state.step, "tokens": state.num_tokens}
        key = self.key("bar", column)
        yield Actor(key, x, self.bar_y, w, self.bar_h, tuple(parts), layer=0, data=facts)

    def _stack(self, grants: Sequence[Grant]) -> list[tuple[float, float]]:
        """Return top and height of each request's share, the first at the bottom; to scale, but never invisible."""
        heights = [max(2.5, self.bar_h * grant.num_tokens / self.budget) for grant in grants]
        squeeze = min(1.0, self.bar_h / sum(heights)) if heights else 1.0
        places, y = [], self.bar_h
        for height in heights:
            y -= height * squeeze
            places.append((round(y, 2), round(height * squeeze, 2)))
        return places

    def _segment(self, grant: Grant, w: float, h: float, step: int) -> Part:
        owner, title = self.owners[grant.request_id], self._about(grant, step)
        if grant.is_prefill and h >= 9:
            words = _fitting(grant.num_tokens, w - 2) if h >= 18 else ""
            return Part("cell", 1, 0, max(w - 2, 1), h, words, "live", owner, title)
        return Part("swatch", 1, 0, max(w - 2, 1), h, owner=owner, title=title)

    def _about(self, grant: Grant, step: int) -> str:
        who, what = self._names[grant.request_id], "prefill" if grant.is_prefill else "decode"
        done = grant.event.num_computed_tokens
        upto = done + grant.num_tokens
        return f"{who}, step {step}: {what}, {counted(grant.num_tokens, 'token')} ({done:,} to {upto:,})"


def _lives(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return for each request the columns from its arrival to its end; several, if its id was used again."""
    lives: dict[str, list[tuple[int, int]]] = {request_id: [] for request_id in run.requests}
    begun: dict[str, int] = {}
    for moment in run.moments:
        for request_id in moment.who:
            if request_id in moment.ended:
                lives[request_id].append((begun.pop(request_id, 0), moment.column))
            else:
                begun.setdefault(request_id, moment.column if request_id in moment.arrived else 0)
    for request_id, first in begun.items():
        lives[request_id].append((first, run.num_steps))
    return lives


def _fitting(number: int, width: float) -> str:
    """Return a number where there is room for it, else nothing; its tooltip has it."""
    words = f"{number}"
    return words if 8 * len(words) <= width else ""
