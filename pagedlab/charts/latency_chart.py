"""How long requests wait: for their first token, between tokens, in all.

    charts.show(charts.latency(trace))
    charts.show(charts.latency(whole, chunked))          # two engines beside each other

The times are those of `pagedlab.trace.time_model`: a floor of what the steps of the trace take on a named GPU. They are
for comparing schedules.

vLLM counterpart: what ``vllm bench serve`` reports at 0.25.1 as TTFT, ITL and E2EL, with their medians and P99.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedlab.charts.labels import digits, named_rows
from pagedlab.charts.template import LINES, name_axis, new_figure, rgb
from pagedlab.errors import ChartError, TraceError
from pagedlab.events import RequestAdded, RequestFinished, TokenAccepted
from pagedlab.scenes.timeline_captions import titles
from pagedlab.scenes.words import counted
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPU, GPUS, MODELS, STEP_OVERHEAD_SECONDS, ModelShape, timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

MEASURES = ("time to first token", "time between tokens", "time in all")

_ROW, _BELOW, _BETWEEN = 74, 52, 0.06
_MOST_POINTS = 200
"""How many points a row shows; of more, only those outside the box's whiskers."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in milliseconds: some percentiles, with linear interpolation as NumPy has it.

    >>> Spread.of([4.0, 1.0, 2.0, 3.0])
    Spread(count=4, least=1.0, p25=1.75, median=2.5, p75=3.25, p99=3.97)
    """

    count: int
    least: float
    p25: float
    median: float
    p75: float
    p99: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Take the spread of at least one value."""
        cuts = statistics.quantiles(times if len(times) > 1 else [*times, *times], n=100, method="inclusive")
        return cls(len(times), min(times), cuts[24], cuts[49], cuts[74], cuts[98])


Spreads = Mapping[str, Spread]
"""By measure; without those of which an engine has no value."""


def latency(
    trace: Trace,
    *more_traces: Trace,
    names: Sequence[str] | None = None,
    gpu: GPU = GPUS["H200"],
    model: ModelShape = MODELS["Llama-3-8B"],
    overhead_seconds: float = STEP_OVERHEAD_SECONDS,
) -> go.Figure:
    """Show the distributions of the time to first token, between tokens and in all, one row for each trace.

    Parameters
    ----------
    trace, *more_traces : Trace
        One for each engine; four at most.
    names : sequence of str or None
        What the engines are called; by default what their settings differ in.
    gpu, model, overhead_seconds
        On what the steps are timed (`pagedlab.trace.time_model.estimate_step`).

    Returns
    -------
    plotly.graph_objects.Figure
        For each measure and trace a box (half of all values; whiskers from the least to the 99th percentile) and its
        points, in milliseconds.

    Raises
    ------
    TraceError
        If no step of a trace has finished, or no request of it has got a token.
    ChartError
        If there are more than four traces, or not one name for each.
    ImportError
        Without plotly.
    """
    traces = (trace, *more_traces)
    called = _called(traces, names)
    values = [times_of(item, gpu, model, overhead_seconds) for item in traces]
    for name, times in zip(called, values, strict=True):
        if not times[MEASURES[0]]:
            raise TraceError(f"no request of {name!r} has got a token: record until one has")
    spreads = [{measure: Spread.of(of) for measure, of in times.items() if of} for times in values]
    finding = _finding(called, spreads)
    figure = new_figure(
        finding,
        "",
        _summary(called, spreads, finding, f"{model.name} on {gpu.name}"),
        showlegend=False,
        yaxis=named_rows(called, 20),
    )
    figure.update_layout(height=figure.layout.margin.t + _ROW * len(called) + _BELOW)
    shown = [measure for measure in MEASURES if any(times[measure] for times in values)]
    width = (1 + _BETWEEN) / len(shown) - _BETWEEN
    for column, measure in enumerate(shown):
        left = column * (width + _BETWEEN)
        rows = [(times[measure], of.get(measure)) for times, of in zip(values, spreads, strict=True)]
        _add_panel(figure, column, (left, left + width), measure, rows)
    return figure


def _called(traces: Sequence[Trace], names: Sequence[str] | None) -> list[str]:
    """Return what the engines are called."""
    if len(traces) > len(LINES):
        raise ChartError(f"{len(traces)} traces are too many for one figure: give {len(LINES)} at most")
    if names is None:
        return titles([trace.settings for trace in traces])
    if len(names) != len(traces):
        raise ChartError(f"{len(names)} names for {len(traces)} traces: give one for each, or none at all")
    return list(names)


def times_of(
    trace: Trace, gpu: GPU, model: ModelShape, overhead_seconds: float = STEP_OVERHEAD_SECONDS
) -> dict[str, list[float]]:
    """Return all values of each of the `MEASURES`, in milliseconds.

    The time in all is that of requests which have ended by themselves, from their arrival to their last token.
    """
    times: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    ended, lives = _ended(trace), Counter[str]()
    for request in timeline(trace, gpu, model, overhead_seconds).requests:
        life = (request.request_id, lives[request.request_id])
        lives[request.request_id] += 1
        if not request.token_times:
            continue
        times[MEASURES[0]].append(request.time_to_first_token)
        times[MEASURES[1]] += request.inter_token_latencies
        if life in ended:
            times[MEASURES[2]].append(request.token_times[-1] - request.added)
    return times


def _ended(trace: Trace) -> set[tuple[str, int]]:
    """Return who has ended by itself: id, and which of the requests with that id, counted from 0."""
    lives, ended = Counter[str](), set()
    for record in trace:
        match record.event:
            case RequestAdded(request_id=request_id):
                lives[request_id] += 1
            case TokenAccepted(request_id=request_id) if not lives[request_id]:  # it was there before the recording
                lives[request_id] = 1
            case RequestFinished(request_id=request_id, reason=reason) if reason != "abort":
                ended.add((request_id, lives[request_id] - 1))
            case _:
                pass
    return ended


# --- drawing ------------------------------------------------------------------------------------------------------


def _add_panel(
    figure: go.Figure,
    column: int,
    domain: tuple[float, float],
    measure: str,
    rows: Sequence[tuple[Sequence[float], Spread | None]],
) -> None:
    """Draw one measure, a row for each engine."""
    number = "" if column == 0 else str(column + 1)
    most = max(max(times, default=0.0) for times, _ in rows)
    room = [0, 1.45 * most or 1.0]  # also for the number behind the longest whisker
    axis = {"domain": domain, "range": room, "showgrid": True, "nticks": 5, "anchor": "y"}
    figure.update_layout({f"xaxis{number}": axis})
    name_axis(figure, f"{measure}, ms", left=domain[0])
    for row, (times, spread) in enumerate(rows):
        if spread:
            _add_spread(figure, row, times, spread, f"x{number}", most)


def _add_spread(figure: go.Figure, row: int, times: Sequence[float], spread: Spread, axis: str, most: float) -> None:
    """Draw a box with its whiskers, the points below it, and write the median and the 99th percentile beside it."""
    color = LINES[row]
    figure.add_box(
        y=[row - 0.06], q1=[spread.p25], median=[spread.median], q3=[spread.p75],
        lowerfence=[spread.least], upperfence=[spread.p99],
        orientation="h", xaxis=axis, width=0.34, fillcolor=_pale(color), hoverinfo="skip",
    )  # fmt: skip
    points = sorted(times)
    if len(points) > _MOST_POINTS:
        points = [time for time in points if time > spread.p99]
    figure.add_scatter(
        x=points, y=[row + 0.2 + 0.05 * level for level in _levels(points, most)], mode="markers", xaxis=axis,
        marker={"color": color, "size": 5, "opacity": 0.75}, hovertemplate="%{x:,.2f} ms<extra></extra>",
    )  # fmt: skip
    figure.add_annotation(
        x=spread.median, xref=axis, y=row - 0.24, yanchor="bottom",
        text=f"{'median ' if row == 0 else ''}{digits(spread.median)}",
    )  # fmt: skip
    figure.add_annotation(
        x=spread.p99, xref=axis, xanchor="left", xshift=4, y=row - 0.06, yanchor="middle",
        text=f"{'p99 ' if row == 0 else ''}{digits(spread.p99)}",
    )  # fmt: skip


def _levels(points: Sequence[float], most: float) -> list[int]:
    """Return how deep each point stands below its neighbours, so that it hides none of them (the fifth does)."""
    crowd: Counter[int] = Counter()
    levels = []
    for time in points:
        place = int(60 * time / most) if most else 0
        levels.append(crowd[place] % 5)
        crowd[place] += 1
    return levels


def _pale(color: str) -> str:
    red, green, blue = rgb(color)
    return f"rgba({red}, {green}, {blue}, 0.35)"


# --- words --------------------------------------------------------------------------------------------------------


def _finding(names: Sequence[str], spreads: Sequence[Spreads]) -> str:
    """Say where the engines differ most; of one engine, how long the first token takes."""
    if len(names) == 1:
        first = spreads[0][MEASURES[0]]
        return (
            f"Half of the first tokens come within {digits(first.median)} ms, 99 of 100 within {digits(first.p99)} ms"
        )
    differences = []
    for measure in MEASURES:
        there = [(name, of[measure]) for name, of in zip(names, spreads, strict=True) if measure in of]
        if len(there) > 1:
            differences.append(_difference(f"Median {measure}", [(of.median, name) for name, of in there]))
            differences.append(_difference(f"P99 of the {measure}", [(of.p99, name) for name, of in there]))
    ratio, told = max(differences)
    return told if ratio >= 1.05 else "No median and no p99 differs by 5% or more"


def _difference(what: str, found: Sequence[tuple[float, str]]) -> tuple[float, str]:
    (least, best), (most, worst) = min(found), max(found)
    ratio = most / least if least else 1.0
    return ratio, f"{what}: {digits(least)} ms, {best}; {digits(most)} ms ({ratio:.1f} times), {worst}"


def _summary(names: Sequence[str], spreads: Sequence[Spreads], finding: str, where: str) -> str:
    told = [f"{finding}. Modelled for {where}."]
    for name, of in zip(names, spreads, strict=True):
        facts = [
            f"{measure}: median {digits(spread.median)}, p99 {digits(spread.p99)} ms ({counted(spread.count, 'value')})"
            for measure, spread in of.items()
        ]
        told.append(f"{name}: {'; '.join(facts)}.")
    return " ".join(told)
