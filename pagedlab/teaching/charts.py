"""What a lesson shows of a trace's tokens: the chart of `pagedlab.charts.budget`, or a table of the same numbers.

>>> from pagedlab.events import RequestAdded, RequestScheduled, StepStarted
>>> from pagedlab.trace import Record, Trace
>>> events = [RequestAdded("A", (1, 2, 3), 4), StepStarted(0), RequestScheduled("A", "new", 3, 0, 3, 5)]
>>> trace = Trace.from_records([Record(0, None, event, None) for event in events])
>>> show_tokens(trace, "A gets all that it needs")
A gets all that it needs
  |    0   (step)
A |    3

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from pagedlab import charts
from pagedlab.charts.budget_chart import parts_of
from pagedlab.scenes.words import label
from pagedlab.teaching.telling import in_notebook
from pagedlab.trace import Trace

MOST_STEPS = 24
"""How many steps the table of numbers shows."""


def show_tokens(trace: Trace, title: str, by: str = "request") -> None:
    """Show what each step's budget was spent on; outside a notebook, or without plotly, print the numbers.

    Parameters
    ----------
    trace : Trace
    title : str
        What the chart shows, as a finding.
    by : {"request", "kind", "phase"}
        What a bar is made of (`pagedlab.charts.budget`).

    Raises
    ------
    ChartError
        If ``by`` is none of these.
    TraceError
        If the trace has no step.
    """
    table = _table(parts_of(trace, by), title)
    if in_notebook() and find_spec("plotly") is not None:
        charts.show(charts.budget(trace, by=by, title=title, waiting=False), plain=table)
    else:
        print(table)


def _table(counts: Mapping[str, Sequence[int]], title: str) -> str:
    """The chart as a table of numbers, with long runs of steps cut."""
    num_steps = max((len(tokens) for tokens in counts.values()), default=0)
    steps = min(MOST_STEPS, num_steps)
    names = [label(name, 24) for name in counts]
    width = max(map(len, names), default=0)
    more = f" … {num_steps - steps} more steps" if num_steps > steps else ""
    lines = [title, " " * width + " | " + " ".join(f"{step:>4}" for step in range(steps)) + f"   (step){more}"]
    for name, tokens in zip(names, counts.values(), strict=True):
        lines.append(f"{name:<{width}} | " + " ".join(f"{count or '.':>4}" for count in tokens[:steps]))
    return "\n".join(lines)
