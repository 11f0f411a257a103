"""One hole at a time: close the lowest, then condense what is left."""

import numpy as np


def condense(
    req_ids: list[str | None],
    req_id_to_index: dict[str, int],
    num_tokens: np.ndarray,
    spec_token_ids: list[list[int]],
    token_ids: np.ndarray,
) -> None:
    while req_ids and req_ids[-1] is None:
        req_ids.pop()
        spec_token_ids.pop()
    if None not in req_ids:
        return
    hole = req_ids.index(None)
    name, drafts = req_ids.pop(), spec_token_ids.pop()
    source = len(req_ids)
    req_ids[hole], spec_token_ids[hole], req_id_to_index[name] = name, drafts, hole
    num_tokens[hole] = num_tokens[source]
    np.copyto(token_ids[hole], token_ids[source])
    condense(req_ids, req_id_to_index, num_tokens, spec_token_ids, token_ids)
