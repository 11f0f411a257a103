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
"""Okabe-Ito: one colour for each request, the same as in the player (a test holds the two equal)."""

PATTERNS = ("", "/", ".", "x", "-")
"""And one pattern, so that nobody needs the colour; the player calls them plain, hatched, dotted, crossed, striped."""

KINDS = {"prompt tokens": ("#595959", ""), "output tokens": ("#949494", "/")}
"""Colour and pattern of what is no request: greys, which no request has."""

GROUND, INK = "#ffffff", "#111111"
"""A chart brings its own ground: no one colour of text is readable on both a white and a black page."""

FONT = 13
"""Pixels; nothing in a chart is smaller."""

MOST_STEPS = 24
"""How many steps the table of numbers shows."""


def request_index(trace: Trace) -> dict[str, int]:
    """Return each request's number, in the order in which they came: it decides on colour and pattern."""
    index: dict[str, int] = {}
    for event in (record.event for record in trace):
        if isinstance(event, RequestAdded | RequestScheduled):  # a trace may begin when some are there already
            index.setdefault(event.request_id, len(index))
    return index


def tokens_by_request(trace: Trace) -> dict[str, list[int]]:
    """Return for each request, in order of arrival, how many tokens it was granted in each step of the trace."""
    granted = {request_id: [0] * trace.num_steps for request_id in request_index(trace)}
    for record in trace:
        if isinstance(record.event, RequestScheduled):
            granted[record.event.request_id][record.step] += record.event.num_scheduled_tokens
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
    if by == "request":
        counts, looks = tokens_by_request(trace), [_look(index) for index in request_index(trace).values()]
    else:
        counts, looks = tokens_by_kind(trace), list(KINDS.values())
    budget = int(trace.settings["max_num_batched_tokens"])
    if in_notebook() and find_spec("plotly") is not None:
        from IPython.display import display

        # The figure's own MIME type: the page has plotly.js already, so the output needs to carry none.
        figure = {**_figure(counts, looks, budget, title).to_plotly_json(), "config": {"displayModeBar": False}}
        display({"application/vnd.plotly.v1+json": figure, "text/plain": _text(counts, title)}, raw=True)
    else:
        print(_text(counts, title))


def _look(index: int) -> tuple[str, str]:
    """Return the colour and the pattern of a request."""
    return COLORS[index % len(COLORS)], PATTERNS[index % len(PATTERNS)]


def _figure(
    counts: Mapping[str, Sequence[int]], looks: Sequence[tuple[str, str]], budget: int, title: str
) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure(layout=_layout(title))
    for (name, tokens), (color, pattern) in zip(counts.items(), looks, strict=True):
        few = len(tokens) <= 40
        figure.add_bar(
            x=list(range(len(tokens))),
            y=[count or None for count in tokens],  # a bar of 0 would leave its outline
            name=name,
            marker={
                "color": color,
                "pattern": {"shape": pattern, "fgcolor": "rgba(255,255,255,.65)", "size": 6},
                "line": {"width": 1 if few else 0, "color": INK},
            },
            text=[f"{name} {count}" if count else "" for count in tokens] if few and len(name) <= 3 else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": GROUND if color == COLORS[0] else INK, "size": FONT},
            hovertemplate=f"step %{{x}}: {name} gets %{{y}} tokens<extra></extra>",
        )
    figure.add_hline(y=budget, line={"color": INK, "dash": "dash", "width": 1})
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
        "font": {"color": INK, "size": FONT},
        "paper_bgcolor": GROUND,
        "plot_bgcolor": GROUND,
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
        "uniformtext": {"minsize": FONT, "mode": "hide"},
    }


def _text(counts: Mapping[str, Sequence[int]], title: str) -> str:
    """The chart as a table of numbers, with long runs of steps cut."""
    num_steps = max((len(tokens) for tokens in counts.values()), default=0)
    steps = min(MOST_STEPS, num_steps)
    width = max((len(name) for name in counts), default=0)
    more = f" … {num_steps - steps} more steps" if num_steps > steps else ""
    lines = [title, " " * width + " | " + " ".join(f"{step:>4}" for step in range(steps)) + f"   (step){more}"]
    for name, tokens in counts.items():
        lines.append(f"{name:<{width}} | " + " ".join(f"{count or '.':>4}" for count in tokens[:steps]))
    return "\n".join(lines)
