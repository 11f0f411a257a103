"""A knob against what it changes: one panel for each measure, with the knee where there is one.

    rows = [{"budget": 16, "steps": 96}, {"budget": 64, "steps": 31}, {"budget": 256, "steps": 22}, ...]
    charts.show(charts.sweep(rows, x="budget", y="steps", labels={"budget": "token budget"}))

vLLM counterpart: ``vllm bench sweep`` at 0.25.1 runs a benchmark over settings.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pagedlab.charts.labels import digits
from pagedlab.charts.template import DASHES, LINES, axis_name, name_axis, new_figure
from pagedlab.errors import ChartError
from pagedlab.scenes.words import listed

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PANEL, _BETWEEN, _BELOW = 170, 44, 52
_LOG = 8
"""From how many times the least value on the horizontal axis is logarithmic."""
_NOISE = 0.02
"""How far a curve may go back and still be taken to go one way, as a share of its height."""
_BEND = 0.2
"""How far a curve must leave the straight line between its ends, as a share of its height, to have a knee."""


def sweep(
    results: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str | Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> go.Figure:
    """Show what a knob does to one or more measures.

    Parameters
    ----------
    results : sequence of mapping
        One for each setting that was tried, in any order.
    x : str
        The key of the knob. A number; the axis is logarithmic if the values are positive and far apart.
    y : str or sequence of str
        The keys of the measures.
    labels : mapping of str to str
        What keys are called: ``"time to first token, ms"``. A key without a label is called by its own name.

    Returns
    -------
    plotly.graph_objects.Figure
        A line for each measure, in a panel of its own. The knee (`knee`) of a measure is marked where it has one; the
        title tells of the first measure.

    Raises
    ------
    ChartError
        If there are no results, a key is missing, a value is no finite number, or a setting appears twice.
    ImportError
        Without plotly.
    """
    measures = [y] if isinstance(y, str) else list(y)
    if not measures:
        raise ChartError("y names no measure: give a key of the results, or several")
    called = {key: (labels or {}).get(key, key) for key in (x, *measures)}
    rows = _checked(results, [x, *measures])
    knobs = [row[x] for row in rows]
    curves = {measure: [row[measure] for row in rows] for measure in measures}
    inside = len(measures) * _PANEL + (len(measures) - 1) * _BETWEEN
    findings = [_finding(knobs, curves[measure], called[x], called[measure]) for measure in measures]
    findings = [finding[0].upper() + finding[1:] for finding in findings]
    figure = new_figure(
        findings[0],
        "",
        _summary(knobs, called[x], findings),
        showlegend=False,
        hovermode="x unified",
        xaxis={"title": {"text": html.escape(called[x])}, "anchor": axis_name("y", len(measures)), **_scale(knobs)},
    )
    figure.update_layout(height=figure.layout.margin.t + inside + _BELOW)
    for at, measure in enumerate(measures):
        bottom = (inside - _PANEL - at * (_PANEL + _BETWEEN)) / inside
        domain = [bottom, bottom + _PANEL / inside]
        figure.update_layout({axis_name("yaxis", at + 1): {"domain": domain, "rangemode": "tozero", "anchor": "x"}})
        name_axis(figure, called[measure], top=domain[1])
        _add_curve(figure, knobs, curves[measure], called[measure], at)
    return figure


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Return where a curve bends: the place that is farthest from the straight line between its ends.

    Parameters
    ----------
    x, y : sequence of float
        The curve, with ``x`` ascending; where that would be drawn on a logarithmic axis, so it is seen here.

    Returns
    -------
    int or None
        An index of ``x``. None if there are fewer than four points, the curve goes up and down, or it is nearly
        straight.

    Examples
    --------
    >>> knee([1, 2, 3, 4, 5, 6], [10, 50, 88, 92, 95, 96])
    2
    >>> knee([1, 2, 3, 4], [10, 20, 30, 40]) is None
    True
    """
    rise = y[-1] - y[0]
    if len(x) < 4 or not rise or not _is_monotone(y):
        return None
    across = [math.log(value) for value in x] if _is_log(x) else list(x)
    apart = [
        abs((b - y[0]) / rise - (a - across[0]) / (across[-1] - across[0])) for a, b in zip(across, y, strict=True)
    ]
    at = max(range(len(apart)), key=apart.__getitem__)
    return at if apart[at] >= _BEND else None


def _is_monotone(curve: Sequence[float]) -> bool:
    """Whether a curve goes one way, but for what may be noise."""
    rise = curve[-1] - curve[0]
    return all((b - a) * math.copysign(1, rise) >= -_NOISE * abs(rise) for a, b in pairwise(curve))


def _checked(results: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, float]]:
    """Return what is asked for of each result, in the order of the knob, or say what is wrong with it."""
    if not results:
        raise ChartError("there are no results to show: give one mapping for each setting that was tried")
    rows = []
    for number, result in enumerate(results):
        for key in keys:
            if key not in result:
                raise ChartError(f"result {number} has no {key!r}; it has {', '.join(map(repr, result)) or 'nothing'}")
            value = result[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ChartError(f"result {number}: {key} is {value!r}; a chart needs a finite number")
        rows.append({key: result[key] for key in keys})
    rows.sort(key=lambda row: row[keys[0]])
    for one, other in pairwise(rows):
        if one[keys[0]] == other[keys[0]]:
            raise ChartError(
                f"two results have {keys[0]} = {one[keys[0]]}: give one for each setting, a mean for example"
            )
    return rows


# --- drawing ------------------------------------------------------------------------------------------------------


def _add_curve(figure: go.Figure, knobs: Sequence[float], curve: Sequence[float], name: str, panel: int) -> None:
    yaxis = axis_name("y", panel + 1)
    color, dash = LINES[panel % len(LINES)], DASHES[panel % len(DASHES)]
    figure.add_scatter(
        x=knobs,
        y=curve,
        yaxis=yaxis,
        name=html.escape(name),
        mode="lines+markers",
        line={"color": color, "dash": dash, "width": 2.5},
        marker={"color": color, "size": 8},
        customdata=[digits(value) for value in curve],
        hovertemplate="%{customdata}",
    )
    at = knee(knobs, curve)
    if at is None:
        return
    where = math.log10(knobs[at]) if _is_log(knobs) else knobs[at]
    figure.add_shape(
        type="line", x0=knobs[at], x1=knobs[at], xref="x", y0=0, y1=1, yref=f"{yaxis} domain", line={"dash": "dot"}
    )
    figure.add_annotation(
        x=where, xref="x", xanchor="left", xshift=6, y=0, yref=f"{yaxis} domain", yanchor="bottom",
        text=f"knee: {digits(knobs[at])}",
    )  # fmt: skip


def _is_log(knobs: Sequence[float]) -> bool:
    """Whether values, in order, are positive and far apart."""
    return knobs[0] > 0 and knobs[-1] / knobs[0] >= _LOG


def _scale(knobs: Sequence[float]) -> dict[str, Any]:
    """Return the layout of the knob's axis: what was tried is what its ticks say."""
    ticks = {"tickvals": list(knobs), "ticktext": [digits(knob) for knob in knobs]} if len(knobs) <= 12 else {}
    if _is_log(knobs):
        low, high = math.log10(knobs[0]), math.log10(knobs[-1])
        pad = 0.04 * (high - low)
        return {"type": "log", "range": [low - pad, high + pad], **ticks}
    pad = 0.04 * (knobs[-1] - knobs[0]) or 0.5
    return {"range": [knobs[0] - pad, knobs[-1] + pad], **ticks}


# --- words --------------------------------------------------------------------------------------------------------


def _finding(knobs: Sequence[float], curve: Sequence[float], knob: str, measure: str) -> str:
    """Say what becomes of a measure."""
    knob, _ = _name_and_unit(knob)
    measure, unit = _name_and_unit(measure)
    first, last = digits(curve[0]), digits(curve[-1])
    if len(knobs) == 1:
        return f"{measure} is {first}{unit} at {knob} {digits(knobs[0])}, the only setting that was tried"
    if min(curve) == max(curve):
        return f"{measure} stays at {first}{unit}, whatever {knob} is"
    if not _is_monotone(curve):
        points = list(zip(curve, knobs, strict=True))
        (low, at_low), (high, at_high) = min(points), max(points)
        least = f"least at {knob} {digits(at_low)} ({digits(low)}{unit})"
        return f"{measure} is {least}, most at {digits(at_high)} ({digits(high)}{unit})"
    goes = f"{measure} goes from {first} to {last}{unit}"
    at = knee(knobs, curve)
    if at is None:
        return f"{goes} as {knob} goes from {digits(knobs[0])} to {digits(knobs[-1])}"
    by_then = (curve[at] - curve[0]) / (curve[-1] - curve[0])
    how_much = f"{by_then:.0%} of that by" if by_then >= 0.5 else f"{1 - by_then:.0%} of that after"
    return f"{goes}, {how_much} {knob} {digits(knobs[at])}"


def _name_and_unit(label: str) -> tuple[str, str]:
    """Take a label apart.

    >>> _name_and_unit("time to first token, ms"), _name_and_unit("tokens/s")
    (('time to first token', ' ms'), ('tokens/s', ''))
    """
    name, comma, unit = label.rpartition(", ")
    return (name, f" {unit}") if comma else (label, "")


def _summary(knobs: Sequence[float], knob: str, findings: Sequence[str]) -> str:
    tried = listed([digits(value) for value in knobs], limit=12)
    return " ".join([f"{knob}: {tried}.", *(f"{finding}." for finding in findings)])
