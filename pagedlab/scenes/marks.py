"""Marks that several scenes share: token cells, swatches, chips, and the art of leaving tokens out.

>>> elide(5, room=8)
[0, 1, 2, 3, 4]
>>> elide(60, room=8, focus=range(30, 60))  # a gap is counted, and as wide as two cells
[0, Gap(start=1, stop=30), 30, Gap(start=31, stop=58), 58, 59]

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pagedlab.scenes.scene import Part

_LOOK = 48


@dataclass(frozen=True, slots=True)
class Gap:
    """Things left out: ``start`` to ``stop``, the end excluded."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


def elide(count: int, room: int, focus: range | None = None, gap_width: int = 2) -> list[int | Gap]:
    """Choose which of ``count`` things to show in the width of ``room`` cells; a gap takes ``gap_width`` of them.

    The end of ``focus`` is shown first, then its beginning, then the first and the last of all, then the rest of
    the focus, then what is left from the end.
    """
    if count <= room:
        return list(range(count))
    focus = focus or range(count)
    near = range(max(focus.start, focus.stop - _LOOK), focus.stop)
    wanted = [focus.stop - 1, focus.start, 0, count - 1, *reversed(near), *range(count - 1, count - _LOOK, -1)]
    shown: set[int] = set()
    for index in wanted:
        if 0 <= index < count and index not in shown and _width(_runs({*shown, index}, count), gap_width) <= room:
            shown.add(index)
    return list(_runs(shown, count))


def with_gaps(shown: Iterable[int], count: int) -> list[int | Gap]:
    """Return the places that are shown, and gaps for the others.

    >>> with_gaps({0, 4, 5}, 8)
    [0, Gap(start=1, stop=4), 4, 5, Gap(start=6, stop=8)]
    """
    return list(_runs(shown, count, keep_gaps=True))


def _runs(shown: Iterable[int], count: int, keep_gaps: bool = False) -> Iterator[int | Gap]:
    at = 0
    for index in (*sorted(shown), count):
        if index > at:
            # A gap of one is as well shown itself, where the gap would take as much room.
            yield at if index - at == 1 and not keep_gaps else Gap(at, index)
        if index < count:
            yield index
        at = index + 1


def _width(items: Iterable[int | Gap], gap_width: int) -> int:
    return sum(gap_width if isinstance(item, Gap) else 1 for item in items)


def choose(count: int, wanted: Iterable[int], room: int) -> list[int | Gap]:
    """Choose ``room`` of ``count`` rows: the wanted ones, the ends, then their neighbours and the first ones.

    >>> choose(9, [5], room=4)
    [0, Gap(start=1, stop=5), 5, 6, Gap(start=7, stop=8), 8]
    """
    if count <= room:
        return list(range(count))
    first = sorted(wanted)
    shown: set[int] = set()
    for row in (*first, 0, count - 1, *(row + 1 for row in first), *(row - 1 for row in first), *range(count)):
        if 0 <= row < count and len(shown) < room:
            shown.add(row)
    return with_gaps(shown, count)


def chip_width(numbers: Iterable[int]) -> int:
    """Return the width of a chip that holds any of these numbers.

    >>> chip_width([7, 12]), chip_width([1024]), chip_width([])
    (26, 42, 26)
    """
    return max(26, 8 * max((len(str(number)) for number in numbers), default=1) + 10)


def chips(
    x: float, y: float, width: float, chip_w: float, h: float, words: Sequence[str], owner: int | None, style: str
) -> Iterator[Part]:
    """Give a line of chips in ``width``; what does not fit is counted."""
    step = chip_w + 3
    for item in elide(len(words), max(1, int((width + 3) // step)), gap_width=1):
        if isinstance(item, Gap):
            yield gap(x, y, step - 1, h, item.count)
        else:
            yield Part("chip", x, y, chip_w, h, words[item], style, owner)
        x += step


def share(wanted: list[int], room: int) -> list[int]:
    """Share ``room`` cells among things that want so many each: small ones first get what they want.

    >>> share([2, 40, 30], room=20)
    [2, 9, 9]
    """
    granted = [0] * len(wanted)
    left = room
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(order):
        granted[index] = min(wanted[index], left // (len(order) - place))
        left -= granted[index]
    return granted


def cell(x: float, y: float, w: float, h: float, text: str, owner: int | None, style: str, title: str = "") -> Part:
    """Return the cell of one token."""
    return Part("cell", x, y, w - 2, h, text, style, owner, title)


def gap(x: float, y: float, w: float, h: float, count: int) -> Part:
    """Return the counted ellipsis for tokens left out."""
    return Part(
        "text", x + (w - 2) / 2, y + h / 2, text=f"+{count:,}", style="muted middle mono", title=f"{count:,} more"
    )


def text(x: float, y: float, words: str, style: str = "", title: str = "") -> Part:
    """Return a text whose middle height is ``y``."""
    return Part("text", x, y, text=words, style=style, title=title)
