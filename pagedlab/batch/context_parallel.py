"""Context parallelism: the tokens of one request spread over several ranks, each with its own part of the KV memory.

>>> ranks = [ContextParallel(world_size=2, rank=rank, interleave=1) for rank in range(2)]
>>> [rank.num_local_tokens(np.array([5])).tolist() for rank in ranks]  # tokens 0, 2, 4 and tokens 1, 3
[[3], [2]]

Token ``p`` of a request is on rank ``(p // interleave) % world_size``. A block of the table stands for ``block_size``
tokens *on each rank*, so it spans ``block_size * world_size`` tokens of the request.

vLLM counterpart: ``vllm/v1/worker/block_table.py`` (``cp_kv_cache_interleave_size`` and the DCP and PCP ranks) at
0.25.1, where the world is ``pcp * dcp`` and the rank ``pcp_rank * dcp + dcp_rank``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagedlab.config import require_int


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """One rank's place among those that share each request.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    rank : int
        0 to ``world_size - 1``.
    interleave : int
        Neighbouring tokens that stay on one rank.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    world_size: int = 1
    rank: int = 0
    interleave: int = 1

    def __post_init__(self) -> None:
        require_int("world_size", self.world_size, 1)
        require_int("rank", self.rank, 0, self.world_size - 1)
        require_int("interleave", self.interleave, 1)

    def num_local_tokens(self, seq_lens: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return how many tokens of each request are on this rank; ``seq_lens`` ``[num_reqs]`` counts all of them."""
        stripe = self.interleave * self.world_size
        whole = seq_lens // stripe * self.interleave
        rest = np.clip(seq_lens % stripe - self.rank * self.interleave, 0, self.interleave)
        return np.asarray(whole + rest, dtype=np.int64)


NO_CONTEXT_PARALLEL = ContextParallel()
"""One rank, which has everything."""
