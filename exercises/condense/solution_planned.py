"""Plan first: the live rows beyond the new end, from the top, go into the holes before it, from the bottom."""

import numpy as np


def condense(
    req_ids: list[str | None],
    req_id_to_index: dict[str, int],
    num_tokens: np.ndarray,
    spec_token_ids: list[list[int]],
    token_ids: np.ndarray,
) -> None:
    live = [row for row, req_id in enumerate(req_ids) if req_id is not None]
    end = len(live)
    targets = [row for row in range(end) if req_ids[row] is None]
    sources = [row for row in reversed(live) if row >= end]
    token_ids[targets] = token_ids[sources]  # whole rows: what is behind the live tokens does not matter
    num_tokens[targets] = num_tokens[sources]
    for source, target in zip(sources, targets, strict=True):
        req_ids[target], spec_token_ids[target] = req_ids[source], spec_token_ids[source]
    req_ids[end:], spec_token_ids[end:] = [], []
    req_id_to_index.update((req_id, row) for row, req_id in enumerate(req_ids))
