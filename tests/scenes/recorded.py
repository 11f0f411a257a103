"""Traces that the real engine has recorded, with the model that ships: for tests of what a learner sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.trace import Trace


def record_quill(prompts: Mapping[str, str], lengths: Sequence[int], *, budget: int = 64) -> Trace:
    """Run prompts (name to text) with so many output tokens each; return the trace."""
    engine = LLMEngine(
        "quill",
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8),
        cache_config=CacheConfig(block_size=4, num_blocks=40),
        max_model_len=96,
        device="cpu",
    )
    recorder = record(engine)
    for (request_id, text), length in zip(prompts.items(), lengths, strict=True):
        engine.add_request(request_id, text, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.stop()


@cache
def five_recorded_requests() -> Trace:
    """B and D end first, so that E drops into a hole: rows ``[A,B,C,D,E]`` condense in step 3."""
    prompts = {"A": "To be, or n", "B": "not to", "C": "that is t", "D": "he ques", "E": "tion:"}
    return record_quill(prompts, [9, 3, 8, 3, 9])
