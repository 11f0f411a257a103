"""Append the manager's blocks to a row of the block table, as blocks of the attention kernel.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``BlockTable.append_row``, ``BlockTable.map_to_kernel_blocks``) at
0.25.1. What differs: it compares the two sizes once, when the table is made, and here each call does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise

TASK = """
The KV cache manager hands out blocks of `block_size` tokens. The attention kernel knows memory as blocks of
`kernel_block_size` tokens, a number that divides `block_size`. It is the same memory, so each of the manager's blocks
*is* several of the kernel's, side by side: with 32 and 16 tokens, block 4 of the manager is blocks 8 and 9 of the
kernel.

`row` is a request's row of the block table, in blocks of the kernel; its first `num_blocks` entries are in use. Append
`block_ids`, which are blocks of the manager: for each of them the kernel's, in the order in which their tokens lie.

Change `row` in place, and return how many of its entries are in use then. There is room enough; what lies behind stays
as it is. If `kernel_block_size` does not divide `block_size`, raise `ValueError`.
"""


def expand_kernel_blocks(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: npt.NDArray[np.int32], num_blocks: int
) -> int:
    """Go through the memory of each block, slot by slot: where a kernel block begins, it is the next one of the row."""
    if block_size % kernel_block_size != 0:
        raise ValueError(f"blocks of {block_size} tokens cannot be cut into blocks of {kernel_block_size}")
    for block_id in block_ids:
        for slot in range(block_id * block_size, (block_id + 1) * block_size):
            if slot % kernel_block_size == 0:
                row[num_blocks] = slot // kernel_block_size
                num_blocks += 1
    return num_blocks


def appending(
    block_ids: Sequence[int], block_size: int, kernel_block_size: int, held: Sequence[int] = (), spare: int = 0
) -> dict[str, Any]:
    """Return the inputs for a row that holds the blocks ``held`` of the manager, and has room for ``spare`` more."""
    parts = max(1, block_size // kernel_block_size)
    num_blocks = len(held) * parts
    row = np.full(num_blocks + (len(block_ids) + spare) * parts, 77, dtype=np.int32)
    row[:num_blocks] = [block_id * parts + part for block_id in held for part in range(parts)]
    return {
        "block_ids": list(block_ids),
        "block_size": block_size,
        "kernel_block_size": kernel_block_size,
        "row": row,
        "num_blocks": num_blocks,
    }


@st.composite
def appendings(draw: st.DrawFn) -> dict[str, Any]:
    """One or two blocks for a row that holds up to two; some sizes do not fit."""
    sizes = draw(st.sampled_from([(32, 16), (8, 2), (4, 4), (4, 2), (6, 2), (6, 4), (16, 32)]))
    block_id = st.sampled_from([4, 1, 7, 0, 3, 9])
    block_ids = draw(st.lists(block_id, min_size=1, max_size=2))
    held = draw(st.lists(block_id, max_size=2))
    return appending(block_ids, *sizes, held, draw(st.integers(1, 3)))


EXERCISE = Exercise(
    name="expand_kernel_blocks",
    lesson="10-kernel-blocks",
    title="Expand the manager's blocks",
    task=TASK,
    reference=expand_kernel_blocks,
    cases=(
        Case("32 tokens to 16: two blocks for each", **appending([4, 1], 32, 16)),
        Case("four blocks for each", **appending([3, 5], 8, 2)),
        Case("a row that holds blocks already", **appending([6], 32, 16, held=[4, 1], spare=2)),
        Case("two sizes that are the same", **appending([7, 2], 16, 16, held=[5])),
        Case("the null block, which a sliding window leaves behind", **appending([0, 3], 32, 16)),
        Case("no new block", **appending([], 32, 16, held=[4], spare=1)),
        Case("sizes that do not fit: 16 does not divide 24", **appending([1], 24, 16, spare=1)),
        Case("a kernel whose blocks are larger than the manager's", **appending([1], 16, 32, spare=1)),
    ),
    strategy=appendings(),
    changes=("row",),
)
