"""How full memory is: KV blocks that are held, cached and empty, step by step.

    charts.show(charts.memory(trace))

Blocks are counted when the step's scheduler has decided (`pagedlab.charts.steps`).

vLLM counterpart: the gauge ``vllm:kv_cache_usage_perc`` (``vllm/v1/metrics/loggers.py`` at 0.25.1) is the held share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pagedlab.charts.labels import add_limit, share, spots, top_of, width_of
from pagedlab.charts.steps import Blocks, Step, step_axis, steps_of
from pagedlab.charts.template import GREYS, INSIDE, font_on, new_figure, pattern, whole_numbers
from pagedlab.errors import TraceError
from pagedlab.scenes.words import are, counted, listed
from pagedlab.trace import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT, _BELOW = 210, 52
_HELD, _CACHED, _EMPTY = "held by requests", "free, cached", "free, empty"


def memory(trace: Trace) -> go.Figure:
    """Show how many KV blocks are held, free but cached, and empty while each step's model runs.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    plotly.graph_objects.Figure
        Three stacked traces: a number of blocks for each step (the last one twice, to give its step a width).

    Raises
    ------
    TraceError
        If the trace has no step, or its settings do not tell ``num_blocks``.
    ImportError
        Without plotly.
    """
    steps = steps_of(trace)
    blocks = [step.blocks for step in steps if step.blocks]
    if len(blocks) < len(steps):
        raise TraceError("the trace's settings do not say how many blocks there are: set trace.settings['num_blocks']")
    usable = blocks[0].held + blocks[0].cached + blocks[0].empty
    top = top_of(max(count.held + count.cached for count in blocks), usable)
    lost = [step for step in steps if step.preempted]
    finding = _finding(steps, blocks, usable)
    figure = new_figure(
        finding,
        "KV blocks while the model runs" + (", × where a request is preempted" if lost else ""),
        _summary(finding, steps, blocks, usable),
        hovermode="x unified",
        xaxis=step_axis(steps),
        yaxis={"range": [0, top], **whole_numbers(top)},
    )
    figure.update_layout(height=figure.layout.margin.t + _HEIGHT + _BELOW)
    _add_layers(figure, steps, blocks, top)
    add_limit(figure, usable, top, "pool")
    for step in lost:
        figure.add_annotation(
            x=step.index, y=usable, yanchor="bottom", text="×", font={"size": 18},
            hovertext=f"step {step.index}: {counted(len(step.preempted), 'preemption')}",
        )  # fmt: skip
    return figure


def _add_layers(figure: go.Figure, steps: Sequence[Step], blocks: Sequence[Blocks], top: float) -> None:
    """Stack the three kinds of blocks; a name stands in its layer, or in a legend if it has no room there."""
    layers: dict[str, tuple[list[int], dict[str, Any]]] = {
        _HELD: ([count.held for count in blocks], {"fillcolor": GREYS[0]}),
        _CACHED: ([count.cached for count in blocks], {"fillcolor": GREYS[1], "fillpattern": pattern(GREYS[1], "/")}),
        _EMPTY: ([count.empty for count in blocks], {"fillcolor": "rgba(0, 0, 0, 0)"}),
    }
    numbers = [step.index for step in steps]
    places = spots([counts for counts, _ in layers.values()], top, (INSIDE, _HEIGHT), list(map(width_of, layers)))
    for (name, (counts, fill)), spot in zip(layers.items(), places, strict=True):
        figure.add_scatter(
            x=[number - 0.5 for number in (*numbers, numbers[-1] + 1)],
            y=[*counts, counts[-1]],
            name=name,
            mode="lines",
            line={"shape": "hv", "width": 0},
            stackgroup="blocks",
            customdata=[*numbers, numbers[-1]],
            hovertemplate="%{y:,} blocks",
            showlegend=spot is None and any(counts) and name != _EMPTY,
            **fill,
        )
        if spot:
            font = {} if name == _EMPTY else font_on(fill["fillcolor"])
            figure.add_annotation(x=numbers[spot.at], y=spot.level, text=name, font=font)


def _finding(steps: Sequence[Step], blocks: Sequence[Blocks], usable: int) -> str:
    most = max(count.held for count in blocks)
    when = next(step.index for step, count in zip(steps, blocks, strict=True) if count.held == most)
    busiest = f"{most:,} of {counted(usable, 'block')} {are(most)} held in step {when}"
    preemptions = sum(len(step.preempted) for step in steps)
    if preemptions:
        return f"Memory ran out: {counted(preemptions, 'preemption')}, and {busiest}"
    return f"The fullest step fills {share(most / usable)} of memory: {busiest}"


def _summary(finding: str, steps: Sequence[Step], blocks: Sequence[Blocks], usable: int) -> str:
    last = blocks[-1]
    mean = sum(count.held for count in blocks) / len(blocks)
    lost = [str(step.index) for step in steps if step.preempted]
    at_the_end = [
        f"{count:,} {are(count)} {what}"
        for count, what in ((last.held, "held"), (last.cached, "free but cached"), (last.empty, "empty"))
    ]
    told = [
        f"KV blocks in {counted(len(steps), 'step')}, {usable:,} in the pool.",
        f"{finding}; {mean:,.1f} on average.",
        f"In the last step {', '.join(at_the_end)}.",
    ]
    if lost:
        told.append(f"Preemptions in {'step' if len(lost) == 1 else 'steps'} {listed(lost, 8)}.")
    return " ".join(told)
