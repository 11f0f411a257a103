"""Decodes first: put the rows of a batch into the order that some attention kernels want.

>>> list(swaps_to_sort([2, 0, 3, 0]))  # rows 1 and 3 are decodes; row 1 is in its place already
[(3, 0), (3, 2)]

A row is a decode (0), a short extension of a prompt (1), a long one (2), or a first chunk (3). Only rows in the wrong
place move, along the cycles of one permutation, so that a batch that is in order costs nothing.

vLLM counterpart: ``vllm/v1/attention/backends/utils.py`` (``reorder_batch_to_split_decodes_and_prefills``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def regions(
    num_computed_tokens: npt.NDArray[np.integer],
    num_scheduled_tokens: npt.NDArray[np.integer],
    num_prompt_tokens: npt.NDArray[np.integer],
    decode_threshold: int,
) -> npt.NDArray[np.int64]:
    """Return the region of each row, 0 to 3; every argument is ``[num_reqs]``.

    ``decode_threshold`` is the largest query length that counts as a decode.
    """
    first_chunk = num_computed_tokens == 0
    long = num_scheduled_tokens > decode_threshold
    in_prompt = num_computed_tokens < num_prompt_tokens
    return np.select([first_chunk, long, in_prompt], [3, 2, 1], default=0)


def swaps_to_sort(row_regions: Sequence[int] | npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the swaps that bring rows into region order, one after the other."""
    current = np.asarray(row_regions)
    misplaced = np.flatnonzero(current != np.sort(current))
    sources = misplaced[np.argsort(current[misplaced], kind="stable")].tolist()
    goes_to = dict(zip(sources, misplaced.tolist(), strict=True))
    for source in sources:
        target = goes_to[source]
        while target != source:
            yield source, target
            goes_to[target], target = target, goes_to[target]
