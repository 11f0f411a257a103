"""Give each token its slot. Check it: pagedlab check slot_mapping THIS_FILE."""

import numpy as np


def slot_mapping(
    query_start_loc: np.ndarray,  # [rows + 1] int32: where each row's tokens begin
    positions: np.ndarray,  # [tokens, and more behind them] int64: each token's position in its request
    block_table: np.ndarray,  # [rows, columns] int32: block ids
    block_size: int,  # tokens in a block
    slot_mapping: np.ndarray,  # like positions, int64: to be filled, padding with -1
) -> None:
    """Write a slot for each token, and -1 behind the last."""
    raise NotImplementedError("slot_mapping: give each token its slot")
