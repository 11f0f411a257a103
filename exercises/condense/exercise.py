"""Close the holes in the persistent batch.

vLLM counterpart: ``vllm/v1/worker/gpu_input_batch.py`` (``InputBatch.condense``) at 0.25.1. What differs: five things
move here instead of twenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Requests have left the batch, and their rows are holes: `req_ids` says `None` there. Close the holes.

Take the **highest row that is live** and move it into the **lowest hole**, as long as that hole lies before it. Then
the live rows are `0 … n-1`, and as few of them as possible have moved: `[A, _, B, _, C]` becomes `[A, C, B]`.

Everything of a row moves:

- its name in `req_ids`, and its draft tokens in `spec_token_ids`; both lists end with the last live row;
- its length in `num_tokens`, which does not count drafts;
- its tokens in `token_ids`. The drafts lie right behind the others: together they are
  `num_tokens[row] + len(spec_token_ids[row])` tokens;
- `req_id_to_index`, which says where each request is.

Change the arguments in place and return nothing. What is left in rows that are not live does not matter.
"""


def condense(
    req_ids: list[str | None],
    req_id_to_index: dict[str, int],
    num_tokens: npt.NDArray[np.int32],
    spec_token_ids: list[list[int]],
    token_ids: npt.NDArray[np.int32],
) -> None:
    """Pair the lowest hole with the highest live row, until no hole lies before it."""
    while True:
        live = [row for row, name in enumerate(req_ids) if name is not None]
        holes = [row for row, name in enumerate(req_ids) if name is None]
        if not live or not holes or holes[0] > live[-1]:
            break
        hole, last = holes[0], live[-1]
        name = req_ids[last]
        assert name is not None
        for column in range(num_tokens[last] + len(spec_token_ids[last])):
            token_ids[hole, column] = token_ids[last, column]
        num_tokens[hole] = num_tokens[last]
        spec_token_ids[hole] = spec_token_ids[last]
        req_id_to_index[name] = hole
        req_ids[hole], req_ids[last] = name, None
    del req_ids[len(live) :]
    del spec_token_ids[len(live) :]


def live_rows(values: Values) -> Mapping[str, Any]:
    """Leave out what is stale: rows behind the live ones, and tokens behind a row's last."""
    req_ids, num_tokens, drafts = values["req_ids"], values["num_tokens"], values["spec_token_ids"]
    seen: dict[str, Any] = {name: values[name] for name in ("req_ids", "req_id_to_index", "spec_token_ids")}
    for row, request_id in enumerate(req_ids):
        if request_id is not None:
            seen[f"num_tokens[{row}]"] = int(num_tokens[row])
            seen[f"token_ids[{row}]"] = values["token_ids"][row, : num_tokens[row] + len(drafts[row])].tolist()
    return {**seen, "returned": values["returned"]}


def batch(
    rows: str, drafts: Mapping[str, int] | None = None, lengths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a batch whose rows are the letters of ``rows``, ``_`` a hole; A has the tokens 11, 12, …, B 21, 22, …"""
    drafts, lengths = drafts or {}, lengths or {}
    num_rows, width = len(rows), 6
    token_ids = np.full((num_rows, width), -7, dtype=np.int32)  # stale
    num_tokens = np.full(num_rows, 3, dtype=np.int32)
    for row, name in enumerate(rows):
        num_tokens[row] = lengths.get(name, 2)
        filled = int(num_tokens[row]) + drafts.get(name, 0)
        token_ids[row, :filled] = 10 * (ord(name) - ord("A") + 1) + 1 + np.arange(filled)
    return {
        "req_ids": [None if name == "_" else name for name in rows],
        "req_id_to_index": {name: row for row, name in enumerate(rows) if name != "_"},
        "num_tokens": num_tokens,
        "spec_token_ids": [
            token_ids[row, num_tokens[row] :][: drafts.get(name, 0)].tolist() for row, name in enumerate(rows)
        ],
        "token_ids": token_ids,
    }


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Any batch of two to six rows."""
    live = draw(st.lists(st.booleans(), min_size=2, max_size=6))
    rows = "".join(chr(ord("A") + row) if is_live else "_" for row, is_live in enumerate(live))
    names = rows.replace("_", "")
    lengths = {name: draw(st.integers(1, 4)) for name in names}
    drafts = {name: draw(st.integers(0, 2)) for name in names}
    return batch(rows, drafts, lengths)


EXERCISE = Exercise(
    name="condense",
    lesson="05-persistent-batch",
    title="Condense the batch",
    task=TASK,
    reference=condense,
    cases=(
        Case("one hole in the middle", **batch("A_C")),
        Case("a hole in the middle, and one behind the new end", **batch("A_B_C", lengths={"C": 3})),
        Case("two rows move: which of them goes where?", **batch("_B_DE")),
        Case("nothing to do: no hole", **batch("AB")),
        Case("holes at the end only", **batch("AB__")),
        Case("every row is a hole", **batch("___")),
        Case("the row that moves has draft tokens", **batch("_BC", drafts={"C": 2})),
        Case("a row moves into a place where a longer one was", **batch("_BCD", lengths={"D": 1})),
        Case("holes at both ends and in the middle", **batch("_B_DE_")),
        Case("an empty batch", **batch("")),
    ),
    strategy=batches(),
    changes=("req_ids", "req_id_to_index", "num_tokens", "spec_token_ids", "token_ids"),
    view=live_rows,
)
