"""On a CUDA GPU: the same tokens as on the CPU, in float32."""

from __future__ import annotations

import pytest
import torch

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
from pagedlab.kernels import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}"),
]

PROMPTS = ["To be, or not to be", "In the beginning", "What light", "Of Man's first disobedience, and the fruit"] * 4


def tokens(device: str, budget: int) -> list[tuple[int, ...]]:
    engine = LLMEngine(
        "quill",
        device=device,
        dtype=torch.float32,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8),
        cache_config=CacheConfig(block_size=16, num_blocks=600),
    )
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=48, temperature=0))
    engine.check_integrity()
    if device == "cuda":
        assert engine.runner.slot_mapping_backend == "triton"
    return [output.output_token_ids for output in outputs]


@pytest.mark.parametrize("budget", [16, 2048])
def test_the_gpu_writes_what_the_cpu_writes(budget: int) -> None:
    assert tokens("cuda", budget) == tokens("cpu", budget)


def test_seeded_sampling_on_the_gpu_does_not_depend_on_company() -> None:
    params = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, top_k=50, seed=3)
    alone = LLMEngine("quill", device="cuda", dtype="float32").generate("The king", params)[0].output_token_ids
    engine = LLMEngine("quill", device="cuda", dtype="float32", scheduler_config=SchedulerConfig(8, max_num_seqs=4))
    together = engine.generate(["The king", "Sing", "O"], [params, SamplingParams(), SamplingParams()])
    assert together[0].output_token_ids == alone
