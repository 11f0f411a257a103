"""Where the blocks of a prefix tree lie: a column for each block of a prompt, a line for each branch.

>>> branches = {"a": ("", 0), "b": ("a", 1), "c": ("b", 2), "d": ("a", 1)}
>>> layout = TreeLayout(branches, {"d": 2}, label_columns=8, most_digits=2)
>>> layout.form.name, [layout.line[place] for place in "abcd"], layout.xy("b") > layout.xy("a")
('text', [0, 0, 0, 1], True)

The first child goes on in its parent's line, others begin lines below. All that will ever be in the tree has its place
from the beginning: nothing shifts when a block comes or goes. A tree that is too large for blocks with text has blocks
with numbers only, then squares; what is too large for these too leaves out columns and lines, and counts them.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagedlab.scenes.marks import Gap, choose, elide
from pagedlab.scenes.prefix_tree_state import ROOT, Place

WIDTH = 584
LEFT = 8
ROOT_W = 38
_GAP_LINE = 18


@dataclass(frozen=True, slots=True)
class Form:
    """How large a block is drawn, and how far apart; ``most`` is the height that the tree may have.

    Where there are few columns, ``gap_x`` grows up to ``most_gap_x``.
    """

    name: str
    w: float
    h: float
    gap_x: float
    most_gap_x: float
    gap_y: float
    twin_h: float
    most: float


def _forms(label_columns: int, most_digits: int) -> tuple[Form, ...]:
    """Return what to try, the most telling first."""
    return (
        Form("text", min(104.0, max(66.0, 8 * label_columns + 14)), 56, 14, 52, 8, 24, 328),
        Form("number", max(28.0, 8 * most_digits + 10), 24, 10, 24, 6, 20, 360),
        Form("square", 10, 10, 4, 12, 3, 7, 392),
    )


class TreeLayout:
    """Columns, lines and how blocks are drawn.

    Parameters
    ----------
    places : mapping of Place to (Place, int)
        Parent and column of everything that is ever in the tree, in the order of its first appearance.
    twins : mapping of Place to int
        How many blocks are in one place at most; 1 where it does not say.
    label_columns : int
        The columns that the text of a block's tokens takes.
    most_digits : int
        The digits of the largest block id.
    weight : mapping of Place to int, optional
        How much happens there: lines with more of it are kept, if not all fit.
    """

    def __init__(
        self,
        places: Mapping[Place, tuple[Place, int]],
        twins: Mapping[Place, int],
        label_columns: int,
        most_digits: int,
        weight: Mapping[Place, int] | None = None,
    ) -> None:
        self.places = places
        self.line = _lines(places)
        self.num_lines = max(self.line.values(), default=-1) + 1
        self.num_columns = max((column for _, column in places.values()), default=-1) + 1
        self._twins = [0] * self.num_lines
        for place, at in self.line.items():
            self._twins[at] = max(self._twins[at], twins.get(place, 1) - 1)
        forms = _forms(label_columns, most_digits)
        self.form = next((form for form in forms if self._fits(form)), forms[-1])
        self._place_columns()
        self._place_lines(weight or {})

    def _fits(self, form: Form) -> bool:
        width = LEFT + ROOT_W + self.num_columns * (form.w + form.gap_x) + 4
        height = self.num_lines * (form.h + form.gap_y) + sum(self._twins) * form.twin_h
        return width <= WIDTH and height <= form.most

    def _place_columns(self) -> None:
        form, width = self.form, WIDTH - LEFT - ROOT_W - 4
        room = int(width // (form.w + form.gap_x))
        if 0 < self.num_columns <= room:  # there is room to stand further apart
            apart = (width - self.num_columns * form.w) / self.num_columns
            self.form = form = replace(form, gap_x=max(form.gap_x, min(form.most_gap_x, apart)))
        pitch = form.w + form.gap_x
        gap_width = max(2, int(-(-40 // pitch)))
        self.columns = elide(self.num_columns, room, gap_width=gap_width)
        self.x: dict[int, float] = {}
        self.gap_x: dict[Gap, float] = {}
        x = LEFT + ROOT_W + form.gap_x
        for item in self.columns:
            if isinstance(item, Gap):
                self.gap_x[item] = x
                x += gap_width * pitch
            else:
                self.x[item] = x
                x += pitch

    def _place_lines(self, weight: Mapping[Place, int]) -> None:
        form = self.form
        use = [0] * self.num_lines
        for place, at in self.line.items():
            use[at] += weight.get(place, 0)
        busiest = sorted(range(self.num_lines), key=lambda at: -use[at])
        room = self.num_lines
        while True:
            self.lines = choose(self.num_lines, busiest[: max(1, room - 2)], room)
            if room <= 1 or self._height() <= form.most:
                break
            room -= 1
        self.y: dict[int, float] = {}
        self.gap_y: dict[Gap, float] = {}
        y = 0.0
        for item in self.lines:
            if isinstance(item, Gap):
                self.gap_y[item] = y
                y += _GAP_LINE
            else:
                self.y[item] = y
                y += form.h + form.gap_y + self._twins[item] * form.twin_h
        self.height = max(y, form.h)

    def _height(self) -> float:
        form = self.form
        return sum(
            _GAP_LINE if isinstance(item, Gap) else form.h + form.gap_y + self._twins[item] * form.twin_h
            for item in self.lines
        )

    def xy(self, place: Place) -> tuple[float, float] | None:
        """Return where a place is; None if it is left out."""
        column, line = self.places[place][1], self.line[place]
        return (self.x[column], self.y[line]) if column in self.x and line in self.y else None

    def gap_of(self, column: int) -> Gap | None:
        """Return the gap that hides a column, None if it is drawn."""
        return next((gap for gap in self.gap_x if gap.start <= column < gap.stop), None)


def _lines(places: Mapping[Place, tuple[Place, int]]) -> dict[Place, int]:
    """Give each place its line: a first child goes on in its parent's, each other begins one below all so far."""
    children: dict[Place, list[Place]] = {}
    for place, (parent, _) in places.items():
        children.setdefault(parent if parent in places else ROOT, []).append(place)
    line: dict[Place, int] = {}
    last = -1
    todo: list[tuple[Place, int | None]] = [(place, None) for place in reversed(children.get(ROOT, []))]
    while todo:
        place, inherited = todo.pop()
        if inherited is None:
            last += 1
        line[place] = last if inherited is None else inherited
        below = children.get(place, [])
        todo += [(other, None) for other in reversed(below[1:])]
        todo += [(first, line[place]) for first in below[:1]]
    return line
