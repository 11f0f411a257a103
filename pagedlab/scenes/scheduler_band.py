"""The scheduler's band of the scene `step`: the two queues, and the token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagedlab.scenes.marks import Gap, cell, text
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.step_state import CELL_H, HEAD, LEFT, RIGHT, WIDTH, StepState, first_of, width_of
from pagedlab.scenes.words import columns, counted, label, name

_CHIP_H = 24
_LINE = 31  # waiting, running, budget


class SchedulerBand:
    """Queues and budget; ``top`` is where the band begins."""

    height = HEAD + 3 * _LINE + 2

    def __init__(self, state: StepState, top: float) -> None:
        self.state = state
        self.top = top
        self._choose_width()

    def _choose_width(self) -> None:
        """Choose how wide a request in a queue is: with its counts if all fit, else with a short name only."""
        state = self.state
        ids = {request_id for queue in state.queues for request_id in queue}
        most = max((len(queue) for queue in state.queues), default=0)
        counts = max((2 * len(str(len(state.end.request(request_id).tokens))) + 1 for request_id in ids), default=3)
        for self.has_counts, self.name_limit in ((True, 8), (False, 8), (False, 5)):
            longest = max((columns(label(request_id, self.name_limit)) for request_id in ids), default=1)
            self.chip_w = 32 + 8 * longest + (8 + 8 * counts if self.has_counts else 0)
            self.pitch = self.chip_w + state.cell_w + 6  # beside each there is room for a sampled token
            self.room = max(2, int((RIGHT - LEFT + 6) // self.pitch))
            if most <= self.room:
                return

    @property
    def budget_y(self) -> float:
        """Where the tokens in the budget lie."""
        return self.top + HEAD + 2 * _LINE + 1

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        seats = self.state.seats
        return "" if seats is None else f"{len(self.state.replay.running):,} of {seats:,} seats taken"

    def chip_xy(self, request_id: str) -> tuple[float, float] | None:
        """Return where a request stands in its queue; None if it is not drawn."""
        for line, queue in enumerate((self.state.waiting, self.state.replay.running)):
            for at, item in self._places(queue):
                if item == request_id:
                    return LEFT + at * self.pitch, self.top + HEAD + _LINE * line + 1
        return None

    def sample_xy(self, request_id: str) -> tuple[float, float] | None:
        """Return the place of a new token, beside its request."""
        chip = self.chip_xy(request_id)
        return chip and (chip[0] + self.chip_w + 3, chip[1])

    def _places(self, queue: Sequence[str]) -> list[tuple[int, str | Gap]]:
        if len(queue) <= self.room:
            return list(enumerate(queue))
        shown = self.room - 1
        return [*enumerate(queue[:shown]), (shown, Gap(shown, len(queue)))]

    def actors(self) -> Iterator[Actor]:
        yield from self._queues()
        yield self._budget()

    def _queues(self) -> Iterator[Actor]:
        top = self.top + HEAD
        parts = [text(14, top + 13, "waiting", "muted"), text(14, top + _LINE + 13, "running", "muted")]
        for line, queue in enumerate((self.state.waiting, self.state.replay.running)):
            y = top + _LINE * line
            if not queue:
                parts.append(text(LEFT + 2, y + 13, "none", "muted"))
            for at, item in self._places(queue):
                x = LEFT + at * self.pitch
                if isinstance(item, Gap):
                    parts.append(text(x + 4, y + 13, f"+{item.count:,} more", "muted"))
                else:
                    yield self._chip(item, x, y + 1)
        yield Actor("queues", 0, 0, WIDTH, 10, tuple(parts), layer=0)

    def _chip(self, request_id: str, x: float, y: float) -> Actor:
        request = self.state.replay.request(request_id)
        shown = label(request_id, self.name_limit)
        total = len(request.tokens)
        parts = [
            Part("box", 0, 0, self.chip_w, _CHIP_H, style="owned", owner=request.index,
                 title=f"{name(request_id, 200)}: {request.num_computed_tokens} of {counted(total, 'token')} computed"),
            Part("swatch", 5, 5, 14, 14, owner=request.index),
            text(25, 12, shown, "strong mono"),
        ]  # fmt: skip
        if self.has_counts:
            parts.append(text(self.chip_w - 6, 12, f"{request.num_computed_tokens}/{total}", "muted mono right"))
        data: dict[str, str | int] = {
            "request": request_id,
            "queue": "waiting" if request_id in self.state.replay.waiting else "running",
            "computed": request.num_computed_tokens,
        }
        return Actor(f"chip:{request_id}", x, y, self.chip_w, _CHIP_H, tuple(parts), data=data)

    def _budget(self) -> Actor:
        budget = self.state.budget
        left = self.state.replay.budget_left
        left = budget if left is None else left
        parts = [text(14, 13, "budget", "muted")]
        if self.state.budget_cells and budget is not None:
            parts += self._single_tokens(budget)
        else:
            parts += self._shares(left)
        data: dict[str, str | int] = {"left": "" if left is None else left}
        return Actor("budget", 0, self.budget_y - 1, WIDTH, CELL_H + 2, tuple(parts), layer=0, data=data)

    def _single_tokens(self, budget: int) -> Iterator[Part]:
        """Give the budget as one cell a token."""
        replay, cell_w = self.state.replay, self.state.cell_w
        granted = [event.request_id for event in replay.scheduled for _ in range(event.num_scheduled_tokens)]
        for at in range(budget):
            who = granted[at] if at < len(granted) else None
            owner = None if who is None else replay.request(who).index
            title = f"token {at + 1} of the budget: {'free' if who is None else name(who)}"
            style = "free" if who is None else "stale"
            yield cell(LEFT + at * cell_w, 1, cell_w, CELL_H, "", owner, style, title)

    def _shares(self, left: int | None) -> Iterator[Part]:
        """Give the budget as a bar that is too long for single tokens."""
        state = self.state
        yield Part("box", LEFT - 2, -1, RIGHT - LEFT + 2, CELL_H + 4, style="free")
        xs, end = state.line(state.bar_order)
        for request_id in state.bar_order:
            owner = state.replay.request(request_id).index
            for item in state.plan.get(request_id, ()):
                width = width_of(item) * state.cell_w
                yield cell(xs[request_id, first_of(item)], 1, width, CELL_H, "", owner, "stale")
        if left is not None:
            yield text(RIGHT - 6, 13, f"{left:,} left", "muted right")
        if more := [request_id for request_id in state.left_out if request_id in state.bar_order]:
            yield text(end + 4, 13, f"+{len(more):,} req.", "muted", f"{counted(len(more), 'request')} more")
