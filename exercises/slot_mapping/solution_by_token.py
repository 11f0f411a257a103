"""One token after the other; each finds its row."""

import bisect

import numpy as np


def slot_mapping(
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    block_size: int,
    slot_mapping: np.ndarray,
) -> None:
    begins = query_start_loc.tolist()
    for token, position in enumerate(positions.tolist()):
        if token >= begins[-1]:
            slot_mapping[token] = -1
            continue
        row = bisect.bisect_right(begins, token) - 1  # the last row that begins here or before
        slot_mapping[token] = block_table[row].tolist()[position // block_size] * block_size + position % block_size
