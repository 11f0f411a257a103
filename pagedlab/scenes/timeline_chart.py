"""The scene `timeline` as one plotly figure: the whole run at once, to zoom into.

For each engine three panels share the time axis: requests × steps, the budget of each step, the idle seats.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedlab.charts.template import FONT, GREYS, INSIDE, axis_name, filled, font_on, look, new_figure
from pagedlab.scenes.timeline_runs import Grant, Run
from pagedlab.scenes.words import counted, label, name

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW, _BUDGET, _SEATS, _BETWEEN = 24, 110, 50, 44
_MOST_NAMES = 24


def figure(
    runs: Sequence[Run],
    titles: Sequence[str],
    edges: Sequence[Sequence[float]],
    unit: str,
    requests: Sequence[str],
    summary: str,
) -> go.Figure:
    """Return the figure.

    Parameters
    ----------
    runs, titles, edges : sequence
        The engines: what they did, what they are called, when their steps begin.
    unit : str
        What the axis counts.
    requests : sequence of str
        All requests; the place of one gives its colour and pattern.
    summary : str
        The figure in words; it goes into ``layout.meta``.
    """
    panels = _panels(runs)
    end = max(times[-1] for times in edges)
    chart = new_figure(_finding(runs, titles, None if unit == "step" else edges), "", summary)
    chart.update_layout(_layout(panels, runs, titles, unit, end, chart.layout.margin.t))
    owners = {request_id: at for at, request_id in enumerate(requests)}
    for lane, (run, times) in enumerate(zip(runs, edges, strict=True)):
        lane_of_run = _Lane.of(run, times, lane, INSIDE / end)
        for row, request_id in enumerate(run.requests):
            for trace in _of_request(lane_of_run, row, request_id, owners[request_id]):
                chart.add_bar(**trace)
        chart.add_bar(**_idle(run, times, lane))
        for marks in _marks(run, times, lane):
            chart.add_scatter(**marks)
        if run.budget:
            chart.add_shape(
                type="line", xref="paper", x0=0, x1=1, yref=f"y{3 * lane + 2}", y0=run.budget, y1=run.budget,
                line={"dash": "dash"},
            )  # fmt: skip
    return chart


def _panels(runs: Sequence[Run]) -> list[int]:
    """Return the heights of all panels in pixels, from the top."""
    return [size for run in runs for size in (_ROW * max(2, min(len(run.requests), _MOST_NAMES)), _BUDGET, _SEATS)]


def _layout(
    panels: Sequence[int], runs: Sequence[Run], titles: Sequence[str], unit: str, end: float, top_margin: float
) -> dict[str, Any]:  # fmt: skip
    gaps = [_BETWEEN if at % 3 == 2 else 10 for at in range(len(panels))][:-1]
    inside = sum(panels) + sum(gaps)
    axes: dict[str, Any] = {}
    notes = []
    top = float(inside)
    for at, size in enumerate(panels):
        run = runs[at // 3]
        axis: dict[str, Any] = {"domain": [max(0.0, (top - size) / inside), top / inside], "anchor": "x"}
        if at % 3 == 0:
            few = run.requests if len(run.requests) <= _MOST_NAMES else []
            axis |= {
                "range": [len(run.requests) - 0.4, -0.6],
                "tickvals": list(range(len(few))),
                "ticktext": [html.escape(label(request_id, 12)) for request_id in few],
                "zeroline": False,
                "title": {"text": "" if few else f"{len(run.requests):,} requests"},
            }
            notes.append(
                {"text": html.escape(titles[at // 3]), "x": 0, "xref": "paper", "xanchor": "left", "y": top / inside,
                 "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": {"size": 14}}
            )  # fmt: skip
        else:
            axis |= {"title": {"text": "tokens" if at % 3 == 1 else "idle<br>seats"}, "rangemode": "tozero"}
            axis |= {"nticks": 3} if at % 3 == 2 else {}
            if at % 3 == 2:
                axis["range"] = [0, max(1, run.num_seats or max(column.idle for column in run.columns))]
        axes[axis_name("yaxis", at + 1)] = axis
        top -= size + (gaps[at] if at < len(gaps) else 0)
    title = "step (one run of the model)" if unit == "step" else unit
    return {
        "barmode": "stack",
        "height": inside + top_margin + 56,
        "margin": {"l": 110, "b": 56},
        "xaxis": {"title": {"text": title}, "range": [0, end], "anchor": f"y{len(panels)}", "showgrid": True},
        "annotations": notes,
        "showlegend": False,
        **axes,
    }


def _finding(runs: Sequence[Run], titles: Sequence[str], edges: Sequence[Sequence[float]] | None) -> str:
    """Say in one line what the figure shows."""
    told = []
    for lane, (run, title) in enumerate(zip(runs, titles, strict=True)):
        time = f" in {edges[lane][-1]:,.1f} ms" if edges else ""
        idle = f", {run.idle_seat_steps:,} seat-steps idle" if run.num_seats else ""
        told.append(f"{title}: {counted(run.num_steps, 'step')}{time}{idle}")
    return "; ".join(told)


def _axis(lane: int, panel: int) -> str:
    return axis_name("y", 3 * lane + panel + 1)


@dataclass(frozen=True, slots=True)
class _Lane:
    """An engine's run and what all its requests need of it.

    Attributes
    ----------
    number : int
        Counted from 0.
    scale : float
        How many pixels a unit of time is wide.
    grants : dict of str to list of tuple
        By request, the steps in which it got tokens, counted from 0, and what it got.
    most : int
        The budget; or the tokens of a step, if one had more.
    """

    run: Run
    times: Sequence[float]
    number: int
    scale: float
    grants: dict[str, list[tuple[int, Grant]]]
    most: int

    @classmethod
    def of(cls, run: Run, times: Sequence[float], number: int, scale: float) -> _Lane:
        grants: dict[str, list[tuple[int, Grant]]] = {request_id: [] for request_id in run.requests}
        for at, column in enumerate(run.columns):
            for grant in column.grants:
                grants[grant.request_id].append((at, grant))
        most = max([run.budget or 0, *(column.num_tokens for column in run.columns)])
        return cls(run, times, number, scale, grants, most)


def _of_request(lane: _Lane, row: int, request_id: str, owner: int) -> list[dict[str, Any]]:
    """Return a request's cells and its shares of the budgets."""
    run, times, granted = lane.run, lane.times, lane.grants[request_id]
    starts = [times[at] for at, _ in granted]
    widths = [times[at + 1] - times[at] for at, _ in granted]
    few = run.num_steps <= 60
    who = name(request_id)
    color, pattern = look(owner)
    painted: dict[str, Any] = {
        "name": html.escape(who),
        "marker": filled(color, pattern) | {"line": {"width": 1 if few else 0}},
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "insidetextfont": font_on(color),
        "customdata": [_about(who, run.columns[at].step, grant) for at, grant in granted],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    numbers = [
        str(grant.num_tokens) if grant.is_prefill and width * lane.scale >= 8 * len(str(grant.num_tokens)) + 4 else ""
        for (_, grant), width in zip(granted, widths, strict=True)
    ]
    high = [_BUDGET * grant.num_tokens >= (FONT + 5) * lane.most for _, grant in granted]
    cells = {
        "text": numbers if len(run.requests) <= _MOST_NAMES else None,
        "orientation": "h", "base": starts, "x": widths, "y": [row] * len(granted),
        "width": [0.8 if grant.is_prefill else 0.35 for _, grant in granted], "yaxis": _axis(lane.number, 0), **painted,
    }  # fmt: skip
    shares = {
        "text": [number if has_room else "" for number, has_room in zip(numbers, high, strict=True)],
        "x": [start + width / 2 for start, width in zip(starts, widths, strict=True)],
        "y": [grant.num_tokens for _, grant in granted],
        "width": [0.86 * width for width in widths],
        "yaxis": _axis(lane.number, 1),
        **painted,
    }
    return [cells, shares]


def _about(who: str, step: int, grant: Grant) -> str:
    what = "prefill" if grant.is_prefill else "decode"
    return html.escape(f"step {step}: {who} gets {grant.num_tokens:,} ({what})")


def _idle(run: Run, times: Sequence[float], lane: int) -> dict[str, Any]:
    return {
        "name": "idle seats",
        "x": [(times[at] + times[at + 1]) / 2 for at in range(run.num_steps)],
        "y": [column.idle for column in run.columns],
        "width": [0.86 * (times[at + 1] - times[at]) for at in range(run.num_steps)],
        "marker": filled(GREYS[1], "/") | {"line": {"width": 0}},
        "customdata": [column.step for column in run.columns],
        "hovertemplate": "step %{customdata}: %{y} seats idle<extra></extra>",
        "yaxis": _axis(lane, 2),
    }


def _marks(run: Run, times: Sequence[float], lane: int) -> list[dict[str, Any]]:
    """Return where requests come, wait, end and are preempted."""
    rows = {request_id: at for at, request_id in enumerate(run.requests)}
    points: dict[str, list[tuple[float, str]]] = {"arrives": [], "ends": [], "is preempted": []}
    since: dict[str, float] = {}
    waits: list[tuple[float | None, int | None]] = []
    for moment in run.moments:
        time = times[min(moment.column, len(times) - 1)]
        for kind, who in (("arrives", moment.arrived), ("ends", moment.ended), ("is preempted", moment.lost)):
            points[kind] += [(time, request_id) for request_id in who]
        for request_id in (*(grant.request_id for grant in moment.grants), *moment.ended):
            if request_id in since:
                row = rows[request_id]
                waits += [(since.pop(request_id), row), (time, row), (None, None)]
        since |= dict.fromkeys((*moment.arrived, *moment.lost), time)
    for request_id, time in since.items():
        waits += [(time, rows[request_id]), (times[-1], rows[request_id]), (None, None)]
    line = {
        "mode": "lines", "name": "waits", "x": [x for x, _ in waits], "y": [y for _, y in waits],
        "line": {"color": GREYS[1], "width": 1.5}, "hoverinfo": "skip", "yaxis": _axis(lane, 0),
    }  # fmt: skip
    size = min(16.0, 0.8 * _panels([run])[0] / max(1, len(rows)))
    return [line] + [
        {
            "mode": "markers", "name": kind, "x": [time for time, _ in found], "y": [rows[who] for _, who in found],
            "marker": {"symbol": "x-thin-open" if kind == "is preempted" else "line-ns-open",
                       "size": 0.6 * size if kind == "is preempted" else size,
                       "color": GREYS[0], "line": {"width": 2, "color": GREYS[kind == "arrives"]}},
            "customdata": [html.escape(name(who)) for _, who in found],
            "hovertemplate": f"%{{customdata}} {kind}<extra></extra>", "yaxis": _axis(lane, 0),
        }
        for kind, found in points.items()
        if found
    ]  # fmt: skip
