"""Slices, as vLLM does it."""

import numpy as np


class BlockTable:
    def __init__(self, table: np.ndarray, num_blocks_per_row: np.ndarray) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def add_row(self, block_ids: list[int], row: int) -> None:
        self.num_blocks_per_row[row] = 0
        self.append_row(block_ids, row)

    def append_row(self, block_ids: list[int], row: int) -> None:
        start = self.num_blocks_per_row[row]
        end = start + len(block_ids)
        self.table[row, start:end] = block_ids
        self.num_blocks_per_row[row] = end

    def clear_row(self, row: int) -> None:
        self.table[row, : self.num_blocks_per_row[row]] = 0
        self.num_blocks_per_row[row] = 0

    def move_row(self, source: int, target: int) -> None:
        num_blocks = self.num_blocks_per_row[source]
        self.table[target, :num_blocks] = self.table[source, :num_blocks]
        self.num_blocks_per_row[target] = num_blocks
        self.clear_row(source)

    def swap_row(self, first: int, second: int) -> None:
        self.table[[first, second]] = self.table[[second, first]]  # a list of rows is a copy, no view
        self.num_blocks_per_row[[first, second]] = self.num_blocks_per_row[[second, first]]
