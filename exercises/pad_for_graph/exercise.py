"""Pad a batch of decodes to a captured size, so that a CUDA graph can run it.

vLLM counterpart: ``vllm/v1/worker/gpu_model_runner.py`` (``GPUModelRunner._get_slot_mappings``, and
``_build_attention_metadata`` with its ``_get_block_table``) at 0.25.1. What differs: there are decodes only, in one KV
cache group, and on the host; that padded tokens are token 0 at position 0 is our own contract (``docs/contracts.md``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

PAD, NULL_BLOCK_ID = -1, 0

TASK = """
A CUDA graph was captured for a fixed number of rows, and reads that many, whoever is there. The batch has `num_reqs`
requests, all of which decode: row `r` has one token, token `r`. Choose a size, make the rows behind the live ones
harmless, and return the size.

The size is the smallest of `capture_sizes`, which ascend, that holds all requests. If none does, no graph runs: return
`num_reqs` and change nothing.

The arrays are buffers, and hold behind the live rows what an earlier, larger step left there. Up to the size, a padded
row must say that it is nobody's:

- its token is token 0 at position 0;
- it has no tokens of its own: `query_start_loc`, where each row's tokens begin, says the number of live tokens where
  padded rows begin and end;
- `seq_lens`: it is 0 tokens long;
- its row of `block_table` is the null block, 0, in all columns;
- its slot is -1, so that nothing is written.

Change the buffers in place. What lies beyond the size does not matter.
"""


def pad_for_graph(
    capture_sizes: list[int],
    num_reqs: int,
    input_ids: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    query_start_loc: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    block_table: npt.NDArray[np.int32],
    slot_mapping: npt.NDArray[np.int64],
) -> int:
    """Take the first size that is large enough, then pad one buffer after the other."""
    for size in capture_sizes:
        if size >= num_reqs:
            break
    else:
        return num_reqs
    padded = slice(num_reqs, size)
    input_ids[padded] = 0
    positions[padded] = 0
    for row in range(num_reqs, size):
        query_start_loc[row + 1] = query_start_loc[row]
    seq_lens[padded] = 0
    block_table[padded] = NULL_BLOCK_ID
    slot_mapping[padded] = PAD
    return size


PADDED = ("input_ids", "positions", "query_start_loc", "seq_lens", "block_table", "slot_mapping")


def what_the_graph_reads(values: Values) -> Mapping[str, Any]:
    """Leave out what lies beyond the size."""
    size = values["returned"]
    seen = {name: values[name][:size] for name in PADDED}
    return {"returned": size, **seen, "query_start_loc": values["query_start_loc"][: size + 1]}


_POSITIONS = (5, 2, 9, 3, 6, 1, 7, 4, 10, 8)
"""Of ten requests, in the order of their rows."""


def batch(num_reqs: int, capture_sizes: Sequence[int], num_rows: int, block_size: int = 4) -> dict[str, Any]:
    """Return a batch of ``num_reqs`` decodes, in buffers that an earlier step had filled with ``num_rows``."""
    positions = np.array(_POSITIONS[:num_rows], dtype=np.int64)
    block_table = 1 + np.arange(3 * num_rows, dtype=np.int32).reshape(num_rows, 3)
    return {
        "capture_sizes": list(capture_sizes),
        "num_reqs": num_reqs,
        "input_ids": np.arange(11, 11 + 10 * num_rows, 10, dtype=np.int32),
        "positions": positions,
        "query_start_loc": np.arange(num_rows + 1, dtype=np.int32),
        "seq_lens": (positions + 1).astype(np.int32),
        "block_table": block_table,
        "slot_mapping": block_table[np.arange(num_rows), positions // block_size] * block_size + positions % block_size,
    }


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Any batch of up to eight decodes, and some sizes, or too small ones."""
    capture_sizes = draw(st.sampled_from([(1, 2, 4), (4,), (2, 4, 8), (1, 2), (3, 6, 9)]))
    num_reqs = draw(st.sampled_from([3, 1, 2, 5, 4, 7, 6, 8]))
    num_rows = max(num_reqs, capture_sizes[-1])
    return batch(num_reqs, capture_sizes, num_rows + draw(st.integers(0, 1)))


EXERCISE = Exercise(
    name="pad_for_graph",
    lesson="11-cuda-graphs",
    title="Pad a batch for a CUDA graph",
    task=TASK,
    reference=pad_for_graph,
    cases=(
        Case("three requests, and a graph of four rows", **batch(3, (1, 2, 4, 8), 8)),
        Case("two requests, which a graph fits exactly", **batch(2, (1, 2, 4), 4)),
        Case("several padded rows", **batch(5, (4, 8), 8)),
        Case("one request, and graphs of many rows only", **batch(1, (4, 8), 8)),
        Case("more requests than the largest graph has rows", **batch(5, (1, 2, 4), 6)),
        Case("no graphs at all", **batch(2, (), 3)),
    ),
    strategy=batches(),
    changes=PADDED,
    view=what_the_graph_reads,
)
