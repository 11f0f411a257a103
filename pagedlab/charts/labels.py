"""Words and numbers in a figure: how they are written, how wide they are, where a layer's name has room.

>>> spots([[1, 1, 8, 8, 8, 1], [2, 2, 2, 2, 2, 9]], most=10, size=(600, 100), widths=[80, 240])
[Spot(at=2, level=4.0), None]

The second layer is high for one step only, too narrow for its name: that goes into a legend.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pagedlab.charts.template import FONT
from pagedlab.scenes.words import printable

if TYPE_CHECKING:
    import plotly.graph_objects as go

_AIR = 1.16
"""How much higher a plot is than what it shows: a limit's name stands above its line."""

CHARACTER = 0.56 * FONT
"""About how wide a character is, in pixels."""


class Spot(NamedTuple):
    """The middle of a name: which step, and how high."""

    at: int
    level: float


def spots(
    layers: Sequence[Sequence[float]], most: float, size: tuple[float, float], widths: Sequence[float]
) -> list[Spot | None]:
    """Return for each layer where its name goes; None where it has no room.

    Parameters
    ----------
    layers : sequence of sequence of float
        Heights, a number for each step, from the lowest layer up.
    most : float
        What the top of the plot stands for.
    size : tuple of float
        Width and height of the plot, in pixels.
    widths : sequence of float
        How wide each name is, in pixels.
    """
    num_steps = len(layers[0])
    floor = [0.0] * num_steps
    found: list[Spot | None] = []
    for layer, width in zip(layers, widths, strict=True):
        reach = int(num_steps * (width + 10) / size[0] / 2 + 0.5)
        best, spot = (FONT + 7) * most / size[1], None
        for at in range(reach, num_steps - reach):
            around = range(at - reach, at + reach + 1)
            low, high = max(floor[i] for i in around), min(floor[i] + layer[i] for i in around)
            if high - low > best:
                best, spot = high - low, Spot(at, (low + high) / 2)
        found.append(spot)
        floor = [below + height for below, height in zip(floor, layer, strict=True)]
    return found


def digits(value: float) -> str:
    """Return a number with three digits; whole ones, and those from 1,000, up to the point.

    >>> digits(4096), digits(12345.678), digits(123.4), digits(12.345), digits(0.01592)
    ('4,096', '12,346', '123', '12.3', '0.0159')
    """
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def span(values: Sequence[float]) -> str:
    """Return the least and the greatest of some numbers.

    >>> span([3, 1.5, 2]), span([2, 2])
    ('1.5 to 3', '2')
    """
    return from_to(digits(min(values)), digits(max(values)))


def from_to(low: str, high: str) -> str:
    """Return two numbers that are written already as one range.

    >>> from_to("1", "2"), from_to("2", "2")
    ('1 to 2', '2')
    """
    return low if low == high else f"{low} to {high}"


def share(part: float) -> str:
    """Return a share in percent.

    >>> share(0.256), share(0.0004), share(0)
    ('26%', 'less than 1%', '0%')
    """
    return "less than 1%" if 0 < part < 0.01 else f"{part:.0%}"


def top_of(used: float, limit: float | None) -> float:
    """Return where an axis ends that has a limit; one that is far above all that is used would flatten the rest."""
    return _AIR * max(1, limit if limit and 4 * used >= limit else used)


def add_limit(figure: go.Figure, limit: float, top: float, name: str) -> None:
    """Draw a limit across a plot that ends at ``top``, or say that it is far above."""
    text = f"the {name}: {digits(limit)}"
    if limit <= top:
        figure.add_hline(y=limit, line={"dash": "dash"})
        figure.add_annotation(x=1, xref="paper", xanchor="right", y=limit, yanchor="bottom", text=text)
    else:
        figure.add_annotation(x=1, xref="paper", xanchor="right", y=top, yanchor="top", text=f"{text}, far above")


def named_rows(names: Sequence[str], width: int) -> dict[str, Any]:
    """Return a vertical axis with a name for each row, from the top; ``width`` is that of a line, in characters."""
    lines = [textwrap.wrap(printable(name), width, max_lines=3, placeholder=" …") or ["“”"] for name in names]
    return {
        "tickvals": list(range(len(names))),
        "ticktext": ["<br>".join(map(html.escape, wrapped)) for wrapped in lines],
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }


def width_of(text: str) -> float:
    """Return about how wide a text is, in pixels."""
    return CHARACTER * len(text)
