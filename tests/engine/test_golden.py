"""What vLLM 0.25.1 did, step by step, against what we do: every field of every golden engine case.

The cases and their format are in ``tests/golden``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedlab.config import SchedulerConfig
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, KVCacheSpec, SlidingWindowSpec
from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.runner.model_runner import ModelInputs
from pagedlab.scheduling import Scheduler, SchedulerOutput

GOLDEN = Path(__file__).parents[1] / "golden" / "engine.jsonl.gz"


def all_cases() -> list[dict[str, Any]]:
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def supported(case: dict[str, Any]) -> bool:
    return True


CASES = [case for case in all_cases() if supported(case)]


class Replay:
    """One golden case on our scheduler and runner; the model is the rule in ``FORMAT.md``."""

    def __init__(self, case: dict[str, Any]) -> None:
        config = case["config"]
        specs = [spec(group) for group in config["groups"]]
        max_model_len, num_blocks = config["max_model_len"], config["num_blocks"]
        scheduler_config = SchedulerConfig(
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            enable_chunked_prefill=config["chunked_prefill"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            reserve_full_prompt=config["reserve_full_prompt"],
            policy=config["policy"],
        )
        self.case = case
        self.kv = KVCacheManager(
            specs,
            num_blocks,
            max_model_len,
            enable_caching=config["prefix_caching"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
        )
        self.scheduler = Scheduler(scheduler_config, self.kv, max_model_len)
        shape = DecoderConfig(
            vocab_size=256,
            hidden_size=2,
            intermediate_size=2,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=2,
            max_position_embeddings=max_model_len,
        )
        self.runner = GPUModelRunner(
            Decoder(shape),
            max_num_reqs=config["max_num_seqs"],
            max_model_len=max_model_len,
            max_num_batched_tokens=config["max_num_batched_tokens"],
            num_blocks=num_blocks,
            block_sizes=tuple(spec.block_size for spec in specs),
            decode_threshold=config["decode_first_threshold"],
        )
        self.updates: list[Any] = []
        self.runner.observer = None
        self.runner.input_batch.observer = self._see

    def _see(self, event: Any) -> None:
        if event.kind == "BatchUpdated":
            self.updates.append(event)

    def steps(self) -> Iterator[dict[str, Any]]:
        for step in range(len(self.case["steps"])):
            for request in self.case["requests"]:
                if request["arrives"] == step:
                    self.scheduler.add_request(self._request(request))
            self.scheduler.abort_requests(abort["id"] for abort in self.case["aborts"] if abort["step"] == step)
            self.updates.clear()
            output = self.scheduler.schedule()
            inputs = self.runner.prepare(output)
            sampled: dict[str, tuple[int, ...]] = {}
            if inputs is not None:
                tokens = [token_rule(r, int(p)) for r, p in zip(inputs.req_ids, inputs.seq_lens, strict=True)]
                sampled = self.runner.bookkeep(inputs, tokens)
            observed = {"step": step} | decision(output)
            if inputs is not None:
                observed |= self._batch(inputs, sampled)
            self.scheduler.update_from_output(output, sampled)
            self.scheduler.check_integrity()
            self.runner.check_integrity(self.kv.held_block_ids)
            observed["free_blocks"] = list(self.kv.free_block_ids)
            observed["running"] = [request.request_id for request in self.scheduler.running]
            observed["waiting"] = [request.request_id for request in self.scheduler.waiting]
            yield observed

    def _request(self, request: dict[str, Any]) -> Request:
        params = SamplingParams(
            max_tokens=request["max_tokens"],
            min_tokens=request.get("min_tokens", 0),
            stop_token_ids=tuple(request.get("stop_token_ids", ())),
            temperature=0,
        )
        return Request(request["id"], request["prompt"], params, request["arrives"], priority=request["priority"])

    def _batch(self, inputs: ModelInputs, sampled: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        tables = self.runner.input_batch.block_table
        num_tokens = len(inputs.input_ids)
        update = None
        if self.updates:
            (event,) = self.updates
            update = {
                "removed": list(event.removed),
                "added": list(event.added),
                "moved": [list(move) for move in event.moved],
            }
        return {
            "batch_update": update,
            "rows": list(inputs.req_ids),
            "input_ids": inputs.input_ids.tolist(),
            "positions": inputs.positions.tolist(),
            "query_start_loc": inputs.query_start_loc.tolist(),
            "seq_lens": inputs.seq_lens.tolist(),
            "logits_indices": inputs.logits_indices.tolist(),
            "discard": inputs.discard.tolist(),
            "slot_mapping": [table.slot_mapping.gpu[:num_tokens].tolist() for table in tables],
            "block_table": [[table.row(row).tolist() for row in range(len(inputs.req_ids))] for table in tables],
            "sampled": [list(sampled[req_id]) for req_id in inputs.req_ids],
        }


def spec(group: dict[str, Any]) -> KVCacheSpec:
    if group["kind"] == "full":
        return FullAttentionSpec(group["block_size"])
    return SlidingWindowSpec(group["block_size"], group["window"])


def token_rule(request_id: str, position: int) -> int:
    return zlib.crc32(f"{request_id}:{position}".encode()) % 97 + 3


def decision(output: SchedulerOutput) -> dict[str, Any]:
    return {
        "scheduled": [list(pair) for pair in output.scheduled],
        "new": [
            {
                "id": data.request_id,
                "block_ids": [list(ids) for ids in data.block_ids],
                "num_computed_tokens": data.num_computed_tokens,
            }
            for data in output.scheduled_new_reqs
        ],
        "cached": [
            {
                "id": data.request_id,
                "new_block_ids": None if data.new_block_ids is None else [list(ids) for ids in data.new_block_ids],
                "num_computed_tokens": data.num_computed_tokens,
                "num_output_tokens": data.num_output_tokens,
            }
            for data in output.scheduled_cached_reqs
        ],
        "resumed": sorted(data.request_id for data in output.scheduled_cached_reqs if data.resumed),
        "finished": sorted(output.finished_req_ids),
        "preempted": sorted(output.preempted_req_ids),
    }


def test_golden_cases_are_there() -> None:
    assert len(CASES) == 218
    assert sum(len(case["steps"]) for case in CASES) == 8037


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_field_equals_vllm(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    for ours, theirs in zip(Replay(case).steps(), case["steps"], strict=True):
        assert ours.keys() == theirs.keys()
        for field, expected in theirs.items():
            assert ours[field] == expected, f"{case['name']}, step {theirs['step']}, {field}"
