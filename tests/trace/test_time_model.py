"""The roofline: known sizes of real models, and times that follow from a trace."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import pagedlab.model
from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.errors import TraceError
from pagedlab.model.decoder import Decoder
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPUS, MODELS, StepWork, estimate_step, timeline

H200, LLAMA = GPUS["H200"], MODELS["Llama-3-8B"]


def test_known_parameter_counts() -> None:
    """Input embeddings are looked up, not multiplied; with them the totals are those of the model cards."""
    embeddings = LLAMA.hidden_size * LLAMA.vocab_size
    assert round((LLAMA.layer_parameters + LLAMA.output_parameters + embeddings) / 1e9, 2) == 8.03
    qwen = MODELS["Qwen3-0.6B"]
    assert round((qwen.layer_parameters + qwen.output_parameters) / 1e9, 1) == 0.6


def test_the_shipped_model_is_described_as_it_is() -> None:
    folder = Path(pagedlab.model.__file__).parent / "weights" / "quill"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    quill = MODELS["quill"]
    assert (quill.num_layers, quill.hidden_size, quill.intermediate_size, quill.vocab_size) == tuple(
        config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    )
    assert (quill.num_heads, quill.num_kv_heads, quill.head_dim) == tuple(
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )


def test_a_decode_reads_the_weights_whoever_comes_along() -> None:
    one = estimate_step(StepWork((1,), (1,)), H200, LLAMA, 0).milliseconds
    many = estimate_step(StepWork((1,) * 64, (1,) * 64), H200, LLAMA, 0).milliseconds
    assert many < one * 1.01


def test_a_prompt_costs_operations_that_grow_faster_than_its_length() -> None:
    short = estimate_step(StepWork((8192,), (8192,)), H200, LLAMA, 0)
    long = estimate_step(StepWork((40_000,), (40_000,)), H200, LLAMA, 0)
    assert short.bound == long.bound == "compute"
    assert long.milliseconds > short.milliseconds * 40_000 / 8192


def test_chunks_do_the_same_pairs_of_attention_as_the_whole() -> None:
    whole = estimate_step(StepWork((100,), (100,)), H200, LLAMA, 0).compute_milliseconds
    chunks = [StepWork((40,), (40,)), StepWork((60,), (100,))]
    parts = sum(estimate_step(chunk, H200, LLAMA, 0).compute_milliseconds for chunk in chunks)
    output = 2 * LLAMA.output_parameters / H200.flops * 1e3  # each chunk projects its last token
    assert math.isclose(parts - output, whole)


def test_an_empty_step_costs_the_overhead() -> None:
    assert estimate_step(StepWork((), ()), H200, LLAMA, 0.002).milliseconds == 2.0


def test_every_constant_names_its_source() -> None:
    assert all(item.source for item in (*GPUS.values(), *MODELS.values()))


def test_a_trace_becomes_milliseconds(tiny_model: Decoder) -> None:
    engine = LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2),
        cache_config=CacheConfig(block_size=4, num_blocks=40),
    )
    recorder = record(engine)
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    engine.add_request("A", [1] * 8, params)
    engine.step()
    engine.add_request("B", [2] * 4, params)
    while engine.has_unfinished_requests():
        engine.step()
    times = timeline(recorder.stop(), H200, LLAMA)
    a, b = times.requests
    assert (a.request_id, b.request_id) == ("A", "B")
    assert a.time_to_first_token == times.step_ends[0]
    assert b.added == times.step_ends[0]
    assert b.time_to_first_token == times.step_ends[1] - times.step_ends[0]
    assert len(a.inter_token_latencies) == 2
    assert times.tokens_per_second == pytest.approx(6 / times.step_ends[-1] * 1e3)
    assert times.mean_inter_token_latency > 0
    assert times.mean_time_to_first_token > 0


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(TraceError, match="no finished step"):
        timeline(Trace.from_records([]), H200, LLAMA)


def test_an_id_that_comes_again_is_another_request(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model)
    recorder = record(engine)
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    for _ in range(2):
        engine.add_request("A", [1, 2], params)
        while engine.has_unfinished_requests():
            engine.step()
    first, second = timeline(recorder.stop(), H200, LLAMA).requests
    assert (first.request_id, second.request_id) == ("A", "A")
    assert len(first.token_times) == len(second.token_times) == 2
    assert second.time_to_first_token > 0
