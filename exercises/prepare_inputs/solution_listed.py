"""List all (row, position) pairs first; everything is read off that list."""

from itertools import accumulate

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
    spans = [
        range(computed, computed + num_scheduled_tokens[req_id])
        for req_id, computed in zip(req_ids, num_computed_tokens.tolist(), strict=True)
    ]
    pairs = [(row, position) for row, span in enumerate(spans) for position in span]
    positions[: len(pairs)] = [position for _, position in pairs]
    input_ids[: len(pairs)] = [token_ids[pair] for pair in pairs]

    ends = list(accumulate(map(len, spans)))
    query_start_loc[:] = [0, *ends] + [len(pairs)] * (len(query_start_loc) - len(ends) - 1)
    seq_lens[:] = [span.stop for span in spans] + [0] * (len(seq_lens) - len(spans))
    logits_indices[:] = [end - 1 for end in ends]
    discard[:] = [span.stop < held for span, held in zip(spans, num_tokens, strict=True)]
