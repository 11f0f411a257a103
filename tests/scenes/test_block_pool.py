"""The scene `block_pool`: what it shows of every block, and of the free queue, is what the real pool holds."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Modelless, run, three_requests
from traces import make_trace

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.events import (
    BeatStarted,
    BlocksAllocated,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    RequestPreempted,
    StepFinished,
    StepStarted,
)
from pagedlab.kvcache import BlockPool, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.block_pool_stage import MAX_CARDS, WIDTH
from pagedlab.scenes.block_pool_state import POOL_EVENTS, PoolReplay, replay_of
from pagedlab.trace import Record, Trace, record


@dataclass(frozen=True)
class Truth:
    """A pool as it is: reference counts and hashes by block, and the free queue."""

    ref_cnts: tuple[int, ...]
    queue: tuple[int, ...]
    hashes: dict[int, str]

    @classmethod
    def of(cls, pool: BlockPool) -> Truth:
        return cls(
            tuple(block.ref_cnt for block in pool.blocks),
            tuple(block.block_id for block in pool.free_queue),
            {block.block_id: block.key[0].hex() for block in pool.blocks if block.key is not None},
        )

    @classmethod
    def replayed(cls, pool: PoolReplay) -> Truth:
        return cls(
            tuple(pool.ref_cnt(block) for block in range(pool.num_blocks)),
            tuple(pool.queue),
            {block: what.block_hash for block, what in pool.remembered.items()},
        )


class Witness:
    """An observer that looks at the real pool after every event."""

    def __init__(self, engine: Modelless) -> None:
        self.engine = engine
        self.events: list[Event] = []
        self.truths: list[Truth] = []
        engine.observer = self

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.truths.append(Truth.of(self.engine.pool))

    @property
    def trace(self) -> Trace:
        """What was seen, as a trace without sources."""
        step, beat, records = -1, None, []
        for event in self.events:
            match event:
                case StepStarted(index=index):
                    step, beat = index, None
                case BeatStarted(beat=begun):
                    beat = begun
                case _:
                    pass
            records.append(Record(step, beat, event, None))
        return Trace(tuple(records), settings=self.engine.describe())


Drawn = list[tuple[int, int, int, int, int]]
"""Requests: tokens of a shared beginning, own tokens, tokens to generate, step of arrival, priority."""

requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 20), st.integers(1, 12), st.integers(0, 10), st.integers(0, 2)),
    min_size=1,
    max_size=10,
)
TWO_GROUPS = (FullAttentionSpec(4), SlidingWindowSpec(4, window=6))


def serve(engine: Modelless, drawn: Drawn, fails: Set[int] = frozenset(), aborts: Set[int] = frozenset()) -> Witness:
    """Run drawn requests; some steps fail, in some the first request is withdrawn."""
    witness = Witness(engine)
    todo = [
        (f"r{at}", [*range(1000, 1000 + shared), *range(50 * (at % 3), 50 * (at % 3) + own)], output, arrival, priority)
        for at, (shared, own, output, arrival, priority) in enumerate(drawn)
    ]
    for step in range(300):
        for item in [item for item in todo if item[3] == step]:
            todo.remove(item)
            engine.add(*item[:3], priority=item[4])
        if step in fails:
            engine.fail()
        if step in aborts and engine.scheduler.running:
            engine.scheduler.abort_requests([engine.scheduler.running[0].request_id])
        if not todo and not engine.scheduler.has_unfinished_requests():
            break
        engine.step()
        engine.scheduler.check_integrity()
    return witness


def shown(scene: Scene, event: str, nth: int = 0) -> Frame:
    return scene.frames[scene.frame_of(event, nth)]


def card(frame: Frame, block: int) -> dict[str, str | int]:
    return dict(frame.stage[f"block:{block}"].data)


def entries(frame: Frame) -> list[int]:
    """The blocks whose entries stand in the queue, as drawn, in its order."""
    places = [
        (actor.y, actor.x, int(actor.data["block"]))
        for key, actor in frame.stage.items()
        if key.startswith("queued:") and actor.parts[0].style != "leaves"
    ]
    return [block for _, _, block in sorted(places)]


def words(frame: Frame, key: str) -> str:
    return " ".join(part.text for part in frame.stage[key].parts if part.text)


# --- the pool, replayed -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    requests,
    st.integers(12, 40),
    st.integers(4, 40),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([(FullAttentionSpec(4),), TWO_GROUPS]),
    st.sets(st.integers(0, 30), max_size=2),
    st.sets(st.integers(0, 30), max_size=2),
)
def test_the_replayed_pool_is_the_real_one_after_every_event(
    drawn: Drawn,
    num_blocks: int,
    budget: int,
    seats: int,
    caching: bool,
    specs: Sequence[KVCacheSpec],
    fails: set[int],
    aborts: set[int],
) -> None:
    engine = Modelless(
        num_blocks * len(specs), budget=max(budget, seats), seats=seats, caching=caching, specs=specs, policy="priority"
    )
    witness = serve(engine, drawn, fails, aborts)
    pool = PoolReplay(num_blocks * len(specs))
    for event, truth in zip(witness.events, witness.truths, strict=True):
        pool.apply(event)
        # At an eviction the real queue has lost the blocks already; the replayed one loses them with the allocation.
        if not isinstance(event, BlocksEvicted):
            assert Truth.replayed(pool) == truth
        counted = [pool.state(block) for block in range(pool.num_blocks)]
        assert {kind: pool.counts[kind] for kind in set(counted)} == {kind: counted.count(kind) for kind in counted}
        assert pool.counts["shared"] == sum(count > 1 for count in truth.ref_cnts)
        assert sum(pool.num_held.values()) == sum(map(pool.ref_cnt, range(pool.num_blocks)))


@settings(max_examples=40, deadline=None)
@given(requests, st.integers(12, 30), st.integers(4, 40), st.integers(1, 4), st.floats(0, 1))
def test_of_a_pool_that_was_met_late_nothing_wrong_is_said(
    drawn: Drawn, num_blocks: int, budget: int, seats: int, begin: float
) -> None:
    witness = serve(Modelless(num_blocks, budget=max(budget, seats), seats=seats), drawn)
    first = int(begin * len(witness.events))
    pool = PoolReplay(num_blocks, is_fresh=False)
    for event, truth in zip(witness.events[first:], witness.truths[first:], strict=True):
        pool.apply(event)
        if isinstance(event, BlocksEvicted):
            continue
        assert tuple(pool.head(99)) == truth.queue[: len(pool.head(99))]
        assert tuple(pool.tail(99)) == truth.queue[len(truth.queue) - len(pool.tail(99)) :]
        for block in set(range(1, num_blocks)) - pool.unknown:
            assert (pool.state(block) == "owned") == (truth.ref_cnts[block] > 0)
            assert (block in pool.remembered) == (block in truth.hashes)
            assert pool.ref_cnt(block) <= truth.ref_cnts[block]
        if isinstance(event, StepFinished):
            assert pool.num_free == len(truth.queue)


def test_a_prefix_cache_that_was_reset_is_found_out_when_a_block_is_taken_without_an_eviction() -> None:
    engine = Modelless(8)
    recorder = record(engine)
    engine.add("A", list(range(9)), 2)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert engine.manager.reset_prefix_cache()
    engine.add("B", list(range(100, 125)), 1)
    engine.step()
    pool = replay_of(recorder.trace)
    for seen in recorder.trace:
        pool.apply(seen.event)
    assert Truth.replayed(pool) == Truth.of(engine.pool)


def test_the_number_of_blocks_is_found_where_no_setting_tells_it() -> None:
    trace = three_requests()
    assert replay_of(Trace(trace.records)).num_blocks == trace.settings["num_blocks"] == 16
    assert replay_of(Trace(trace.records[30:])).num_blocks == 16


# --- frames -----------------------------------------------------------------------------------------------------------


def check(scene: Scene, truths: Sequence[Truth]) -> None:
    """Hold every frame of a scene against the real pool at its record."""
    for at, frame in enumerate(scene.frames):
        if frame.record < 0:
            continue
        truth = truths[frame.record]
        evicts = frame.event == "BlocksEvicted" and frame.beat is not None
        cells = scene.cells_at(at)
        for block, count in enumerate(truth.ref_cnts[1:], start=1):
            if cells:
                style, hashed = cells[block].style, "#" in cells[block].mark
                assert style.split(" ")[0] == _state(truth, block) or evicts
                assert ("shared" in style) == (count > 1)
            else:
                data, hashed = card(frame, block), bool(card(frame, block)["hash"])
                assert data["hash"] == truth.hashes.get(block, "")[:16]
                assert (data["state"], data["holders"]) == (_state(truth, block), count) or evicts
            assert hashed == (block in truth.hashes) or (evicts and cells)
        if not evicts:
            drawn = entries(frame)
            hidden = len(truth.queue) - len(drawn)
            if hidden:
                assert words(frame, "queue:between") == f"+{hidden:,}"
                cut = next(at for at in range(len(drawn) + 1) if drawn[at:] == list(truth.queue[at + hidden :]))
                assert drawn[:cut] == list(truth.queue[:cut])
            else:
                assert drawn == list(truth.queue)
            assert words(frame, "count:free").split()[-1] == f"{sum(b not in truth.hashes for b in truth.queue):,}"
            assert words(frame, "count:owned").split()[-1] == f"{sum(count > 0 for count in truth.ref_cnts):,}"


def _state(truth: Truth, block: int) -> str:
    return "owned" if truth.ref_cnts[block] else "cached" if block in truth.hashes else "free"


@settings(max_examples=15, deadline=None)
@given(requests, st.sampled_from([12, 20, 33, MAX_CARDS, MAX_CARDS + 1, 300]), st.integers(4, 40), st.integers(1, 4))
def test_in_every_frame_all_blocks_and_the_queue_are_those_of_the_real_pool(
    drawn: Drawn, num_blocks: int, budget: int, seats: int
) -> None:
    witness = serve(Modelless(num_blocks, budget=max(budget, seats), seats=seats), drawn)
    trace, truths = witness.trace, witness.truths
    active = sorted({seen.step for seen in trace if isinstance(seen.event, POOL_EVENTS)})
    for step in active:
        scene = scenes.block_pool(trace, step)
        assert (scene.grid is None) == (num_blocks <= MAX_CARDS)
        check(scene, truths)
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene
    whole = scenes.block_pool(trace, steps=range(trace.num_steps))
    assert [frame.step for frame in whole.frames[1:]] == list(range(trace.num_steps))
    check(whole, truths)
    assert Scene.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_a_frame_of_a_grid_names_the_cells_that_look_otherwise_and_no_others() -> None:
    drawn = [(8, 9, 9, at, 0) for at in range(8)]
    trace = serve(Modelless(100, seats=4), drawn).trace
    scene = scenes.block_pool(trace, steps=range(trace.num_steps))
    for at in range(1, len(scene)):
        before, now = scene.cells_at(at - 1), scene.cells_at(at)
        differ = {cell for cell in range(100) if before[cell] != now[cell]}
        assert set(scene.frames[at].cells) == differ


def test_from_8_to_100_000_blocks_the_stage_is_no_larger() -> None:
    for num_blocks in (8, 64, 65, 4_096, 100_000):
        engine = Modelless(num_blocks, seats=4)
        trace = run(engine, [("A", range(10), 3, 0), ("B", range(9), 3, 1)])
        scene = scenes.block_pool(trace, steps=range(trace.num_steps))
        assert scene.height < 470
        assert (scene.grid.count if scene.grid else num_blocks) == num_blocks
        assert len(json.dumps(scene.to_json())) < 60_000
        for frame in scene.frames:
            for actor in frame.stage.values():
                assert actor.x + max([actor.w, *(part.x + part.w for part in actor.parts)]) <= WIDTH


def test_what_leaves_the_queue_travels_to_its_card_and_what_comes_back_comes_from_there() -> None:
    trace = three_requests()
    scene = scenes.block_pool(trace, 0)
    before, taken = scene.frames[0].stage, shown(scene, "BlocksAllocated").stage
    for block in (1, 2, 3):
        there, here = taken[f"queued:{block}"], taken[f"block:{block}"]
        assert (there.x, there.y) == (here.x, here.y)
        assert before[f"queued:{block}"].y < there.y
    assert "queued:1" not in scene.frames[-1].stage
    freed = shown(scenes.block_pool(trace, 3), "BlocksFreed").stage
    assert freed["queued:5"].origin == (freed["block:5"].x, freed["block:5"].y)
    assert freed["queued:6"].origin is None


def test_changed_cards_have_the_ring() -> None:
    scene = scenes.block_pool(three_requests(), 1)
    assert shown(scene, "BlocksTouched").focus == ("block:1", "block:2")
    assert scene.frames[0].focus == ()


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_block_is_taken_from_the_head() -> None:
    frame = shown(scenes.block_pool(three_requests(), 1), "BlocksAllocated")
    assert frame.change == "B takes block 4 from the head of the free queue."
    assert frame.detail == "Its reference count is 1. The head is block 5 now."


def test_a_hit_raises_the_reference_count_of_what_is_held() -> None:
    frame = shown(scenes.block_pool(three_requests(), 1), "BlocksTouched")
    assert frame.change == "B hits blocks 1 and 2: it need not compute them again."
    assert frame.detail == "Blocks 1 and 2 are held by A already: their reference counts are 2 now."
    assert (card(frame, 1)["holders"], card(frame, 1)["owner"]) == (2, "A")
    assert "×2" in words(frame, "block:1")


def test_a_hit_on_a_free_block_takes_it_out_of_the_middle_of_the_queue() -> None:
    trace = run(Modelless(12), [("A", range(9), 1, 0), ("B", range(9), 1, 2)])
    scene = scenes.block_pool(trace, next(r.step for r in trace if isinstance(r.event, BlocksTouched)))
    frame = shown(scene, "BlocksTouched")
    assert frame.detail == "Blocks 1 and 2 were free and still remembered: out of the queue, from wherever they stand."
    before = entries(scene.frames[scene.frame_of("BlocksTouched") - 1])
    assert before[-2:] == [2, 1]
    assert entries(frame) == before[:-2]


def test_blocks_come_back_tail_first_and_those_with_a_hash_to_the_tail() -> None:
    frame = shown(scenes.block_pool(three_requests(), 3), "BlocksFreed")
    assert frame.change == "A ends: blocks 5, 3, 2 and 1 come back, tail first."
    assert frame.detail == (
        "Block 5, without a hash, goes to the head: it is taken next. Block 3, with a hash, goes to the tail and can "
        "still be hit. Block 2 is still held by B: its reference count falls to 1. (1 more block likewise.)"
    )
    assert (entries(frame)[0], entries(frame)[-1]) == (5, 3)


def test_the_step_that_evicts_is_the_default_and_says_what_an_eviction_is() -> None:
    trace = three_requests()
    scene = scenes.block_pool(trace)
    assert scene.frames[0].step == next(r.step for r in trace if isinstance(r.event, BlocksEvicted))
    evicts, takes = shown(scene, "BlocksEvicted"), shown(scene, "BlocksAllocated")
    assert evicts.change == "Block 3 loses its hash: somebody needs it now."
    assert "filled by A" in evicts.detail
    assert (card(evicts, 3)["state"], card(evicts, 3)["hash"]) == ("free", "")
    assert takes.detail.endswith("The queue is empty now: the next block has to be taken from somebody.")


def test_why_blocks_come_back_is_told() -> None:
    preempting = Modelless(9, seats=2, caching=False)
    trace = run(preempting, [("A", range(12), 12, 0), ("B", range(12), 12, 0)])
    step = next(r.step for r in trace if isinstance(r.event, RequestPreempted))
    assert shown(scenes.block_pool(trace, step), "BlocksFreed").change.startswith("B is preempted: blocks ")
    sliding = Modelless(30, specs=(SlidingWindowSpec(4, window=4),), caching=False)
    trace = run(sliding, [("A", range(9), 12, 0)])
    frame = shown(
        scenes.block_pool(trace, next(r.step for r in trace if isinstance(r.event, BlocksFreed))), "BlocksFreed"
    )
    assert frame.change == "Block 1 fell out of A’s window and comes back."
    engine = Modelless(9)
    recorder = record(engine)
    engine.add("A", range(9), 5)
    engine.step()
    engine.scheduler.abort_requests(["A"])
    assert shown(scenes.block_pool(recorder.trace, 0), "BlocksFreed").change.startswith("A is withdrawn: ")


def test_what_will_not_be_computed_loses_its_hash_without_being_taken() -> None:
    """A is granted tokens that fill a block, then B, which comes before it, needs one and pushes A out."""
    engine = Modelless(7, policy="priority")
    recorder = record(engine)
    for name, prompt, priority in (("A", range(11), 2), ("B", range(50, 55), 0)):
        engine.add(name, prompt, 20, priority=priority)
        engine.step()
    for _ in range(5):
        engine.step()
    trace = recorder.trace
    lost = [
        seen.step
        for seen, following in pairwise(trace)
        if isinstance(seen.event, BlocksEvicted) and not isinstance(following.event, BlocksAllocated)
    ]
    assert lost
    frame = shown(scenes.block_pool(trace, lost[0]), "BlocksEvicted")
    assert frame.detail.startswith("What was to be computed in")


def test_a_step_of_a_long_run_is_told_in_numbers() -> None:
    trace = three_requests()
    scene = scenes.block_pool(trace, steps=range(3, 13))
    assert scene.frames[0].change == "Step 3 finds 5 of 15 blocks in use, 10 free."
    assert scene.frames[-1].change == "Step 12: 1 block is taken, 6 given back, 1 evicted."
    assert scene.frames[-1].detail == "B ends. The head is block 3 now."
    assert scene.frames[-1].event == "BlocksEvicted"
    assert next(frame for frame in scene.frames if frame.step == 5).change == "Step 5: no block changes hands."


def test_the_line_of_each_frame_is_the_one_that_ran() -> None:
    trace = three_requests()
    for step in (0, 1, 3, 12):
        scene = scenes.block_pool(trace, step)
        for frame in scene.frames[1:]:
            assert frame.source is not None
            key, line = frame.source
            source = scene.sources[key]
            assert source.first_line <= line < source.first_line + len(source.lines)
            assert source.counterpart is not None
    key, line = shown(scenes.block_pool(trace), "BlocksEvicted").source
    source = scenes.block_pool(trace).sources[key]
    assert "self._evict(" in source.lines[line - source.first_line]


# --- questions --------------------------------------------------------------------------------------------------------


def test_which_block_is_taken_next_is_asked_before_an_eviction_gives_it_away() -> None:
    scene = scenes.block_pool(three_requests(11))
    (taken,) = scene.questions
    assert (taken.kind, taken.fact, taken.answer) == ("pick", "block", "7")
    assert taken.prompt == "C is about to get 7 blocks. Which one is taken first?"
    assert [frame.event for frame in scene.frames[1:3]] == ["BlocksEvicted", "BlocksAllocated"]
    assert (taken.ask_frame, taken.frame) == (0, 2)
    assert taken.reasons["0"].startswith("That is the null block.")


def test_which_block_comes_back_first_is_asked() -> None:
    (back,) = scenes.block_pool(three_requests()).questions
    assert (back.prompt, back.answer) == ("B is about to give back 6 blocks. Which one comes back first?", "3")
    assert back.reasons["1"].startswith("There B begins.")
    assert back.reasons["14"].startswith("It comes 2nd.")
    assert back.reasons["6"] == "B does not hold that block."


def test_every_block_of_a_small_pool_has_its_reason() -> None:
    for question in (q for step in range(5) for q in scenes.block_pool(three_requests(), step).questions if q.fact):
        assert set(question.reasons) | {question.answer} == {str(block) for block in range(16)}


def test_the_reference_count_is_asked_of_a_block_that_is_hit() -> None:
    count = next(q for q in scenes.block_pool(three_requests(), 1).questions if q.kind == "number")
    assert count.prompt == "A holds block 1, and B is about to hit it. What is its reference count then?"
    assert count.answer == "2"
    assert set(count.reasons) == {"0", "1", "3"}
    trace = run(Modelless(12), [("A", range(9), 1, 0), ("B", range(9), 1, 2)])
    scene = scenes.block_pool(trace, next(r.step for r in trace if isinstance(r.event, BlocksTouched)))
    free = next(q for q in scene.questions if q.kind == "number")
    assert free.prompt.startswith("Block 1 is free, but remembered, and B is about to hit it.")
    assert free.answer == "1"


@settings(max_examples=15, deadline=None)
@given(requests, st.sampled_from([12, 30, 100]), st.integers(4, 40), st.integers(1, 4))
def test_answers_are_what_happened_next(drawn: Drawn, num_blocks: int, budget: int, seats: int) -> None:
    witness = serve(Modelless(num_blocks, budget=max(budget, seats), seats=seats), drawn)
    trace, truths = witness.trace, witness.truths
    all_scenes = [scenes.block_pool(trace, steps=range(trace.num_steps))]
    all_scenes += [scenes.block_pool(trace, r.step) for r in trace if isinstance(r.event, StepFinished | BlocksFreed)
                   and any(isinstance(other.event, POOL_EVENTS) for other in trace.of_step(r.step))]  # fmt: skip
    for scene in all_scenes:
        for question in scene.questions:
            asked, told = scene.frames[question.ask_frame], scene.frames[question.frame]
            before = (
                truths[asked.record] if asked.record >= 0 else Truth((0,) * num_blocks, tuple(range(1, num_blocks)), {})
            )
            happened = [record.event for record in trace.records[asked.record + 1 : told.record + 1]]
            first = next(event for event in happened if isinstance(event, POOL_EVENTS))
            if "taken" in question.prompt:
                assert int(question.answer) == before.queue[0]
            elif question.kind == "pick":
                assert int(question.answer) == first.block_ids[0]
            else:
                assert int(question.answer) == 1 + max(before.ref_cnts[block] for block in first.block_ids)
            assert question.answer not in question.reasons


# --- what may be asked of it ------------------------------------------------------------------------------------------


def test_hostile_names_are_short_text() -> None:
    hostile = ["<img src=x onerror=alert(1)>", "", "x" * 10_000, "שלום", "a\nb\u202e", "🙂" * 40]
    trace = make_trace(dict.fromkeys(hostile, "abcdefghi"), [3] * len(hostile), num_blocks=60)
    for scene in (scenes.block_pool(trace), scenes.block_pool(trace, steps=range(trace.num_steps))):
        texts = [scene.frames[-1].caption, *(q.prompt + q.explanation for q in scene.questions)]
        texts += [part.text for frame in scene.frames for actor in frame.actors for part in actor.parts]
        assert max(map(len, texts)) < 400
        assert scene.requests == tuple(hostile)
        assert not any("\n" in text or "\u202e" in text for text in texts)


def test_a_trace_that_begins_in_the_middle_says_so() -> None:
    trace = three_requests()
    late = Trace(tuple(seen for seen in trace if seen.step >= 4), trace.sources, {}, trace.settings)
    scene = scenes.block_pool(late, 4)
    assert scene.frames[0].detail == "The recording began later than the engine: of some blocks it has not told yet."
    assert card(scene.frames[0], 7)["state"] == "unknown"
    assert card(scene.frames[-1], 7)["state"] == "owned"
    assert words(scene.frames[0], "queue:between") == "? … ?"
    assert words(scene.frames[0], "count:unknown") == "unknown 15"


def test_what_cannot_be_shown_is_a_clear_error() -> None:
    trace = three_requests()
    with pytest.raises(TraceError, match="give one of them"):
        scenes.block_pool(trace, 1, steps=range(3))
    for steps in (range(0), range(5, 2), range(0, 9, 2), [0, 1]):
        with pytest.raises(TraceError, match="give a range that goes up by ones"):
            scenes.block_pool(trace, steps=steps)
    with pytest.raises(TraceError, match="the trace has none of the steps 50 to 59"):
        scenes.block_pool(trace, steps=range(50, 60))
    with pytest.raises(TraceError, match="no step 99"):
        scenes.block_pool(trace, 99)
    with pytest.raises(TraceError, match="nothing happens to the block pool in step 5"):
        scenes.block_pool(trace, 5)
    with pytest.raises(TraceError, match="no step of this trace touches the block pool"):
        scenes.block_pool(Trace(()))
