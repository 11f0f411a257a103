"""The engine, on paged memory and in chunks, writes exactly what a dense forward of the same weights writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
from pagedlab.kernels import backend
from pagedlab.model.decoder import Decoder, DenseAttention


@torch.inference_mode()
def dense_greedy(model: Decoder, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """Recompute everything for each token: no cache, no batch, no blocks."""
    tokens = list(prompt)
    for _ in range(min(max_tokens, model.config.max_position_embeddings - len(prompt))):
        hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), DenseAttention(num_sequences=1))
        tokens.append(int(model.compute_logits(hidden[-1:]).argmax()))
        if tokens[-1] == model.config.eos_token_id:
            break
    return tuple(tokens[len(prompt) :])


# Some prompts begin alike, so that prefix caching finds something.
beginnings = st.sampled_from([(), (), tuple(range(20)), (*range(9), 40)])
prompts = st.builds(
    lambda beginning, rest: [*beginning, *rest], beginnings, st.lists(st.integers(0, 62), min_size=1, max_size=20)
)
requests = st.lists(
    st.tuples(
        prompts,
        st.integers(1, 12),  # max_tokens
        st.integers(0, 6),  # the step before which it arrives
        st.integers(0, 2),  # priority
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [8, 16, 2048])
@given(
    requests=requests,
    spare_blocks=st.sampled_from([0, 3, 1000]),
    policy=st.sampled_from(["fcfs", "priority"]),
    threshold=st.sampled_from([0, 5]),
    caching=st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_greedy_output_equals_the_dense_forward(
    tiny_model: Decoder,
    budget: int,
    block_size: int,
    max_num_seqs: int,
    requests: list[tuple[list[int], int, int, int]],
    spare_blocks: int,
    policy: str,
    threshold: int,
    caching: bool,
) -> None:
    """Staggered arrivals, more requests than seats, and pools so small that requests are preempted."""
    longest = max(len(prompt) + max_tokens for prompt, max_tokens, *_ in requests)
    num_blocks = -(-longest // block_size) + 1 + spare_blocks
    engine = LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            policy=policy,
            long_prefill_token_threshold=threshold,
        ),
        cache_config=CacheConfig(block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=caching),
    )
    waiting = sorted(enumerate(requests), key=lambda item: item[1][2])
    outputs: dict[str, tuple[int, ...]] = {}
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1][2] <= engine.num_steps:
            index, (prompt, max_tokens, _, priority) = waiting.pop(0)
            params = SamplingParams(max_tokens=max_tokens, temperature=0)
            engine.add_request(str(index), prompt, params, priority=priority)
        for output in engine.step():
            outputs[output.request_id] = output.output_token_ids
        engine.check_integrity()
    for index, (prompt, max_tokens, *_) in enumerate(requests):
        assert outputs[str(index)] == dense_greedy(tiny_model, prompt, max_tokens)
    assert engine.kv_cache_manager.num_free_blocks == num_blocks - 1


def test_a_tiny_pool_really_preempts(tiny_model: Decoder) -> None:
    """The property above would be weaker than it says if no workload ever ran out of blocks."""
    engine = LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=8),
    )
    preempted: list[str] = []
    engine.observer = lambda event: preempted.append(event.request_id) if event.kind == "RequestPreempted" else None
    prompts = [[index + 1] * 8 for index in range(3)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=12, temperature=0))
    assert preempted
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.output_token_ids == dense_greedy(tiny_model, prompt, 12)


def test_the_interpreted_triton_kernel_serves_the_engine(tiny_model: Decoder) -> None:
    if backend().name != "interpreter":
        pytest.skip(f"needs Triton's interpreter: {backend().reason}")
    engine = LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=30),
        slot_mapping_backend="triton",
    )
    prompts = [[1, 2, 3], [4] * 11, [5], [6, 7]]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=4, temperature=0))
    assert [o.output_token_ids for o in outputs] == [dense_greedy(tiny_model, prompt, 4) for prompt in prompts]
