"""Recording device work as a CUDA graph, to launch it again as one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def record_graph(work: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """Do ``work`` once, then record it; return the graph and what the recorded call returned.

    The first call compiles kernels and lets libraries allocate, which may not happen while a graph is recorded.

    Parameters
    ----------
    work : callable
        Launches on the current stream only, from persistent memory, without looking at results.
    pool : optional
        Memory to share with other graphs that never run at the same time (``graph.pool()``).
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result
