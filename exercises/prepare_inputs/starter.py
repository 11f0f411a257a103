"""Prepare the inputs of a forward pass. Check it: pagedlab check prepare_inputs THIS_FILE."""

import numpy as np


def prepare_inputs(
    req_ids: list[str],  # by row
    num_scheduled_tokens: dict[str, int],  # tokens of each request in this step, in the order of scheduling
    num_computed_tokens: np.ndarray,  # [rows] int32: tokens of each request that earlier steps have computed
    num_tokens: np.ndarray,  # [rows] int32: all tokens of each request
    token_ids: np.ndarray,  # [rows, width] int32: the tokens of each request; behind them anything
    query_start_loc: np.ndarray,  # [at least rows + 1] int32: to be filled, to its end
    positions: np.ndarray,  # [at least the step's tokens] int64: to be filled
    input_ids: np.ndarray,  # like positions, int32: to be filled
    seq_lens: np.ndarray,  # [at least rows] int32: to be filled, to its end
    logits_indices: np.ndarray,  # [rows] int32: to be filled
    discard: np.ndarray,  # [rows] bool: to be filled
) -> None:
    """Read this step's tokens out of the rows, into the six buffers."""
    raise NotImplementedError("prepare_inputs: read this step's tokens out of the rows")
