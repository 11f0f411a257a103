"""On a CUDA GPU: the same tokens as on the CPU, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
from pagedlab.events import Event
from pagedlab.kernels import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}"),
]

PROMPTS = ["To be, or not to be", "In the beginning", "What light", "Of Man's first disobedience, and the fruit"] * 4


def make_engine(device: str, budget: int = 2048, **options: Any) -> LLMEngine:
    return LLMEngine(
        "quill",
        device=device,
        dtype=torch.float32,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8),
        cache_config=CacheConfig(block_size=16, num_blocks=600),
        **options,
    )


def tokens(engine: LLMEngine) -> list[tuple[int, ...]]:
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=48, temperature=0))
    engine.check_integrity()
    return [output.output_token_ids for output in outputs]


@pytest.fixture(scope="module")
def written_on_the_cpu() -> list[tuple[int, ...]]:
    return tokens(make_engine("cpu"))


@pytest.mark.parametrize("budget", [16, 2048])
@pytest.mark.parametrize(
    "options",
    [{}, {"enforce_eager": True}, {"attention_backend": "torch"}],
    ids=["graphs", "eager", "torch"],
)
def test_the_gpu_writes_what_the_cpu_writes(
    budget: int, options: dict[str, Any], written_on_the_cpu: list[tuple[int, ...]]
) -> None:
    engine = make_engine("cuda", budget, **options)
    assert tokens(engine) == written_on_the_cpu
    assert engine.runner.slot_mapping_backend == "triton"
    assert engine.runner.attention_backend.name == options.get("attention_backend", "triton")
    captured = engine.runner.captured_graphs
    assert bool(captured) == (options == {}), captured


def test_padded_tokens_of_a_graph_change_no_byte_of_any_live_block() -> None:
    """Five decodes are padded to eight. Whatever stale slots and rows hold, only five slots of KV memory change."""
    engine = make_engine("cuda")
    for index, prompt in enumerate(PROMPTS[:8]):  # eight rows, then three end: their slots and rows stay behind
        max_tokens = 4 if index < 3 else 60
        engine.add_request(str(index), prompt, SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))
    for _ in range(12):
        engine.step()
    runner = engine.runner
    for _ in range(6):
        before = runner.kv_cache.data.clone()
        scheduled = engine.scheduler.schedule()
        inputs = runner.prepare(scheduled)
        assert inputs is not None
        assert (len(inputs.req_ids), inputs.num_reqs_padded, inputs.num_tokens_padded) == (5, 8, 8)
        slots = set(inputs.slot_mapping.tolist())
        output = runner.execute(inputs)
        changed = (runner.kv_cache.data != before).flatten(3).any(-1).any(0).any(0).nonzero().flatten().tolist()
        assert set(changed) == slots
        engine.scheduler.update_from_output(scheduled, output.sampled_token_ids)
    assert 8 in runner.captured_graphs


def test_graphs_are_made_anew_after_a_step_that_failed() -> None:
    engine = make_engine("cuda")
    want = tokens(make_engine("cuda"))
    for prompt in PROMPTS:
        engine.add_request(f"{len(engine.scheduler.requests)}", prompt, SamplingParams(max_tokens=48, temperature=0))
    for _ in range(5):
        engine.step()
    engine.observer = _interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.observer = None
    got: dict[str, tuple[int, ...]] = {}
    while engine.has_unfinished_requests():
        got |= {output.request_id: output.output_token_ids for output in engine.step()}
    assert [got[str(index)] for index in range(len(PROMPTS))] == want


def _interrupt(_: Event) -> None:
    raise KeyboardInterrupt


def test_seeded_sampling_on_the_gpu_does_not_depend_on_company() -> None:
    params = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, top_k=50, seed=3)
    alone = LLMEngine("quill", device="cuda", dtype="float32").generate("The king", params)[0].output_token_ids
    engine = LLMEngine("quill", device="cuda", dtype="float32", scheduler_config=SchedulerConfig(8, max_num_seqs=4))
    together = engine.generate(["The king", "Sing", "O"], [params, SamplingParams(), SamplingParams()])
    assert together[0].output_token_ids == alone
