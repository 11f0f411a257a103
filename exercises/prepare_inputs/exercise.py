"""Read the flat batch of a step's tokens out of the rows.

vLLM counterpart: ``vllm/v1/worker/gpu_model_runner.py`` (``GPUModelRunner._prepare_inputs``) at 0.25.1. What differs:
there are no draft tokens, nothing is sent to a device, and slots are an exercise of their own (`slot_mapping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Prepare the inputs of one forward pass: the tokens of this step, of all rows, one behind the other.

Row `r` belongs to the request `req_ids[r]`, which computes `num_scheduled_tokens[req_ids[r]]` tokens in this step. That
dict is in the order in which requests were scheduled; **the batch is in the order of rows**. Fill six buffers:

- `query_start_loc`: where each row's tokens begin. Behind the last row it says the number of all tokens, to its end.
- `positions`: a row's tokens are at position `num_computed_tokens[r]` of its request, and at those that follow.
- `input_ids`: the token of row `r` at position `p` is `token_ids[r, p]`.
- `seq_lens`: how many tokens of each request are computed after this step; behind the last row, to its end, 0.
- `logits_indices`: which of the tokens is each row's last. There the model says what comes next.
- `discard`: whether a request has more tokens to compute after this step; `num_tokens[r]` is how many it has, prompt
  and output together. Such a row is a partial prefill, and what is sampled for it is dropped.

The buffers are used again in each step and hold what an earlier one left there. Behind the last token of `positions`
and `input_ids` that does not matter. Write into them in place; change nothing else, return nothing.
"""


def prepare_inputs(
    req_ids: list[str],
    num_scheduled_tokens: dict[str, int],
    num_computed_tokens: npt.NDArray[np.int32],
    num_tokens: npt.NDArray[np.int32],
    token_ids: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    input_ids: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    logits_indices: npt.NDArray[np.int32],
    discard: npt.NDArray[np.bool_],
) -> None:
    """One row after the other, and in each one token after the other."""
    token = 0
    for row, req_id in enumerate(req_ids):
        query_start_loc[row] = token
        seq_lens[row] = num_computed_tokens[row] + num_scheduled_tokens[req_id]
        for position in range(num_computed_tokens[row], seq_lens[row]):
            positions[token] = position
            input_ids[token] = token_ids[row, position]
            token += 1
        logits_indices[row] = token - 1
        discard[row] = seq_lens[row] < num_tokens[row]
    query_start_loc[len(req_ids) :] = token
    seq_lens[len(req_ids) :] = 0


def live_inputs(values: Values) -> Mapping[str, Any]:
    """Leave out what is stale: positions and token ids behind the last token."""
    num_rows = len(values["logits_indices"])
    num_tokens = int(values["query_start_loc"][num_rows])
    live = {name: values[name][:num_tokens] for name in ("positions", "input_ids")}
    return {**values, **live}


class Row(NamedTuple):
    """A request: how many tokens it has, how many of them are computed, how many more are in this step."""

    num_tokens: int
    num_computed: int
    num_scheduled: int


def step(rows: Mapping[str, Row], scheduled: Sequence[str] = "", spare_rows: int = 0) -> dict[str, Any]:
    """Return the inputs for ``rows``; A has the tokens 11, 12, …, B 21, 22, …

    ``scheduled`` is the order of scheduling, by default that of rows. The buffers have room for ``spare_rows`` more and
    hold what an earlier step left there.
    """
    num_rows, total = len(rows), sum(row.num_scheduled for row in rows.values())
    token_ids = np.full((num_rows, 1 + max(row.num_tokens for row in rows.values())), -7, dtype=np.int32)  # stale
    for at, (name, row) in enumerate(rows.items()):
        token_ids[at, : row.num_tokens] = 10 * (ord(name) - ord("A") + 1) + 1 + np.arange(row.num_tokens)
    return {
        "req_ids": list(rows),
        "num_scheduled_tokens": {name: rows[name].num_scheduled for name in scheduled or rows},
        "num_computed_tokens": np.array([row.num_computed for row in rows.values()], dtype=np.int32),
        "num_tokens": np.array([row.num_tokens for row in rows.values()], dtype=np.int32),
        "token_ids": token_ids,
        "query_start_loc": np.full(num_rows + spare_rows + 1, 77, dtype=np.int32),
        "positions": np.full(total + spare_rows, 77, dtype=np.int64),
        "input_ids": np.full(total + spare_rows, 77, dtype=np.int32),
        "seq_lens": np.full(num_rows + spare_rows, 77, dtype=np.int32),
        "logits_indices": np.full(num_rows, 77, dtype=np.int32),
        "discard": np.arange(num_rows) % 2 == 0,
    }


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Any step of up to three rows, scheduled in any order."""
    rows = {}
    for name in "ABC"[: draw(st.integers(1, 3))]:
        num_scheduled = draw(st.integers(1, 3))
        num_computed = draw(st.integers(0, 4))
        rows[name] = Row(num_computed + num_scheduled + draw(st.integers(0, 2)), num_computed, num_scheduled)
    return step(rows, draw(st.permutations(list(rows))), draw(st.integers(0, 2)))


EXERCISE = Exercise(
    name="prepare_inputs",
    lesson="06-whole-step",
    title="Prepare the inputs",
    task=TASK,
    reference=prepare_inputs,
    cases=(
        Case("a whole prompt in one step", **step({"A": Row(4, 0, 4)})),
        Case("two requests that decode, one token each", **step({"A": Row(6, 5, 1), "B": Row(3, 2, 1)})),
        Case("rows that are scheduled in another order", **step({"A": Row(3, 2, 1), "B": Row(3, 0, 3)}, "BA")),
        Case("a partial prefill: its first three tokens of five", **step({"A": Row(5, 0, 3)})),
        Case("the last chunk of a prompt, which is no partial prefill", **step({"A": Row(5, 3, 2), "B": Row(2, 1, 1)})),
        Case("two decodes beside a chunk", **step({"A": Row(6, 5, 1), "B": Row(3, 2, 1), "C": Row(9, 2, 4)})),
        Case("a chunk of one token, which is not the last", **step({"A": Row(5, 3, 1), "B": Row(4, 3, 1)})),
        Case("fewer rows than an earlier step had", **step({"A": Row(3, 2, 1), "B": Row(2, 0, 2)}, spare_rows=2)),
    ),
    strategy=steps(),
    changes=("query_start_loc", "positions", "input_ids", "seq_lens", "logits_indices", "discard"),
    view=live_inputs,
)
