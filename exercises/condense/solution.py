"""As vLLM does it: look at the holes in ascending order, and keep a finger on the last live row."""

import numpy as np


def condense(
    req_ids: list[str | None],
    req_id_to_index: dict[str, int],
    num_tokens: np.ndarray,
    spec_token_ids: list[list[int]],
    token_ids: np.ndarray,
) -> None:
    holes = [row for row, req_id in enumerate(req_ids) if req_id is None]
    num_live = len(req_ids) - len(holes)
    last = len(req_ids) - 1
    for hole in holes:
        while last >= 0 and req_ids[last] is None:
            last -= 1
        if hole >= last:
            break
        length = num_tokens[last] + len(spec_token_ids[last])
        token_ids[hole, :length] = token_ids[last, :length]
        num_tokens[hole] = num_tokens[last]
        spec_token_ids[hole] = spec_token_ids[last]
        req_ids[hole] = req_ids[last]
        req_id_to_index[req_ids[last]] = hole
        last -= 1
    del req_ids[num_live:]
    del spec_token_ids[num_live:]
