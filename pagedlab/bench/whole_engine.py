"""The whole engine on a GPU with the shipped model: tokens a second, and where the time of a step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig

_NUM_REQUESTS = 256
_MAX_TOKENS = 256
_WAYS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "eager": {"enforce_eager": True},
    "torch": {"enforce_eager": True, "attention_backend": "torch"},
}


def engine_figures() -> dict[str, Any]:
    """Return tokens a second of 256 requests, with CUDA graphs and without, and the parts of a decode step."""
    figures: dict[str, Any] = {"requests": _NUM_REQUESTS, "max_tokens": _MAX_TOKENS, "dtype": "bfloat16"}
    for name, options in _WAYS.items():
        engine = _engine(**options)
        _run(engine)  # compiles, captures
        figures[name] = {"tokens_per_s": round(_run(engine)), "step_us": _parts_of_a_step(engine)}
    return figures


def _engine(**options: Any) -> LLMEngine:
    return LLMEngine(
        "quill",
        device="cuda",
        dtype=torch.bfloat16,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=_NUM_REQUESTS),
        cache_config=CacheConfig(num_blocks=10_000, enable_prefix_caching=False),
        **options,
    )


_PARAMS = SamplingParams(max_tokens=_MAX_TOKENS, temperature=0, ignore_eos=True)


def _prompts() -> list[str]:
    return [f"{index}. To be, or not to be: that is the question" for index in range(_NUM_REQUESTS)]


def _run(engine: LLMEngine) -> float:
    """Return output tokens a second, prompts included in the time."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    outputs = engine.generate(_prompts(), _PARAMS)
    return sum(len(output.output_token_ids) for output in outputs) / (time.perf_counter() - started)


def _parts_of_a_step(engine: LLMEngine, num_steps: int = 100) -> dict[str, float]:
    """Return the microseconds of each part of a step of 256 decodes; the device is waited for after each part."""
    for index, prompt in enumerate(_prompts()):
        engine.add_request(str(index), prompt, _PARAMS)
    for _ in range(8):
        engine.step()
    scheduler, runner = engine.scheduler, engine.runner
    spent: dict[str, float] = defaultdict(float)
    started = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal started
        torch.cuda.synchronize()
        now = time.perf_counter()
        spent[name] += (now - started) * 1e6 / num_steps
        started = now

    torch.cuda.synchronize()
    with torch.inference_mode():
        for _ in range(num_steps):
            started = time.perf_counter()
            scheduled = scheduler.schedule()
            lap("schedule")
            runner.update_states(scheduled)
            lap("update_states")
            inputs = runner.prepare_inputs(scheduled)
            lap("prepare_inputs")
            logits = runner.forward(inputs)
            lap("forward")
            sampled, _ = runner.sample(inputs, logits)
            lap("sample")
            tokens = runner.take_in(inputs, sampled)
            lap("bookkeeping")
            scheduler.update_from_output(scheduled, tokens)
            lap("update_from_output")
    engine.abort_request(list(scheduler.requests))
    return {name: round(value, 1) for name, value in spent.items()}
