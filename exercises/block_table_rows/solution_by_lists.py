"""Read a row as a list, write a row from a list: all five are made of these two."""

import numpy as np


class BlockTable:
    def __init__(self, table: np.ndarray, num_blocks_per_row: np.ndarray) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def read(self, row: int) -> list[int]:
        return self.table[row, : self.num_blocks_per_row[row]].tolist()

    def write(self, block_ids: list[int], row: int) -> None:
        self.table[row, : len(block_ids)] = block_ids
        self.num_blocks_per_row[row] = len(block_ids)

    add_row = write

    def append_row(self, block_ids: list[int], row: int) -> None:
        self.write(self.read(row) + block_ids, row)

    def clear_row(self, row: int) -> None:
        self.write([0] * len(self.read(row)), row)
        self.write([], row)

    def move_row(self, source: int, target: int) -> None:
        self.write(self.read(source), target)
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        both = self.read(second), self.read(first)
        for block_ids, row in zip(both, (first, second), strict=True):
            self.write(block_ids, row)
