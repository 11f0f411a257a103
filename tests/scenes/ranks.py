"""Traces of ranks that share each request's tokens, and of groups with a sliding window: really run, in one process.

One scheduler decides, each rank's runner prepares its rows, tables and slots and keeps its part of the keys and values.
Attention is the reference kernels': each rank attends to the keys it has, and the states are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pagedlab import SamplingParams, SchedulerConfig, record
from pagedlab.batch import ContextParallel
from pagedlab.events import BeatStarted, Event, ForwardFinished, Observer, RequestAdded, StepFinished, StepStarted
from pagedlab.kernels.merge_attention_states import merge_attention_states_torch
from pagedlab.kernels.paged_attention import paged_attention_torch
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, KVCacheSpec, SlidingWindowSpec
from pagedlab.model.decoder import Decoder
from pagedlab.model.loading import load_model
from pagedlab.model.tokenizer import ByteTokenizer
from pagedlab.request import Request
from pagedlab.runner import GPUModelRunner, ModelInputs
from pagedlab.runner.describing import describe_runner
from pagedlab.scheduling import Scheduler
from pagedlab.trace import Trace


class Rank:
    """One rank, as `record` sees an engine: its runner, beside the scheduler that all share."""

    def __init__(self, runner: GPUModelRunner, specs: Sequence[KVCacheSpec], settings: Mapping[str, Any]) -> None:
        self.runner = runner
        self.specs = specs
        self.settings = settings
        self.tokenizer: ByteTokenizer | None = None

    @property
    def observer(self) -> Observer | None:
        return self.runner.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.runner.set_observer(observer)

    def describe(self) -> dict[str, Any]:
        return {**self.settings, **describe_runner(self.runner, self.specs)}

    def token_text(self, token_id: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.token_text(token_id)


class Ranks:
    """An engine whose requests are spread over ranks; or, with a window, one rank that forgets."""

    def __init__(
        self,
        model: Decoder,
        world_size: int = 1,
        interleave: int = 1,
        *,
        block_size: int = 4,
        num_blocks: int = 40,
        budget: int = 16,
        seats: int = 4,
        max_model_len: int = 64,
        window: int | None = None,
        tokenizer: ByteTokenizer | None = None,
    ) -> None:
        self.model = model
        self.window = window
        self.step_index = 0
        # The manager counts in blocks of all ranks; each rank keeps `block_size` tokens of one.
        self.kv = KVCacheManager(
            [_spec(block_size * world_size, window)], num_blocks, max_model_len, max_num_batched_tokens=budget
        )
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats), self.kv, max_model_len
        )
        self.kv.observer = self.scheduler.observer = self.tell
        settings = {
            "model": type(model).__name__, "block_size": block_size, "num_blocks": num_blocks,
            "max_model_len": max_model_len, "max_num_seqs": seats, "max_num_batched_tokens": budget,
        }  # fmt: skip
        specs = [_spec(block_size, window)]
        self.ranks = [
            Rank(
                GPUModelRunner(
                    model,
                    max_num_reqs=seats,
                    max_model_len=max_model_len,
                    max_num_batched_tokens=budget,
                    num_blocks=num_blocks,
                    specs=specs,
                    context_parallel=ContextParallel(world_size, rank, interleave),
                ),
                specs,
                settings,
            )
            for rank in range(world_size)
        ]
        for rank in self.ranks:
            rank.tokenizer = tokenizer

    def tell(self, event: Event) -> None:
        """Let every rank's recorder have an event of the scheduler they share."""
        for rank in self.ranks:
            if rank.observer is not None:
                rank.observer(event)

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        arrival = float(len(self.scheduler.requests))
        self.scheduler.add_request(Request(request_id, prompt, params, arrival, self.model.config.eos_token_id))
        self.tell(RequestAdded(request_id, tuple(prompt), max_tokens))

    def step(self) -> None:
        self.tell(StepStarted(self.step_index))
        self.tell(BeatStarted("schedule"))
        output = self.scheduler.schedule()
        self.tell(BeatStarted("prepare"))
        prepared = [rank.runner.prepare(output) for rank in self.ranks]
        self.tell(BeatStarted("execute"))
        sampled: Mapping[str, tuple[int, ...]] = {}
        if prepared[0] is not None:
            inputs = [item for item in prepared if item is not None]
            with torch.inference_mode():
                hidden = self.model(inputs[0].input_ids, inputs[0].positions, self.attention(inputs))
                logits = self.model.compute_logits(hidden[torch.from_numpy(inputs[0].logits_indices)])
            self.tell(ForwardFinished(len(inputs[0].input_ids), len(inputs[0].req_ids), 0.001))
            for rank, its in zip(self.ranks, inputs, strict=True):
                tokens, _ = rank.runner.sample(its, logits)
                sampled = rank.runner.take_in(its, tokens)
        self.tell(BeatStarted("update"))
        self.scheduler.update_from_output(output, sampled)
        for rank in self.ranks:
            rank.runner.check_integrity(self.kv.held_block_ids)
        running, waiting = (
            tuple(request.request_id for request in queue) for queue in (self.scheduler.running, self.scheduler.waiting)
        )
        self.tell(StepFinished(self.step_index, running, waiting, self.kv.num_free_blocks))
        self.step_index += 1

    def attention(self, inputs: Sequence[ModelInputs]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        """Return the attention of one step: every rank writes and reads its part, then the states are merged."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            outputs = torch.empty(len(self.ranks), *query.shape, dtype=torch.float64)
            lses = outputs.new_empty(outputs.shape[:-1])
            for at, (rank, its) in enumerate(zip(self.ranks, inputs, strict=True)):
                cache, table = rank.runner.kv_cache, rank.runner.input_batch.block_table[0]
                common = its.attention[0]
                here = common.slot_mapping >= 0
                cache.write(layer, common.slot_mapping[here], key[here], value[here])
                paged_attention_torch(
                    query,
                    *cache.data[layer],
                    common.query_start_loc,
                    common.seq_lens,
                    common.block_table,
                    table.block_size,
                    outputs[at],
                    lse=lses[at],
                    sliding_window=self.window,
                    cp_world_size=table.context_parallel.world_size,
                    cp_rank=table.context_parallel.rank,
                    cp_interleave=table.context_parallel.interleave,
                )
            merged = torch.empty_like(query)
            merge_attention_states_torch(outputs, lses, merged)
            return merged

        return attend

    def run(self, requests: Mapping[str, tuple[Sequence[int], int, int]], max_steps: int = 60) -> list[Trace]:
        """Run requests (id: prompt, output tokens, step of arrival) to their ends; return each rank's trace."""
        recorders = [record(rank) for rank in self.ranks]
        todo = dict(requests)
        while (todo or self.scheduler.has_unfinished_requests()) and self.step_index < max_steps:
            for request_id in [name for name, (_, _, arrival) in todo.items() if arrival <= self.step_index]:
                prompt, max_tokens, _ = todo.pop(request_id)
                self.add(request_id, prompt, max_tokens)
            self.step()
        return [recorder.stop() for recorder in recorders]


def _spec(block_size: int, window: int | None) -> KVCacheSpec:
    return FullAttentionSpec(block_size) if window is None else SlidingWindowSpec(block_size, window)


@cache
def recorded_ranks(world_size: int = 2, interleave: int = 1) -> tuple[Trace, ...]:
    """The ranks of the shipped model: A's prompt has 11 tokens, B's 6; both go on for some steps."""
    loaded = load_model("quill", device="cpu")
    assert loaded.tokenizer is not None
    ranks = Ranks(loaded.model, world_size, interleave, tokenizer=loaded.tokenizer)
    encode = loaded.tokenizer.encode
    return tuple(ranks.run({"A": (encode("To be, or n"), 8, 0), "B": (encode("not to"), 4, 1)}))
