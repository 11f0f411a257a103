"""Say of each row whether it is live, and let that decide."""

import numpy as np


def pad_for_graph(
    capture_sizes: list[int],
    num_reqs: int,
    input_ids: np.ndarray,
    positions: np.ndarray,
    query_start_loc: np.ndarray,
    seq_lens: np.ndarray,
    block_table: np.ndarray,
    slot_mapping: np.ndarray,
) -> int:
    live = np.arange(len(seq_lens)) < num_reqs
    for buffer in (input_ids, positions, seq_lens):
        buffer *= live
    block_table *= live[:, np.newaxis]
    slot_mapping[:] = np.where(live, slot_mapping, -1)
    np.minimum(query_start_loc, num_reqs, out=query_start_loc)
    large_enough = [size for size in capture_sizes if size >= num_reqs]
    return large_enough[0] if large_enough else num_reqs
