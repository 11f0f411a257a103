"""Watches the real block pool while a trace is recorded, and compares a prefix tree scene with it, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pools import Modelless

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.events import BlocksAllocated, BlocksCached, Event, RequestScheduled
from pagedlab.scenes import Frame, Scene
from pagedlab.trace import Trace


@dataclass
class Pool:
    """What the real pool holds at one moment."""

    ref_cnt: list[int]
    hashes: dict[int, str]
    hashed: set[int]  # in any group
    first: dict[str, int]  # the block that a lookup of a hash finds
    queue: list[int]
    blocks: dict[str, tuple[int, ...]]
    running: list[str]
    waiting: list[str]
    asked: int
    found: int


@dataclass
class Watch:
    """Observes an engine, with or without a model, and keeps the real state at each event."""

    scheduler: Any
    events: list[Event] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    contents: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # hash: parent, tokens
    lookups: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)  # of those who were admitted
    _last_hit: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.manager = self.scheduler.kv_cache_manager
        really = self.manager.get_computed_blocks

        def watched(request: Any) -> Any:
            hit = really(request)
            self._last_hit[request.request_id] = hit.num_tokens, tuple(block.block_id for block in hit.blocks[0])
            return hit

        self.manager.get_computed_blocks = watched

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        pool, stats = self.manager.block_pool, self.manager.prefix_cache_stats
        size = self.manager.specs[0].block_size
        for request in self.scheduler.requests.values():
            hashes = [digest.hex() for digest in request.block_hashes]
            for at, (parent, own) in enumerate(zip(["", *hashes], hashes, strict=False)):
                self.contents[own] = parent, tuple(request.all_token_ids[at * size : (at + 1) * size])
        hashed = {block.block_id: block.key for block in pool.blocks if block.key is not None and block.key[1] == 0}
        self.pools.append(
            Pool(
                [block.ref_cnt for block in pool.blocks],
                {block: key[0].hex() for block, key in hashed.items()},
                {block.block_id for block in pool.blocks if block.key is not None},
                {key[0].hex(): pool.lookup(*key).block_id for key in hashed.values()},
                [block.block_id for block in pool.free_queue],
                {who: ids[0] for who, ids in self.manager.held_block_ids.items()},
                [request.request_id for request in self.scheduler.running if not request.is_finished],
                [request.request_id for request in self.scheduler.waiting],
                stats.num_queried_tokens,
                stats.num_hit_tokens,
            )
        )
        if isinstance(event, RequestScheduled) and event.status != "running":
            self.lookups.append((event.request_id, *self._last_hit[event.request_id]))


def blocks_of(frame: Frame) -> dict[int, Mapping[str, Any]]:
    return {int(a.data["block"]): a.data for key, a in frame.stage.items() if key.startswith("block:")}


def check(scene: Scene, watch: Watch, *, all_drawn: bool = True) -> None:
    """Every fact of every frame is the real pool's at that moment."""
    for frame in scene.frames:
        if frame.record < 0:
            continue
        real = watch.pools[frame.record]
        drawn = blocks_of(frame)
        for block, facts in drawn.items():
            holders = json.loads(str(facts["holders"]))
            assert sorted(holders) == sorted(who for who, ids in real.blocks.items() if block in ids)
            assert facts["hash"] == real.hashes.get(block, "")
            if facts["hash"]:
                assert (facts["parent"], facts["tokens"]) == (
                    watch.contents[facts["hash"]][0],
                    " ".join(map(str, watch.contents[facts["hash"]][1])),
                )
                assert (facts["rank"] == 0) == (real.first[facts["hash"]] == block)
                assert (facts["state"] == "cached") == (real.ref_cnt[block] == 0)
            else:
                assert facts["state"] == "open"
                assert real.blocks[holders[0]][int(facts["column"])] == block
        if all_drawn:
            assert drawn.keys() == {*real.hashes, *(b for ids in real.blocks.values() for b in ids if b)}
        assert frame.stage["queue"].data["queue"] == " ".join(map(str, real.queue))
        assert frame.stage["queue"].data["free"] == len(real.queue)
        for key, actor in frame.stage.items():
            if key.startswith("free:"):
                assert real.queue[int(actor.data["place"])] == actor.data["block"]
                assert bool(actor.data["cached"]) == (actor.data["block"] in real.hashed)
            if key.startswith("request:"):
                queue = real.running if actor.data["queue"] == "running" else real.waiting
                assert actor.data["request"] in queue
        ask = frame.stage["ask"].data
        # The counters go up between an allocation and the grant, which is when the scene counts.
        if ask and not isinstance(watch.events[frame.record], (BlocksAllocated, BlocksCached)):
            assert (ask["asked"], ask["found"]) == (real.asked, real.found)
    for question in scene.questions:
        assert question.ask_frame < question.frame


def engine_with(model: Any, *, blocks: int = 12, seats: int = 2, budget: int = 32, **scheduling: Any) -> LLMEngine:
    return LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduling),
        cache_config=CacheConfig(block_size=4, num_blocks=blocks),
        max_model_len=64,
        device="cpu",
    )


Todo = Sequence[tuple[str, Sequence[int], int, int]]


def serve(engine: LLMEngine | Modelless, todo: Todo, **keys: Any) -> tuple[Trace, Watch]:
    """Serve requests (id, prompt, output tokens, step of arrival) to their ends, watched."""
    watch = Watch(engine.scheduler)
    engine.observer = watch
    recorder = record(engine)
    left = list(todo)
    while left or engine.scheduler.has_unfinished_requests():
        for item in [item for item in left if item[3] <= engine.num_steps]:
            left.remove(item)
            name, prompt, length, _ = item
            if isinstance(engine, Modelless):
                engine.add(name, prompt, length, **keys)
            else:
                params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
                engine.add_request(name, list(prompt), params, **keys)
        engine.step()
    return recorder.stop(), watch
