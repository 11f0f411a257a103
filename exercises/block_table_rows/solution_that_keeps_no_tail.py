"""No row is left with stale entries: what is not live is 0 in every row, always."""

import numpy as np


class BlockTable:
    def __init__(self, table: np.ndarray, num_blocks_per_row: np.ndarray) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def add_row(self, block_ids: list[int], row: int) -> None:
        self.clear_row(row)
        self.append_row(block_ids, row)

    def append_row(self, block_ids: list[int], row: int) -> None:
        columns = self.num_blocks_per_row[row] + np.arange(len(block_ids))
        np.put(self.table[row], columns, block_ids)
        self.num_blocks_per_row[row] += len(block_ids)

    def clear_row(self, row: int) -> None:
        self.table[row].fill(0)
        self.num_blocks_per_row[row] = 0

    def move_row(self, source: int, target: int) -> None:
        self.clear_row(target)
        self.swap_row(source, target)

    def swap_row(self, first: int, second: int) -> None:
        for array in (self.table, self.num_blocks_per_row):
            kept = array[first].copy()
            array[first] = array[second]
            array[second] = kept
