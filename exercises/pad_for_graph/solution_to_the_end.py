"""Search the sizes, and clear each buffer to its end: what lies beyond the size is read by nobody."""

import bisect

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
    at = bisect.bisect_left(capture_sizes, num_reqs)
    if at == len(capture_sizes):
        return num_reqs
    for buffer, padding in (
        (input_ids, 0),
        (positions, 0),
        (query_start_loc[1:], query_start_loc[num_reqs]),
        (seq_lens, 0),
        (block_table, 0),
        (slot_mapping, -1),
    ):
        buffer[num_reqs:].fill(padding)
    return capture_sizes[at]
