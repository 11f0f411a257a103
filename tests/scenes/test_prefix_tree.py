"""The scene `prefix_tree`: blocks, hashes, parents, holders, lookups and the free queue are those of the real pool."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import PREFIX, Modelless, busy
from prefix_tree_watch import Watch, blocks_of, check, engine_with, serve

from pagedlab import SamplingParams, record, scenes, widgets
from pagedlab.errors import TraceError
from pagedlab.events import (
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksTouched,
    Event,
    ForwardFinished,
)
from pagedlab.kvcache import FullAttentionSpec, SlidingWindowSpec
from pagedlab.kvcache.hashing import ROOT, chain_hash
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.prefix_tree_layout import TreeLayout
from pagedlab.scenes.prefix_tree_state import TreeState
from pagedlab.trace import Trace

A, B = list(range(1, 14)), [*range(1, 9), 40, 41, 42]
FOUR = [
    ("A", A, 6, 0),
    ("B", B, 7, 0),  # in the same step: hits what A has yet to compute
    ("C", A[:8], 4, 8),  # both of its blocks are there: a full hit
    ("D", list(range(20, 46)), 5, 9),  # needs so many blocks that some are evicted
]


@pytest.fixture(scope="module")
def four(tiny_model: Any) -> tuple[Trace, Watch]:
    return serve(engine_with(tiny_model), FOUR)


@pytest.fixture(scope="module")
def scene(four: tuple[Trace, Watch]) -> Scene:
    return scenes.prefix_tree(four[0])


def shown(scene: Scene, event: str, nth: int = 0) -> Frame:
    return scene.frames[scene.frame_of(event, nth)]


def lookup_ends(scene: Scene, request_id: str) -> Frame:
    """The last frame of a request's lookup: the one before something is taken for it."""
    first = next(
        at for at, frame in enumerate(scene.frames)
        if frame.event in ("BlocksTouched", "BlocksAllocated", "BlocksEvicted")
        and frame.stage["ask"].data.get("request") == request_id
    )  # fmt: skip
    return scene.frames[first - 1]


def test_every_fact_is_the_real_pools(four: tuple[Trace, Watch], scene: Scene) -> None:
    check(scene, four[1])
    kinds = {frame.event for frame in scene.frames}
    assert kinds >= {
        "BlocksTouched",
        "BlocksAllocated",
        "BlocksCached",
        "BlocksEvicted",
        "BlocksFreed",
        "ForwardFinished",
    }


def test_the_hashes_are_the_chain_of_the_tokens(scene: Scene) -> None:
    seen = set()
    for frame in scene.frames:
        for facts in blocks_of(frame).values():
            if facts["hash"]:
                parent = bytes.fromhex(str(facts["parent"])) or ROOT
                tokens = [int(token) for token in str(facts["tokens"]).split()]
                assert chain_hash(parent, tokens).hex() == facts["hash"]
                seen.add(facts["hash"])
    assert len(seen) > 8


def test_a_lookup_finds_what_the_manager_found(four: tuple[Trace, Watch], scene: Scene) -> None:
    for request_id, num_tokens, block_ids in four[1].lookups:
        stage = lookup_ends(scene, request_id).stage
        verdicts = {int(a.data["column"]): a.data for key, a in stage.items() if key.startswith("ask:")}
        found = [column for column, facts in verdicts.items() if facts["verdict"] == "found"]
        assert found == list(range(num_tokens // 4))
        first = {
            facts["hash"]: block
            for block, facts in blocks_of(lookup_ends(scene, request_id)).items()
            if facts["rank"] == 0
        }
        assert [first[verdicts[column]["hash"]] for column in found] == list(block_ids)
    assert [len(ids) for _, _, ids in four[1].lookups] == [0, 2, 1, 0]


def test_a_lookup_stops_at_the_first_block_that_is_not_there(scene: Scene) -> None:
    frame = lookup_ends(scene, "B")
    assert frame.change == "B has no other full block to look up."
    frame = lookup_ends(scene, "D")
    assert frame.change.endswith("is not there: the lookup stops.")
    assert frame.stage["ask:0"].data["verdict"] == "miss"
    assert {frame.stage[f"ask:{column}"].data["verdict"] for column in range(1, 6)} == {""}
    assert frame.detail.startswith("0 tokens of 26 found, 26 to compute. The 5 blocks behind it are not looked up")


def test_the_line_that_looks_up_is_lit_though_it_emits_nothing(scene: Scene) -> None:
    frame = lookup_ends(scene, "B")
    assert frame.event is None
    key, line = frame.source or ("", 0)
    source = scene.sources[key]
    assert "get_computed_blocks(request)" in source.lines[line - source.first_line]
    for frame in scene.frames:
        if frame.event and frame.source:
            source = scene.sources[frame.source[0]]
            assert source.first_line <= frame.source[1] < source.first_line + len(source.lines)
            assert source.counterpart is not None, f"{source.name} has no counterpart at vLLM"


def test_a_block_can_be_hit_before_it_is_computed(tiny_model: Any) -> None:
    """What the scene calls promised has no keys and values yet; after the forward pass it has."""
    engine = engine_with(tiny_model)
    written: list[set[int]] = []
    watch = Watch(engine.scheduler)

    def look(event: Event) -> None:
        watch(event)
        data = engine.runner.kv_cache.data.abs().sum(dim=(0, 1, 3, 4)).reshape(-1, 4)
        written.append({block for block in range(12) if bool((data[block] > 0).all())})

    engine.observer = look
    recorder = record(engine)
    for name, prompt, length, _ in FOUR[:2]:
        engine.add_request(name, prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
    engine.step()
    scene = scenes.prefix_tree(recorder.stop())
    frames = [frame for frame in scene.frames if frame.record >= 0]
    states = {(frame.record, block): facts["state"] for frame in frames for block, facts in blocks_of(frame).items()}
    promised = {at for at, state in states.items() if state == "promised"}
    assert promised
    assert all(block not in written[at] for at, block in promised)
    assert all(block in written[at] for (at, block), state in states.items() if state == "held")
    hit = shown(scene, "BlocksTouched")
    assert {blocks_of(hit)[block]["state"] for block in (1, 2)} == {"promised"}
    told = " ".join(frame.detail for frame in scene.frames)
    assert "Block 1 is not computed yet: A will do that in this very step" in told
    assert (
        shown(scene, "ForwardFinished").detail
        == "Blocks 1 and 2 were hit before that: nobody has read what was not there."
    )


def test_a_full_hit_computes_its_last_block_again(scene: Scene) -> None:
    frame = lookup_ends(scene, "C")
    assert (frame.stage["ask:0"].data["verdict"], frame.stage["ask:1"].data["verdict"]) == ("found", "spared")
    assert frame.change.endswith("is there too, and is not taken.")
    assert frame.detail.endswith("4 tokens of 8 found, 4 to compute.")
    cached = next(
        frame for frame in scene.frames if frame.event == "BlocksCached" and frame.stage["ask"].data["request"] == "C"
    )
    twins = [facts for facts in blocks_of(cached).values() if facts["hash"] == frame.stage["ask:1"].data["hash"]]
    assert sorted(facts["rank"] for facts in twins) == [0, 1]
    assert "two blocks with one content" in cached.detail
    assert lookup_ends(scene, "C").stage["ask"].data["tokens"] == 8


def test_an_eviction_takes_the_head_of_the_queue_and_leaves_first(four: tuple[Trace, Watch], scene: Scene) -> None:
    at = scene.frame_of("BlocksEvicted")
    before, after = scene.frames[at - 1], scene.frames[at]
    events = four[0].records[before.record + 1 : after.record + 1]
    taken = [block for r in events if isinstance(r.event, BlocksAllocated) for block in r.event.block_ids]
    evicted = [block for r in events if isinstance(r.event, BlocksEvicted) for block in r.event.block_ids]
    assert str(before.stage["queue"].data["queue"]).split()[: len(taken)] == [str(block) for block in taken]
    assert evicted
    assert set(evicted) < set(taken)
    gone = {blocks_of(before)[block]["hash"] for block in evicted}
    parents = {facts["parent"] for facts in blocks_of(after).values() if facts["hash"]}
    assert parents.isdisjoint(gone)
    assert "every block left still has its parent" in after.detail
    here, there = after.stage[f"block:{evicted[0]}"], before.stage[f"block:{evicted[0]}"]
    assert (here.x, here.y) != (there.x, there.y)


def test_what_is_freed_comes_from_its_block_and_what_is_taken_from_the_queue(scene: Scene) -> None:
    at = scene.frame_of("BlocksFreed")
    before, after = scene.frames[at - 1], scene.frames[at]
    new = {key for key in after.stage if key.startswith("free:") and key not in before.stage}
    assert new
    for key in new:
        block = before.stage[key.replace("free:", "block:")]
        assert after.stage[key].origin == (block.x, block.y)
    at = scene.frame_of("BlocksAllocated")
    for key, actor in scene.frames[at].stage.items():
        if key.startswith("block:") and key not in scene.frames[at - 1].stage:
            chip = scene.frames[at - 1].stage[key.replace("block:", "free:")]
            assert actor.origin == (chip.x, chip.y)


def test_a_block_stays_where_it_is_while_its_content_stays(scene: Scene) -> None:
    places: dict[tuple[int, str], tuple[float, float]] = {}
    for frame in scene.frames:
        for block, facts in blocks_of(frame).items():
            if facts["hash"] and facts["rank"] == 0:
                actor = frame.stage[f"block:{block}"]
                assert places.setdefault((block, str(facts["hash"])), (actor.x, actor.y)) == (actor.x, actor.y)


def test_the_same_tokens_under_another_salt_are_other_blocks(tiny_model: Any) -> None:
    engine = engine_with(tiny_model, seats=4)
    watch = Watch(engine.scheduler)
    engine.observer = watch
    recorder = record(engine)
    for name, salt in (("A", None), ("B", "other")):
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        engine.add_request(name, A[:9], params, cache_salt=salt)
    while engine.has_unfinished_requests():
        engine.step()
    scene = scenes.prefix_tree(recorder.stop())
    check(scene, watch)
    first = [f for f in blocks_of(shown(scene, "ForwardFinished")).values() if f["column"] == 0]
    assert len({facts["hash"] for facts in first}) == 2
    assert len({facts["tokens"] for facts in first}) == 1


# --- questions ------------------------------------------------------------------------------------------------


def test_the_questions_are_answered_by_the_trace(four: tuple[Trace, Watch], scene: Scene) -> None:
    hit, full, evicted = scene.questions
    real = {request_id: num_tokens for request_id, num_tokens, _ in four[1].lookups}
    assert hit.prompt.startswith("B has 11 tokens, in blocks of 4.")
    assert hit.answer == str(real["B"])
    assert full.prompt.startswith("C has 8 tokens, and every one of its 2 blocks of 4")
    assert full.answer == str(8 - real["C"])
    assert set(full.reasons) == {"0", "1", "8"}
    ids = next(r.event.block_ids for r in four[0] if isinstance(r.event, BlocksEvicted))
    assert [int(word.strip(",")) for word in evicted.answer.split() if word.strip(",").isdigit()] == list(ids)
    assert scene.frames[evicted.frame].event == "BlocksEvicted"
    assert all(choice == evicted.answer or evicted.reasons[choice] for choice in evicted.choices)


def test_the_frame_that_asks_does_not_show_the_answer(scene: Scene) -> None:
    for question in scene.questions[:2]:
        stage = scene.frames[question.ask_frame].stage
        assert {a.data["verdict"] for key, a in stage.items() if key.startswith("ask:")} == {""}


# --- any workload -----------------------------------------------------------------------------------------------

requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 18), st.integers(1, 10), st.integers(0, 8), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def todo_of(drawn: Sequence[tuple[int, int, int, int, int]]) -> list[tuple[str, list[int], int, int]]:
    return [
        (f"r{at}", [*range(1000, 1000 + shared), *range(50 * (at % 3), 50 * (at % 3) + own)], output, arrival)
        for at, (shared, own, output, arrival, _) in enumerate(drawn)
    ]


@settings(max_examples=25, deadline=None)
@given(
    requests,
    st.integers(12, 30),
    st.integers(4, 40),
    st.integers(1, 4),
    st.sampled_from(["fcfs", "priority"]),
    st.sampled_from([(), (FullAttentionSpec(4), SlidingWindowSpec(4, 6))]),
)
def test_on_any_workload_every_fact_is_the_real_pools(
    drawn: list[tuple[int, int, int, int, int]], num_blocks: int, budget: int, seats: int, policy: str, specs: Any
) -> None:
    more = 12 if specs else 0  # one request needs blocks in both groups
    engine = Modelless(num_blocks + more, budget=max(budget, seats), seats=seats, policy=policy, specs=specs)
    trace, watch = serve(engine, todo_of(drawn))
    if not any(isinstance(r.event, BlocksCached) for r in trace):
        with pytest.raises(TraceError, match="no block of this trace gets a hash"):
            scenes.prefix_tree(trace)
        return
    scene = scenes.prefix_tree(trace)
    all_drawn = not any("left-out" in frame.stage for frame in scene.frames)
    check(scene, watch, all_drawn=all_drawn)
    stages = [frame.stage for frame in scene.frames]
    assert all(len({(a.x, a.y) for k, a in s.items() if k.startswith("block:")}) == len(blocks_of(f))
               for s, f in zip(stages, scene.frames, strict=True)), "two blocks lie on each other"  # fmt: skip
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene
    for question in scene.questions:
        if question.prompt.endswith("How many of them are found in the cache?"):
            who = question.prompt.split(" has ")[0]
            assert any(real[0] == who and str(real[1]) == question.answer for real in watch.lookups)


@settings(max_examples=40, deadline=None)
@given(requests, st.integers(12, 24), st.integers(1, 4))
def test_evictions_never_part_a_block_from_its_parent(
    drawn: list[tuple[int, int, int, int, int]], num_blocks: int, seats: int
) -> None:
    """With full attention, in one group: what a caption says of leaves is so, whatever happens."""
    trace, _ = serve(Modelless(num_blocks, budget=32, seats=seats), todo_of(drawn))
    state = TreeState(trace)
    for item in trace:
        state.apply(item.event)
        assert state.orphans == []


def test_a_priority_victim_that_loses_its_hashes_is_told() -> None:
    """By priority a request may be preempted in the step that was to compute its blocks: they lose their hashes."""
    engine = Modelless(6, budget=64, seats=3, policy="priority")
    watch = Watch(engine.scheduler)
    engine.observer = watch
    recorder = record(engine)
    engine.add("low", range(1, 9), 8, priority=9)
    engine.step()
    engine.add("high", range(20, 26), 8, priority=1)  # its third block is wanted in the step that fills low's third
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    scene = scenes.prefix_tree(recorder.stop())
    check(scene, watch)
    forgotten = [frame for frame in scene.frames if "again." in frame.change and "hash" in frame.change]
    assert forgotten
    assert all("is about to be preempted" in frame.detail for frame in forgotten)


# --- names, sizes, other traces -----------------------------------------------------------------------------------

HOSTILE = ["<script>alert(1)</script>", "a\nb\u2028c", "שלום", "x" * 300, "😀 日本", '"];drop', "\u202eabc"]


def test_hostile_names_are_text(tmp_path: Any) -> None:
    engine = Modelless(60, seats=len(HOSTILE))
    trace, watch = serve(engine, [(name, [*PREFIX, at], 6, at // 2) for at, name in enumerate(HOSTILE)])
    scene = scenes.prefix_tree(trace)
    check(scene, watch)
    assert scene.requests == tuple(HOSTILE)
    page = widgets.export_html(scene, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    for frame in scene.frames:
        assert "\n" not in frame.change


def in_stage(scene: Scene) -> None:
    for frame in scene.frames:
        for actor in frame.stage.values():
            assert actor.x + actor.w <= scene.width
            assert actor.y + actor.h <= scene.height
            assert all(actor.x + part.x + part.w <= scene.width + 1 for part in actor.parts)


@cache
def large() -> Scene:
    return scenes.prefix_tree(busy(600, seats=12, steps=60, prompt=96, output=30))


def test_a_tree_of_hundreds_of_blocks_fits_and_counts_what_it_leaves_out() -> None:
    scene = large()
    trace = busy(600, seats=12, steps=60, prompt=96, output=30)
    assert max(len(blocks_of(frame)) for frame in scene.frames) > 150
    in_stage(scene)
    assert scene.height < 560
    state, done = TreeState(trace), 0
    for frame in scene.frames[:: max(1, len(scene.frames) // 12)]:
        while done <= frame.record:
            state.apply(trace.records[done].event)
            done += 1
        hidden = 0
        for part in frame.stage["left-out"].parts if "left-out" in frame.stage else ():
            words = part.text.replace(",", "")
            hidden += int(words.rsplit(":", 1)[-1].split()[0]) if words.startswith("⋯") else int(words.lstrip("+"))
        assert len(blocks_of(frame)) + hidden == len(list(state.nodes()))


def test_a_prompt_of_hundreds_of_blocks_leaves_out_columns() -> None:
    engine = Modelless(600, budget=4000)
    trace, watch = serve(engine, [("A", range(1200), 3, 0), ("B", range(1190), 3, 1)])
    scene = scenes.prefix_tree(trace)
    check(scene, watch, all_drawn=False)
    in_stage(scene)
    (gap,) = [part.text for part in scene.frames[-1].stage["left-out"].parts]
    assert int(gap.lstrip("+")) + len(blocks_of(scene.frames[-1])) == len(watch.pools[-1].hashes)


def test_layout_gives_each_place_its_own_cell() -> None:
    places = {"a": ("", 0), "b": ("a", 1), "c": ("a", 1), "d": ("c", 2), "e": ("", 0), "f": ("gone", 4)}
    layout = TreeLayout(places, {"b": 2}, label_columns=4, most_digits=2)
    spots = [layout.xy(place) for place in places]
    assert len(set(spots)) == len(places)
    assert layout.line == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 3}
    assert layout.y[1] - layout.y[0] > layout.y[2] - layout.y[1]  # room for the twin


def test_a_part_of_the_steps_shows_the_tree_as_they_find_it(four: tuple[Trace, Watch]) -> None:
    trace, watch = four
    scene = scenes.prefix_tree(trace, 8, 9)
    check(scene, watch)
    assert {frame.step for frame in scene.frames} == {8, 9}
    assert scene.frames[0].change.startswith("Step 8 finds ")


def test_a_trace_that_begins_in_the_middle_shows_what_it_tells(four: tuple[Trace, Watch]) -> None:
    trace, _ = four
    at = next(at for at, r in enumerate(trace.records) if r.step == 2)
    scene = scenes.prefix_tree(Trace(trace.records[at:], trace.sources, trace.vocabulary, trace.settings))
    assert len(scene.frames) > 5
    whole = scenes.prefix_tree(trace, 2)
    told = {(str(f["hash"]), block) for frame in whole.frames for block, f in blocks_of(frame).items()}
    for frame in scene.frames:
        for block, facts in blocks_of(frame).items():
            assert not facts["hash"] or str(facts["hash"]).startswith("?") or (str(facts["hash"]), block) in told


def test_after_a_step_that_failed_the_tree_begins_anew() -> None:
    engine = Modelless(20)
    watch = Watch(engine.scheduler)
    engine.observer = watch
    recorder = record(engine)
    engine.add("A", [*PREFIX, 1, 2], 6)
    engine.step()
    engine.fail()
    watch.scheduler.kv_cache_manager = engine.manager
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    trace = recorder.stop()
    scene = scenes.prefix_tree(trace)
    check(scene, watch)
    assert sum(isinstance(r.event, BlocksCached) for r in trace) >= 2


def test_two_groups_of_which_one_slides_show_the_first() -> None:
    engine = Modelless(60, specs=[FullAttentionSpec(4), SlidingWindowSpec(4, 6)])
    trace, _ = serve(engine, [("A", [*PREFIX, 1, 2, 3], 5, 0), ("B", [*PREFIX, 9], 5, 1)])
    scene = scenes.prefix_tree(trace)
    touched = next(r.event.block_ids for r in trace if isinstance(r.event, BlocksTouched) and r.event.group == 0)
    assert {int(f["column"]) for b, f in blocks_of(shown(scene, "BlocksTouched")).items() if b in touched} == {0, 1}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda trace: scenes.prefix_tree(trace, 99), "no step 99"),
        (lambda trace: scenes.prefix_tree(trace, 9, 2), "first is 9 and last is 2"),
        (lambda trace: scenes.prefix_tree(Trace(())), "enable_prefix_caching=True"),
    ],
)
def test_nothing_to_show_is_a_clear_error(
    make: Callable[[Trace], Scene], words: str, four: tuple[Trace, Watch]
) -> None:
    with pytest.raises(TraceError, match=words):
        make(four[0])


def test_forward_passes_are_shown_only_where_they_keep_a_promise(four: tuple[Trace, Watch], scene: Scene) -> None:
    for at, frame in enumerate(scene.frames):
        if frame.event == "ForwardFinished":
            assert any(facts["state"] == "promised" for facts in blocks_of(scene.frames[at - 1]).values())
            assert all(facts["state"] != "promised" for facts in blocks_of(frame).values())
    assert scene.event_names["ForwardFinished"] == "forward pass"
    assert sum(isinstance(r.event, ForwardFinished) for r in four[0]) > sum(
        frame.event == "ForwardFinished" for frame in scene.frames
    )
