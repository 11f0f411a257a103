"""How every figure looks: one plotly template, on a light and on a dark ground.

>>> look(0), look(8)
(('#0072B2', ''), ('#E69F00', 'x'))
>>> text_on("#F0E442"), text_on("#0072B2")
('#000000', '#ffffff')

A request, or whatever else is compared, has one colour of Okabe and Ito's *and* one pattern, the same as in the player.
What is no request is grey. A figure names neither the colour of its text nor that of its ground: both come from the
template, so a figure changes its ground with its template, ``figure.update_layout(template="pagedlab_dark")``. No one
colour of text can be read on both JupyterLab's white and its near-black, so a figure brings its own ground along;
where it is shown by `pagedlab.charts.show`, a style sheet puts the colours of the page's theme in their place.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe-Ito: one colour for each request, the same as in the player (a test holds the two equal)."""

PATTERNS = ("", "/", ".", "x", "|")
"""And one pattern, so that nobody needs the colour; the player calls them plain, hatched, dotted, crossed, striped."""

GREYS = ("#66707c", "#8b95a1")
"""For what is no request: seen on both grounds, and the two are told apart by their patterns too."""

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Those of the colours that a thin line can have: they are seen on both grounds."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""And one way to draw it for each of them."""

FONT = 13
"""Pixels; nothing in a figure is smaller."""

INSIDE = 700
"""How many pixels wide a plot is about, inside its axes: it decides which names have room."""

INSIDE_BESIDE_NAMES = INSIDE - 160
"""The same of a plot whose rows have names."""

SANS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'

_TITLE_FONT, _TITLE_LINE, _TITLE_WIDTH = 16, 21, 84
_ABOVE_TITLE, _ABOVE_PLOT = 12, 32
_AXIS = "axis"
_CLEAR = "rgba(0, 0, 0, 0)"


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of what is no data: ``muted`` is second-rank text, ``grid`` and ``axis`` are lines."""

    name: str
    ground: str
    ink: str
    muted: str
    grid: str
    axis: str


LIGHT = Theme("pagedlab", "#ffffff", "#16191d", "#56606b", "#e2e5e9", "#7b8591")
DARK = Theme("pagedlab_dark", "#14171b", "#eef1f4", "#a8b2bd", "#2f353c", "#77818c")


def look(index: int) -> tuple[str, str]:
    """Return the colour and the pattern of the request that came as number ``index``, counted from 0."""
    return COLORS[index % len(COLORS)], PATTERNS[index % len(PATTERNS)]


def filled(color: str, shape: str) -> dict[str, Any]:
    """Return plotly's marker of a bar with a colour and a pattern, whose lines leave the text on it readable."""
    return {"color": color, "pattern": pattern(color, shape)}


def font_on(color: str) -> dict[str, Any]:
    """Return plotly's font of text on a bar, set off from the pattern behind it."""
    return {"color": text_on(color), "size": FONT, "shadow": ", ".join([f"0 0 3px {color}"] * 3)}


def pattern(color: str, shape: str) -> dict[str, Any]:
    """Return plotly's pattern of a filled area."""
    lines = "rgba(0, 0, 0, 0.35)" if text_on(color) == "#ffffff" else "rgba(255, 255, 255, 0.6)"
    return {"shape": shape, "bgcolor": color, "fgcolor": lines, "size": 8, "solidity": 0.18}


def text_on(color: str) -> str:
    """Return black or white: what can be read on a bar of this colour."""
    return "#ffffff" if contrast("#ffffff", color) >= 4.5 else "#000000"


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast ratio of two colours ``"#rrggbb"``, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of a colour ``"#rrggbb"``, each from 0 to 255.

    >>> rgb("#0072B2")
    (0, 114, 178)
    """
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


def axis_name(letter: str, number: int) -> str:
    """Return what plotly calls an axis, or its layout; ``number`` is counted from 1.

    >>> axis_name("y", 1), axis_name("yaxis", 2)
    ('y', 'yaxis2')
    """
    return letter if number == 1 else f"{letter}{number}"


def whole_numbers(most: float) -> dict[str, Any]:
    """Return the ticks of an axis that counts things, up to ``most``: never halves of a thing."""
    return {"dtick": 1} if most <= 5 else {}


def _luminance(color: str) -> float:
    parts = [part / 255 for part in rgb(color)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def plotly_template(theme: Theme = LIGHT) -> go.layout.Template:
    """Return the template for a ground.

    Plotly knows both by name too, once a figure has been made: ``"pagedlab"`` and ``"pagedlab_dark"``.

    Raises
    ------
    ImportError
        Without plotly: ``pip install 'pagedlab[lab]'``.
    """
    title = {
        "font": {"size": _TITLE_FONT, "weight": 600, "color": theme.ink},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"l": 10, "t": _ABOVE_TITLE},
    }
    legend = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    hover = {"color": theme.ink, "size": FONT, "family": SANS}
    return _plotly().layout.Template(
        layout={
            "colorway": COLORS,
            "font": {"family": SANS, "size": FONT, "color": theme.ink},
            "title": title,
            "paper_bgcolor": theme.ground,
            "plot_bgcolor": _CLEAR,
            "margin": {"l": 60, "r": 24, "t": 80, "b": 52},
            "bargap": 0.15,
            "legend": {**legend, "bgcolor": _CLEAR, "font": {"color": theme.ink}},
            "hoverlabel": {"bgcolor": theme.ground, "bordercolor": theme.axis, "font": hover},
            "shapedefaults": {"line": {"color": theme.ink, "width": 1.5}},
            "uniformtext": {"minsize": FONT, "mode": "hide"},
            **_axes(theme),
            **_annotations(theme),
        },
        data={
            "bar": [{"marker": {"line": {"color": theme.ink, "width": 1}}, "textangle": 0}],
            "box": [{"line": {"color": theme.ink, "width": 1.5}}],
        },
    )


def _axes(theme: Theme) -> dict[str, Any]:
    both = {
        "gridcolor": theme.grid,
        "linecolor": theme.axis,
        "zerolinecolor": theme.axis,
        "zerolinewidth": 1,
        "tickcolor": theme.axis,
        "tickfont": {"color": theme.muted, "size": FONT},
        "title": {"font": {"color": theme.muted, "size": FONT}, "standoff": 8},
        "automargin": True,
        "separatethousands": True,
    }
    return {
        "xaxis": {**both, "showgrid": False, "zeroline": False, "showline": True, "ticks": "outside", "ticklen": 4},
        "yaxis": {**both, "ticklabelstandoff": 5},
    }


def _annotations(theme: Theme) -> dict[str, Any]:
    """Return how words in a plot look; and those of `name_axis`, which are read without turning one's head."""
    axis = {"name": _AXIS, "visible": False, "xref": "paper", "xanchor": "left", "yref": "paper", "yanchor": "bottom"}
    return {
        "annotationdefaults": {"showarrow": False, "font": {"color": theme.ink, "size": FONT}},
        "annotations": [
            {**axis, "yshift": 5, "showarrow": False, "font": {"color": theme.muted, "size": FONT}},
        ],
    }


def new_figure(finding: str, shows: str, summary: str, **layout: Any) -> go.Figure:
    """Return an empty figure in our look.

    Parameters
    ----------
    finding : str
        The title: what the data say. Plain text, as are the next two.
    shows : str
        What is drawn, and in which unit; it stands above the vertical axis. Empty if there are several.
    summary : str
        The figure in words, for those who do not see it; goes into ``layout.meta["summary"]``.
    **layout
        More of plotly's layout.
    """
    go = _plotly()
    _tell_plotly()
    lines = _lines(finding)
    title = {
        "text": "<br>".join(map(html.escape, lines)),
        # Plotly puts the middle of the lines where one line would be.
        "pad": {"t": _ABOVE_TITLE + _TITLE_LINE // 2 * (len(lines) - 1)},
    }
    margin = {"t": _ABOVE_TITLE + _TITLE_LINE * len(lines) + _ABOVE_PLOT}
    figure = go.Figure(
        layout={"template": plotly_template(), "title": title, "margin": margin, "meta": {"summary": summary}}
    )
    figure.update_layout(layout)
    if shows:
        name_axis(figure, shows)
    return figure


def _lines(title: str) -> list[str]:
    """Break a title into as few lines as it needs: two at a semicolon or comma, if they fit, else all about as long."""
    num_lines = len(textwrap.wrap(title, _TITLE_WIDTH))
    for mark in "; ", ", ":
        halves = [(title[: at.start() + 1], title[at.end() :]) for at in re.finditer(mark, title)]
        fitting = [pair for pair in halves if max(map(len, pair)) <= _TITLE_WIDTH]
        if num_lines == 2 and fitting:
            return list(min(fitting, key=lambda pair: max(map(len, pair))))
    widths = range(len(title) // max(1, num_lines), _TITLE_WIDTH + 1)
    return next((lines for width in widths if len(lines := textwrap.wrap(title, width)) <= num_lines), [])


def name_axis(figure: go.Figure, text: str, top: float = 1.0, left: float = 0.0) -> None:
    """Write above a vertical axis what it counts; ``left``, ``top`` is where it ends, as shares of the whole plot."""
    figure.add_annotation(templateitemname=_AXIS, visible=True, x=left, y=top, text=html.escape(text))


def _plotly() -> Any:
    """Return plotly's graph objects."""
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError:
        raise ImportError("charts need plotly, which is not installed: pip install 'pagedlab[lab]'") from None
    return go


def _tell_plotly() -> None:
    """Let plotly know both templates by name."""
    import plotly.io as pio

    for theme in (LIGHT, DARK):
        if theme.name not in pio.templates:
            pio.templates[theme.name] = plotly_template(theme)
