"""Close the holes in the persistent batch. Check it: pagedlab check condense THIS_FILE."""

import numpy as np


def condense(
    req_ids: list[str | None],  # by row; None is a hole
    req_id_to_index: dict[str, int],  # the row of each request
    num_tokens: np.ndarray,  # [rows] int32: tokens of each row, without drafts
    spec_token_ids: list[list[int]],  # by row: its draft tokens
    token_ids: np.ndarray,  # [rows, width] int32: tokens of each row, its drafts behind them
) -> None:
    """Move the highest live row into the lowest hole, until the live rows are 0, 1, 2, ..."""
    raise NotImplementedError("condense: close the holes in the batch")
