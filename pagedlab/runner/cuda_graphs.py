"""CUDA graphs: a forward pass recorded once and replayed, so that the host launches one thing instead of hundreds.

A graph holds addresses, not values. It reads the persistent buffers, wherever a step's numbers have been written, and
it has one size: a batch of five decodes is padded to the captured eight. Padding must do nothing: tokens without a
slot, rows without tokens that name the null block (`docs/contracts.md`).

vLLM counterpart: ``vllm/compilation/cuda_graph.py`` (``CUDAGraphWrapper``) and ``GPUModelRunner.capture_model`` at
0.25.1. What differs: batches of decodes only (vLLM's ``FULL_DECODE_ONLY``), captured when a size is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pagedlab.batch.graphs import record_graph

_CAPTURE_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Rows to capture, as vLLM's: a few small batches, then in steps that cost little padding."""


def capture_sizes(max_num_reqs: int) -> tuple[int, ...]:
    """Return the sizes to capture for batches of up to ``max_num_reqs`` decodes.

    >>> capture_sizes(20)
    (1, 2, 4, 8, 16, 20)
    """
    sizes = {size for size in _CAPTURE_SIZES if size < max_num_reqs}
    return tuple(sorted(sizes | {min(max_num_reqs, _CAPTURE_SIZES[-1])}))


class DecodeGraphs:
    """One graph a size, made when it is first needed.

    Parameters
    ----------
    forward : callable
        From a number of rows to logits ``[rows, vocab_size]``, reading and writing persistent buffers only.
    sizes : tuple of int
        Rows that may be captured.
    """

    def __init__(self, forward: Callable[[int], torch.Tensor], sizes: tuple[int, ...]) -> None:
        self._forward = forward
        self._sizes = frozenset(sizes)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool: Any = None  # memory that all graphs share, since they never run at once

    @property
    def captured(self) -> tuple[int, ...]:
        """The sizes that have been captured."""
        return tuple(sorted(self._graphs))

    def has(self, num_rows: int) -> bool:
        """Whether a batch of so many rows, padding included, is to be replayed."""
        return num_rows in self._sizes

    def replay(self, num_rows: int) -> torch.Tensor:
        """Run the forward pass on what the buffers hold.

        Returns
        -------
        Tensor, [num_rows, vocab_size]
            Logits, valid until the next replay.
        """
        if num_rows not in self._graphs:
            self._capture(num_rows)
        graph, logits = self._graphs[num_rows]
        graph.replay()
        return logits

    def _capture(self, num_rows: int) -> None:
        graph, logits = record_graph(lambda: self._forward(num_rows), self._pool)
        self._pool = self._pool or graph.pool()
        self._graphs[num_rows] = graph, logits
