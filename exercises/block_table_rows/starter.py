"""Write the row operations of a block table. Check it: pagedlab check block_table_rows THIS_FILE."""

import numpy as np


class BlockTable:
    """For each row, the blocks of a request: a growing list inside a fixed array."""

    def __init__(
        self,
        table: np.ndarray,  # [max_num_reqs, columns] int32: block ids
        num_blocks_per_row: np.ndarray,  # [max_num_reqs] int32: how many entries of each row are live
    ) -> None:
        self.table = table
        self.num_blocks_per_row = num_blocks_per_row

    def add_row(self, block_ids: list[int], row: int) -> None:
        """Start a row anew, with these blocks."""
        raise NotImplementedError("block_table_rows: start a row anew")

    def append_row(self, block_ids: list[int], row: int) -> None:
        """Put blocks behind the live entries of a row."""
        raise NotImplementedError("block_table_rows: append blocks to a row")

    def clear_row(self, row: int) -> None:
        """Set the live entries of a row to 0 and leave none live."""
        raise NotImplementedError("block_table_rows: clear a row")

    def move_row(self, source: int, target: int) -> None:
        """Give `target` the live entries of `source`, and clear `source`."""
        raise NotImplementedError("block_table_rows: move a row")

    def swap_row(self, first: int, second: int) -> None:
        """Exchange the live entries of two rows."""
        raise NotImplementedError("block_table_rows: swap two rows")
