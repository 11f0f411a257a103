"""Give a rank the slots of its own tokens. Check it: pagedlab check local_slots THIS_FILE."""

import numpy as np


def local_slots(
    block_ids: np.ndarray,  # [columns] int32: the request's blocks, in order
    positions: np.ndarray,  # [tokens] int64: the positions that this step computes
    seq_len: int,  # tokens of the request, this step's included
    block_size: int,  # tokens in a block of one rank
    world_size: int,  # number of ranks
    rank: int,  # this one: 0 to world_size - 1
    interleave: int,  # tokens that stay together on a rank; divides block_size
    slot_mapping: np.ndarray,  # [tokens, or more] int64: to be filled
) -> int:
    """Write a slot for each token of this rank, and -1 elsewhere; return how many of the request's tokens are here."""
    raise NotImplementedError("local_slots: give this rank the slots of its own tokens")
