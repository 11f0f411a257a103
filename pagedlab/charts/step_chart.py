"""What the parts of a step take.

    ways = {way: data["engine"][way]["step_us"] for way in ("graphs", "eager")}
    charts.show(charts.step_parts(ways, step="a step of 256 decodes"))

``data`` is what ``pagedlab bench kernels --json`` writes: ``pagedlab/bench/recorded/kernels.json``, for one.

vLLM has no counterpart; a profile of it (``--profiler-config`` at 0.25.1) tells such times one by one.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pagedlab.charts.labels import digits, named_rows, width_of
from pagedlab.charts.template import INSIDE, INSIDE_BESIDE_NAMES, filled, font_on, look, new_figure
from pagedlab.errors import ChartError

if TYPE_CHECKING:
    import plotly.graph_objects as go

Ways = Mapping[str, Mapping[str, float]]

_ROW, _BELOW, _LEGEND_ROW, _KEY = 56, 56, 22, 46
_ROOM = 1.1
"""How much longer the axis is than the longest bar: behind it stands the sum."""


def step_parts(ways: Ways, *, step: str = "a step") -> go.Figure:
    """Show what the parts of a step take, one bar for each way to run it.

    Parameters
    ----------
    ways : mapping of str to mapping of str to float
        For each way, the microseconds of each part, in order.
    step : str
        What was measured: ``"a step of 256 decodes"``.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar trace for each part, one bar a way, stacked.

    Raises
    ------
    ChartError
        If there is no way, a way has no parts, or the parts of two ways differ.
    ImportError
        Without plotly.
    """
    parts = _parts(ways)
    totals = {way: sum(of.values()) for way, of in ways.items()}
    stop = _ROOM * max(totals.values())
    finding = _finding(ways, totals, step)
    figure = new_figure(
        finding,
        "",
        _summary(finding, ways, totals),
        barmode="stack",
        bargap=0.3,
        yaxis=named_rows(list(ways), 32),
        xaxis={"title": {"text": f"µs, {html.escape(step)}"}, "range": [0, stop], "showgrid": True},
    )
    for at, part in enumerate(parts):
        color, pattern = look(at)
        numbers = [of[part] for of in ways.values()]
        texts = [f"{part} {digits(number)}" for number in numbers]
        figure.add_bar(
            y=list(range(len(ways))),
            x=numbers,
            name=html.escape(part),
            orientation="h",
            marker=filled(color, pattern),
            text=[
                html.escape(text) if width_of(text) + 8 <= number / stop * INSIDE_BESIDE_NAMES else ""
                for text, number in zip(texts, numbers, strict=True)
            ],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont=font_on(color),
            customdata=texts,
            hovertemplate="%{customdata} µs<extra></extra>",
        )
    for at, total in enumerate(totals.values()):
        figure.add_annotation(x=total, y=at, xanchor="left", xshift=4, text=digits(total))
    _put_legend_below(figure, len(ways), parts)
    return figure


def _parts(ways: Ways) -> list[str]:
    if not ways or not all(ways.values()):
        raise ChartError("there is no step to show: give the microseconds of its parts, for one way at least")
    parts = list(next(iter(ways.values())))
    for way, of in ways.items():
        if list(of) != parts:
            raise ChartError(f"{way} has the parts {', '.join(of)}; the first way has {', '.join(parts)}")
    return parts


def _put_legend_below(figure: go.Figure, num_ways: int, parts: list[str]) -> None:
    """Most parts are too short for their names."""
    num_rows = math.ceil(sum(width_of(part) + _KEY for part in parts) / INSIDE)
    top, below = figure.layout.margin.t - 18, _BELOW + _LEGEND_ROW * num_rows  # nothing stands above this plot
    figure.update_layout(
        height=top + _ROW * num_ways + below,
        margin={"t": top, "b": below},
        legend={"x": 0, "xanchor": "left", "xref": "container", "y": 0, "yanchor": "bottom", "yref": "container"},
        showlegend=True,
    )


def _finding(ways: Ways, totals: Mapping[str, float], step: str) -> str:
    """Say what the quickest and the slowest way take, and most of it for what."""
    told = []
    for way in dict.fromkeys((min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__))):
        part = max(ways[way], key=ways[way].__getitem__)
        share = ways[way][part] / totals[way] if totals[way] else 0.0
        told.append(f"{digits(totals[way])} µs, {share:.0%} of it {part}, with {way}")
    return f"{step[:1].upper()}{step[1:]}: {'; '.join(told)}"


def _summary(finding: str, ways: Ways, totals: Mapping[str, float]) -> str:
    told = [f"{finding}."]
    for way, of in ways.items():
        parts = ", ".join(f"{part} {digits(number)}" for part, number in of.items())
        told.append(f"{way}, {digits(totals[way])} µs: {parts}.")
    return " ".join(told)
