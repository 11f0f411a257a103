"""One token after the other, with whole numbers: which round of the deal, and which card of its hand?"""

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
    def number(position: int) -> int:
        """How many tokens before ``position`` are on this rank."""
        dealt, card = divmod(position, interleave * world_size)
        return dealt * interleave + sorted((0, card - rank * interleave, interleave))[1]

    slots = []
    for position in positions.tolist():
        mine = position // interleave % world_size == rank
        column, offset = divmod(number(position), block_size)
        slots.append(block_ids.tolist()[column] * block_size + offset if mine else -1)
    slot_mapping[:] = slots + [-1] * (len(slot_mapping) - len(slots))
    return number(seq_len)
