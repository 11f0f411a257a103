"""`show`: a figure and, below it, the same in words; in a notebook it follows the theme of the page.

    charts.show(charts.memory(trace))

A figure cannot follow JupyterLab's theme by itself: plotly writes colours, not variables, and nobody draws it anew when
the theme changes. So the words below it bring a style sheet that replaces the few colours of text, lines and ground
(`pagedlab.charts.template.Theme`), light ones by dark ones, in the figure right above. Where that does not reach (a
notebook that is not trusted, VS Code, plain ``figure.show()``) the figure stands on its own light ground.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING, Any

from pagedlab.charts.template import DARK, LIGHT, rgb

if TYPE_CHECKING:
    import plotly.graph_objects as go

_OUTPUT = ".jp-OutputArea-child"
_FIGURE = f"{_OUTPUT}:has(+ {_OUTPUT} [data-pagedlab-chart])"
_MIME = "application/vnd.plotly.v1+json"


def summary(figure: go.Figure) -> str:
    """Return a figure of this package, or of a scene, in words."""
    return str(figure.layout.meta["summary"])


def show(figure: go.Figure, *, plain: str | None = None) -> None:
    """Show a figure with its summary below it; outside a notebook, print the summary.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        One of this package, or of a scene (`TimelineScene.to_plotly`).
    plain : str or None
        What stands for the figure where there are no pictures; its summary if None.
    """
    words = summary(figure)
    if not _in_notebook():
        print(plain or words)
        return
    from IPython.display import display

    # The figure's own MIME type: the page has plotly.js already, so the output needs to carry none. (Not "responsive":
    # JupyterLab fits the width by itself, and when it draws anew for another theme, such a plot would have no height.)
    drawn = {**figure.to_plotly_json(), "config": {"displayModeBar": False}}
    display({_MIME: drawn, "text/plain": plain or words}, raw=True)
    display({"text/html": _words(words), "text/plain": words}, raw=True)


def _words(words: str) -> str:
    return f'<style>{style_sheet()}</style><p data-pagedlab-chart class="pagedlab-chart-words">{html.escape(words)}</p>'


def style_sheet() -> str:
    """Return the rules that put a figure, shown right above its words, into the theme of a JupyterLab page."""
    hover = f"{_FIGURE} .hoverlayer :is(path, rect){_has('fill', LIGHT.ground)}"
    rules = [
        f"{_FIGURE}, .pagedlab-chart-words {{ color-scheme: light dark; }}",
        f'[data-jp-theme-light="true"] :is({_FIGURE}, .pagedlab-chart-words) {{ color-scheme: light; }}',
        f'[data-jp-theme-light="false"] :is({_FIGURE}, .pagedlab-chart-words) {{ color-scheme: dark; }}',
        f"{_FIGURE} .main-svg {{ background: none !important; }}",
        f"{hover} {{ fill: {_either('ground')} !important; }}",
        f".pagedlab-chart-words {{ margin: 0 0 8px; color: {_either('muted')}; font-size: 13px; max-width: 76ch; }}",
    ]
    for role in ("ink", "muted", "grid", "axis"):
        for what in ("fill", "stroke"):
            color = getattr(LIGHT, role)
            rules.append(f"{_FIGURE} {_has(what, color)} {{ {what}: {_either(role)} !important; }}")
    return "\n".join(rules)


def _has(what: str, color: str) -> str:
    """Return the selector of what plotly has given a colour, as browsers write it down."""
    red, green, blue = rgb(color)
    return f'[style*="{what}: rgb({red}, {green}, {blue})"]'


def _either(role: str) -> str:
    return f"light-dark({getattr(LIGHT, role)}, {getattr(DARK, role)})"


def _in_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
