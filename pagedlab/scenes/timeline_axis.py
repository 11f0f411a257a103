"""The time axis of the scene `timeline`: where a step lies, in steps or in modelled milliseconds.

>>> axis = Axis([[0, 1, 2, 3]], "steps")
>>> axis.page_of(1), axis.x(1, 0) > axis.x(0, 0)
(0.0, True)

A run that is longer than the stage is shown in pages that overlap by half; inside a page nothing shifts.

vLLM has no counterpart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pagedlab.scenes.marks import text
from pagedlab.scenes.scene import Actor, Part

WIDTH = 584
LEFT, RIGHT = 98.0, 572.0
_ROOM = RIGHT - LEFT
_WIDEST, _NARROWEST = 46.0, 19.5
HEIGHT = 24.0


class Axis:
    """Times of all engines on one scale.

    Parameters
    ----------
    edges : sequence of sequence of float
        For each engine, when its steps begin, and when the last one ends.
    unit : {"steps", "ms"}
    first_step : int
        What the first step is called.
    """

    def __init__(self, edges: Sequence[Sequence[float]], unit: str, first_step: int = 0) -> None:
        self.edges = edges
        self.unit = unit
        self.first_step = first_step
        self.total = max(times[-1] for times in edges)
        widths = [b - a for times in edges for a, b in pairwise(times)]
        if unit == "steps":
            self.scale = min(_WIDEST, max(_NARROWEST, _ROOM / self.total))
            self.visible = float(int(_ROOM / self.scale + 1e-6))
        else:
            # A usual step is wide enough to be seen, the longest one still fits.
            usual = 14 / max(statistics.median(widths), 1e-9)
            self.scale = max(_ROOM / self.total, min(usual, _ROOM / (1.5 * max(widths))))
            self.visible = _ROOM / self.scale

    @property
    def has_pages(self) -> bool:
        """Whether the run is too long to be seen at once."""
        return self.total > self.visible * (1 + 1e-9)

    def page_of(self, time: float) -> float:
        """Return where the page begins that shows everything up to ``time``."""
        if not self.has_pages or time <= self.visible:
            return 0.0
        stride = self.visible / 2 if self.unit == "ms" else max(1.0, self.visible // 2)
        return stride * math.ceil((time - self.visible) / stride)

    def x(self, time: float, start: float) -> float:
        """Return where a time is on the page that begins at ``start``, cut off at its ends."""
        return round(LEFT + min(max(0.0, time - start), self.visible) * self.scale, 2)

    def column(self, lane: int, column: int, start: float) -> tuple[float, float] | None:
        """Return where a step begins and how wide it is; None if it is not on the page."""
        begin, end = self.edges[lane][column], self.edges[lane][column + 1]
        x, right = self.x(begin, start), self.x(end, start)
        return None if right - x < 1e-6 or end <= start else (x, right - x)

    def columns(self, lane: int, start: float) -> range:
        """Return the steps of an engine that are on the page."""
        edges = self.edges[lane]
        shown = [at for at in range(len(edges) - 1) if edges[at + 1] > start and edges[at] < start + self.visible]
        return range(shown[0], shown[-1] + 1) if shown else range(0)

    # --- actors -----------------------------------------------------------------------------------------------

    def ruler(self, start: float) -> Actor:
        """The axis, above all engines."""
        parts = [text(14, 12, "step" if self.unit == "steps" else "ms", "muted")]
        parts += self._step_numbers(start) if self.unit == "steps" else self._ticks(start)
        parts.append(Part("line", LEFT, HEIGHT - 2, _ROOM, 0))
        data: dict[str, str | int] = {"unit": self.unit, "start": f"{start:g}"}
        return Actor("ruler", 0, 0, WIDTH, HEIGHT, tuple(parts), layer=0, data=data)

    def _step_numbers(self, start: float) -> Iterator[Part]:
        for at in range(int(start), min(int(start + self.visible), int(self.total))):
            number = str(at + self.first_step)
            if self.scale >= 8 * len(number) + 4 or at % 2 == 0:
                yield text(self.x(at, start) + self.scale / 2, 12, number, "index middle mono")

    def _ticks(self, start: float) -> Iterator[Part]:
        apart = 64 / self.scale
        power = 10.0 ** math.floor(math.log10(apart))
        stride = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= apart)
        for at in range(math.ceil(start / stride), math.floor(min(start + self.visible, self.total) / stride) + 1):
            x = self.x(at * stride, start)
            if x <= RIGHT - 12:
                yield text(x, 12, f"{at * stride:,g}", "index middle mono")
                yield Part("line", x, HEIGHT - 6, 0, 4)

    def overview(self, start: float, y: float) -> Actor:
        """Where the page lies in the whole run."""
        x = LEFT + _ROOM * start / self.total
        w = _ROOM * min(self.visible, self.total - start) / self.total
        parts = (
            text(14, 9, "whole run", "muted"),
            Part("line", LEFT, 9, _ROOM, 0),
            Part("box", x, 2, max(w, 8), 14, style="band-now", title="what is shown of the run"),
        )
        return Actor("overview", 0, y, WIDTH, 18, parts, layer=0)
