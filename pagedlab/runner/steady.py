"""The rows of a batch in which everybody decodes, as `pagedlab.scheduling.steady` keeps its requests: as columns.

As long as the scheduler sends the same requests and no row moves, only counters change, and all by the same amount.

vLLM has no counterpart at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagedlab.scheduling.output import CachedRequestData, SchedulerOutput, Shifted


@dataclass(frozen=True, slots=True)
class SteadyRows:
    """Where the requests of the scheduler's last output are.

    Attributes
    ----------
    req_ids : tuple of str
        As the scheduler sent it: the same tuple means the same requests.
    base : tuple of int
        What their ``num_computed_tokens`` count from; the same tuple means that all have grown alike.
    base_by_row : ndarray of int32, [num_reqs]
        The same, in the order of rows.
    """

    req_ids: tuple[str, ...]
    base: tuple[int, ...]
    base_by_row: npt.NDArray[np.int32]

    @classmethod
    def of(cls, cached: CachedRequestData, row_of: Mapping[str, int]) -> SteadyRows | None:
        """Keep where everybody is; None unless the scheduler sent columns that only grow."""
        counts = cached.num_computed_tokens
        if not isinstance(counts, Shifted):
            return None
        base_by_row = np.empty(len(counts), dtype=np.int32)
        base_by_row[[row_of[req_id] for req_id in cached.req_ids]] = counts.base
        return cls(cached.req_ids, counts.base, base_by_row)

    def goes_on(self, output: SchedulerOutput) -> bool:
        """Whether this output is of the same requests, one token further, and nothing else."""
        cached = output.scheduled_cached_reqs
        counts = cached.num_computed_tokens
        return (
            cached.req_ids is self.req_ids
            and isinstance(counts, Shifted)
            and counts.base is self.base
            and not (output.scheduled_new_reqs or output.finished_req_ids)
        )

    def num_computed_tokens(self, cached: CachedRequestData) -> npt.NDArray[np.int32]:
        """Return the counts of an output that goes on, by row."""
        counts = cached.num_computed_tokens
        return self.base_by_row + np.int32(counts.shift) if isinstance(counts, Shifted) else self.base_by_row
