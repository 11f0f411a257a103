"""The work between two forward passes: scheduling, the whole host step, the block pool."""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pagedlab.bench.batch import batch_rows
from pagedlab.bench.measure import Row, best_rate
from pagedlab.config import SchedulerConfig
from pagedlab.conformance import smallest_model
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.scheduling import Scheduler

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20
OBSERVER_ROUNDS = 200


def host_rows(seconds: float = 1.0) -> Iterator[Row]:
    """Measure and yield every row; each of its three runs takes about ``seconds``."""
    # Two readings of vLLM, of which the better counts: 479 and 455, 450 and 421; further down 327 and 256.
    schedule = "schedule + update_from_output, {} running decodes"
    for caching, vllm in ((False, 479.0), (True, 450.0)):
        suffix, words = ("_cached", ", prefix caching") if caching else ("", "")
        for fast in (True, False):
            rate = scheduler_rate(256, seconds, prefix_caching=caching, fast_path=fast)
            name = f"schedule_256{suffix}{'' if fast else '_plain'}"
            yield Row(name, schedule.format(256) + words + ("" if fast else ", plain path"), rate, "steps/s", vllm)
    step = (
        "a whole step but for the model: schedule, update_states, prepare_inputs, bookkeeping, update_from_output, "
        "256 running decodes"
    )
    yield Row(
        "host_step_256",
        f"{step}; without the slot kernel, as vLLM's was measured",
        host_step_rate(256, seconds, with_slots=False),
        "steps/s",
        327.0,
    )
    yield Row(
        "host_step_256_slots", f"{step}; NumPy slot mapping included", host_step_rate(256, seconds), "steps/s", 327.0
    )
    yield from batch_rows(seconds)
    for count in (64, 1024, 4096):
        yield Row(f"schedule_{count}", schedule.format(count), scheduler_rate(count, seconds), "steps/s")
    yield Row(
        "schedule_256_pool_1e6",
        schedule.format(256) + ", a million blocks in the pool",
        scheduler_rate(256, seconds, num_blocks=10**6),
        "steps/s",
    )
    yield Row(
        "schedule_256_waiting_1e5",
        schedule.format(256) + ", 100,000 waiting",
        scheduler_rate(256, seconds, num_waiting=10**5),
        "steps/s",
    )
    words = "allocate 512 tokens and free them"
    rate = allocate_free_rate(seconds, prefix_caching=False)
    yield Row("allocate_free_512", words, rate, "blocks/s", 2_650_000.0)
    # vLLM hashes a prompt when its request is made, so hashing is not in its figure.
    rate = allocate_free_rate(seconds, prefix_caching=True)
    yield Row("allocate_free_512_cached", words + ", prefix caching, prompt hashed before", rate, "blocks/s", 409_000.0)
    yield Row(
        "observer_off",
        "what asking for an observer costs when there is none: the plain path, 256 running decodes, median of "
        f"{OBSERVER_ROUNDS} alternations",
        observer_off_percent(seconds),
        "percent",
    )
    rate = allocate_free_rate(seconds, prefix_caching=True, hash_before=False)
    yield Row("allocate_free_512_hashed", words + ", prefix caching, prompt hashed as well", rate, "blocks/s")


def loaded_scheduler(
    num_running: int,
    *,
    max_tokens: int,
    max_model_len: int = MAX_MODEL_LEN,
    prefix_caching: bool = False,
    num_blocks: int | None = None,
    num_waiting: int = 0,
    fast_path: bool = True,
    scheduler_cls: type[Scheduler] = Scheduler,
) -> Scheduler:
    """Return a scheduler with as many requests as seats and ``num_waiting`` more; a first step takes all prompts."""
    prompt_len = 64
    per_request = 2 + (prompt_len + BLOCK_SIZE + max_tokens) // BLOCK_SIZE
    manager = KVCacheManager(
        [FullAttentionSpec(BLOCK_SIZE)],
        max(num_blocks or 0, 1 + num_running * per_request),
        max_model_len,
        enable_caching=prefix_caching,
    )
    budget = num_running * (prompt_len + BLOCK_SIZE)
    scheduler = scheduler_cls(SchedulerConfig(budget, num_running), manager, max_model_len, fast_path=fast_path)
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    for index in range(num_running + num_waiting):
        # Lengths differ, so that blocks are crossed in different steps; contents differ, so that nothing is shared.
        prompt = [index % 50_000] * (prompt_len + index % BLOCK_SIZE)
        scheduler.add_request(Request(f"request-{index}", prompt, params, index))
    return scheduler


def decoding_scheduler(num_running: int, **options: Any) -> Scheduler:
    """Return a scheduler whose seats are all taken by requests that decode; options as for `loaded_scheduler`."""
    scheduler = loaded_scheduler(num_running, **options)
    output = scheduler.schedule()
    scheduler.update_from_output(output, {request_id: (7,) for request_id, _ in output.scheduled})
    return scheduler


def scheduler_rate(num_running: int, seconds: float, **options: Any) -> float:
    """Return steps per second of schedule and update_from_output; the sampled tokens are given."""
    steps = max(50, int(seconds * 5_000_000 / num_running))  # more than one run can do

    def prepare() -> Callable[[], int]:
        scheduler = decoding_scheduler(num_running, max_tokens=steps + 2, **options)
        sampled = {request.request_id: (7,) for request in scheduler.running}

        def run() -> int:
            for _ in range(10):
                scheduler.update_from_output(scheduler.schedule(), sampled)
            return 10

        return run

    return best_rate(prepare, seconds, most_units=steps - 10)


def host_step_rate(num_running: int, seconds: float, *, with_slots: bool = True) -> float:
    """Return whole steps per second, without forward pass and sampling."""
    max_model_len = 8192
    steps = min(max(50, int(seconds * 2_000_000 / num_running)), max_model_len - 100)

    def prepare() -> Callable[[], int]:
        scheduler = loaded_scheduler(num_running, max_tokens=steps + 20, max_model_len=max_model_len)
        runner = GPUModelRunner(
            smallest_model(max_model_len),
            max_num_reqs=num_running,
            max_model_len=max_model_len,
            max_num_batched_tokens=scheduler.config.max_num_batched_tokens,
            num_blocks=len(scheduler.kv_cache_manager.block_pool.blocks),
            specs=scheduler.kv_cache_manager.specs,
        )
        sampled = np.full(num_running, 7)
        if not with_slots:
            runner.input_batch.block_table.compute_slot_mapping = _nothing  # type: ignore[method-assign]

        def one_step() -> None:
            output = scheduler.schedule()
            inputs = runner.prepare(output)
            tokens = {} if inputs is None else runner.take_in(inputs, sampled)
            scheduler.update_from_output(output, tokens)

        def run() -> int:
            for _ in range(10):
                one_step()
            return 10

        one_step()  # the prompts
        return run

    return best_rate(prepare, seconds, most_units=steps - 10)


def _nothing(*_: object, **__: object) -> None:
    """Stand for work that is not measured."""


class _WithoutObserver(ast.NodeTransformer):
    """Takes every ``if self.observer is not None:`` out of the source of a class."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "self.observer is not None" else self.generic_visit(node)


def observer_off_percent(seconds: float) -> float:
    """Return how much longer the plain path takes than one that never asks for an observer, in percent.

    The two take turns, a few steps each, so that what else the machine does hits both; the median of the ratios counts.
    """
    module = sys.modules[Scheduler.__module__]
    tree = _WithoutObserver().visit(ast.parse(inspect.getsource(Scheduler)))
    namespace = dict(vars(module))
    exec(compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec"), namespace)
    steps = max(1, int(seconds * 12))

    def measure(scheduler: Scheduler) -> float:
        sampled = {request.request_id: (7,) for request in scheduler.running}
        started = time.perf_counter()
        for _ in range(steps):
            scheduler.update_from_output(scheduler.schedule(), sampled)
        return time.perf_counter() - started

    options: dict[str, Any] = {"max_tokens": steps * OBSERVER_ROUNDS + 2, "fast_path": False}
    ours = decoding_scheduler(256, **options)
    without = decoding_scheduler(256, scheduler_cls=namespace["Scheduler"], **options)
    gc.collect()
    ratios = []
    for index in range(OBSERVER_ROUNDS):
        pair = (ours, without) if index % 2 else (without, ours)  # neither is always first
        times = {scheduler: measure(scheduler) for scheduler in pair}
        ratios.append(times[ours] / times[without])
    return (statistics.median(ratios) - 1) * 100


def allocate_free_rate(seconds: float, *, prefix_caching: bool, hash_before: bool = True) -> float:
    """Return blocks per second: the 32 blocks of 512 tokens are taken and given back."""
    num_tokens, num_requests, batch = 512, 4000, 20

    def prepare() -> Callable[[], int]:
        manager = KVCacheManager([FullAttentionSpec(BLOCK_SIZE)], 20_000, MAX_MODEL_LEN, enable_caching=prefix_caching)
        prompts = ([index] * num_tokens for index in range(num_requests))
        requests = [Request("A", prompt, SamplingParams(), 0) for prompt in prompts]
        if hash_before:
            for request in requests:
                manager.get_computed_blocks(request)
        remaining = iter(requests)

        def run() -> int:
            for request in itertools.islice(remaining, batch):
                manager.allocate_slots(request, num_tokens, manager.get_computed_blocks(request))
                manager.free(request)
            return batch * num_tokens // BLOCK_SIZE

        return run

    return best_rate(prepare, seconds, most_units=(num_requests - batch) * num_tokens // BLOCK_SIZE)
