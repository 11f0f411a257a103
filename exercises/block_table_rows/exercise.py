"""Write, append, clear, move and swap the rows of a block table.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``BlockTable.add_row``, ``.append_row``, ``.clear_row``,
``.move_row``, ``.swap_row``) at 0.25.1. What differs: a moved row leaves nothing behind (as in 0.33.0); a swap need not
exchange what is stale; a row always has room for what is asked; the copy for the GPU is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Write the five operations on the rows of a block table.

A row is a growing list inside a fixed array. Its first `num_blocks_per_row[row]` entries in `table[row]` are **live**:
they are the blocks of one request. What lies behind is **stale**: it may be anything, and nobody may look at it.

- `add_row(block_ids, row)` starts a row anew: its live entries are exactly `block_ids`.
- `append_row(block_ids, row)` puts `block_ids` behind the live entries.
- `clear_row(row)` sets the live entries to 0, the null block, and leaves none live.
- `move_row(source, target)` gives `target` the live entries of `source`, in place of its own, and clears `source`.
- `swap_row(first, second)` exchanges the live entries of two rows, which may be of different lengths.

Each of them keeps `num_blocks_per_row`. Write into both arrays in place, since others look at them; return nothing.
"""


class BlockTable:
    """One entry after the other."""

    def __init__(self, table: npt.NDArray[np.int32], num_blocks_per_row: npt.NDArray[np.int32]) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def add_row(self, block_ids: list[int], row: int) -> None:
        """Append to nothing."""
        self.num_blocks_per_row[row] = 0
        self.append_row(block_ids, row)

    def append_row(self, block_ids: list[int], row: int) -> None:
        """Each id goes into the first column that is not live, which then is."""
        for block_id in block_ids:
            self.table[row, self.num_blocks_per_row[row]] = block_id
            self.num_blocks_per_row[row] += 1

    def clear_row(self, row: int) -> None:
        """Take the entries away from the end."""
        while self.num_blocks_per_row[row] > 0:
            self.num_blocks_per_row[row] -= 1
            self.table[row, self.num_blocks_per_row[row]] = 0

    def move_row(self, source: int, target: int) -> None:
        """Add what is there elsewhere."""
        self.add_row(self._live(source), target)
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        """Remember both, then add each in the other's place."""
        of_first, of_second = self._live(first), self._live(second)
        self.add_row(of_second, first)
        self.add_row(of_first, second)

    def _live(self, row: int) -> list[int]:
        return [int(self.table[row, column]) for column in range(self.num_blocks_per_row[row])]


def drive(subject: Any, max_num_reqs: int, num_columns: int, operations: list[tuple[Any, ...]]) -> list[Any]:
    """Do one operation after the other; see all live entries, and what stands where a row was given up."""
    table = np.zeros((max_num_reqs, num_columns), dtype=np.int32)
    num_blocks_per_row = np.zeros(max_num_reqs, dtype=np.int32)
    block_table = subject(table, num_blocks_per_row)
    seen: list[Any] = []
    for number, (name, *arguments) in enumerate(operations, 1):
        before = num_blocks_per_row.tolist()
        getattr(block_table, name)(*arguments)
        rows = [row[:count].tolist() for row, count in zip(table, num_blocks_per_row.tolist(), strict=True)]
        given_up = arguments[0] if name in ("clear_row", "move_row") else None
        left = None if given_up is None else [given_up, table[given_up, : before[given_up]].tolist()]
        seen.append([f"after {number}. {name}({', '.join(map(repr, arguments))})", rows, left])
    return seen


def after_each_operation(values: Values) -> Mapping[str, Any]:
    """Name what was seen for the operation after which it was."""
    seen: dict[str, Any] = {}
    for when, rows, left in values["returned"]:
        seen[f"{when}, rows"] = rows
        if left is not None:
            row, entries = left
            seen[f"{when}, table[{row}, :{len(entries)}]"] = entries
    return seen


def table_of(*operations: tuple[Any, ...], max_num_reqs: int = 2, num_columns: int = 4) -> dict[str, Any]:
    """Return the inputs for operations like ("append", [5], 0), written without their "_row"."""
    return {
        "max_num_reqs": max_num_reqs,
        "num_columns": num_columns,
        "operations": [(f"{name}_row", *arguments) for name, *arguments in operations],
    }


@st.composite
def any_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Up to eight operations on two or three rows; no block is in two of them."""
    max_num_reqs, num_columns = draw(st.integers(2, 3)), 4
    counts = [0] * max_num_reqs
    operations: list[tuple[Any, ...]] = []
    next_id = 1
    for _ in range(draw(st.integers(1, 8))):
        row = draw(st.integers(0, max_num_reqs - 1))
        other = (row + draw(st.integers(1, max_num_reqs - 1))) % max_num_reqs
        kinds = (
            ["add"] + ["append", "clear", "move"] * (counts[row] > 0) + ["swap"] * (min(counts[row], counts[other]) > 0)
        )
        kind = draw(st.sampled_from(kinds))
        if kind in ("add", "append"):
            start = counts[row] if kind == "append" else 0
            block_ids = list(
                range(next_id, next_id + draw(st.integers(min(1, num_columns - start), num_columns - start)))
            )
            next_id += len(block_ids)
            counts[row] = start + len(block_ids)
            operations.append((kind, block_ids, row))
        elif kind == "clear":
            counts[row] = 0
            operations.append((kind, row))
        else:
            counts[row], counts[other] = (counts[other] if kind == "swap" else 0), counts[row]
            operations.append((kind, row, other))
    return table_of(*operations, max_num_reqs=max_num_reqs, num_columns=num_columns)


EXERCISE = Exercise(
    name="block_table_rows",
    lesson="03-block-table",
    title="The rows of a block table",
    task=TASK,
    reference=BlockTable,
    drive=drive,
    cases=(
        Case("a row that grows", **table_of(("add", [7, 2], 0), ("append", [5], 0))),
        Case("a row that is used again, by a shorter request", **table_of(("add", [7, 2, 5], 0), ("add", [3], 0))),
        Case(
            "a row that grows over stale entries",
            **table_of(("add", [7, 2, 5], 0), ("add", [3], 0), ("append", [6], 0)),
        ),
        Case("a row that is cleared", **table_of(("add", [7, 2], 0), ("add", [5], 1), ("clear", 0))),
        Case("a row that moves to a free place", **table_of(("add", [7, 2], 1), ("move", 1, 0))),
        Case(
            "a short row that moves to where a longer one was",
            **table_of(("add", [7, 2, 5], 0), ("add", [3], 1), ("move", 1, 0), ("append", [6], 0)),
        ),
        Case("two rows of one length that change places", **table_of(("add", [7], 0), ("add", [2], 1), ("swap", 0, 1))),
        Case(
            "a long row and a short one that change places",
            **table_of(("add", [7, 2, 5], 0), ("add", [3], 1), ("swap", 0, 1), ("append", [6], 0)),
        ),
        Case("a row that changes places with an empty one", **table_of(("add", [7, 2], 0), ("swap", 0, 1))),
        Case("nothing to append", **table_of(("add", [7, 2, 5, 3], 0), ("append", [], 0))),
    ),
    strategy=any_rows(),
    view=after_each_operation,
)
