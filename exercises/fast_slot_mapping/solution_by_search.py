"""Each token looks for its row in `query_start_loc`, all of them in one search; the table is read as one flat array."""

import numpy as np


def fast_slot_mapping(
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    block_size: int,
    slot_mapping: np.ndarray,
) -> None:
    num_tokens = int(query_start_loc[-1])
    rows = np.searchsorted(query_start_loc, np.arange(num_tokens), side="right") - 1
    cells = rows * block_table.shape[1] + positions // block_size
    slot_mapping[:num_tokens] = block_table.astype(np.int64).reshape(-1)[cells] * block_size + positions % block_size
    slot_mapping[num_tokens:].fill(-1)
