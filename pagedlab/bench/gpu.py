"""Timing on a GPU: what a launch costs, without and with the gaps between launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from pagedlab.batch.graphs import record_graph

CALLS = 50
"""Calls in a graph."""

REPLAYS = 15
"""Replays of it; the median counts."""


def microseconds(call: Callable[[], object], calls: int = CALLS, replays: int = REPLAYS) -> float:
    """Return the median time of ``call`` on the device: replays of a CUDA graph of many, so without launch gaps."""

    def all_calls() -> None:
        for _ in range(calls):
            call()

    graph, _ = record_graph(all_calls)
    graph.replay()
    return statistics.median(on_device_microseconds(graph.replay) / calls for _ in range(replays))


def on_device_microseconds(call: Callable[[], object]) -> float:
    """Return the time between two events on the device, before and behind a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000


def eager_microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call that the host launches, on the device (`triton.testing.do_bench`)."""
    from triton.testing import do_bench

    return float(do_bench(call, return_mode="median")) * 1000


def wall_microseconds(call: Callable[[], object], before: Callable[[], object], calls: int = 200) -> float:
    """Return the median time of a call from the host's first instruction until the device has done it.

    ``before`` is called each time, untimed.
    """
    times = []
    for _ in range(10 + calls):
        before()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times[10:])


def gpu_name() -> str:
    """Return the GPU and the versions that matter."""
    import triton

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
