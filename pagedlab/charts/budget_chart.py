"""What the token budget of each step is spent on, and who waits meanwhile.

    charts.show(charts.budget(trace))                    # prefill and decode
    charts.show(charts.budget(trace, by="request"))      # a colour and a pattern for each request

vLLM counterpart: the metrics ``vllm:iteration_tokens_total`` and ``vllm:num_requests_waiting``
(``vllm/v1/metrics/loggers.py`` at 0.25.1), which are taken when the step is over.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pagedlab.charts.labels import add_limit, share, top_of, width_of
from pagedlab.charts.steps import Step, setting, step_axis, steps_of
from pagedlab.charts.template import FONT, GREYS, INSIDE, filled, font_on, look, name_axis, new_figure, whole_numbers
from pagedlab.errors import ChartError
from pagedlab.events import RequestAdded, RequestScheduled
from pagedlab.scenes.words import counted, label, listed
from pagedlab.trace import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

WAYS = {"phase": ("prefill", "decode"), "kind": ("prompt tokens", "output tokens"), "request": ()}
"""What a bar can be made of, and its parts; those of ``"request"`` are the trace's."""

_HEIGHT, _WAITING, _BETWEEN, _BELOW = 200, 60, 46, 52
_MOST_LOOKS = 12
"""How many requests a legend names."""


def budget(trace: Trace, *, by: str = "phase", title: str | None = None, waiting: bool = True) -> go.Figure:
    """Show how many tokens each step was granted, beside its budget.

    Parameters
    ----------
    trace : Trace
    by : {"phase", "kind", "request"}
        What a bar is made of: of prefills and decodes; of prompt and output tokens (a preempted request computes its
        output again, in a prefill); or of one part for each request.
    title : str or None
        The finding; computed from the trace if None.
    waiting : bool
        Whether to show below how many requests wait, if any ever do.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar trace for each part, with a number of tokens for each step; ``waiting`` below.

    Raises
    ------
    ChartError
        If ``by`` is none of these.
    TraceError
        If the trace has no step.
    ImportError
        Without plotly.
    """
    _check(by)
    steps = steps_of(trace)
    parts = _parts(trace, by, steps)
    limit = setting(trace, "max_num_batched_tokens")
    longest = max(step.waiting for step in steps) if waiting else 0
    with_queue = longest > 0
    inside = _HEIGHT + (_BETWEEN + _WAITING if with_queue else 0)
    floor = (inside - _HEIGHT) / inside
    top = top_of(max(step.num_tokens for step in steps), limit)
    finding = _finding(steps, limit, longest) if title is None else title
    figure = new_figure(
        finding,
        "tokens",
        _summary(finding, steps, limit, parts, longest),
        barmode="stack",
        xaxis=step_axis(steps) | ({"anchor": "y2"} if with_queue else {}),
        yaxis={"domain": [floor, 1], "range": [0, top], **whole_numbers(top)},
    )
    figure.update_layout(height=figure.layout.margin.t + inside + _BELOW)
    greys = list(zip(GREYS, ("", "/"), strict=True))  # colours are for requests
    looks = [look(at) for at in range(len(parts))] if by == "request" else greys
    _add_bars(figure, steps, parts, looks, _HEIGHT / top)
    if limit:
        add_limit(figure, limit, top, "budget")
    if with_queue:
        _add_queue(figure, steps, _WAITING / inside)
    return figure


# --- numbers ------------------------------------------------------------------------------------------------------


def parts_of(trace: Trace, by: str) -> dict[str, list[int]]:
    """Return how many tokens each part was granted in each step.

    Parameters
    ----------
    trace : Trace
    by : {"phase", "kind", "request"}
        As in `budget`. Requests are in order of arrival: their places decide on their colours and patterns.

    Raises
    ------
    ChartError
        If ``by`` is none of these.
    TraceError
        If the trace has no step.
    """
    _check(by)
    return _parts(trace, by, steps_of(trace))


def _check(by: str) -> None:
    if by not in WAYS:
        raise ChartError(f"by is {by!r}: give {', '.join(map(repr, WAYS))}")


def _parts(trace: Trace, by: str, steps: Sequence[Step]) -> dict[str, list[int]]:
    if by == "request":
        return _by_request(trace, steps)
    of_first = [step.num_prefill_tokens if by == "phase" else step.num_prompt_tokens for step in steps]
    rest = [step.num_tokens - count for step, count in zip(steps, of_first, strict=True)]
    return dict(zip(WAYS[by], (of_first, rest), strict=True))


def _by_request(trace: Trace, steps: Sequence[Step]) -> dict[str, list[int]]:
    granted: dict[str, list[int]] = {}
    for event in (record.event for record in trace):
        if isinstance(event, RequestAdded | RequestScheduled):  # a trace may begin when some are there already
            granted.setdefault(event.request_id, [0] * len(steps))
    for at, step in enumerate(steps):
        for grant in step.grants:
            granted[grant.request_id][at] += grant.num_tokens
    return granted


# --- drawing ------------------------------------------------------------------------------------------------------


def _add_bars(
    figure: go.Figure,
    steps: Sequence[Step],
    parts: Mapping[str, Sequence[int]],
    looks: Sequence[tuple[str, str]],
    pixels_per_token: float,
) -> None:
    """Stack the parts; where bars are wide and high enough they say whose they are and how high."""
    width = INSIDE / len(steps)
    for (name, tokens), (color, pattern) in zip(parts.items(), looks, strict=True):
        shown = html.escape(label(name, 16))
        texts = [f"{shown} {count}" if len(name) <= 3 else f"{count}" for count in tokens]
        figure.add_bar(
            x=[step.index for step in steps],
            y=[count or None for count in tokens],  # a bar of 0 would leave its outline
            name=shown,
            marker=filled(color, pattern) | ({} if width >= 12 else {"line": {"width": 0}}),
            text=[
                text if width_of(text) + 6 <= width and count * pixels_per_token >= FONT + 4 else ""
                for text, count in zip(texts, tokens, strict=True)
            ],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont=font_on(color),
            hovertemplate=f"step %{{x}}: {shown}, %{{y:,}} tokens<extra></extra>",
            showlegend=len(parts) <= _MOST_LOOKS,
        )


def _add_queue(figure: go.Figure, steps: Sequence[Step], height: float) -> None:
    figure.add_bar(
        x=[step.index for step in steps],
        y=[step.waiting for step in steps],
        yaxis="y2",
        name="waiting",
        marker={"color": GREYS[1], "line": {"width": 0}},
        hovertemplate="step %{x}: %{y:,} waiting<extra></extra>",
        showlegend=False,
    )
    ticks = whole_numbers(max(step.waiting for step in steps)) or {"nticks": 3}
    figure.update_layout(yaxis2={"domain": [0, height], "rangemode": "tozero", "anchor": "x", **ticks})
    name_axis(figure, "requests that wait", height)


# --- words --------------------------------------------------------------------------------------------------------


def _finding(steps: Sequence[Step], limit: int | None, longest: int) -> str:
    """Say how often the budget is spent, and how many wait at most."""
    queue = f", while up to {counted(longest, 'request')} {'waits' if longest == 1 else 'wait'}" if longest else ""
    if not limit:
        return f"{counted(sum(step.num_tokens for step in steps), 'token')} in {counted(len(steps), 'step')}{queue}"
    full = sum(step.num_tokens == limit for step in steps)
    if not full:
        most = max(step.num_tokens for step in steps)
        return f"No step spends the whole budget of {counted(limit, 'token')}, the fullest one {most:,}{queue}"
    verb = "spends" if full == 1 else "spend"
    return f"{full:,} of {counted(len(steps), 'step')} {verb} the whole budget of {counted(limit, 'token')}{queue}"


def _summary(
    finding: str, steps: Sequence[Step], limit: int | None, parts: Mapping[str, Sequence[int]], longest: int
) -> str:
    total = sum(step.num_tokens for step in steps)
    spent = f", {share(total / (limit * len(steps)))} of the budgets of {counted(len(steps), 'step')}" if limit else ""
    shares = [f"{label(name, 24)} {sum(tokens):,}" for name, tokens in parts.items()]
    told = [f"{finding}.", f"{counted(total, 'token')}{spent}: {listed(shares, _MOST_LOOKS)}."]
    if longest:
        with_queue = sum(step.waiting > 0 for step in steps)
        told.append(f"Requests wait in {counted(with_queue, 'step')}, {longest:,} at most.")
    return " ".join(told)
