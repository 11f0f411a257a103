"""Give a rank the slots of its own tokens of a request, and count how many those are.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``_compute_slot_mapping_kernel``) and
``vllm/v1/attention/backends/utils.py`` (``get_dcp_local_seq_lens``) at 0.25.1. What differs: one request instead of a
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise

PAD = -1

TASK = """
`world_size` ranks share a request. Its tokens are dealt out like cards, `interleave` at a time: the first go to rank 0,
as many to rank 1, and so on; after the last rank it is rank 0's turn again. So the token at position `p` is on rank
`p // interleave % world_size`.

Each rank packs its own tokens, in their order, into blocks of `block_size`. All ranks use the same block ids, each in a
memory of its own: a rank's first `block_size` tokens are in block `block_ids[0]`, its next ones in `block_ids[1]`, and
so on. `interleave` divides `block_size`.

You are rank `rank`. Fill `slot_mapping`: for each of `positions`, those of this step, the slot in your memory,

    slot = block id * block_size + offset in the block

or -1 if the token is on another rank. Behind the last token everything is -1, too, whatever an earlier step left there.
Write in place, and return how many of the request's `seq_len` tokens are on your rank: so many does attention read.
"""


def local_slots(
    block_ids: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    seq_len: int,
    block_size: int,
    world_size: int,
    rank: int,
    interleave: int,
    slot_mapping: npt.NDArray[np.int64],
) -> int:
    """Deal out the request's tokens from the first on, and note which of this rank's own each one is."""
    number: dict[int, int] = {}  # of each token on this rank, by position
    for position in range(seq_len):
        if position // interleave % world_size == rank:
            number[position] = len(number)
    slot_mapping[:] = PAD
    for token, position in enumerate(positions.tolist()):
        if position in number:
            column, offset = divmod(number[position], block_size)
            slot_mapping[token] = int(block_ids[column]) * block_size + offset
    return len(number)


def sharing(
    block_ids: Sequence[int],
    positions: Sequence[int],
    block_size: int = 4,
    *,
    world_size: int = 2,
    rank: int = 0,
    interleave: int = 1,
    padding: int = 0,
) -> dict[str, Any]:
    """Return the inputs for a step that computes the request's tokens at ``positions``, the last it has."""
    return {
        "block_ids": np.array(block_ids, dtype=np.int32),
        "positions": np.array(positions, dtype=np.int64),
        "seq_len": positions[-1] + 1,
        "block_size": block_size,
        "world_size": world_size,
        "rank": rank,
        "interleave": interleave,
        "slot_mapping": np.full(len(positions) + padding, 77, dtype=np.int64),
    }


@st.composite
def sharings(draw: st.DrawFn) -> dict[str, Any]:
    """Any rank of up to three, and any interleave that divides the block size."""
    world_size = draw(st.sampled_from([2, 3, 1]))
    block_size, interleave = draw(st.sampled_from([(4, 2), (4, 1), (4, 4), (2, 1), (2, 2)]))
    first = draw(st.integers(0, 2 * block_size * world_size))
    positions = range(first, first + draw(st.integers(1, 2 * block_size)))
    num_blocks = -(-positions.stop // (block_size * world_size))
    block_ids = draw(st.permutations(range(1, 12)))[:num_blocks]
    return sharing(
        block_ids,
        positions,
        block_size,
        world_size=world_size,
        rank=draw(st.integers(0, world_size - 1)),
        interleave=interleave,
        padding=draw(st.integers(0, 2)),
    )


EXERCISE = Exercise(
    name="local_slots",
    lesson="12-context-parallelism",
    title="A rank's own slots",
    task=TASK,
    reference=local_slots,
    cases=(
        Case("two ranks in turn, as seen by rank 0", **sharing([3, 5], range(10))),
        Case("the same step, as seen by rank 1", **sharing([3, 5], range(10), rank=1)),
        Case("two tokens at a time", **sharing([3, 5], range(10), interleave=2)),
        Case("a whole block at a time", **sharing([3, 5], range(10), rank=1, interleave=4)),
        Case("a decode whose token is on another rank", **sharing([3, 5], [9])),
        Case(
            "a decode of three ranks, two tokens at a time", **sharing([6, 2], [14], world_size=3, rank=1, interleave=2)
        ),
        Case("padding behind the tokens", **sharing([7], [2, 3, 4], padding=2)),
        Case("a rank that has nothing yet", **sharing([7], [0], rank=1)),
        Case("one rank alone", **sharing([7, 2], range(2, 6), world_size=1)),
    ),
    strategy=sharings(),
    changes=("slot_mapping",),
)
