"""What the issue of a first lesson promises of speed, with room for a busy machine."""

from __future__ import annotations

import time

from pagedlab import LLMEngine, SamplingParams, SchedulerConfig


def test_sixteen_requests_together_get_200_tokens_a_second() -> None:
    engine = LLMEngine("quill", device="cpu", scheduler_config=SchedulerConfig(max_num_seqs=16))
    params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    started = time.perf_counter()
    outputs = engine.generate([f"Enter {number} lords" for number in range(16)], params)
    seconds = time.perf_counter() - started
    assert sum(len(output.output_token_ids) for output in outputs) / seconds >= 200
