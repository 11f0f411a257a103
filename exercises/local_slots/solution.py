"""As vLLM does it: a virtual block spans all ranks, and in it whole rounds of the deal come before this one."""

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
    columns, within = np.divmod(positions, block_size * world_size)
    runs, in_run = np.divmod(within, interleave)
    rounds, owners = np.divmod(runs, world_size)
    slots = block_ids[columns].astype(np.int64) * block_size + rounds * interleave + in_run
    slot_mapping.fill(-1)
    slot_mapping[: len(positions)] = np.where(owners == rank, slots, -1)

    whole, rest = divmod(seq_len, interleave * world_size)
    return whole * interleave + min(max(rest - rank * interleave, 0), interleave)
