"""All tokens at once, as vLLM does it: the row of each token, its place in the row, its place in the flat table."""

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
    num_rows, width = token_ids.shape
    query_lens = np.array([num_scheduled_tokens[req_id] for req_id in req_ids], dtype=np.int32)
    total = query_lens.sum()
    query_start_loc[0] = 0
    np.cumsum(query_lens, out=query_start_loc[1 : num_rows + 1])
    query_start_loc[num_rows + 1 :] = total

    rows = np.repeat(np.arange(num_rows), query_lens)
    positions[:total] = num_computed_tokens[rows] + np.arange(total) - query_start_loc[rows]
    input_ids[:total] = token_ids.reshape(-1)[rows * width + positions[:total]]

    seq_lens[:num_rows] = num_computed_tokens + query_lens
    seq_lens[num_rows:] = 0
    logits_indices[:] = query_start_loc[1 : num_rows + 1] - 1
    discard[:] = seq_lens[:num_rows] < num_tokens
