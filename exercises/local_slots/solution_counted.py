"""Mark this rank's tokens and count: a token's number among them says where it is packed."""

import numpy as np


def local_slots(
    block_ids: np.ndarray,
    positions: np.ndarray,
    seq_len: int,
    block_size: int,
    world_size: int,
    rank: int,
    interleave: int,
    slot_mapping: np.ndarray,
) -> int:
    is_mine = np.arange(seq_len) // interleave % world_size == rank
    numbers = np.cumsum(is_mine) - 1
    memory = (block_ids[:, np.newaxis] * np.int64(block_size) + np.arange(block_size)).reshape(-1)
    slot_mapping[:] = -1
    for token, position in enumerate(positions):
        if is_mine[position]:
            slot_mapping[token] = memory[numbers[position]]
    return int(is_mine.sum())
