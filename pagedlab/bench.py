"""How fast the host side is: the work between two forward passes, without the model.

Each row is one claim, measured as ``peer_speed`` was: one thread, the best of three runs. Figures that stand in
``docs/`` come from here, with the machine and the date (`pagedlab bench host`).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedlab.config import SchedulerConfig
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.scheduling import Scheduler


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ``rate`` is in ``unit``."""

    name: str
    what: str
    rate: float
    unit: str


def machine() -> str:
    """Return the processor and the Python of this machine."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, Python {platform.python_version()}"


def best_rate(run: Callable[[], int], seconds: float = 1.0, repeats: int = 3) -> float:
    """Return units per second: the best of ``repeats`` runs of at least ``seconds``; ``run`` returns its units."""
    best = 0.0
    for _ in range(repeats):
        units, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            units += run()
        best = max(best, units / elapsed)
    return best


def decoding_scheduler(
    num_running: int,
    *,
    prefix_caching: bool = False,
    num_blocks: int | None = None,
    num_waiting: int = 0,
    max_tokens: int = 100_000,
    fast_path: bool = True,
) -> Scheduler:
    """Return a scheduler whose seats are all taken by requests that decode."""
    block_size, prompt_len, max_model_len = 16, 64, 1 << 20
    config = SchedulerConfig(max_num_batched_tokens=max(8192, num_running * prompt_len), max_num_seqs=num_running)
    per_request = 2 + (prompt_len + max_tokens) // block_size if num_blocks is None else 0
    manager = KVCacheManager(
        [FullAttentionSpec(block_size)],
        num_blocks or 1 + num_running * per_request,
        max_model_len,
        enable_caching=prefix_caching,
    )
    scheduler = Scheduler(config, manager, max_model_len, fast_path=fast_path)
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    for index in range(num_running + num_waiting):
        prompt = [index % 1000] * (prompt_len + index % block_size)  # so that boundaries fall in different steps
        scheduler.add_request(Request(f"request-{index}", prompt, params, index))
    while any(request.num_tokens - request.num_computed_tokens != 1 for request in scheduler.running) or (
        len(scheduler.running) < num_running
    ):
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> None:
    """Do one step with a model that always says 7."""
    output = scheduler.schedule()
    chunks = {request_id for request_id, _ in output.scheduled if scheduler.requests[request_id].is_prefill_chunk}
    sampled = {request_id: () if request_id in chunks else (7,) for request_id, _ in output.scheduled}
    scheduler.update_from_output(output, sampled)


def scheduler_rate(scheduler: Scheduler, seconds: float = 1.0) -> float:
    """Return steps per second of schedule and update_from_output, with the sampled tokens given."""
    sampled = {request.request_id: (7,) for request in scheduler.running}

    def run() -> int:
        for _ in range(50):
            scheduler.update_from_output(scheduler.schedule(), sampled)
        return 50

    return best_rate(run, seconds)
