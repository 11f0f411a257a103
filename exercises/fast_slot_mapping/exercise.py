"""Give each token of a large step its slot, in a few operations on whole arrays.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``_compute_slot_mapping_kernel``) at 0.25.1. What differs: this is
NumPy, so that its speed can be measured anywhere. What is slow about that kernel, one program that pads tile after tile
when all others have ended, is slow here as a loop. And padding starts where the tokens end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedlab.teaching.exercises import Case, Exercise, Speed
from pagedlab.teaching.exercises.slot_mapping_inputs import Row, padded_rows, step_of

PAD = -1
TIMES = 15

TASK = f"""
Fill `slot_mapping` as in the exercise *slot_mapping*, and fast: at least {TIMES} times as fast as a loop over all its
entries. Two steps are timed together: a prompt of 8192 tokens, and 1024 requests that decode, padded to 16384.

    slot = block_table[row, position // block_size] * block_size + position % block_size

The tokens of row `r` are `query_start_loc[r]` to `query_start_loc[r + 1] - 1`; `positions` says the position of each.
From `query_start_loc[-1]` to its end `slot_mapping` is padding and gets -1.

A NumPy operation costs hardly more for many numbers than for one, while a loop pays for each. On a GPU it is the same:
a launch is over when its longest program is. So nothing but operations on whole arrays may grow with the number of
tokens, of rows or of padded entries.

Write into `slot_mapping` in place; change nothing else, return nothing. (`steps` in a verdict says how many times your
function was called with the same input: more than once only where it is timed.)
"""


def fast_slot_mapping(
    query_start_loc: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    block_table: npt.NDArray[np.int32],
    block_size: int,
    slot_mapping: npt.NDArray[np.int64],
) -> None:
    """One entry after the other, padding too: this is what to be faster than."""
    num_rows = len(query_start_loc) - 1
    row = 0
    for token in range(len(slot_mapping)):
        while row < num_rows and query_start_loc[row + 1] <= token:
            row += 1
        if row == num_rows:
            slot_mapping[token] = PAD
        else:
            column, offset = divmod(int(positions[token]), block_size)
            slot_mapping[token] = int(block_table[row, column]) * block_size + offset


def drive(
    subject: Any,
    query_start_loc: Any,
    positions: Any,
    block_table: Any,
    block_size: int,
    slot_mapping: Any,
    steps: int,
) -> None:
    """Compute the same step several times, so that what is timed is the work, not the way to it."""
    for _ in range(steps):
        subject(query_start_loc, positions, block_table, block_size, slot_mapping)


def step(rows: Sequence[Row], block_size: int = 4, padding: int = 0, steps: int = 1) -> dict[str, Any]:
    """Return the inputs; behind the tokens, ``slot_mapping`` has ``padding`` entries left by an earlier step."""
    return step_of(rows, block_size, padding=padding) | {"steps": steps}


LONG_PROMPT = step([(range(1, 513), 0, 8192)], block_size=16, steps=20)
DECODES = step(
    [((1 + row, 2000 + row), 16 + row % 16, 1) for row in range(1024)], block_size=16, padding=16384 - 1024, steps=20
)

EXERCISE = Exercise(
    name="fast_slot_mapping",
    lesson="13-gpu-kernel",
    title="A faster slot mapping",
    task=TASK,
    reference=fast_slot_mapping,
    cases=(
        Case("one request, from its first token, over two blocks", **step([((7, 2), 0, 6)])),
        Case("two rows, each with blocks of its own", **step([((7, 2), 2, 3), ((5, 1), 4, 2)])),
        Case("padding behind the tokens", **step([((3,), 1, 2)], padding=3)),
        Case("a row without tokens between two others", **step([((3,), 0, 2), ((8,), 0, 0), ((5,), 1, 2)])),
        Case("rows without tokens at both ends", **step([((8,), 0, 0), ((3,), 0, 2), ((5,), 1, 0)], padding=1)),
        Case("a slot beyond 2^31", **step([((2**27,), 0, 2)], block_size=16)),
        Case("no request at all, only padding", **step([], padding=4)),
        Case("1024 requests that decode", **DECODES | {"steps": 1}),
    ),
    strategy=padded_rows().map(lambda drawn: step(*drawn)),
    changes=("slot_mapping",),
    drive=drive,
    form="speed",
    speed=Speed((Case("a prompt of 8192 tokens", **LONG_PROMPT), Case("1024 requests that decode", **DECODES)), TIMES),
)
