"""All tokens at once."""

import numpy as np


def slot_mapping(
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    block_size: int,
    slot_mapping: np.ndarray,
) -> None:
    num_tokens = query_start_loc[-1]
    rows = np.repeat(np.arange(len(block_table)), np.diff(query_start_loc))
    columns, offsets = np.divmod(positions[:num_tokens], block_size)
    blocks = block_table[rows, columns].astype(np.int64)
    slot_mapping[:num_tokens] = blocks * block_size + offsets
    slot_mapping[num_tokens:] = -1
