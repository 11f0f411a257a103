"""Hand-made decisions of a scheduler, and a runner that never runs a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagedlab.conformance import smallest_model
from pagedlab.kvcache import FullAttentionSpec, KVCacheSpec
from pagedlab.request import SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.scheduling.output import CachedRequestData, NewRequestData, SchedulerOutput

MAX_MODEL_LEN = 16
GREEDY = SamplingParams(temperature=0)

Blocks = Sequence[Sequence[int]]


def make_runner(specs: Sequence[KVCacheSpec] = (FullAttentionSpec(4),), **options: Any) -> GPUModelRunner:
    sizes = {"max_num_reqs": 4, "max_num_batched_tokens": 16} | options
    return GPUModelRunner(
        smallest_model(MAX_MODEL_LEN), max_model_len=MAX_MODEL_LEN, num_blocks=20, specs=specs, **sizes
    )


def new(
    name: str,
    prompt: Sequence[int],
    blocks: Blocks,
    num_computed: int = 0,
    outputs: Sequence[int] = (),
    params: SamplingParams = GREEDY,
) -> NewRequestData:
    return NewRequestData(name, tuple(prompt), tuple(outputs), params, frozen(blocks), num_computed)


def frozen(blocks: Blocks) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, blocks))


def step(
    scheduled: Mapping[str, int],
    *,
    new: Sequence[NewRequestData] = (),
    going_on: Mapping[str, tuple[int, Blocks | None]] | None = None,
    resumed: Sequence[str] = (),
    finished: Sequence[str] = (),
    num_outputs: int = MAX_MODEL_LEN,
) -> SchedulerOutput:
    """Return a decision: ``going_on`` says, of known requests, how much is computed and which blocks are new.

    ``num_outputs``: what each known request has generated; by default more than any has: nothing is taken back.
    """
    known = going_on or {}
    return SchedulerOutput(
        scheduled=tuple(scheduled.items()),
        scheduled_new_reqs=tuple(new),
        scheduled_cached_reqs=CachedRequestData(
            req_ids=tuple(known),
            resumed_req_ids=frozenset(resumed),
            new_block_ids=tuple((name, frozen(blocks)) for name, (_, blocks) in known.items() if blocks is not None),
            num_computed_tokens=tuple(num_computed for num_computed, _ in known.values()),
            num_output_tokens=tuple(num_outputs for _ in known),
        ),
        finished_req_ids=frozenset(finished),
        total_num_scheduled_tokens=sum(scheduled.values()),
    )
