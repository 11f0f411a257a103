"""One row after the other: a row's tokens of this step are a slice of it."""

import numpy as np


def prepare_inputs(
    req_ids: list[str],
    num_scheduled_tokens: dict[str, int],
    num_computed_tokens: np.ndarray,
    num_tokens: np.ndarray,
    token_ids: np.ndarray,
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    input_ids: np.ndarray,
    seq_lens: np.ndarray,
    logits_indices: np.ndarray,
    discard: np.ndarray,
) -> None:
    query_start_loc.fill(0)
    seq_lens.fill(0)
    for row, req_id in enumerate(req_ids):
        first = int(num_computed_tokens[row])
        behind = first + num_scheduled_tokens[req_id]
        begin = int(query_start_loc[row])
        end = begin + behind - first
        positions[begin:end] = range(first, behind)
        input_ids[begin:end] = token_ids[row, first:behind]
        seq_lens[row] = behind
        query_start_loc[row + 1 :] = end  # the next row corrects this for those behind it
        logits_indices[row] = end - 1
        discard[row] = behind < num_tokens[row]
