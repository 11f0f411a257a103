"""Give each token of a step its slot.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``_compute_slot_mapping_kernel``) at 0.25.1. What differs: padding
starts where the tokens end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedlab.teaching.exercises import Case, Exercise
from pagedlab.teaching.exercises.slot_mapping_inputs import Row, padded_rows, step_of

PAD = -1

TASK = """
Fill `slot_mapping`: for each token of the step, the place in KV memory where its keys and values go.

A token at position `p` of its request lies in the request's block number `p // block_size`, at offset
`p % block_size`. Which block that is in memory, the request's row of `block_table` says. So

    slot = block_table[row, p // block_size] * block_size + p % block_size

The tokens of all rows stand one behind the other: those of row `r` are
`query_start_loc[r]` to `query_start_loc[r + 1] - 1`. `positions` says the position of each.

Everything from the last row's end on is padding and gets -1, whatever `positions` or `slot_mapping` hold there: both
are buffers that are used again and again. Write into `slot_mapping` in place; change nothing else, return nothing.
"""


def slot_mapping(
    query_start_loc: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    block_table: npt.NDArray[np.int32],
    block_size: int,
    slot_mapping: npt.NDArray[np.int64],
) -> None:
    """One token after the other, with Python's whole numbers, which do not overflow."""
    slot_mapping[:] = PAD
    for row in range(len(query_start_loc) - 1):
        for token in range(query_start_loc[row], query_start_loc[row + 1]):
            position = int(positions[token])
            block = int(block_table[row, position // block_size])
            slot_mapping[token] = block * block_size + position % block_size


def step(rows: Sequence[Row], block_size: int = 4, padding: int = 0) -> dict[str, Any]:
    """Return the inputs; behind the tokens come ``padding`` entries that hold what an earlier step left there."""
    return step_of(rows, block_size, [5] * padding, padding)


EXERCISE = Exercise(
    name="slot_mapping",
    lesson="04-slot-mapping",
    title="Slot mapping in NumPy",
    task=TASK,
    reference=slot_mapping,
    cases=(
        Case("one request, from its first token, over two blocks", **step([((7, 2), 0, 6)])),
        Case("a request that decodes: one token, far from position 0", **step([((7, 2, 5), 9, 1)])),
        Case("two rows, each with blocks of its own", **step([((7, 2), 2, 3), ((5, 1), 4, 2)])),
        Case("padding behind the tokens", **step([((3,), 1, 2)], padding=3)),
        Case("the first token of a block, and the last", **step([((6, 4), 3, 1), ((9, 8), 4, 1)])),
        Case("a row without tokens in this step", **step([((3,), 0, 2), ((8,), 0, 0), ((5,), 1, 2)])),
        Case("a slot beyond 2^31", **step([((2**27,), 0, 2)], block_size=16)),
        Case("no request at all, only padding", **step([], padding=4)),
    ),
    strategy=padded_rows().map(lambda drawn: step(*drawn)),
    changes=("slot_mapping",),
)
