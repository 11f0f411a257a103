"""The attention backends: chosen by what can run, and all of them write the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagedlab import CacheConfig, LLMEngine, PagedlabError, SamplingParams, SchedulerConfig
from pagedlab.kernels import backend
from pagedlab.model.decoder import Decoder

on_the_interpreter = pytest.mark.skipif(
    backend().name != "interpreter", reason=f"needs Triton's interpreter: {backend().reason}"
)


def written(model: Decoder, **options: Any) -> list[tuple[int, ...]]:
    engine = LLMEngine(
        model,
        device="cpu",
        scheduler_config=SchedulerConfig(max_num_batched_tokens=6, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=20),
        **options,
    )
    prompts = [[5, 6, 7, 8, 9], [1], [30, 31, 32, 33, 34, 35, 36, 37, 38]]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=4, temperature=0))
    engine.check_integrity()
    return [output.output_token_ids for output in outputs]


@on_the_interpreter
def test_triton_writes_what_torch_writes_in_chunks_and_decodes(tiny_model: Decoder) -> None:
    model = Decoder(tiny_model.config)
    model.load_state_dict(tiny_model.state_dict())  # float32, which the kernels take
    want = written(model, attention_backend="torch")
    assert written(model, attention_backend="triton", slot_mapping_backend="triton") == want


def test_on_a_cpu_torch_is_the_default(tiny_model: Decoder) -> None:
    assert LLMEngine(tiny_model, device="cpu").runner.attention_backend.name == "torch"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention_backend": "flash"}, "give one of torch, triton"),
        ({"attention_backend": "triton"}, "float16, bfloat16 and float32"),  # the model is float64
        ({"enforce_eager": 1}, "give True or False"),
    ],
)
def test_what_cannot_run_is_refused(tiny_model: Decoder, options: dict[str, Any], words: str) -> None:
    if backend().name == "cuda" and options.get("attention_backend") == "triton":
        words = "on the CPU"
    assert next(tiny_model.parameters()).dtype == torch.float64
    with pytest.raises(PagedlabError, match=words):
        LLMEngine(tiny_model, device="cpu", **options)
