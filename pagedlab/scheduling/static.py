"""Static batching, the baseline: a batch is formed, and nobody joins until all of it have finished.

>>> from pagedlab.config import SchedulerConfig
>>> from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
>>> from pagedlab.request import Request, SamplingParams
>>> manager = KVCacheManager([FullAttentionSpec(block_size=4)], num_blocks=99, max_model_len=32)
>>> scheduler = StaticBatchScheduler(SchedulerConfig(16, max_num_seqs=2), manager, max_model_len=32)
>>> for name, max_tokens in (("A", 3), ("B", 1), ("C", 1)):
...     scheduler.add_request(Request(name, [1], SamplingParams(max_tokens=max_tokens), arrival_time=0))
>>> for _ in range(4):
...     output = scheduler.schedule()
...     result = scheduler.update_from_output(output, {name: (7,) for name, _ in output.scheduled})
...     print(output.num_scheduled_tokens)
{'A': 1, 'B': 1}
{'A': 1}
{'A': 1}
{'C': 1}

B's seat stays empty for two steps although C waits. Everything else is as in `Scheduler`; what continuous batching
changes is one condition.

vLLM has no counterpart: it is what servers did before iteration-level scheduling (Orca, OSDI 2022).
"""

from __future__ import annotations

from pagedlab.scheduling.output import SchedulerOutput
from pagedlab.scheduling.scheduler import Scheduler


class StaticBatchScheduler(Scheduler):
    """A `Scheduler` that admits only into an empty batch."""

    _batch_is_forming = False

    def schedule(self) -> SchedulerOutput:
        """Share out one step's budget; admit only if nobody was running."""
        self._batch_is_forming = not self.running
        return super().schedule()

    def _may_admit(self) -> bool:
        return self._batch_is_forming and super()._may_admit()
