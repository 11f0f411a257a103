"""Runs of the real engine with what its own objects said in each step, to compare figures with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.events import BeatStarted, Event
from pagedlab.scheduling import Scheduler, StaticBatchScheduler
from pagedlab.trace import Trace

REQUESTS = {"A": (19, 6), "B": (7, 3), "C": (12, 9), "D": (11, 4), "E": (9, 5), "F": (7, 3)}


@dataclass
class Served:
    """A trace; and for each of its steps, when the scheduler had decided: blocks (held, cached, empty), who waits."""

    trace: Trace
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def serve(tiny_model) -> Serve:
    def run(
        requests: Mapping[str, tuple[int, int]] = REQUESTS, *, arrivals: Sequence[int] = (), budget: int = 40,
        seats: int = 4, blocks: int = 60, caching: bool = False, scheduler: type = Scheduler,
    ) -> Served:  # fmt: skip
        """Serve requests (name to lengths of prompt and output)."""
        engine = LLMEngine(
            tiny_model,
            scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats),
            cache_config=CacheConfig(block_size=4, num_blocks=blocks, enable_prefix_caching=caching),
            max_model_len=40,
            device="cpu",
            scheduler_cls=scheduler,
        )
        served = Served(Trace(()))

        def look(event: Event) -> None:
            if event == BeatStarted("prepare"):
                pool = engine.kv_cache_manager.block_pool
                cached = sum(block.key is not None and block.ref_cnt == 0 for block in pool.blocks)
                held = pool.num_usable_blocks - pool.num_free_blocks
                served.blocks.append((held, cached, pool.num_free_blocks - cached))
                served.waiting.append(len(engine.scheduler.waiting))

        engine.observer = look
        recorder = record(engine)
        todo = dict(zip(requests, arrivals or [0] * len(requests), strict=True))
        while todo or engine.has_unfinished_requests():
            for name in [name for name, arrival in todo.items() if arrival <= len(served.blocks)]:
                del todo[name]
                prompt, output = requests[name]
                ids = [1 + at % 60 for at in range(prompt)]  # prompts begin alike: caching has something to hit
                engine.add_request(name, ids, SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True))
            engine.step()
        served.trace = recorder.stop()
        return served

    return run


@pytest.fixture(scope="session")
def calm(serve: Serve) -> Served:
    """Nobody is preempted; the last request comes later."""
    return serve(arrivals=[0, 0, 0, 0, 0, 3])


@pytest.fixture(scope="session")
def static(serve: Serve) -> Served:
    return serve(arrivals=[0, 0, 0, 0, 0, 3], scheduler=StaticBatchScheduler)


@pytest.fixture(scope="session")
def crowded(serve: Serve) -> Served:
    """Memory runs out."""
    return serve({"A": (13, 12), "B": (7, 12), "C": (12, 12)}, budget=16, blocks=13)


@pytest.fixture(scope="session")
def cached(serve: Serve) -> Served:
    """Blocks of those that are gone stay cached, are hit and are evicted."""
    return serve(arrivals=[0, 2, 8, 10, 20, 24], blocks=13, caching=True)


@pytest.fixture(scope="session")
def one_step(serve: Serve) -> Served:
    return serve({"A": (3, 1)})
