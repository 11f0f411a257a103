"""The scene `preemption`: queues, blocks, counters and the account of work are the real engine's at each moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Modelless

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes, widgets
from pagedlab.errors import TraceError
from pagedlab.events import (
    BlocksAllocated,
    BlocksFreed,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
)
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.preemption_state import QueueState
from pagedlab.trace import Trace


@dataclass
class Moment:
    """The real engine at one event."""

    running: list[str]
    waiting: list[str]
    computed: dict[str, int]
    tokens: dict[str, int]
    preemptions: dict[str, int]
    blocks: dict[str, tuple[int, ...]]
    worker: dict[str, list[int]]
    queue: list[int]
    num_computed: int
    num_again: int


@dataclass
class Watch:
    """Observes an engine and keeps what is so at each event; counts on its own what is computed again."""

    engine: Any
    moments: list[Moment] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _done: dict[str, set[int]] = field(default_factory=dict)  # positions that a request has computed, ever
    _inputs: InputsPrepared | None = None
    _computed: int = 0
    _again: int = 0

    def __call__(self, event: Event) -> None:
        scheduler = self.engine.scheduler
        manager = scheduler.kv_cache_manager
        self.events.append(event)
        self._count(event)
        live = scheduler.requests
        runner = getattr(self.engine, "runner", None)
        self.moments.append(
            Moment(
                [request.request_id for request in scheduler.running if not request.is_finished],
                [request.request_id for request in scheduler.waiting],
                {who: request.num_computed_tokens for who, request in live.items()},
                {who: request.num_tokens for who, request in live.items()},
                {who: request.num_preemptions for who, request in live.items()},
                {who: ids[0] for who, ids in manager.held_block_ids.items()},
                {who: list(state.block_ids[0]) for who, state in runner.requests.items()} if runner else {},
                list(manager.free_block_ids),
                self._computed,
                self._again,
            )
        )

    def _count(self, event: Event) -> None:
        match event:
            case RequestAdded(request_id=request_id):
                self._done[request_id] = set()
            case InputsPrepared():
                self._inputs = event
            case ForwardFinished() if self._inputs is not None:
                starts = self._inputs.query_start_loc
                for row, request_id in enumerate(self._inputs.request_ids):
                    positions = set(self._inputs.positions[starts[row] : starts[row + 1]])
                    self._computed += len(positions)
                    self._again += len(positions & self._done[request_id])
                    self._done[request_id] |= positions


def lines(frame: Frame) -> dict[str, dict[str, Any]]:
    return {str(a.data["request"]): dict(a.data) for key, a in frame.stage.items() if key.startswith("request:")}


def check(scene: Scene, watch: Watch, *, with_model: bool = True) -> None:
    """Every fact of every frame is the real engine's at that moment."""
    for frame in scene.frames:
        if frame.record < 0:
            continue
        real = watch.moments[frame.record]
        # A look behind a release shows what is so right before the next event: the preemption is finished by then.
        is_settled = frame.event is None and isinstance(watch.events[frame.record], (RequestPreempted, BlocksFreed))
        settled = watch.moments[min(frame.record + is_settled, len(watch.moments) - 1)]
        for who, facts in lines(frame).items():
            where = settled if facts["queue"] == "waiting" else real
            assert facts["tokens"] == real.tokens[who]
            assert facts["computed"] == where.computed[who], f"{who} in {frame.id}"
            assert facts["preemptions"] in (real.preemptions[who], real.preemptions[who] + 1)
            assert facts["blocks"] == " ".join(map(str, real.blocks.get(who, ())))
            if facts["queue"]:
                assert getattr(where, facts["queue"])[int(facts["place"])] == who
            else:
                assert who not in real.running
                assert who not in real.waiting
            if with_model and who in real.worker:
                assert facts["worker"] == " ".join(map(str, real.worker[who]))
        assert frame.stage["queue"].data == {"free": len(real.queue), "queue": " ".join(map(str, real.queue))}
        for key, actor in frame.stage.items():
            if key.startswith("block:"):
                facts = actor.data
                if facts["request"]:
                    assert real.blocks[str(facts["request"])][int(facts["column"])] == facts["block"]
                else:
                    assert real.queue[int(facts["place"])] == facts["block"]
        panel = frame.stage["panel"].data
        preemptions = sum(isinstance(event, RequestPreempted) for event in watch.events[: frame.record + 1])
        assert panel["preemptions"] == preemptions
        if with_model:
            assert (panel["computed"], panel["again"]) == (real.num_computed, real.num_again)


def engine_with(
    model: Any, *, blocks: int = 9, seats: int = 4, budget: int = 32, caching: bool = True, **scheduling: Any
) -> LLMEngine:
    return LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduling),
        cache_config=CacheConfig(block_size=4, num_blocks=blocks, enable_prefix_caching=caching),
        max_model_len=64,
        device="cpu",
    )


Todo = Sequence[tuple[str, Sequence[int], int, int, int]]  # id, prompt, output tokens, step of arrival, priority


def serve(engine: LLMEngine | Modelless, todo: Todo, steps: int = 400) -> tuple[Trace, Watch]:
    """Serve requests to their ends, watched."""
    watch = Watch(engine)
    engine.observer = watch
    recorder = record(engine)
    left = list(todo)
    while (left or engine.scheduler.has_unfinished_requests()) and engine.num_steps < steps:
        for item in [item for item in left if item[3] <= engine.num_steps]:
            left.remove(item)
            name, prompt, length, _, priority = item
            if isinstance(engine, Modelless):
                engine.add(name, prompt, length, priority=priority)
            else:
                params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
                engine.add_request(name, list(prompt), params, priority=priority)
        engine.step()
    return recorder.stop(), watch


THREE = [("A", range(1, 9), 14, 0, 5), ("B", range(20, 27), 12, 0, 1), ("C", range(40, 46), 10, 1, 9)]


def knowing(trace: Trace, policy: str) -> Trace:
    """The trace, with the scheduler's policy among its settings."""
    return replace(trace, settings={**trace.settings, "policy": policy})


def losses(trace: Trace) -> list[RequestPreempted]:
    return trace.events(RequestPreempted)


@pytest.fixture(scope="module")
def three(tiny_model: Any) -> tuple[Trace, Watch]:
    return serve(engine_with(tiny_model, blocks=10, caching=False), THREE)


@pytest.fixture(scope="module")
def scene(three: tuple[Trace, Watch]) -> Scene:
    return scenes.preemption(three[0])


def shown(scene: Scene, event: str, nth: int = 0) -> Frame:
    return scene.frames[scene.frame_of(event, nth)]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("budget", [4, 32])
def test_every_fact_is_the_real_engines(tiny_model: Any, policy: str, caching: bool, budget: int) -> None:
    engine = engine_with(tiny_model, blocks=10, caching=caching, policy=policy, budget=budget)
    trace, watch = serve(engine, THREE)
    preempted = [r for r in trace if isinstance(r.event, RequestPreempted)]
    assert preempted
    for nth, preemption in enumerate(preempted):
        scene = scenes.preemption(trace, nth)
        check(scene, watch)
        assert scene.frames[0].step == preemption.step


def test_the_story_goes_from_the_dry_pool_to_the_victims_return(three: tuple[Trace, Watch], scene: Scene) -> None:
    victim = losses(three[0])[0].request_id
    assert victim == "C"
    told = [frame.event for frame in scene.frames if frame.event]
    order = ["RequestPreempted", "BlocksFreed", "RowRemoved", "BlocksAllocated", "RowAdded"]
    assert [told.index(event) for event in order] == sorted(told.index(event) for event in order)
    lost = losses(three[0])[0].num_computed_tokens
    assert scene.frames[-1].change.startswith("C is where it was, ")
    assert f"{lost} computed tokens were lost, {lost} computed again." in scene.frames[-1].detail


def test_the_victim_is_the_last_that_runs_and_goes_to_the_head_of_the_queue(scene: Scene) -> None:
    at = scene.frame_of("RequestPreempted")
    before, leaving, freed, waits = (lines(frame) for frame in scene.frames[at - 1 : at + 3])
    running = [who for who, facts in before.items() if facts["queue"] == "running"]
    assert before["C"]["place"] == len(running) - 1
    assert (leaving["C"]["queue"], freed["C"]["queue"]) == ("", "")
    assert (waits["C"]["queue"], waits["C"]["place"]) == ("waiting", 0)
    assert leaving["C"]["computed"] > 0
    assert waits["C"]["computed"] == 0
    assert waits["C"]["tokens"] == before["C"]["tokens"]
    ys = {who: scene.frames[at - 1].stage[f"request:{who}"].y for who in running}
    assert max(ys, key=lambda who: ys[who]) == "C"


def test_its_blocks_go_back_last_first_and_keep_their_identity(scene: Scene) -> None:
    at = scene.frame_of("BlocksFreed")
    held = {a.data["block"]: key for key, a in scene.frames[at - 1].stage.items()
            if key.startswith("block:") and a.data["request"] == "C"}  # fmt: skip
    ids = [int(block) for block in str(lines(scene.frames[at - 1])["C"]["blocks"]).split()]
    queue = str(scene.frames[at].stage["queue"].data["queue"]).split()
    assert queue[: len(ids)] == [str(block) for block in reversed(ids)]
    for block, key in held.items():
        assert scene.frames[at].stage[key].data == {"block": block, "request": "", "place": queue.index(str(block))}


def test_what_the_victim_gave_up_goes_to_the_one_that_needed_it(three: tuple[Trace, Watch], scene: Scene) -> None:
    at = scene.frame_of("BlocksFreed")
    head = int(str(scene.frames[at].stage["queue"].data["queue"]).split()[0])
    granted = next(frame for frame in scene.frames[at:] if frame.event == "RequestScheduled")
    (key,) = [key for key, a in scene.frames[at].stage.items() if key.startswith("block:") and a.data["block"] == head]
    taker = granted.stage[key].data["request"]
    assert taker in ("A", "B")
    assert granted.change == f"{taker} gets 1 token, and block {head} to keep it in."
    assert granted.detail.startswith(f"Block {head} was given up a moment ago.")


def test_a_step_that_preempts_admits_nobody(three: tuple[Trace, Watch], scene: Scene) -> None:
    frame = next(frame for frame in scene.frames if frame.change.startswith("Nobody is admitted in this step"))
    granted = [r.event for r in three[0].of_step(frame.step) if isinstance(r.event, RequestScheduled)]
    assert {event.status for event in granted} == {"running"}
    assert lines(frame)["C"]["queue"] == "waiting"
    key, line = frame.source or ("", 0)
    assert "not preempted" in scene.sources[key].lines[line - scene.sources[key].first_line]


def test_the_new_ids_replace_the_old_ones(three: tuple[Trace, Watch], scene: Scene) -> None:
    at = scene.frame_of("RowAdded")
    before, row = lines(scene.frames[at - 1])["C"], lines(scene.frames[at])["C"]
    assert before["worker"] != before["blocks"]
    assert row["worker"] == row["blocks"] == before["blocks"]
    old = [part.text for part in scene.frames[at - 1].stage["request:C"].parts if part.style == "dropped"]
    assert old == str(before["worker"]).split()
    assert not [part for part in scene.frames[at].stage["request:C"].parts if part.style == "dropped"]


def test_with_the_cache_on_part_of_it_is_found_again(tiny_model: Any) -> None:
    trace, watch = serve(engine_with(tiny_model, blocks=10), THREE)
    for nth in range(len(losses(trace))):
        scene = scenes.preemption(trace, nth)
        if "BlocksTouched" not in {frame.event for frame in scene.frames}:
            continue
        check(scene, watch)
        hit = next(r for r in trace.records[scene.frames[scene.frame_of("BlocksTouched")].record :]
                   if isinstance(r.event, RequestScheduled) and r.event.status == "resumed")  # fmt: skip
        assert (
            f"{hit.event.num_computed_tokens} tokens are found in the prefix cache."
            in shown(scene, "BlocksTouched").change
        )
        number = next(question for question in scene.questions if question.kind == "number")
        assert number.answer == str(hit.event.num_tokens - hit.event.num_computed_tokens)
        assert "are found in the prefix cache" in number.reasons[str(hit.event.num_tokens)]
        return
    pytest.fail("nothing of any victim was found again: the workload no longer shows what it is for")


def test_the_questions_are_answered_by_the_trace(three: tuple[Trace, Watch], scene: Scene) -> None:
    trace = three[0]
    who, number, row = scene.questions
    assert who.answer == losses(trace)[0].request_id
    assert scene.frames[who.frame].event == "RequestPreempted"
    (nobody,) = [choice for choice in who.choices if choice.startswith("Nobody: ")]
    assert set(who.choices) == {"A", "B", "C", nobody}
    grants = [event for event in trace.events(RequestScheduled) if event.request_id == "C"]
    resumed = next(event for event in grants if event.status == "resumed")
    assert number.answer == str(resumed.num_tokens)
    assert {"1", "6"} <= set(number.reasons)  # its last token; its prompt without what it wrote
    index = scene.frames[row.frame].record
    added = trace.records[index].event
    assert isinstance(added, RowAdded)
    assert row.answer == f"[{', '.join(map(str, added.block_ids[0]))}]"
    assert all(question.ask_frame < question.frame for question in scene.questions)
    assert "C" not in scene.frames[who.ask_frame].change


def test_each_preemption_has_its_scene(three: tuple[Trace, Watch]) -> None:
    trace, watch = three
    for nth, event in enumerate(losses(trace)):
        scene = scenes.preemption(trace, nth)
        check(scene, watch)
        assert scene.questions[0].answer == event.request_id
    with pytest.raises(TraceError, match=rf"nth is 99, and the trace has {len(losses(trace))} preemption"):
        scenes.preemption(trace, 99)
    with pytest.raises(TraceError, match="nth is -1"):
        scenes.preemption(trace, -1)
    with pytest.raises(TraceError, match="nobody is preempted in this trace: record an engine with fewer blocks"):
        scenes.preemption(Trace(()))


def test_thrashing_shows_as_work_done_again(tiny_model: Any) -> None:
    """Many requests on few blocks: the same ones lose their blocks again and again."""
    todo = [(f"r{at}", range(at, at + 5), 28, 0, 0) for at in range(6)]
    trace, watch = serve(engine_with(tiny_model, blocks=14, seats=6, caching=False), todo)
    count = len(losses(trace))
    assert count > 6
    last = scenes.preemption(trace, count - 1)
    check(last, watch)
    panel = last.frames[-1].stage["panel"].data
    assert panel["preemptions"] == count
    assert panel["again"] > 40
    assert (
        f"{count} preemptions and {panel['again']} of {panel['computed']} tokens computed again"
        in last.frames[-1].detail
    )


def test_who_is_preempted_again_before_it_has_caught_up_is_told(tiny_model: Any) -> None:
    """The long prompt comes back in chunks, and the requests before it grow meanwhile."""
    todo = [("A", range(1, 8), 30, 0, 0), ("B", range(10, 16), 26, 0, 0), ("C", range(30, 54), 6, 1, 0)]
    engine = engine_with(tiny_model, blocks=15, budget=6, caching=False, reserve_full_prompt=False)
    trace, watch = serve(engine, todo)
    ends = []
    for nth in range(len(losses(trace))):
        scene = scenes.preemption(trace, nth)
        check(scene, watch)
        ends.append(scene.frames[-1].change)
    assert any("is preempted again before it is where it was" in end for end in ends)
    assert any("is where it was" in end and "again" not in end for end in ends)


def test_a_victim_that_never_comes_back_is_told(tiny_model: Any) -> None:
    engine = engine_with(tiny_model, blocks=10, caching=False)
    watch = Watch(engine)
    engine.observer = watch
    recorder = record(engine)
    for name, prompt, length, _, _ in THREE:
        engine.add_request(name, list(prompt), SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
    while not losses(recorder.trace):
        engine.step()
    scene = scenes.preemption(recorder.trace)
    check(scene, watch)
    assert scene.frames[-1].change == "The recording ends before C is where it was."
    assert len(scene.questions) == 1
    engine.abort_request("C")
    engine.step()
    scene = scenes.preemption(recorder.stop())
    check(scene, watch)
    assert scene.frames[-1].change == "C has left before it was where it had been."


def test_the_line_of_each_frame_is_one_that_ran(scene: Scene) -> None:
    lit = {frame.change.split(" ", 1)[1]: frame.source for frame in scene.frames if frame.source}
    text = {words: scene.sources[key].lines[line - scene.sources[key].first_line] for words, (key, line) in lit.items()}
    assert "self._preempt(victim)" in text["is preempted: it leaves the running list."]
    assert any(".waiting.requeue(" in line for words, line in text.items() if "head of the waiting queue" in words)
    assert any(".allocate_slots(" in line for words, line in text.items() if words.startswith("needs "))
    for frame in scene.frames:
        if frame.event and frame.source:
            source = scene.sources[frame.source[0]]
            assert source.counterpart is not None, f"{source.name} has no counterpart at vLLM"


# --- any workload -----------------------------------------------------------------------------------------------


requests = st.lists(
    st.tuples(st.integers(1, 14), st.integers(4, 24), st.integers(0, 6), st.integers(0, 2)), min_size=2, max_size=7
)  # tokens of the prompt, to generate, arrives in this step, priority


@settings(max_examples=25, deadline=None)
@given(
    requests,
    st.integers(9, 16),
    st.integers(6, 40),
    st.sampled_from(["fcfs", "priority"]),
    st.booleans(),
)
def test_on_any_workload_every_fact_is_the_real_schedulers(
    drawn: list[tuple[int, int, int, int]], blocks: int, budget: int, policy: str, caching: bool
) -> None:
    engine = Modelless(blocks, budget=budget, seats=6, policy=policy, caching=caching)
    todo = [(f"r{at}", range(50 * at, 50 * at + length), min(output, 4 * blocks - 8 - length), arrival, priority)
            for at, (length, output, arrival, priority) in enumerate(drawn)]  # fmt: skip
    trace, watch = serve(engine, todo)
    trace = knowing(trace, policy)
    for nth, event in enumerate(losses(trace)[:4]):
        scene = scenes.preemption(trace, nth)
        check(scene, watch, with_model=False)
        for frame in scene.frames:
            spots = [(a.x, a.y) for key, a in frame.stage.items() if key.startswith("block:")]
            assert len(spots) == len(set(spots)), "two blocks lie on each other"
            for actor in frame.stage.values():
                assert actor.x + actor.w <= scene.width
                assert actor.y + actor.h <= scene.height
        assert scene.questions[0].answer == event.request_id
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


@settings(max_examples=20, deadline=None)
@given(
    requests,
    st.integers(9, 14),
    st.sampled_from(["fcfs", "priority"]),
    st.sets(st.integers(0, 30), max_size=2),
)
def test_the_replayed_queues_are_the_real_ones_after_every_event(
    drawn: list[tuple[int, int, int, int]], blocks: int, policy: str, fails: set[int]
) -> None:
    """Steps that fail and are taken back included; the order of a priority queue too."""
    engine = Modelless(blocks, budget=32, seats=6, policy=policy)
    watch = Watch(engine)
    engine.observer = watch
    recorder = record(engine)
    for at, (length, output, _, priority) in enumerate(drawn):
        engine.add(f"r{at}", range(50 * at, 50 * at + length), min(output, 4 * blocks - 8 - length), priority=priority)
    for step in range(400):
        if not engine.scheduler.has_unfinished_requests():
            break
        if step in fails:
            engine.fail()
        engine.step()
    trace = knowing(recorder.stop(), policy)
    state = QueueState(trace)
    for at, item in enumerate(trace):
        state.apply(item.event)
        real = watch.moments[at]
        if not isinstance(item.event, (RequestFinished, BlocksAllocated)):
            assert (state.running, state.waiting) == (real.running, real.waiting)
            live = {who: state.requests[who].num_computed for who in (*real.running, *real.waiting)}
            assert live == {who: real.computed[who] for who in live}


# --- names, sizes -------------------------------------------------------------------------------------------------

HOSTILE = ["<script>alert(1)</script>", "a\nb\u2028c", "שלום", "x" * 300, "😀 日本", "\ud800"]


def test_hostile_names_are_text(tiny_model: Any, tmp_path: Any) -> None:
    todo = [(name, range(at, at + 5), 20, 0, 0) for at, name in enumerate(HOSTILE)]
    trace, watch = serve(engine_with(tiny_model, blocks=14, seats=6), todo)
    for nth in range(min(4, len(losses(trace)))):
        scene = scenes.preemption(trace, nth)
        check(scene, watch)
        page = widgets.export_html(scene, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<script>alert(1)" not in page
        assert not any("\n" in frame.caption for frame in scene.frames)


def test_many_requests_and_many_blocks_are_counted_where_there_is_no_room() -> None:
    engine = Modelless(260, block_size=4, budget=600, seats=40, caching=False)
    todo = [(f"request-{at}", range(at, at + 16), 60, 0, 0) for at in range(40)]
    trace, watch = serve(engine, todo)
    scene = scenes.preemption(trace)
    check(scene, watch, with_model=False)
    assert scene.height < 520
    frame = shown(scene, "RequestPreempted")
    told = [part.text for key, a in frame.stage.items() if key.startswith("gap:running") for part in a.parts]
    running = [who for who, facts in lines(frame).items() if facts["queue"] == "running"]
    assert sum(int(words.split()[1]) for words in told) + len(running) == len(watch.moments[frame.record].running)
    assert losses(trace)[0].request_id in lines(frame)
