"""Mark where each row begins, and count the marks: rows without tokens put several on one place."""

import numpy as np


def fast_slot_mapping(
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    block_size: int,
    slot_mapping: np.ndarray,
) -> None:
    slot_mapping.fill(-1)
    num_tokens = query_start_loc[-1]
    marks = np.bincount(query_start_loc[1:-1], minlength=num_tokens + 1)
    rows = np.cumsum(marks[:num_tokens])
    columns = positions // block_size
    slots = np.asarray(block_table[rows, columns], dtype=np.int64)
    slot_mapping[:num_tokens] = (slots - columns) * block_size + positions
