"""Choose the size, then fill one slice of each buffer."""

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
    size = min((size for size in capture_sizes if size >= num_reqs), default=num_reqs)
    input_ids[num_reqs:size] = 0
    positions[num_reqs:size] = 0
    query_start_loc[num_reqs + 1 : size + 1] = num_reqs
    seq_lens[num_reqs:size] = 0
    block_table[num_reqs:size] = 0
    slot_mapping[num_reqs:size] = -1
    return size
