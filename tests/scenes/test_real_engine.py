"""Scenes of what the real engine did: prefix hits, preemption, several seats; with a tiny model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from recorded import five_recorded_requests

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes
from pagedlab.events import (
    BlocksCached,
    BlocksEvicted,
    BlocksTouched,
    InputsPrepared,
    RequestPreempted,
    RequestScheduled,
)
from pagedlab.scenes.replay import Replay
from pagedlab.scheduling import Scheduler, StaticBatchScheduler
from pagedlab.trace import Trace


def run(
    model,
    prompts: Mapping[str, Sequence[int]],
    output: int,
    *,
    arrivals: Sequence[int] = (),
    blocks: int = 60,
    budget: int = 16,
    seats: int = 4,
    max_model_len: int = 64,
    priorities: Mapping[str, int] = MappingProxyType({}),
    scheduler_class: type[Scheduler] = Scheduler,
    **scheduling,
) -> Trace:
    engine = LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduling),
        cache_config=CacheConfig(block_size=4, num_blocks=blocks),
        max_model_len=max_model_len,
        device="cpu",
        scheduler_cls=scheduler_class,
    )
    recorder = record(engine)
    todo = dict(zip(prompts, arrivals or [0] * len(prompts), strict=True))
    for step in range(200):
        for request_id in [request_id for request_id, arrival in todo.items() if arrival <= step]:
            del todo[request_id]
            engine.add_request(
                request_id,
                list(prompts[request_id]),
                SamplingParams(max_tokens=output, temperature=0.0),
                priority=priorities.get(request_id, 0),
            )
        if not todo and not engine.has_unfinished_requests():
            break
        engine.step()
    return recorder.stop()


def check(trace: Trace) -> None:
    """Every scene of the trace can be made, and its rows and blocks are those of the events."""
    replay, done = Replay(trace.settings["block_size"]), 0
    for step in range(trace.num_steps):
        scene = scenes.step(trace, step)
        for frame in scene.frames:
            while done <= frame.record:
                replay.apply(trace.records[done].event)
                done += 1
            for key, actor in frame.stage.items():
                if key.startswith("row:"):
                    assert replay.req_id_to_index[key[4:]] == actor.data["row"]
                if key.startswith("block:"):
                    assert len(replay.holders.get(int(actor.data["block"]), ())) == actor.data["holders"]
        for question in scene.questions:
            assert question.frame > question.ask_frame


def test_three_requests_from_arrival_to_end(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 8), "B": range(10, 30), "C": range(30, 35)}, 5)
    check(trace)
    scene = scenes.step(trace, 0)
    lit = {frame.event: frame.source for frame in scene.frames if frame.event and frame.source}
    assert {"RequestScheduled", "RowAdded", "InputsPrepared", "ForwardFinished", "TokenAccepted"} <= set(lit)
    for key, line in lit.values():
        source = scene.sources[key]
        assert source.first_line <= line < source.first_line + len(source.lines)
        assert source.counterpart is not None, f"{source.name} has no counterpart at vLLM"


def test_the_move_lights_the_line_of_condense_that_made_it() -> None:
    scene = scenes.condense(five_recorded_requests())
    key, line = scene.frames[scene.frame_of("RowMoved")].source
    source = scene.sources[key]
    assert key == "pagedlab/batch/input_batch.py:InputBatch.condense"
    assert source.counterpart == ("vllm/v1/worker/gpu_input_batch.py", "InputBatch.condense")
    text = (Path(__file__).parents[2] / source.file).read_text(encoding="utf-8").splitlines()
    assert source.lines[line - source.first_line].strip() == text[line - 1].strip()
    assert "_move_row(" in text[line - 1]


def test_a_prefix_hit_is_told_and_its_blocks_are_shared(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 15), "B": [*range(1, 13), 40, 41]}, 8, arrivals=[0, 2])
    check(trace)
    step = next(record.step for record in trace if isinstance(record.event, BlocksTouched))
    scene = scenes.step(trace, step)
    frame = next(frame for frame in scene.frames if "in the cache" in frame.detail)
    hit = next(record.event for record in trace if isinstance(record.event, BlocksTouched))
    assert f"it shares blocks {', '.join(map(str, hit.block_ids[:-1]))} and {hit.block_ids[-1]} with A" in frame.detail
    assert frame.stage[f"block:{hit.block_ids[0]}"].data["holders"] == 2


def test_a_preemption_is_told_with_what_it_frees(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 9), "B": range(20, 28)}, 20, blocks=9, max_model_len=30)
    check(trace)
    lost = next(record for record in trace if isinstance(record.event, RequestPreempted))
    scene = scenes.step(trace, lost.step)
    frame = scene.frames[scene.frame_of("RequestPreempted")]
    assert frame.change == f"{lost.event.request_id} is preempted: the pool has run dry."
    assert frame.detail.startswith("A needs room, and B is the last of the running: it gives up blocks ")
    assert "goes to the head of the waiting queue" in frame.detail
    assert frame.stage[f"chip:{lost.event.request_id}"].data["queue"] == "waiting"
    assert any("a step that preempts admits nobody" in shown.detail for shown in scene.frames)
    resumed = next(r for r in trace if isinstance(r.event, RequestScheduled) and r.event.status == "resumed")
    assert any("resumes" in shown.change for shown in scenes.step(trace, resumed.step).frames)


def test_hashes_come_and_go_in_the_caption_of_the_grant(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 9), "B": range(20, 28)}, 20, blocks=9, max_model_len=30)
    for kind, words in ((BlocksCached, "already now: later prompts can find"), (BlocksEvicted, "is forgotten")):
        told = [(seen.step, seen.event.block_ids[-1]) for seen in trace if isinstance(seen.event, kind)]
        assert told
        for step, block in told:
            frames = [frame for frame in scenes.step(trace, step).frames if words in frame.detail]
            assert any(str(block) in frame.detail for frame in frames)


def test_what_an_earlier_tenant_left_in_a_block_is_stale(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 9), "B": range(20, 28)}, 20, blocks=9, max_model_len=30)
    evicted = next(seen for seen in trace if isinstance(seen.event, BlocksEvicted))
    (block,) = evicted.event.block_ids
    scene = scenes.step(trace, evicted.step)
    granted = next(frame for frame in scene.frames if "is forgotten" in frame.detail)
    cells = [part for part in granted.stage[f"block:{block}"].parts if part.kind == "cell" and part.text]
    assert cells
    assert {part.style for part in cells} == {"stale"}


@pytest.mark.parametrize("budget", [8, 64])
def test_many_requests_condense_again_and_again(tiny_model, budget: int) -> None:
    prompts = {f"r{at}": range(1, 9 - at) for at in range(7)}
    trace = run(tiny_model, prompts, 4, budget=budget, arrivals=[0, 0, 0, 1, 3, 4, 4])
    check(trace)
    scene = scenes.condense(trace)
    assert scene.questions[0].kind == "choice"


# --- static batching ------------------------------------------------------------------------------------------


def captions(trace: Trace, step: int) -> str:
    return "\n".join(frame.caption for frame in scenes.step(trace, step).frames)


@pytest.fixture(scope="module")
def static(tiny_model) -> Trace:
    """A and B form a batch; C and D come while it runs, E last; there are four seats."""
    prompts = {"A": range(1, 6), "B": range(10, 14), "C": range(20, 24), "D": range(30, 34), "E": range(40, 44)}
    return run(tiny_model, prompts, 4, arrivals=[0, 0, 1, 1, 1], scheduler_class=StaticBatchScheduler)


def test_static_batching_says_why_nobody_joins(static: Trace) -> None:
    check(static)
    told = captions(static, 1)
    assert "C, D and E wait: static batching: nobody joins until the batch is empty." in told
    assert "static batching admits nobody before they have all ended" in told
    assert "then waiting ones in order" not in told


def test_a_static_batch_that_forms_gives_the_usual_reasons(tiny_model) -> None:
    prompts = {"A": range(1, 6), "B": range(10, 14), "C": range(20, 24)}
    trace = run(tiny_model, prompts, 2, seats=2, scheduler_class=StaticBatchScheduler)
    assert "C waits: all 2 seats are taken." in captions(trace, 0)
    assert "C waits: static batching: nobody joins until the batch is empty." in captions(trace, 1)


def test_who_runs_has_no_false_reason_under_static_batching(static: Trace) -> None:
    question = scenes.step(static, 1).questions[0]
    assert question.answer.startswith("A and B: the scheduler decides")
    assert not any("until the batch is empty" in choice for choice in question.choices), "that would be right here"
    assert question.reasons["A, B, C, D and E: whoever is in a queue runs in every step"] == (
        "C, D and E stay out: static batching: nobody joins until the batch is empty."
    )
    assert question.reasons["A, B, C and D: a free seat is filled at once"] == (
        "That is continuous batching. This engine batches statically: 2 seats stay empty until all of the batch have "
        "ended."
    )


def test_who_runs_does_not_take_seats_for_static_batching(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 6), "B": range(10, 14), "C": range(20, 24)}, 4, seats=2)
    reasons = scenes.step(trace, 1).questions[0].reasons
    assert reasons["Only A and B: a new request waits until the batch is empty"] == (
        "These do run, but not for that reason, which is static batching. C stays out: all 2 seats are taken."
    )


# --- priority -------------------------------------------------------------------------------------------------


def ranked(model, blocks: int) -> Trace:
    """A9 came first, but is worth least: it is the first to lose its blocks, though not the last of the running."""
    prompts = {"A9": range(1, 9), "B1": range(10, 18), "C5": range(20, 28)}
    return run(model, prompts, 16, blocks=blocks, budget=32, max_model_len=30, arrivals=[0, 1, 1],
               policy="priority", priorities={"A9": 9, "B1": 1, "C5": 5})  # fmt: skip


def preemption(trace: Trace) -> tuple[int, str]:
    """The first preemption: its step and its caption."""
    step = next(seen.step for seen in trace if isinstance(seen.event, RequestPreempted))
    scene = scenes.step(trace, step)
    return step, scene.frames[scene.frame_of("RequestPreempted")].caption


def test_by_priority_the_caption_says_who_was_preempted_and_why(tiny_model) -> None:
    trace = ranked(tiny_model, blocks=10)
    check(trace)
    step, told = preemption(trace)
    assert "C5 needs room, and A9 has the largest (priority, arrival time) of all that run: it gives up block" in told
    assert "goes back to its place in the priority queue" in told
    assert told.endswith("The budget gets its 1 token of this step back.")
    assert "last of the running" not in told
    assert "then waiting ones by priority" in captions(trace, 0)
    assert scenes.step(trace, step).questions[0].answer.startswith("C5:")


def test_by_priority_a_request_may_have_to_preempt_itself(tiny_model) -> None:
    trace = ranked(tiny_model, blocks=11)
    check(trace)
    step, told = preemption(trace)
    assert "A9 needs room itself, but has the largest (priority, arrival time) of all that run" in told
    assert "C5 gets nothing: the round ended with A9, which found no blocks." in captions(trace, step)


def test_by_priority_the_queue_is_drawn_in_its_own_order(tiny_model) -> None:
    prompts = {"A1": range(1, 9), "B9": range(10, 18), "C5": range(20, 28), "D3": range(30, 38)}
    ranks = {"A1": 1, "B9": 9, "C5": 5, "D3": 3}
    trace = run(tiny_model, prompts, 3, seats=1, arrivals=[0, 1, 1, 1], policy="priority", priorities=ranks)
    for step in range(1, trace.num_steps):
        scene = scenes.step(trace, step)
        chips = [actor for key, actor in scene.frames[0].stage.items() if key.startswith("chip:")]
        waiting = [actor for actor in chips if actor.data["queue"] == "waiting"]
        order = [actor.data["request"] for actor in sorted(waiting, key=lambda actor: actor.x)]
        assert order == sorted(order, key=lambda request_id: request_id[-1])


@pytest.mark.parametrize("blocks", [9, 10, 11])
def test_who_was_granted_tokens_and_lost_them_is_not_among_those_who_run(tiny_model, blocks: int) -> None:
    trace = ranked(tiny_model, blocks)
    for step in range(trace.num_steps):
        scene = scenes.step(trace, step)
        inputs = next((seen.event for seen in trace.of_step(step) if isinstance(seen.event, InputsPrepared)), None)
        if inputs is None or not scene.questions:
            continue
        who = scene.questions[0].answer.split(":")[0].replace(" and ", ", ").split(", ")
        assert sorted(who) == sorted(inputs.request_ids)


# --- other limits ---------------------------------------------------------------------------------------------


def test_a_chunk_that_the_threshold_cuts_is_not_blamed_on_the_budget(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 21)}, 2, budget=16, long_prefill_token_threshold=6)
    assert "no request gets more than 6 in one step, which cuts it to a chunk" in captions(trace, 0)
    question = scenes.step(trace, 0).questions[1]
    assert "6 at most in one step" in question.explanation
    assert all("of the budget are left:" not in reason for reason in question.reasons.values())


def test_without_chunks_a_prompt_that_does_not_fit_says_so(tiny_model) -> None:
    prompts = {"A": range(1, 6), "B": range(10, 25)}
    trace = run(tiny_model, prompts, 2, budget=16, max_model_len=16, enable_chunked_prefill=False)
    assert "B waits: B’s 15 tokens do not fit the 11 left of the budget, and may not be cut." in captions(trace, 0)
