"""Traces of the real engine in which attention has something to show, for the tests of the scene `paged_attention`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.scenes import Frame
from pagedlab.scenes.paged_attention_state import AttentionStep, Reading
from pagedlab.trace import Trace


def engine_of(model: Any = "quill", *, block_size: int = 4, num_blocks: int = 40, budget: int = 20, seats: int = 4,
              max_model_len: int = 96, **options: Any) -> LLMEngine:  # fmt: skip
    return LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats),
        cache_config=CacheConfig(block_size=block_size, num_blocks=num_blocks),
        max_model_len=max_model_len,
        device="cpu",
        **options,
    )


def run(engine: LLMEngine, requests: Mapping[str, tuple[Any, int, int]], max_steps: int = 60) -> Trace:
    """Run requests (id: prompt, output tokens, step of arrival); return the trace."""
    recorder, todo = record(engine), dict(requests)
    for step in range(max_steps):
        for request_id in [name for name, (_, _, arrival) in todo.items() if arrival <= step]:
            prompt, length, _ = todo.pop(request_id)
            engine.add_request(request_id, prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
        if not todo and not engine.has_unfinished_requests():
            break
        engine.step()
    return recorder.stop()


@cache
def scattered() -> Trace:
    """X and Y end early, so that A grows into their blocks; in step 6 it decodes beside C, and B's prompt is computed.

    A's row is then [3, 4, 1, 7], and Y has left keys in block 7.
    """
    return run(
        engine_of(),
        {"X": ("Or", 2, 0), "Y": ("Go", 6, 0), "A": ("To be, ", 14, 0), "C": ("that is", 9, 2),
         "B": ("the question, whether", 3, 6)},
    )  # fmt: skip


@cache
def one_long_request() -> Trace:
    """L has some hundred tokens; it decodes beside A."""
    text = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")[:400]
    engine = engine_of(block_size=16, num_blocks=100, budget=512, max_model_len=1024)
    return run(engine, {"L": (text, 4, 0), "A": ("To be, or not to be", 4, 0)})


def facts(frame: Frame, kind: str) -> list[Mapping[str, Any]]:
    """The data of all actors of a kind."""
    return [actor.data for key, actor in frame.stage.items() if key.startswith(f"{kind}:")]


def reading_of(trace: Trace, step: int, request_id: str) -> Reading:
    return next(it for it in AttentionStep(trace, step, None).readings if it.request_id == request_id)
