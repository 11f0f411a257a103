"""How fast the host side is: the work between two forward passes, without the model.

Each row is one claim: one thread, the best of three runs. The figures of vLLM 0.25.1 beside it were measured in the
same way, but on another machine (`VLLM_MEASURED`). Figures that stand in ``docs/`` come from here, with the machine and
the date (`pagedlab bench host`).
"""

from __future__ import annotations

import ast
import datetime as dt
import gc
import inspect
import itertools
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedlab.config import SchedulerConfig
from pagedlab.conformance import smallest_model
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.scheduling import Scheduler

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20
REPEATS = 3
OBSERVER_ROUNDS = 200

VLLM_MEASURED = (
    "vLLM 0.25.1's own classes, measured on another machine, of two cores, on 2026-11-29; "
    "where there were two readings, the better one"
)
"""Where the figures of vLLM come from: not from this machine, so a ratio of the two says no more than its order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes
    ----------
    name : str
    what : str
        In words.
    rate : float
        In ``unit``.
    unit : str
        ``"steps/s"``, ``"blocks/s"`` or ``"percent"``.
    vllm : float or None
        The same of vLLM 0.25.1, as `VLLM_MEASURED` says, where that was measured.
    """

    name: str
    what: str
    rate: float
    unit: str
    vllm: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it: the rate under its unit."""
        key = self.unit.replace("/", "_per_")
        row: dict[str, Any] = {"name": self.name, "what": self.what, key: round(self.rate, 2)}
        if self.vllm is not None:
            row[f"vllm_{key}"] = self.vllm
        return row

    def __str__(self) -> str:
        beside = "" if self.vllm is None else f"{self.rate / self.vllm:8.1f} x vLLM 0.25.1 on its machine"
        return f"{self.name:28} {_figure(self.rate):>12} {self.unit:9}{beside}".rstrip()


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if abs(rate) >= 10 else f"{rate:.2f}"


def machine() -> str:
    """Return the processor and the Python of this machine."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, Python {platform.python_version()}"


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
    yield Row(
        "host_step_256",
        "a whole step but for the model: schedule, update_states, prepare_inputs, bookkeeping, update_from_output, "
        "256 running decodes (ours with NumPy slot mapping, vLLM's without)",
        host_step_rate(256, seconds),
        "steps/s",
        327.0,
    )
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


def report(rows: list[Row], seconds: float) -> dict[str, Any]:
    """Return what is committed as data: the machine, the date, how it was measured, the rows."""
    return {
        "machine": machine(),
        "date": dt.date.today().isoformat(),
        "seconds": seconds,
        "repeats": REPEATS,
        "vllm_measured": VLLM_MEASURED,
        "rows": [row.to_dict() for row in rows],
    }


def to_markdown(data: dict[str, Any]) -> str:
    """Return a page for ``docs/`` that says what `report` says.

    >>> row = {"name": "a", "what": "w", "steps_per_s": 20.0}
    >>> how = {"machine": "M", "date": "D", "seconds": 0.5, "repeats": 3, "vllm_measured": "V"}
    >>> to_markdown({**how, "rows": [row]}).splitlines()[-1]
    '| `a` | w | 20 steps/s | - | - |'
    """
    lines = [
        "# Speed of the host side",
        "",
        "The work between two forward passes, without the model: one thread, the best of "
        f"{data['repeats']} runs of {data['seconds']:g} s each, unless a row says otherwise.",
        f"{data['machine']}, {data['date']}. `make bench` measures it again and writes this page.",
        "",
        f'The column of vLLM: {data["vllm_measured"]}. So "times" compares two machines as well.',
        "",
        "| row | what | pagedlab | vLLM 0.25.1, on its machine | times |",
        "|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        unit = next(key for key in row if key in ("steps_per_s", "blocks_per_s", "percent"))
        rate, vllm = row[unit], row.get(f"vllm_{unit}")
        beside = f"{vllm:,.0f} | {rate / vllm:.1f}" if vllm else "- | -"
        lines.append(f"| `{row['name']}` | {row['what']} | {_figure(rate)} {unit.replace('_per_', '/')} | {beside} |")
    return "\n".join(lines) + "\n"


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


def host_step_rate(num_running: int, seconds: float) -> float:
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
            block_sizes=(BLOCK_SIZE,),
        )
        sampled = [7] * num_running

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


def best_rate(prepare: Callable[[], Callable[[], int]], seconds: float, most_units: int | None = None) -> float:
    """Return units per second, the best of three runs.

    Parameters
    ----------
    prepare : callable
        Makes a fresh subject, untimed, and returns what is timed: a callable that returns how many units it did.
    seconds : float
        Length of a run.
    most_units : int, optional
        A run ends earlier when it has done so many.
    """
    best = 0.0
    for _ in range(REPEATS):
        run = prepare()
        gc.collect()
        units, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds and (most_units is None or units < most_units):
            units += run()
        best = max(best, units / elapsed)
    return best
