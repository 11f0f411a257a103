"""One row after the other, as vLLM's kernel does: each row is a program."""

from itertools import pairwise

import numpy as np


def slot_mapping(
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    block_size: int,
    slot_mapping: np.ndarray,
) -> None:
    slot_mapping.fill(-1)
    for row, (begin, end) in enumerate(pairwise(query_start_loc)):
        mine = positions[begin:end]
        slot_mapping[begin:end] = np.int64(block_size) * block_table[row, mine // block_size] + mine % block_size
