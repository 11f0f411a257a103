"""A kernel beside others, case by case, and the floors that none can go below.

    rows = [row for row in data["rows"] if row["kernel"] == "slot_mapping"]
    charts.show(charts.kernel_bars(rows))

``data`` is what ``pagedlab bench kernels --json`` writes: ``pagedlab/bench/recorded/kernels.json``, for one. Its rows
are `pagedlab.bench.kernels.KernelRow` s.

vLLM counterpart: ``benchmarks/kernels`` at 0.25.1 prints tables.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pagedlab.charts.labels import digits, from_to, named_rows, span, width_of
from pagedlab.charts.template import INSIDE_BESIDE_NAMES, filled, font_on, look, new_figure
from pagedlab.errors import ChartError
from pagedlab.scenes.words import counted

if TYPE_CHECKING:
    import plotly.graph_objects as go

OURS = "pagedlab"

UNITS = {"microseconds": "µs", "gb_per_s": "GB/s"}

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[float | None]]
"""By name, a number for each case; None where nobody measured it."""

_BAR, _GROUP_GAP, _BELOW = 24, 14, 56
_LOG = 20
"""From how many times the least value the axis of times is logarithmic."""


def kernel_bars(
    rows: Sequence[Row], *, measure: str = "microseconds", others: Sequence[str] | None = None
) -> go.Figure:
    """Show what a kernel takes in each case, beside others and its floors.

    Parameters
    ----------
    rows : sequence of mapping
        The rows of one kernel.
    measure : {"microseconds", "gb_per_s"}
        In GB/s the floor becomes a ceiling, the speed of a large copy.
    others : sequence of str or None
        Whom to show beside ours; by default all who are in the rows. The title compares with the first.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar trace for each kernel, one bar a case; floors are shapes.

    Raises
    ------
    ChartError
        If there are no rows, they are of several kernels, the measure is none of these, a row does not have it, or no
        row has one of ``others``.
    ImportError
        Without plotly.
    """
    _check(rows, measure)
    names = _others(rows, others)
    bars = {name: [_value(row, name, measure) for row in rows] for name in (OURS, *names)}
    floors = _floors(rows, measure)
    axis = _axis(bars, floors, measure)
    finding = _finding(rows, names, measure)
    figure = new_figure(
        finding,
        "",
        _summary(finding, bars, floors, UNITS[measure]),
        barmode="group",
        bargap=_GROUP_GAP / (_GROUP_GAP + _BAR * len(bars)),
        showlegend=False,
        yaxis=named_rows([row["case"] for row in rows], 32),
        xaxis=axis,
    )
    inside = len(rows) * (_BAR * len(bars) + _GROUP_GAP)
    figure.update_layout(height=figure.layout.margin.t + inside + _BELOW)
    for at, (name, numbers) in enumerate(bars.items()):
        _add_bars(figure, name, numbers, look(at), measure)
    _add_floors(figure, floors, axis)
    return figure


# --- numbers ------------------------------------------------------------------------------------------------------


def _check(rows: Sequence[Row], measure: str) -> None:
    if measure not in UNITS:
        raise ChartError(f"measure is {measure!r}: give {' or '.join(map(repr, UNITS))}")
    if not rows:
        raise ChartError("there are no rows to show: give those of one kernel")
    kernels = {row.get("kernel") for row in rows}
    if len(kernels) > 1:
        raise ChartError(f"the rows are of several kernels, {', '.join(map(str, kernels))}: give those of one")
    for row in rows:
        for key in ("case", "microseconds", measure):
            if row.get(key) is None:
                raise ChartError(f"the row of {row.get('case')!r} has no {key}: leave it out, or show another measure")


def _of_others(row: Row) -> Mapping[str, float]:
    return row.get("others") or {}


def _others(rows: Sequence[Row], wanted: Sequence[str] | None) -> list[str]:
    there = list(dict.fromkeys(name for row in rows for name in _of_others(row)))
    for name in wanted or ():
        if name not in there:
            raise ChartError(f"no row has a figure of {name!r}; there are {', '.join(map(repr, there)) or 'none'}")
    return there if wanted is None else list(wanted)


def _value(row: Row, name: str, measure: str) -> float | None:
    time = row["microseconds"] if name == OURS else _of_others(row).get(name)
    return None if time is None else _in_unit(row, time, measure)


def _in_unit(row: Row, time: float, measure: str) -> float:
    """Return a time, or the speed of who takes it."""
    return float(time) if measure == "microseconds" else row["gb_per_s"] * row["microseconds"] / time


def _floors(rows: Sequence[Row], measure: str) -> dict[str, list[float | None]]:
    """Return what no kernel can pass, by name."""
    keys = {"a large copy": "bytes_floor"} if measure == "gb_per_s" else {
        "launch floor": "launch_floor", "bytes floor": "bytes_floor"
    }  # fmt: skip
    floors = {
        name: [_in_unit(row, row[key], measure) if row.get(key) else None for row in rows] for name, key in keys.items()
    }
    return {name: numbers for name, numbers in floors.items() if any(numbers)}


# --- drawing ------------------------------------------------------------------------------------------------------


def _axis(bars: Columns, floors: Columns, measure: str) -> dict[str, Any]:
    """Return the axis of values, with room for the words behind the bars."""
    unit = UNITS[measure]
    numbers = [number for column in (*bars.values(), *floors.values()) for number in column if number is not None]
    low, high = min(numbers), max(numbers)
    if measure == "gb_per_s":  # the words stand in the bars, below the ceiling
        return {"title": {"text": unit}, "range": [0, 1.04 * high], "showgrid": True}
    ends = [
        (number, INSIDE_BESIDE_NAMES / (INSIDE_BESIDE_NAMES - width_of(text) - 8))
        for name, column in bars.items()
        for number, text in zip(column, _texts(name, column), strict=True)
        if number is not None
    ]
    if high < _LOG * low:
        stop = max(high, *(number * stretch for number, stretch in ends))
        return {"title": {"text": f"{unit} a launch"}, "range": [0, 1.04 * stop], "showgrid": True}
    start = math.log10(low / 2.5)
    stop = max(math.log10(high), *(start + (math.log10(number) - start) * stretch for number, stretch in ends))
    return {
        "title": {"text": f"{unit} a launch, logarithmic"},
        "type": "log",
        "dtick": 1,
        "range": [start, stop + 0.1],
        "showgrid": True,
        "exponentformat": "none",
    }


def _add_bars(
    figure: go.Figure, name: str, numbers: Sequence[float | None], look: tuple[str, str], measure: str
) -> None:
    color, pattern = look
    figure.add_bar(
        y=list(range(len(numbers))),
        x=numbers,
        name=html.escape(name),
        orientation="h",
        marker=filled(color, pattern),
        text=_texts(name, numbers),
        textposition="auto" if measure == "gb_per_s" else "outside",
        insidetextanchor="end",
        insidetextfont=font_on(color),
        cliponaxis=False,
        customdata=["" if number is None else digits(number) for number in numbers],
        hovertemplate=f"{html.escape(name)}: %{{customdata}} {UNITS[measure]}<extra></extra>",
    )


def _texts(name: str, numbers: Sequence[float | None]) -> list[str]:
    """Return the words at the ends of bars: numbers, the first one with the name."""
    texts = ["" if number is None else digits(number) for number in numbers]
    first = next(at for at, text in enumerate(texts) if text)
    texts[first] = f"{html.escape(name)}: {texts[first]}"
    return texts


def _add_floors(figure: go.Figure, floors: Columns, axis: Mapping[str, Any]) -> None:
    """Draw a line across each case's bars, and write above the uppermost what it is."""
    is_log = axis.get("type") == "log"
    tops: dict[str, float] = {}
    for name, numbers in floors.items():
        for at, number in enumerate(numbers):
            if number is None:
                continue
            tops.setdefault(name, math.log10(number) if is_log else number)
            dash = "solid" if name == "launch floor" else "dot"
            line = {"width": 2.5, "dash": dash}
            figure.add_shape(type="line", x0=number, x1=number, y0=at - 0.46, y1=at + 0.46, line=line)
    names = sorted(tops, key=tops.__getitem__)
    apart = (
        (tops[names[-1]] - tops[names[0]]) / (axis["range"][1] - axis["range"][0]) * INSIDE_BESIDE_NAMES
        if names
        else 0.0
    )
    is_tight = len(names) > 1 and apart < sum(map(width_of, names)) / 2 + 8
    for name, top in tops.items():
        anchor = "center" if not is_tight else "right" if name == names[0] else "left"
        figure.add_annotation(x=top, xanchor=anchor, y=1, yref="paper", yanchor="bottom", text=name)


# --- words --------------------------------------------------------------------------------------------------------


def _finding(rows: Sequence[Row], names: Sequence[str], measure: str) -> str:
    """Say how much faster ours is than the first of the others; or how near it comes to what a copy reaches."""
    kernel = str(rows[0].get("kernel", "kernel")).replace("_", " ").replace("kv ", "KV ")
    kernel = kernel[0].upper() + kernel[1:]
    shares = sorted(row["bytes_floor"] / row["microseconds"] for row in rows if row.get("bytes_floor"))
    if measure == "gb_per_s" and shares:
        reached = from_to(f"{shares[0]:.0%}", f"{shares[-1]:.0%}")
        return f"{kernel} reads and writes at {reached} of a large copy’s speed"
    for name in names:
        ratios = sorted(_of_others(row)[name] / row["microseconds"] for row in rows if name in _of_others(row))
        faster = from_to(_times(ratios[0]), _times(ratios[-1]))
        return f"{kernel}: {faster} times as fast as {name}, in {counted(len(ratios), 'case')}"
    return f"{kernel}: {span([row[measure] for row in rows])} {UNITS[measure]}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _summary(finding: str, bars: Columns, floors: Columns, unit: str) -> str:
    told = [f"{finding}."]
    for name, column in (*bars.items(), *((name[0].upper() + name[1:], column) for name, column in floors.items())):
        told.append(f"{name}: {span([number for number in column if number is not None])} {unit}.")
    return " ".join(told)
