"""What changed in the batch since the last step, for whoever keeps state by row.

>>> builder = BatchUpdateBuilder()
>>> builder.remove(4)
>>> builder.remove(1)
>>> builder.remove(2)
>>> builder.pop_lowest_hole()  # reused, so it will not be reported as removed
1
>>> update = builder.get_and_reset(batch_size=4)
>>> update.removed
(4, 2)
>>> builder.get_and_reset(batch_size=4) is None  # nothing happened since
True

vLLM counterpart: ``vllm/v1/sample/logits_processor/state.py`` (``BatchUpdateBuilder``) and ``interface.py``
(``BatchUpdate``) at 0.25.1.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import NamedTuple

from pagedlab.errors import IntegrityError
from pagedlab.request import SamplingParams


class MoveDirection(enum.Enum):
    """How two rows changed places."""

    UNIDIRECTIONAL = "move"
    SWAP = "swap"


class AddedRow(NamedTuple):
    """A request in a new row. ``output_token_ids`` is the live list, as in `CachedRequestState`."""

    row: int
    sampling_params: SamplingParams
    prompt_token_ids: tuple[int, ...] | None
    output_token_ids: list[int]


class MovedRow(NamedTuple):
    """Row ``source`` went to ``target`` and left nothing behind, or (SWAP) the two exchanged."""

    source: int
    target: int
    direction: MoveDirection


# `AddedRow._make` and `MovedRow._make` without a Python call for each row.
_added_row = functools.partial(tuple.__new__, AddedRow)
_moved_row = functools.partial(tuple.__new__, MovedRow)


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """One step's changes. Apply in this order: removed, added, moved (moves one after the other)."""

    batch_size: int
    removed: tuple[int, ...]
    added: tuple[AddedRow, ...]
    moved: tuple[MovedRow, ...]


class BatchUpdateBuilder:
    """Collects changes, and is the list of holes at the same time."""

    def __init__(self) -> None:
        self._removed: list[int] = []
        self._removed_is_sorted = False
        self._added: list[tuple[int, SamplingParams, tuple[int, ...] | None, list[int]]] = []
        self._moved: list[tuple[int, int, MoveDirection]] = []

    @property
    def num_holes(self) -> int:
        """Removed rows that nothing has filled yet."""
        return len(self._removed)

    def remove(self, row: int) -> None:
        """Make ``row`` a hole (vLLM: ``removed_append``).

        Raises
        ------
        IntegrityError
            If holes have been read or rows have moved in this step already: all removals come first.
        """
        if self._removed_is_sorted:
            raise IntegrityError(f"row {row} is removed after holes were read: remove before you add or condense")
        if self._moved:
            raise IntegrityError(f"row {row} is removed after rows have moved: remove first, or refresh_metadata first")
        self._removed.append(row)

    def row_to_add(self, num_reqs: int) -> int:
        """Return the row for a request that is to be added: the lowest hole, or behind the last row.

        Raises
        ------
        IntegrityError
            If rows have moved in this step: whoever follows applies moves after additions.
        """
        if self._moved:
            raise IntegrityError("rows have moved in this step: add requests before that, or refresh_metadata first")
        hole = self.peek_lowest_hole()
        return num_reqs if hole is None else hole

    def add(self, added: tuple[int, SamplingParams, tuple[int, ...] | None, list[int]]) -> None:
        """Report a request (the fields of `AddedRow`) in the row of `row_to_add`; a hole is then none any more."""
        if self._removed:
            self._removed.pop()
        self._added.append(added)

    def move(self, source: int, target: int, direction: MoveDirection) -> None:
        self._moved.append((source, target, direction))

    def peek_lowest_hole(self) -> int | None:
        """Return the lowest hole, or None."""
        self._sort()
        return self._removed[-1] if self._removed else None

    def pop_lowest_hole(self) -> int | None:
        """Take the lowest hole out of the list, or return None."""
        self._sort()
        return self._removed.pop() if self._removed else None

    def _sort(self) -> None:
        if not self._removed_is_sorted:
            self._removed.sort(reverse=True)
            self._removed_is_sorted = True

    def get_and_reset(self, batch_size: int) -> BatchUpdate | None:
        """Return the changes since the last call, None if there are none, and start anew."""
        self._sort()
        update = None
        if self._removed or self._added or self._moved:
            added, moved = tuple(map(_added_row, self._added)), tuple(map(_moved_row, self._moved))
            update = BatchUpdate(batch_size, tuple(self._removed), added, moved)
        self._removed, self._added, self._moved = [], [], []
        self._removed_is_sorted = False
        return update
