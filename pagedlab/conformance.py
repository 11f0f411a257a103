"""Do we do what vLLM did? Replays golden traces and compares every field.

    >>> report = compare(read_cases("tests/golden/engine.jsonl.gz"))  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP
    218 cases, 8037 steps: all equal

A golden case holds a workload and what vLLM 0.25.1's own classes did with it, step by step
(``tests/golden/FORMAT.md``). We run the same workload on our scheduler and runner, with the model replaced by the
case's rule for the next token, and stop at the first value that differs.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch import BlockTable, ContextParallel, CpuGpuBuffer
from pagedlab.config import SchedulerConfig
from pagedlab.errors import TraceError
from pagedlab.events import BatchUpdated, Event
from pagedlab.kernels import backend as kernel_backend
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, KVCacheSpec, SlidingWindowSpec
from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, ModelInputs
from pagedlab.scheduling import Scheduler, SchedulerOutput

Case = Mapping[str, Any]
"""One golden case, as ``FORMAT.md`` says."""

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Ours and theirs, field by field."""

_VOCABULARY = 256  # larger than any token id in a golden case


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that is not as vLLM had it."""

    case: str
    step: int
    field: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return (
            f"case {self.case}, step {self.step}, {self.field}:\n"
            f"  ours   {json.dumps(self.ours)}\n  theirs {json.dumps(self.theirs)}"
        )


@dataclass(slots=True)
class Report:
    """What was compared.

    Attributes
    ----------
    num_cases, num_steps : int
        Compared to their ends, or up to the difference.
    fields : Counter of str
        How often each field was compared.
    not_compared : Counter of str
        Cases of kinds that cannot be replayed yet, by kind.
    difference : Difference or None
    """

    num_cases: int = 0
    num_steps: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    not_compared: Counter[str] = field(default_factory=Counter)
    difference: Difference | None = None

    def __str__(self) -> str:
        left_out = "".join(f"\n{count} cases of kind {kind}: not compared" for kind, count in self.not_compared.items())
        if self.difference is not None:
            return f"{self.difference}{left_out}"
        if self.num_cases == 0:
            return f"nothing was compared{left_out}"
        return f"{self.num_cases} cases, {self.num_steps} steps: all equal{left_out}"

    @property
    def passed(self) -> bool:
        """Whether something was compared and all of it was equal."""
        return self.num_cases > 0 and self.difference is None


def read_cases(path: str | Path) -> Iterator[Case]:
    """Yield the cases of a golden file, ``.jsonl`` or ``.jsonl.gz``.

    Raises
    ------
    TraceError
        If the file cannot be read or a line is not a case; the message names the line.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _parse(path, number, line)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read ({error}): give a golden .jsonl or .jsonl.gz file") from error


def _parse(path: Path, number: int, line: str) -> Case:
    try:
        case = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {number} is not JSON: {error.msg}") from None
    if not isinstance(case, dict) or not isinstance(case.get("kind"), str):
        raise TraceError(f"{path}, line {number} is not a golden case: see tests/golden/FORMAT.md")
    return case


def compare(cases: Iterable[Case]) -> Report:
    """Replay cases until one differs.

    Raises
    ------
    TraceError
        If a case lacks what a replay needs.
    """
    report = Report()
    for case in cases:
        if case["kind"] not in _KINDS:
            report.not_compared[case["kind"]] += 1
            continue
        _compare_case(case, report)
        if report.difference is not None:
            return report
        report.num_cases += 1
    return report


def _compare_case(case: Case, report: Report) -> None:
    for step, (ours, theirs) in enumerate(_replay(case)):
        for name in sorted(ours.keys() | theirs.keys()):
            report.fields[name] += 1
            if not _equal(ours.get(name, _ABSENT), theirs.get(name, _ABSENT)):
                report.difference = Difference(
                    case["name"], step, name, ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
                )
                return
        report.num_steps += 1


_ABSENT = "(absent)"


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two JSON values are the same, by type too: 1 is neither 1.0 nor true."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_equal(value, theirs[key]) for key, value in ours.items())
    return bool(ours == theirs)


def _replay(case: Case) -> Iterator[Pair]:
    """Yield ours and theirs, step by step; `TraceError` if the case is not whole."""
    try:
        return _KINDS[case["kind"]](case)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise TraceError(f"case {case.get('name')!r} is damaged ({type(error).__name__}: {error})") from error


def _engine_pairs(case: Case) -> Iterator[Pair]:
    """Return what our engine does in each step of an engine case, and what vLLM did."""
    steps = case["steps"]
    if len(steps) < 2 or any(step["scheduled"] for step in steps[-2:]):
        raise ValueError("the last two steps of a case are empty, and these are not: steps are missing at its end")
    replay = _Replay(case)
    return ((replay.step(step), theirs) for step, theirs in enumerate(steps))


def _slot_mapping_pairs(case: Case) -> Iterator[Pair]:
    """Return the slot buffer of every rank of a slot-mapping case: one step, a field a rank."""
    return iter([({rank: slots.tolist() for rank, slots in rank_slots(case)}, case["slot_mapping"])])


def rank_slots(case: Case, backend: str = "numpy") -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield ``"pcpI/dcpJ"`` and the slots of that rank, ``[max_num_batched_tokens]``.

    Parameters
    ----------
    case : Case
        Of kind ``slot_mapping``.
    backend : {"numpy", "triton"}
    """
    config = case["config"]
    device = torch.device("cuda" if backend == "triton" and kernel_backend().name == "cuda" else "cpu")
    num_reqs, num_tokens = len(case["block_ids"]), config["max_num_batched_tokens"]
    query_start_loc = CpuGpuBuffer((num_reqs + 1,), torch.int32, device)
    positions = CpuGpuBuffer((num_tokens,), torch.int64, device)
    query_start_loc.np[:] = case["query_start_loc"]
    positions.np[: len(case["positions"])] = case["positions"]
    query_start_loc.copy_to_gpu()
    positions.copy_to_gpu()
    pcp, dcp = config["pcp_world_size"], config["dcp_world_size"]
    for pcp_rank, dcp_rank in itertools.product(range(pcp), range(dcp)):
        table = BlockTable(
            config["block_size"],
            num_reqs,
            max(len(ids) for ids in case["block_ids"]),
            num_tokens,
            device,
            kernel_block_size=config["kernel_block_size"],
            context_parallel=ContextParallel(pcp * dcp, pcp_rank * dcp + dcp_rank, config["interleave"]),
        )
        for row, ids in enumerate(case["block_ids"]):
            table.add_row(ids, row)
        table.commit(num_reqs)
        table.compute_slot_mapping(num_reqs, query_start_loc, positions, backend=backend)
        yield f"pcp{pcp_rank}/dcp{dcp_rank}", table.slot_mapping.gpu.cpu().numpy()


_KINDS = {"engine": _engine_pairs, "slot_mapping": _slot_mapping_pairs}


class _Replay:
    """A scheduler and a runner without a model: the next token follows the case's rule."""

    def __init__(self, case: Case) -> None:
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
            block_sizes=tuple(spec.block_size for spec in specs),
            decode_threshold=config["decode_first_threshold"],
        )
        self._runner.input_batch.observer = self._see
        self._arrivals = [(request["arrives"], _request(request)) for request in case["requests"]]
        self._aborts = [(abort["step"], abort["id"]) for abort in case["aborts"]]
        self._update: BatchUpdated | None = None

    def _see(self, event: Event) -> None:
        if isinstance(event, BatchUpdated):
            self._update = event

    def step(self, step: int) -> dict[str, Any]:
        for arrives, request in self._arrivals:
            if arrives == step:
                self._scheduler.add_request(request)
        self._scheduler.abort_requests(request_id for at, request_id in self._aborts if at == step)
        self._update = None
        output = self._scheduler.schedule()
        inputs = self._runner.prepare(output)
        sampled: dict[str, tuple[int, ...]] = {}
        if inputs is not None:
            tokens = [next_token(r, int(p)) for r, p in zip(inputs.req_ids, inputs.seq_lens, strict=True)]
            sampled = self._runner.take_in(inputs, tokens)
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
        update = self._update
        return {
            "batch_update": None
            if update is None
            else {
                "removed": list(update.removed),
                "added": list(update.added),
                "moved": [list(move) for move in update.moved],
            },
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
