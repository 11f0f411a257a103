"""Wrong versions of `BlockTable`, each named for what its author believed."""

# ruff: noqa: N801 - these classes are named like the mutants of functions

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class _Table:
    """A right one, to be got wrong in one place each."""

    def __init__(self, table: Ints, num_blocks_per_row: Ints) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def add_row(self, block_ids: list[int], row: int) -> None:
        self.table[row, : len(block_ids)] = block_ids
        self.num_blocks_per_row[row] = len(block_ids)

    def append_row(self, block_ids: list[int], row: int) -> None:
        start = self.num_blocks_per_row[row]
        self.table[row, start : start + len(block_ids)] = block_ids
        self.num_blocks_per_row[row] += len(block_ids)

    def clear_row(self, row: int) -> None:
        self.table[row, : self.num_blocks_per_row[row]] = 0
        self.num_blocks_per_row[row] = 0

    def move_row(self, source: int, target: int) -> None:
        self.add_row(self._live(source), target)
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        of_first, of_second = self._live(first), self._live(second)
        self.add_row(of_second, first)
        self.add_row(of_first, second)

    def _live(self, row: int) -> list[int]:
        live: list[int] = self.table[row, : self.num_blocks_per_row[row]].tolist()
        return live


class appends_at_column_0(_Table):
    """Block ids are written into a row from its beginning."""

    def append_row(self, block_ids: list[int], row: int) -> None:
        self.table[row, : len(block_ids)] = block_ids
        self.num_blocks_per_row[row] += len(block_ids)


class appends_in_place_of_all(_Table):
    """The new blocks are the blocks of the row."""

    def append_row(self, block_ids: list[int], row: int) -> None:
        self.add_row(block_ids, row)


class looks_for_the_first_0(_Table):
    """A row ends at its first 0: whoever wants to append looks for it."""

    def append_row(self, block_ids: list[int], row: int) -> None:
        num_blocks = int((self.table[row] != 0).sum())
        block_ids = block_ids[: self.table.shape[1] - num_blocks]
        end = num_blocks + len(block_ids)
        self.table[row, num_blocks:end] = block_ids
        self.num_blocks_per_row[row] = end


class forgets_to_count(_Table):
    """The entry is in the row, and that is where it counts."""

    def append_row(self, block_ids: list[int], row: int) -> None:
        start = self.num_blocks_per_row[row]
        self.table[row, start : start + len(block_ids)] = block_ids


class adds_behind_what_is_there(_Table):
    """To add is to append: `num_blocks_per_row` need not be set back."""

    def add_row(self, block_ids: list[int], row: int) -> None:
        start = self.num_blocks_per_row[row]
        end = min(start + len(block_ids), self.table.shape[1])
        self.table[row, start:end] = block_ids[: end - start]
        self.num_blocks_per_row[row] = end

    def move_row(self, source: int, target: int) -> None:
        super().add_row(self._live(source), target)
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        of_first, of_second = self._live(first), self._live(second)
        super().add_row(of_second, first)
        super().add_row(of_first, second)


class clears_only_the_count(_Table):
    """With a count of 0 nobody looks at the entries, so they may stay."""

    def clear_row(self, row: int) -> None:
        self.num_blocks_per_row[row] = 0


class clears_only_the_entries(_Table):
    """A row full of 0 is empty, whatever its count says."""

    def clear_row(self, row: int) -> None:
        self.table[row, : self.num_blocks_per_row[row]] = 0


class copies_instead_of_moving(_Table):
    """The target has it now; the source does no harm."""

    def move_row(self, source: int, target: int) -> None:
        self.add_row(self._live(source), target)


class moves_without_the_count(_Table):
    """To move a row is to copy its entries."""

    def move_row(self, source: int, target: int) -> None:
        live = self._live(source)
        self.table[target, : len(live)] = live
        self.clear_row(source)


class swaps_views(_Table):
    """`kept = table[first]` remembers what was in the row."""

    def swap_row(self, first: int, second: int) -> None:
        kept = self.table[first]
        self.table[first] = self.table[second]
        self.table[second] = kept
        self.num_blocks_per_row[[first, second]] = self.num_blocks_per_row[[second, first]]


class swaps_without_the_counts(_Table):
    """To swap two rows is to exchange their entries."""

    def swap_row(self, first: int, second: int) -> None:
        self.table[[first, second]] = self.table[[second, first]]


class swaps_up_to_the_shorter(_Table):
    """Two rows have as many entries to exchange as the shorter one has."""

    def swap_row(self, first: int, second: int) -> None:
        counts = self.num_blocks_per_row
        end = min(counts[first], counts[second])
        self.table[[first, second], :end] = self.table[[second, first], :end]
        counts[[first, second]] = counts[[second, first]]
