"""Pad a batch of decodes to a captured size. Check it: pagedlab check pad_for_graph THIS_FILE."""

import numpy as np


def pad_for_graph(
    capture_sizes: list[int],  # numbers of rows that graphs were captured for, ascending; maybe none
    num_reqs: int,  # live rows, at least one; each has one token
    input_ids: np.ndarray,  # [rows] int32
    positions: np.ndarray,  # [rows] int64: each token's position in its request
    query_start_loc: np.ndarray,  # [rows + 1] int32: where each row's tokens begin
    seq_lens: np.ndarray,  # [rows] int32: tokens of each request after this step
    block_table: np.ndarray,  # [rows, columns] int32: block ids
    slot_mapping: np.ndarray,  # [rows] int64: where each token's keys and values go
) -> int:
    """Make the rows behind the live ones harmless, up to the size that is returned."""
    raise NotImplementedError("pad_for_graph: choose a size and pad the batch to it")
