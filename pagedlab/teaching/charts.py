"""Charts of a trace: what the scheduler granted, step by step.

>>> from pagedlab.trace import Trace
>>> tokens_by_request(Trace.from_records([]))
{}

A chart is a plotly figure, shown by JupyterLab without a network. Where plotly is missing (plain Python), the same
numbers are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pagedlab.events import RequestAdded, RequestScheduled
from pagedlab.teaching.telling import in_notebook
from pagedlab.trace import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe-Ito: one colour for each request, the same as in the player."""

PATTERNS = ("", "/", ".", "x", "-")
"""And one pattern, so that nobody needs the colour."""

GREY = "#7a7a7a"
"""Text, axes and lines: readable on JupyterLab's light and dark pages."""


def tokens_by_request(trace: Trace) -> dict[str, list[int]]:
    """Return for each request how many tokens it was granted in each step of the trace."""
    granted: dict[str, list[int]] = {}
    for record in trace:
        if isinstance(record.event, RequestScheduled):
            tokens = granted.setdefault(record.event.request_id, [0] * trace.num_steps)
            tokens[record.step] += record.event.num_scheduled_tokens
    return granted


def tokens_by_kind(trace: Trace) -> dict[str, list[int]]:
    """Return how many prompt tokens and how many output tokens each step of the trace computed."""
    prompts = {event.request_id: len(event.prompt_token_ids) for event in trace.events(RequestAdded)}
    kinds = {"prompt tokens": [0] * trace.num_steps, "output tokens": [0] * trace.num_steps}
    for record in trace:
        event = record.event
        if isinstance(event, RequestScheduled):
            of_prompt = max(0, min(event.num_scheduled_tokens, prompts[event.request_id] - event.num_computed_tokens))
            kinds["prompt tokens"][record.step] += of_prompt
            kinds["output tokens"][record.step] += event.num_scheduled_tokens - of_prompt
    return kinds


def show_tokens(trace: Trace, title: str, by: str = "request") -> None:
    """Show what each step's budget was spent on.

    Parameters
    ----------
    trace : Trace
    title : str
        What the chart shows, as a finding.
    by : {"request", "kind"}
        One bar segment for each request, or one for prompt and one for output tokens.
    """
    counts = tokens_by_request(trace) if by == "request" else tokens_by_kind(trace)
    budget = int(trace.settings["max_num_batched_tokens"])
    if in_notebook() and find_spec("plotly") is not None:
        from IPython.display import display

        # The figure's own MIME type: the page has plotly.js already, so the output needs to carry none.
        figure = {**_figure(counts, budget, title).to_plotly_json(), "config": {"displayModeBar": False}}
        display({"application/vnd.plotly.v1+json": figure, "text/plain": _text(counts, title)}, raw=True)
    else:
        print(_text(counts, title))


def _figure(counts: Mapping[str, Sequence[int]], budget: int, title: str) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure(layout=_layout(title))
    for index, (name, tokens) in enumerate(counts.items()):
        few = len(tokens) <= 40
        figure.add_bar(
            x=list(range(len(tokens))),
            y=list(tokens),
            name=name,
            marker={
                "color": COLORS[index % len(COLORS)],
                "pattern": {"shape": PATTERNS[index % len(PATTERNS)], "fgcolor": "rgba(255,255,255,.65)", "size": 6},
                "line": {"width": 0},
            },
            text=[f"{name} {count}" if count else "" for count in tokens] if few and len(name) <= 3 else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate=f"step %{{x}}: {name} gets %{{y}} tokens<extra></extra>",
        )
    figure.add_hline(y=budget, line={"color": GREY, "dash": "dash", "width": 1})
    figure.add_annotation(
        x=1, xref="paper", xanchor="right", y=budget, yanchor="bottom", showarrow=False, text=f"the budget: {budget}"
    )
    return figure


def _layout(title: str) -> dict[str, Any]:
    axis = {"gridcolor": "rgba(128,128,128,.25)", "zerolinecolor": "rgba(128,128,128,.5)"}
    return {
        "title": {"text": title, "font": {"size": 15}, "x": 0, "xref": "paper"},
        "barmode": "stack",
        "bargap": 0.15,
        "font": {"color": GREY, "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": 320,
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "xaxis": {"title": "step (one run of the model)", **axis},
        "yaxis": {"title": "tokens", "rangemode": "tozero", **axis},
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 1,
            "xanchor": "right",
            "traceorder": "normal",
        },
        "uniformtext": {"minsize": 11, "mode": "hide"},
    }


def _text(counts: Mapping[str, Sequence[int]], title: str) -> str:
    """The chart as a table of numbers, with long runs of steps cut."""
    steps = min(24, max((len(tokens) for tokens in counts.values()), default=0))
    width = max((len(name) for name in counts), default=0)
    lines = [title, " " * width + " | " + " ".join(f"{step:>4}" for step in range(steps)) + "   (step)"]
    for name, tokens in counts.items():
        lines.append(f"{name:<{width}} | " + " ".join(f"{count or '.':>4}" for count in tokens[:steps]))
    return "\n".join(lines)
