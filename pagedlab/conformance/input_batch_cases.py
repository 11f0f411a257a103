"""Golden input-batch cases: operations on the persistent batch alone, and all that it holds after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from pagedlab.batch import CachedRequestState, InputBatch, TableSpec
from pagedlab.batch.row_store import FLOAT_FIELDS
from pagedlab.conformance.report import Case, Pair, update_fields
from pagedlab.request import SamplingParams


def input_batch_pairs(case: Case, poison: bool) -> Iterator[Pair]:
    """Return our batch after each step of an input-batch case, and vLLM's."""
    config = case["config"]
    for step in case["steps"]:
        _check_step(step)
    batch = InputBatch(
        config["max_num_reqs"],
        config["max_model_len"],
        config["max_num_batched_tokens"],
        config["vocab_size"],
        [TableSpec(*sizes) for sizes in zip(config["block_sizes"], config["kernel_block_sizes"], strict=True)],
        torch.device("cpu"),
    )
    return (
        (_after(batch, step["ops"], poison), _fields(step["batch_update"], step["state"])) for step in case["steps"]
    )


def _after(batch: InputBatch, ops: Iterable[Mapping[str, Any]], poison: bool) -> dict[str, Any]:
    """Do one step's operations, and return what the batch then holds."""
    for op in ops:
        _do(batch, op)
    update = batch.refresh_metadata()
    if poison:
        batch.poison()
    batch.check_integrity({})
    return _fields(update_fields(update), _batch_state(batch))


def _fields(update: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return one field for each part of the state, so that a difference names it."""
    return {"batch_update": update} | {f"state.{name}": value for name, value in state.items()}


_PARTS = {
    "add": {
        "request",
        "id",
        "prompt",
        "output",
        "num_computed_tokens",
        "block_ids",
        "sampling",
        "lora_id",
        "bad_words",
    },
    "remove": {"id"},
    "condense": set[str](),
    "append_blocks": {"id", "block_ids"},
    "set_drafts": {"id", "drafts"},
    "swap": {"rows"},
}


def _check_step(step: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a step lacks a part, or asks for what is no operation."""
    if missing := {"ops", "batch_update", "state"} - step.keys():
        raise ValueError(f"a step lacks {sorted(missing)}")
    for op in step["ops"]:
        name = op.get("op")
        if name not in _PARTS:
            raise ValueError(f"there is no operation {name!r}")
        parts = op if name != "add" else op | op.get("request", {})
        if missing := _PARTS[name] - parts.keys():
            raise ValueError(f"the operation {name} lacks {sorted(missing)}")


def _do(batch: InputBatch, op: Mapping[str, Any]) -> None:
    match op["op"]:
        case "add":
            batch.add_request(_cached_state(op["request"]))
        case "remove":
            batch.remove_request(op["id"])
        case "condense":
            batch.condense()
        case "append_blocks":
            batch.append_blocks(op["id"], op["block_ids"])
        case "set_drafts":
            batch.set_drafts(op["id"], op["drafts"])
        case "swap":
            batch.swap_rows(*op["rows"])


def _cached_state(request: Mapping[str, Any]) -> CachedRequestState:
    sampling = dict(request["sampling"])
    params = SamplingParams(**sampling, bad_words_token_ids=tuple(map(tuple, request["bad_words"] or ())))
    seed = sampling.get("seed")
    return CachedRequestState(
        request["id"],
        tuple(request["prompt"]),
        params,
        request["block_ids"],
        request["num_computed_tokens"],
        list(request["output"]),
        None if seed is None else torch.Generator().manual_seed(seed),
        lora_id=request["lora_id"],
    )


def _batch_state(batch: InputBatch) -> dict[str, Any]:
    """Return the whole batch as a golden case holds it: by row, row numbers as strings."""
    rows, sampling, num_reqs = batch.rows, batch.sampling, batch.num_reqs

    def by_row(value: Callable[[int], Any]) -> dict[str, Any]:
        return {str(row): value(row) for row in range(num_reqs)}

    def ints(name: str) -> dict[str, int]:
        return by_row(getattr(rows, name).tolist().__getitem__)

    def floats(name: str) -> dict[str, float]:
        return by_row(lambda row: round(float(getattr(rows, name)[row]), 6))

    return {
        "rows": batch.req_ids,
        "token_ids": by_row(lambda row: batch.token_ids[row, : batch.num_row_tokens(row)].tolist()),
        "block_table": [{str(row): table.row(row).tolist() for row in range(num_reqs)} for table in batch.block_table],
        **{name: ints(name) for name in ("num_tokens_no_spec", "num_prompt_tokens", "num_computed_tokens")},
        **{name: ints(name) for name in ("top_k", "lora_id")},
        **{name: floats(name) for name in FLOAT_FIELDS},
        "drafts": by_row(batch.spec_token_ids.__getitem__),
        "seeded_rows": sorted(sampling.generators),
        "bad_words": {
            str(row): [list(word) for word in words] for row, words in sorted(sampling.bad_words_token_ids.items())
        },
        "greedy": sorted(sampling.greedy_reqs),
        "random": sorted(sampling.random_reqs),
        "top_p_reqs": sorted(sampling.top_p_reqs),
        "top_k_reqs": sorted(sampling.top_k_reqs),
        "penalty_reqs": sorted(sampling.penalty_reqs),
        "num_logprobs": dict(sampling.num_logprobs),
        "active_loras": {str(lora_id): sorted(req_ids) for lora_id, req_ids in batch.lora_requests.items()},
    }
