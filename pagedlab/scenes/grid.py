"""A grid: cells that are too many to be actors, drawn on a canvas below the stage.

A frame says which cells look otherwise than in the frame before it, in Python as in JSON: a step costs what it changes,
whether there are 8 cells or 100,000.

>>> from pagedlab.scenes.scene import Frame, Scene
>>> held = Look("owned", owner=0, title="in use")
>>> frames = (Frame("0", (), "All are free."), Frame("1", (), "A takes two.", cells={1: held, 2: held}))
>>> pool = Grid("block", 16_384, Look("free", title="free"))
>>> scene = Scene("pool", "Pool", 120, 40, frames, requests=("A",), grid=pool)
>>> [look.style for look in scene.cells_at(1)[:4]], scene.to_json()["frames"][1]["cells"]
(['free', 'owned', 'owned', 'free'], '1:1-2')

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    """How a cell looks, and what it is. Many cells share one.

    Attributes
    ----------
    style : str
        Space-separated: the state (``owned``, ``cached``, ``free``, ``null``, ``unknown``), and what else is so
        (``shared``).
    owner : int or None
        The request whose colour and pattern it bears, an index into `Scene.requests`.
    mark : str
        A few characters that are drawn where there is room.
    title : str
        What there is to say of the cell, behind its number and its owner's name.
    """

    style: str
    owner: int | None = None
    mark: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Many cells in reading order.

    Attributes
    ----------
    noun : str
        What a cell is; also the name of the fact that tells its number (``block``).
    count : int
        How many there are, numbered from 0.
    look : Look
        How each looks until a frame says otherwise.
    legend : tuple of (str, str)
        What styles mean: each style, and a word or two for it.

    Raises
    ------
    ValueError
        If there is no cell.
    """

    noun: str
    count: int
    look: Look
    legend: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a grid has at least one cell, not {self.count}")


# --- JSON: each distinct look once; the cells of a frame in one text, "look:cell cell first-last;look:cell" -----------
# (A saved notebook spends a line on each number of a list, and one on a text.)


def grid_to_json(grid: Grid, looks: Mapping[Look, int]) -> dict[str, Any]:
    """Return a grid, and the looks that `cells_to_json` has met, as JSON-ready data.

    Looks that differ in their owner alone are of one kind: ``looks`` has a ``kind`` or ``kind.owner`` for each.
    """
    kinds: dict[tuple[str, str, str], int] = {}
    told = []
    for look in looks:
        kind = kinds.setdefault((look.style, look.mark, look.title), len(kinds))
        told.append(str(kind) if look.owner is None else f"{kind}.{look.owner}")
    return {
        "noun": grid.noun,
        "count": grid.count,
        "kinds": [list(kind) for kind in kinds],
        "looks": " ".join(told),
        "legend": [list(item) for item in grid.legend],
    }


def grid_from_json(data: Mapping[str, Any]) -> tuple[Grid, list[Look]]:
    """Read what `grid_to_json` wrote: the grid, and the looks for `cells_from_json`."""
    looks = []
    for told in data["looks"].split(" "):
        kind, _, owner = told.partition(".")
        style, mark, title = data["kinds"][int(kind)]
        looks.append(Look(style, int(owner) if owner else None, mark, title))
    legend = tuple((style, word) for style, word in data["legend"])
    return Grid(data["noun"], data["count"], looks[0], legend), looks


def cells_to_json(cells: Mapping[int, Look], looks: dict[Look, int]) -> str:
    """Return cells as one text; a look that is new gets the next number in ``looks``.

    >>> looks = {Look("free"): 0}
    >>> cells_to_json({3: Look("owned"), 8: Look("free"), 4: Look("owned"), 5: Look("owned")}, looks), len(looks)
    ('1:3-5;0:8', 2)
    """
    by_look: dict[int, list[int]] = {}
    for cell in sorted(cells):
        by_look.setdefault(looks.setdefault(cells[cell], len(looks)), []).append(cell)
    return ";".join(f"{look}:{' '.join(_runs(numbers))}" for look, numbers in by_look.items())


def cells_from_json(text: str, looks: Sequence[Look]) -> dict[int, Look]:
    """Read what `cells_to_json` wrote."""
    cells: dict[int, Look] = {}
    for part in filter(None, text.split(";")):
        look, _, runs = part.partition(":")
        for run in runs.split(" "):
            first, _, last = run.partition("-")
            cells.update(dict.fromkeys(range(int(first), int(last or first) + 1), looks[int(look)]))
    return cells


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """Give ascending numbers as text, neighbours together."""
    first = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], -1], strict=True):
        if following != number + 1:
            yield str(first) if first == number else f"{first}-{number}"
            first = following
