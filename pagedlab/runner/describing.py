"""What a runner tells of itself: the facts that a trace keeps beside the engine's own settings.

>>> from pagedlab.conformance import smallest_model
>>> from pagedlab.kvcache import FullAttentionSpec
>>> specs = [FullAttentionSpec(4)]
>>> sizes = {"max_num_reqs": 2, "max_model_len": 16, "max_num_batched_tokens": 8, "num_blocks": 9}
>>> runner = GPUModelRunner(smallest_model(16), specs=specs, **sizes)
>>> facts = describe_runner(runner, specs)
>>> facts["num_key_value_heads"], facts["kv_cache_groups"][0]["block_size"]
(1, 4)

With the shape of the model a reader of the trace can count bytes; with the groups, see windows and ranks; with the
processors, find how attention was divided (`pagedlab.kernels.attention_work`).

vLLM counterpart: ``vllm/config`` (``VllmConfig``) and ``vllm/v1/kv_cache_interface.py`` (``KVCacheConfig``) at 0.25.1,
which say the same of an engine. What differs: a few plain values, for JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pagedlab.batch import ContextParallel
from pagedlab.kernels.paged_attention import INTERPRETED_PROCESSORS
from pagedlab.kvcache import KVCacheSpec, SlidingWindowSpec
from pagedlab.runner.model_runner import GPUModelRunner


def describe_runner(runner: GPUModelRunner, specs: Sequence[KVCacheSpec]) -> dict[str, Any]:
    """Return the shape of the model, the KV cache groups, and what attends, as JSON-ready values.

    Parameters
    ----------
    runner : GPUModelRunner
    specs : sequence of KVCacheSpec
        The runner's, one per KV cache group.
    """
    config = runner.model.config
    tables = runner.input_batch.block_table
    return {
        "dtype": str(runner.kv_cache.data.dtype).removeprefix("torch."),
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "kv_cache_groups": [
            _group(spec, table.context_parallel) for spec, table in zip(specs, tables, strict=True)
        ],
        "attention_backend": runner.attention_backend.name,
        "attention_processors": _processors(runner),
    }  # fmt: skip


def _group(spec: KVCacheSpec, context_parallel: ContextParallel) -> dict[str, Any]:
    """Say what a group keeps; ``block_size`` counts the tokens of a block on one rank."""
    return {
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "window": spec.window if isinstance(spec, SlidingWindowSpec) else None,
        "context_parallel": {
            "world_size": context_parallel.world_size,
            "rank": context_parallel.rank,
            "interleave": context_parallel.interleave,
        },
    }


def _processors(runner: GPUModelRunner) -> int | None:
    """Return the multiprocessors among which the attention kernel divides its work; None if no kernel runs."""
    if runner.attention_backend.name != "triton":
        return None
    if runner.device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(runner.device).multi_processor_count)
