"""Give each token of a step its slot, in a Triton kernel.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``_compute_slot_mapping_kernel``) at 0.25.1. What differs: padding
starts where the tokens end, and one rank has all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Limits, Values
from pagedlab.teaching.exercises.slot_mapping_inputs import Row, step_of

PAD = -1

TASK = """
Fill `slot_mapping` as in the exercise *slot_mapping*, in Triton: write a kernel, and the function that launches it.

    slot = block_table[row, position // block_size] * block_size + position % block_size

The tokens of row `r` are `query_start_loc[r]` to `query_start_loc[r + 1] - 1`; `positions` says the position of each.
From `query_start_loc[-1]` to its end `slot_mapping` is padding and gets -1. It may be longer than `positions`, and both
hold what an earlier step left there.

How the work is divided into programs is yours to choose. vLLM launches one program a row, which takes a tile of tokens
at a time, and one more program for the padding.

Two things are not as in NumPy. A kernel gets addresses, and nothing stops it at the end of an array: loads and stores
of a tile need a `mask`, and masked loads an `other=`. And the rows of `block_table` are part of a wider table: from one
to the next it is `block_table.stride(0)` entries.

Write into `slot_mapping` in place; change nothing else, return nothing.
"""


def slot_mapping_triton(
    query_start_loc: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    block_table: npt.NDArray[np.int32],
    block_size: int,
    slot_mapping: npt.NDArray[np.int64],
) -> None:
    """One token after the other, with Python's whole numbers; not in Triton: this says what is right."""
    slot_mapping[:] = PAD
    for row in range(len(query_start_loc) - 1):
        for token in range(query_start_loc[row], query_start_loc[row + 1]):
            position = int(positions[token])
            block = int(block_table[row, position // block_size])
            slot_mapping[token] = block * block_size + position % block_size


def drive(
    subject: Any, query_start_loc: Any, positions: Any, block_table: Any, block_size: int, slot_mapping: Any
) -> str:
    """Call a submission with parts of larger arrays, and say whether it wrote around its own part.

    What lies around a part is the same each time, so that a kernel that reads there does the same each time.
    """
    guard = 4096

    def part_of_more(values: Any, fill: int, wider: int = 0) -> tuple[Any, Any]:
        shape = (*values.shape[:-1], values.shape[-1] + wider)
        size = int(np.prod(shape)) + 2 * guard
        is_tensor = hasattr(values, "new_empty")  # the reference gets arrays
        whole = values.new_empty(size) if is_tensor else np.empty(size, dtype=values.dtype)
        whole[:] = fill
        part = whole[guard:-guard].reshape(shape)[..., : values.shape[-1]]
        part[...] = values
        return part, whole

    inner_positions, _ = part_of_more(positions, 1)
    inner_table, _ = part_of_more(block_table, 9999, wider=3)
    inner, whole = part_of_more(slot_mapping, -777)
    subject(query_start_loc, inner_positions, inner_table, block_size, inner)
    slot_mapping[:] = inner
    inner[:] = -777
    return "untouched" if bool((whole == -777).all()) else "overwritten"


def slots_and_surroundings(values: Values) -> Mapping[str, Any]:
    """Name what `drive` returns."""
    return {"slot_mapping": values["slot_mapping"], "memory around slot_mapping": values["returned"]}


def step(rows: Sequence[Row], block_size: int = 4, stale: int = 0, more: int = 0) -> dict[str, Any]:
    """Return the inputs.

    Behind the tokens come ``stale`` entries in both buffers that hold what an earlier step left there; and ``more`` in
    the slot mapping, which is the longer one.
    """
    return step_of(rows, block_size, [2] * stale, stale + more)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Any step of one to three rows that has a token: an empty tensor would have no address."""
    block_size = draw(st.sampled_from([2, 4, 1, 16]))
    block_ids = iter(draw(st.permutations(range(1, 20))))
    counts = draw(st.lists(st.sampled_from([1, 2, 0, block_size + 1]), min_size=1, max_size=3).filter(any))
    rows = []
    for count in counts:
        first = draw(st.integers(0, 2 * block_size))
        num_blocks = -(-(first + count) // block_size) + draw(st.integers(0, 1))
        rows.append(([next(block_ids) for _ in range(num_blocks)], first, count))
    return step(rows, block_size, draw(st.integers(0, 3)), draw(st.integers(0, 3)))


EXERCISE = Exercise(
    name="slot_mapping_triton",
    lesson="04-slot-mapping",
    title="Slot mapping in Triton",
    task=TASK,
    reference=slot_mapping_triton,
    cases=(
        Case("one request, from its first token, over two blocks", **step([((7, 2), 0, 6)])),
        Case("a request that decodes: one token, far from position 0", **step([((7, 2, 5), 9, 1)])),
        Case("two rows, each with blocks of its own", **step([((7, 2), 2, 3), ((5, 1), 4, 2)])),
        Case("padding, and slot_mapping is longer than positions", **step([((3,), 1, 2)], stale=1, more=2)),
        Case("a row without tokens in this step", **step([((3,), 0, 2), ((8,), 0, 0), ((5,), 1, 2)])),
        Case("a slot beyond 2^31", **step([((2**27,), 0, 2)], block_size=16)),
        Case("a prompt of 1030 tokens", **step([(range(1, 66), 0, 1030)], block_size=16, more=1)),
    ),
    strategy=steps(),
    changes=("slot_mapping",),
    view=slots_and_surroundings,
    drive=drive,
    form="triton",
    instead="slot_mapping",
    limits=Limits(call_seconds=5.0, search_seconds=0.3),  # the interpreter takes a millisecond or two for each program
)
