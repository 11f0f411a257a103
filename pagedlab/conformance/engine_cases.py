"""Golden engine cases: scheduler, KV cache, persistent batch, block tables and slots, step by step."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from pagedlab.batch import BatchUpdate
from pagedlab.config import SchedulerConfig
from pagedlab.conformance.report import Case, Pair, update_fields
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, KVCacheSpec, SlidingWindowSpec
from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, ModelInputs
from pagedlab.scheduling import Scheduler, SchedulerOutput

_VOCABULARY = 256  # larger than any token id in a golden case


def engine_pairs(case: Case, poison: bool) -> Iterator[Pair]:
    """Return what our engine does in each step of an engine case, and what vLLM did."""
    steps = case["steps"]
    if len(steps) < 2 or any(step["scheduled"] for step in steps[-2:]):
        raise ValueError("the last two steps of a case are empty, and these are not: steps are missing at its end")
    replay = _Replay(case, poison)
    return ((replay.step(step), theirs) for step, theirs in enumerate(steps))


class _Replay:
    """A scheduler and a runner without a model: the next token follows the case's rule."""

    def __init__(self, case: Case, poison: bool) -> None:
        config = case["config"]
        specs = [_spec(group) for group in config["groups"]]
        max_model_len, num_blocks = config["max_model_len"], config["num_blocks"]
        max_num_batched_tokens = config["max_num_batched_tokens"]
        self._kv = KVCacheManager(
            specs,
            num_blocks,
            max_model_len,
            enable_caching=config["prefix_caching"],
            max_num_batched_tokens=max_num_batched_tokens,
        )
        scheduler_config = SchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=config["max_num_seqs"],
            enable_chunked_prefill=config["chunked_prefill"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            reserve_full_prompt=config["reserve_full_prompt"],
            policy=config["policy"],
        )
        self._scheduler = Scheduler(scheduler_config, self._kv, max_model_len, keep_uncomputed_hashes=True)
        self._runner = GPUModelRunner(
            smallest_model(max_model_len),
            max_num_reqs=config["max_num_seqs"],
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            num_blocks=num_blocks,
            specs=specs,
            decode_threshold=config["decode_first_threshold"],
            poison=poison,
        )
        self._see_batch_updates()
        self._arrivals = [(request["arrives"], _request(request)) for request in case["requests"]]
        self._aborts = [(abort["step"], abort["id"]) for abort in case["aborts"]]
        self._batch_update: dict[str, Any] | None = None

    def _see_batch_updates(self) -> None:
        """Keep what `refresh_metadata` returns; an observer would make the batch take its slow ways."""
        batch = self._runner.input_batch
        refresh = batch.refresh_metadata

        def seen() -> BatchUpdate | None:
            update = refresh()
            self._batch_update = update_fields(update)
            return update

        batch.refresh_metadata = seen  # type: ignore[method-assign]

    def step(self, step: int) -> dict[str, Any]:
        for arrives, request in self._arrivals:
            if arrives == step:
                self._scheduler.add_request(request)
        self._scheduler.abort_requests(request_id for at, request_id in self._aborts if at == step)
        self._batch_update = None
        output = self._scheduler.schedule()
        inputs = self._runner.prepare(output)
        sampled: Mapping[str, tuple[int, ...]] = {}
        if inputs is not None:
            tokens = [next_token(r, int(p)) for r, p in zip(inputs.req_ids, inputs.seq_lens, strict=True)]
            sampled = self._runner.take_in(inputs, np.array(tokens))
        seen = {"step": step} | _decision(output)
        if inputs is not None:
            seen |= self._batch(inputs, sampled)
        self._scheduler.update_from_output(output, sampled)
        self._scheduler.check_integrity()
        self._runner.check_integrity(self._kv.held_block_ids)
        seen["free_blocks"] = list(self._kv.free_block_ids)
        seen["running"] = [request.request_id for request in self._scheduler.running]
        seen["waiting"] = [request.request_id for request in self._scheduler.waiting]
        return seen

    def _batch(self, inputs: ModelInputs, sampled: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        tables = self._runner.input_batch.block_table
        num_tokens, num_reqs = len(inputs.input_ids), len(inputs.req_ids)
        return {
            "batch_update": self._batch_update,
            "rows": list(inputs.req_ids),
            "input_ids": inputs.input_ids.tolist(),
            "positions": inputs.positions.tolist(),
            "query_start_loc": inputs.query_start_loc.tolist(),
            "seq_lens": inputs.seq_lens.tolist(),
            "logits_indices": inputs.logits_indices.tolist(),
            "discard": inputs.discard.tolist(),
            "slot_mapping": [table.slot_mapping.gpu[:num_tokens].tolist() for table in tables],
            "block_table": [[table.row(row).tolist() for row in range(num_reqs)] for table in tables],
            "sampled": [list(sampled[req_id]) for req_id in inputs.req_ids],
        }


def next_token(request_id: str, position: int) -> int:
    """Return the token that stands for the model's in golden engine cases.

    >>> next_token("q2", 8)
    27
    """
    return zlib.crc32(f"{request_id}:{position}".encode()) % 97 + 3


def _spec(group: Mapping[str, Any]) -> KVCacheSpec:
    if group["kind"] == "full":
        return FullAttentionSpec(group["block_size"])
    return SlidingWindowSpec(group["block_size"], group["window"])


def smallest_model(max_model_len: int) -> Decoder:
    """Return a decoder for a runner that never runs it."""
    config = DecoderConfig(
        vocab_size=_VOCABULARY,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=max_model_len,
    )
    with torch.random.fork_rng(devices=[]):
        return Decoder(config)


def _request(request: Mapping[str, Any]) -> Request:
    params = SamplingParams(
        max_tokens=request["max_tokens"],
        min_tokens=request.get("min_tokens", 0),
        stop_token_ids=tuple(request.get("stop_token_ids", ())),
        temperature=0,
    )
    return Request(request["id"], request["prompt"], params, request["arrives"], priority=request["priority"])


def _decision(output: SchedulerOutput) -> dict[str, Any]:
    cached = output.scheduled_cached_reqs
    new_block_ids = {request_id: [list(ids) for ids in block_ids] for request_id, block_ids in cached.new_block_ids}
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
                "id": request_id,
                "new_block_ids": new_block_ids.get(request_id),
                "num_computed_tokens": num_computed_tokens,
                "num_output_tokens": num_output_tokens,
            }
            for request_id, num_computed_tokens, num_output_tokens in zip(
                cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
            )
        ],
        "resumed": sorted(cached.resumed_req_ids),
        "finished": sorted(output.finished_req_ids),
        "preempted": sorted(output.preempted_req_ids),
    }
