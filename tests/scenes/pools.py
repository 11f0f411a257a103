"""Traces of the real scheduler and block pool, run without a model: any number of blocks, requests and steps, quickly.

Tokens are invented, all else is the engine's own: `Scheduler`, `KVCacheManager` and `BlockPool` decide and emit, and
`pagedlab.trace.record` watches. A prompt's first tokens may be shared, so that the prefix cache is hit.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pagedlab.config import SchedulerConfig
from pagedlab.events import (
    BeatStarted,
    Event,
    Observer,
    RequestAdded,
    RequestScheduled,
    StepFinished,
    StepStarted,
    TokenAccepted,
)
from pagedlab.kvcache import BlockPool, FullAttentionSpec, KVCacheManager, KVCacheSpec
from pagedlab.request import Request, SamplingParams
from pagedlab.scheduling import Scheduler
from pagedlab.trace import Trace, record

MAX_MODEL_LEN = 4096


class Modelless:
    """An engine without a model, as `record` can watch it."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 4,
        budget: int = 64,
        seats: int = 8,
        caching: bool = True,
        specs: Sequence[KVCacheSpec] = (),
        **scheduling: Any,
    ) -> None:
        specs = specs or (FullAttentionSpec(block_size),)
        self.manager = KVCacheManager(
            specs, num_blocks, MAX_MODEL_LEN, enable_caching=caching, max_num_batched_tokens=budget
        )
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduling)
        self.scheduler = Scheduler(config, self.manager, MAX_MODEL_LEN)
        self.num_steps = 0
        self._settings = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": seats,
                          "max_num_batched_tokens": budget}  # fmt: skip

    @property
    def pool(self) -> BlockPool:
        return self.manager.block_pool

    @property
    def observer(self) -> Observer | None:
        return self.scheduler.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.scheduler.observer = self.manager.observer = observer

    def describe(self) -> Mapping[str, Any]:
        return self._settings

    def token_text(self, token_id: int) -> str | None:
        return None

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int, **keys: Any) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.scheduler.add_request(Request(request_id, list(prompt), params, self.num_steps, **keys))
        self._emit(RequestAdded(request_id, tuple(prompt), max_tokens))

    def step(self) -> None:
        self._emit(StepStarted(self.num_steps))
        self._emit(BeatStarted("schedule"))
        output = self.scheduler.schedule()
        self._emit(BeatStarted("update"))
        tokens: dict[str, tuple[int, ...]] = {}
        for request_id, _ in output.scheduled:
            live = self.scheduler.requests[request_id]
            token = zlib.crc32(f"{request_id}:{live.num_tokens}".encode()) % 50
            tokens[request_id] = () if live.is_prefill_chunk else (token,)
        self.scheduler.update_from_output(output, tokens)
        running, waiting = (
            tuple(request.request_id for request in queue) for queue in (self.scheduler.running, self.scheduler.waiting)
        )
        self._emit(StepFinished(self.num_steps, running, waiting, self.manager.num_free_blocks))
        self.num_steps += 1

    def fail(self) -> None:
        """Begin a step that fails while it is scheduled, and take it back as the engine does."""
        self._emit(StepStarted(self.num_steps))
        self.scheduler.schedule()
        live = [*self.scheduler.running, *self.scheduler.waiting]
        self.manager.reset()
        for request in live:
            request.restart(request.num_output_tokens)
        self.scheduler.restart(live)

    def _emit(self, event: Event) -> None:
        if self.observer is not None:
            self.observer(event)


def run(
    engine: Modelless,
    requests: Sequence[tuple[str, Sequence[int], int, int]],
    steps: int = 300,
    without: tuple[type[Event], ...] = (),
) -> Trace:
    """Serve requests (id, prompt, output tokens, step of arrival) to their ends; return the trace.

    Events of the kinds in ``without`` are not recorded.
    """
    recorder = record(engine)
    if without:
        engine.observer = lambda event: None if isinstance(event, without) else recorder(event)
    todo = list(requests)
    for step in range(steps):
        for item in [item for item in todo if item[3] <= step]:
            todo.remove(item)
            engine.add(*item[:3])
        if not todo and not engine.scheduler.has_unfinished_requests():
            break
        engine.step()
    return recorder.stop()


PREFIX = tuple(range(100, 108))


@cache
def three_requests(num_blocks: int = 16) -> Trace:
    """A and B begin alike, so that B hits A's blocks; C comes when the pool is nearly empty and evicts what A left."""
    a, b, c = (*PREFIX, 1, 2, 3), (*PREFIX, 7, 8), tuple(range(200, 226))
    return run(Modelless(num_blocks), [("A", a, 4, 0), ("B", b, 12, 1), ("C", c, 14, 4)])


@cache
def busy(num_blocks: int, seats: int, steps: int, prompt: int = 64, output: int = 120) -> Trace:
    """Many requests for so many steps: the pool is used, hit and evicted from all the time.

    Of each token nothing is recorded, of each block everything.
    """
    engine = Modelless(num_blocks, block_size=16, budget=4 * seats + 2048, seats=seats)
    requests = [
        (
            f"req-{at}",
            [*([at % 7] * 32), *(at * 31 + i for i in range(prompt - 32 + at * 13 % 50))],
            output + at * 29 % 90,
            0 if at < seats else steps * (at - seats) // (6 * seats),
        )
        for at in range(7 * seats)
    ]
    return run(engine, requests, steps, without=(RequestScheduled, TokenAccepted))
