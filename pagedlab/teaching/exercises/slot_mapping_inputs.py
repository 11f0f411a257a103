"""Inputs of the exercises on slot mapping, which build and draw them alike.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

STALE_SLOT = 77
"""What an earlier step left in ``slot_mapping``."""

Row = tuple[Sequence[int], int, int]
"""Block ids, first position, number of tokens."""


def step_of(
    rows: Sequence[Row], block_size: int = 4, stale_positions: Sequence[int] = (), padding: int = 0
) -> dict[str, Any]:
    """Return the inputs of one step.

    Parameters
    ----------
    rows : sequence of Row
    block_size : int
    stale_positions : sequence of int
        What an earlier step left in ``positions``, behind the tokens.
    padding : int
        How many entries ``slot_mapping`` has behind the tokens.
    """
    counts = [count for _, _, count in rows]
    positions = [first + i for _, first, count in rows for i in range(count)]
    width = max([1, *(len(blocks) for blocks, _, _ in rows)])
    block_table = np.zeros((len(rows), width), dtype=np.int32)
    for row, (blocks, _, _) in enumerate(rows):
        block_table[row, : len(blocks)] = blocks
    return {
        "query_start_loc": np.concatenate(([0], np.cumsum(counts, dtype=np.int32)), dtype=np.int32),
        "positions": np.array([*positions, *stale_positions], dtype=np.int64),
        "block_table": block_table,
        "block_size": block_size,
        "slot_mapping": np.full(sum(counts) + padding, STALE_SLOT, dtype=np.int64),
    }


@st.composite
def padded_rows(draw: st.DrawFn) -> tuple[list[Row], int, int]:
    """One to four rows with block ids in any order, a block size, and a number of padded entries."""
    block_size = draw(st.sampled_from([2, 4, 1, 16]))
    block_ids = iter(draw(st.permutations(range(1, 25))))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, 2 * block_size))
        count = draw(st.sampled_from([1, 2, 0, block_size + 1]))
        num_blocks = -(-(first + count) // block_size) + draw(st.integers(0, 1))
        rows.append(([next(block_ids) for _ in range(num_blocks)], first, count))
    return rows, block_size, draw(st.integers(0, 5))
