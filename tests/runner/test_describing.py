"""What an engine and a rank tell of themselves is what they are."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from steps import make_runner

from pagedlab import CacheConfig, LLMEngine, SchedulerConfig
from pagedlab.batch import ContextParallel
from pagedlab.kernels import backend
from pagedlab.kernels.paged_attention import INTERPRETED_PROCESSORS
from pagedlab.kvcache import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from pagedlab.runner.describing import describe_runner


def engine_of(model: Any, **options: Any) -> LLMEngine:
    return LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2),
        cache_config=CacheConfig(block_size=4, num_blocks=20),
        max_model_len=32,
        **options,
    )


def test_a_trace_knows_the_shape_of_the_model(tiny_model: Any) -> None:
    engine = engine_of(tiny_model)
    facts, cache = engine.describe(), engine.runner.kv_cache.data
    layers, two, _, kv_heads, head_dim = cache.shape
    assert two == 2
    assert (layers, kv_heads, head_dim) == (
        facts["num_hidden_layers"],
        facts["num_key_value_heads"],
        facts["head_dim"],
    )
    assert facts["num_attention_heads"] == tiny_model.config.num_attention_heads
    assert getattr(torch, facts["dtype"]) == cache.dtype
    assert json.loads(json.dumps(facts)) == facts


def test_a_rank_says_which_one_it_is_of_each_group() -> None:
    """Only full attention is spread over ranks."""
    specs = [FullAttentionSpec(4), SlidingWindowSpec(4, 8), MambaSpec()]
    facts = describe_runner(make_runner(specs, context_parallel=ContextParallel(3, 2, 2)), specs)
    whole = {"world_size": 1, "rank": 0, "interleave": 1}
    assert facts["kv_cache_groups"] == [
        {
            "kind": "FullAttentionSpec",
            "block_size": 4,
            "window": None,
            "context_parallel": {"world_size": 3, "rank": 2, "interleave": 2},
        },
        {"kind": "SlidingWindowSpec", "block_size": 4, "window": 8, "context_parallel": whole},
        {"kind": "MambaSpec", "block_size": 1, "window": None, "context_parallel": whole},
    ]


def test_torch_divides_nothing(tiny_model: Any) -> None:
    facts = engine_of(tiny_model).describe()
    assert (facts["attention_backend"], facts["attention_processors"]) == ("torch", None)


@pytest.mark.skipif(backend().name != "interpreter", reason="needs Triton's interpreter")
def test_the_interpreter_says_among_how_many_processors_it_divides(tiny_model: Any) -> None:
    facts = engine_of(copy.deepcopy(tiny_model).float(), attention_backend="triton").describe()
    assert (facts["attention_backend"], facts["attention_processors"]) == ("triton", INTERPRETED_PROCESSORS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_says_how_many_multiprocessors_it_has() -> None:
    facts = engine_of("quill", device="cuda").describe()
    assert facts["attention_processors"] == torch.cuda.get_device_properties(0).multi_processor_count
