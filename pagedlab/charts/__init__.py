"""Charts: plotly figures of traces and of benchmarks, in one look, each with its finding as title and a text summary.

    from pagedlab import charts

    charts.show(charts.memory(trace))               # KV blocks that are held, cached, empty
    charts.show(charts.budget(trace))               # tokens of each step, its budget, who waits
    charts.show(charts.latency(whole, chunked))     # time to first token, between tokens, in all
    charts.show(charts.sweep(rows, x="budget", y="steps"))
    charts.show(charts.kernel_bars(rows))           # a kernel beside others and its floors
    charts.show(charts.step_parts(ways))            # what the parts of a step take

Each figure is a pure function of what it is given. Plotly (the extra ``lab``) is loaded when the first one is made.
"""

from pagedlab.charts.budget_chart import budget
from pagedlab.charts.kernel_chart import kernel_bars
from pagedlab.charts.latency_chart import latency
from pagedlab.charts.memory_chart import memory
from pagedlab.charts.showing import show, summary
from pagedlab.charts.step_chart import step_parts
from pagedlab.charts.sweep_chart import knee, sweep

__all__ = [
    "budget",
    "kernel_bars",
    "knee",
    "latency",
    "memory",
    "show",
    "step_parts",
    "summary",
    "sweep",
]
