"""Scenes of what the real engine did: prefix hits, preemption, several seats; with a tiny model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes
from pagedlab.events import BlocksTouched, RequestPreempted, RequestScheduled
from pagedlab.scenes.replay import Replay
from pagedlab.trace import Trace


def run(
    model,
    prompts: Mapping[str, Sequence[int]],
    output: int,
    *,
    arrivals: Sequence[int] = (),
    blocks: int = 60,
    **limits,
) -> Trace:
    engine = LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=limits.get("budget", 16), max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=blocks),
        max_model_len=limits.get("max_model_len", 64),
        device="cpu",
    )
    recorder = record(engine)
    todo = dict(zip(prompts, arrivals or [0] * len(prompts), strict=True))
    for step in range(200):
        for request_id in [request_id for request_id, arrival in todo.items() if arrival <= step]:
            del todo[request_id]
            engine.add_request(
                request_id, list(prompts[request_id]), SamplingParams(max_tokens=output, temperature=0.0)
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


def test_a_prefix_hit_is_told_and_its_blocks_are_shared(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 15), "B": [*range(1, 13), 40, 41]}, 8, arrivals=[0, 2])
    check(trace)
    step = next(record.step for record in trace if isinstance(record.event, BlocksTouched))
    scene = scenes.step(trace, step)
    frame = next(frame for frame in scene.frames if "in the cache" in frame.detail)
    hit = next(record.event for record in trace if isinstance(record.event, BlocksTouched))
    assert f"it shares blocks {', '.join(map(str, hit.block_ids[:-1]))} and {hit.block_ids[-1]}" in frame.detail
    assert frame.stage[f"block:{hit.block_ids[0]}"].data["holders"] == 2


def test_a_preemption_is_told_with_what_it_frees(tiny_model) -> None:
    trace = run(tiny_model, {"A": range(1, 9), "B": range(20, 28)}, 20, blocks=9, max_model_len=30)
    check(trace)
    lost = next(record for record in trace if isinstance(record.event, RequestPreempted))
    scene = scenes.step(trace, lost.step)
    frame = scene.frames[scene.frame_of("RequestPreempted")]
    assert frame.change == f"{lost.event.request_id} is preempted: the pool has run dry."
    assert frame.stage[f"chip:{lost.event.request_id}"].data["queue"] == "waiting"
    assert any("a step that preempts admits nobody" in shown.detail for shown in scene.frames)
    resumed = next(r for r in trace if isinstance(r.event, RequestScheduled) and r.event.status == "resumed")
    assert any("resumes" in shown.change for shown in scenes.step(trace, resumed.step).frames)


@pytest.mark.parametrize("budget", [8, 64])
def test_many_requests_condense_again_and_again(tiny_model, budget: int) -> None:
    prompts = {f"r{at}": range(1, 9 - at) for at in range(7)}
    trace = run(tiny_model, prompts, 4, budget=budget, arrivals=[0, 0, 0, 1, 3, 4, 4])
    check(trace)
    scene = scenes.condense(trace)
    assert scene.questions[0].kind == "choice"
