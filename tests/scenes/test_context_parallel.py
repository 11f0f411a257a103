"""The scene `context_parallel`: who keeps which token is what the ranks' runners and the kernels' references say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Ranks, recorded_ranks
from recorded import five_recorded_requests

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes, widgets
from pagedlab.batch import ContextParallel
from pagedlab.conformance import smallest_model
from pagedlab.errors import TraceError
from pagedlab.events import ForwardFinished, InputsPrepared, SlotsComputed, TokenAccepted
from pagedlab.kernels.slot_mapping import slot_mapping_numpy
from pagedlab.scenes import Frame, Scene
from pagedlab.trace import Record, Trace

PAD = -1


def cells(frame: Frame) -> dict[int, tuple[int, int]]:
    """Position: the rank on which its token lies, and its slot there."""
    return {
        int(a.data["position"]): (int(a.data["rank"]), int(a.data["slot"]))
        for key, a in frame.stage.items()
        if key.startswith("tok:") and a.data["rank"] != -1
    }


def slots(frame: Frame) -> dict[tuple[int, int], int]:
    """The slots that are known: (rank, position) to slot."""
    return {
        (int(a.data["rank"]), int(a.data["position"])): int(a.data["slot"])
        for key, a in frame.stage.items()
        if key.startswith("slot:")
    }


def lengths(frame: Frame) -> dict[int, int]:
    return {int(a.data["rank"]): int(a.data["local"]) for key, a in frame.stage.items() if key.startswith("rank:")}


def shown(scene: Scene, event: str) -> Frame:
    return scene.frames[scene.frame_of(event)]


def reference_slots(trace: Trace, step: int, request_id: str, blocks: Sequence[int], size: int) -> dict[int, int]:
    """What the NumPy kernel says of one request's tokens in a step, by position, on the rank of the trace."""
    facts = trace.settings["kv_cache_groups"][0]["context_parallel"]
    inputs = next(r.event for r in trace.of_step(step) if isinstance(r.event, InputsPrepared))
    row = inputs.request_ids.index(request_id)
    begin, end = inputs.query_start_loc[row : row + 2]
    result = np.full(end - begin, -99, dtype=np.int64)
    positions = np.array(inputs.positions[begin:end])
    slot_mapping_numpy(
        np.array([0, end - begin]), positions, np.array([blocks]), size, result,
        cp_world_size=facts["world_size"], cp_rank=facts["rank"], cp_interleave=facts["interleave"],
    )  # fmt: skip
    return dict(zip(positions.tolist(), result.tolist(), strict=True))


def with_facts(trace: Trace, **facts: int) -> Trace:
    """The trace, with other facts of context parallelism in its settings."""
    group = trace.settings["kv_cache_groups"][0]
    group = {**group, "context_parallel": {**group["context_parallel"], **facts}}
    return replace(trace, settings={**trace.settings, "kv_cache_groups": [group]})


# --- what is drawn is what was computed -----------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (4, 4), (6, 3), (16, 4), (64, 16)]),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=3),
    st.integers(8, 40),
)
def test_every_token_lies_where_the_kernels_put_it(
    world_size: int, sizes: tuple[int, int], requests: list[tuple[int, int, int]], budget: int
) -> None:
    block_size, interleave = sizes
    prompts = {f"r{at}": ([at + 1] * length, out, arrival) for at, (length, out, arrival) in enumerate(requests)}
    ranks = Ranks(smallest_model(64), world_size, interleave, block_size=block_size, budget=budget, num_blocks=140)
    traces = ranks.run(prompts)
    steps = [record.step for record in traces[0] if isinstance(record.event, InputsPrepared)]
    for step in steps[:4]:
        scene = scenes.context_parallel(traces[::-1], step)
        inputs = next(r.event for r in traces[0].of_step(step) if isinstance(r.event, InputsPrepared))
        last = shown(scene, "ForwardFinished")
        request_id = str(last.stage["tokens"].data["request"])
        seq_len = inputs.seq_lens[inputs.request_ids.index(request_id)]
        rows = {
            int(a.data["rank"]): [int(block) for block in str(a.data["blocks"]).split()]
            for key, a in last.stage.items()
            if key.startswith("rank:")
        }
        expected = {
            (rank, position): slot
            for rank, trace in enumerate(traces)
            for position, slot in reference_slots(trace, step, request_id, rows[rank], block_size).items()
        }
        for frame in scene.frames:
            assert slots(frame).items() <= expected.items()
            for position, (rank, slot) in cells(frame).items():
                assert expected.get((rank, position), slot) == slot != PAD
        for position in {position for _, position in slots(last)}:  # on one rank, and PAD on all others
            kept = [slots(last)[rank, position] != PAD for rank in range(world_size)]
            assert sum(kept) == 1
            assert cells(last).get(position, (kept.index(True), None))[0] == kept.index(True)
        local = [int(ContextParallel(world_size, r, interleave).num_local_tokens(np.array([seq_len]))[0])
                 for r in range(world_size)]  # fmt: skip
        assert lengths(last) == dict(enumerate(local))
        for rank in range(world_size):
            assert last.stage[f"state:{rank}"].data["keys"] == local[rank]
        assert last.stage["merged"].data["keys"] == sum(local) == seq_len
        check_questions(scene, expected, local)
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


def check_questions(scene: Scene, expected: Mapping[tuple[int, int], int], local: Sequence[int]) -> None:
    """The answers are the references', and what is asked for is not to be seen before it is answered."""
    for question in scene.asked:
        assert question.ask_frame < question.frame
        before, after = scene.frames[question.ask_frame], scene.frames[question.frame]
        if "Which rank keeps" in question.prompt:
            position = int(question.prompt.rsplit(maxsplit=1)[-1].rstrip("?"))
            rank = int(question.answer.split()[1])
            assert expected[rank, position] != PAD
            assert position not in cells(before)
            assert cells(after)[position][0] == rank
        elif "Which slot is it?" in question.prompt:
            position = int(question.prompt.split("’s position ")[1].split(".")[0])
            rank = int(question.prompt.split()[1])
            assert int(question.answer) == expected[rank, position]
            assert (rank, position) not in slots(before)
            assert slots(after)[rank, position] == int(question.answer)
        elif "How many does rank" in question.prompt:
            rank = int(question.prompt.split("does rank ")[1].split()[0])
            assert int(question.answer) == local[rank]
            assert lengths(before)[rank] == -1
            assert lengths(after)[rank] == local[rank]
        else:
            assert "Weighted by exp(lse)" in question.answer
            assert "merged" not in before.stage
            assert "merged" in after.stage


def test_the_rows_that_are_drawn_are_those_of_each_ranks_own_table(tiny_model: Any) -> None:
    ranks = Ranks(tiny_model, 2, 2)
    recorders = [record(rank) for rank in ranks.ranks]
    ranks.add("A", range(1, 12), 20)
    tables = []
    for _ in range(8):
        ranks.step()
        tables.append([rank.runner.input_batch.block_table[0].row(0).tolist() for rank in ranks.ranks])
    traces = [recorder.stop() for recorder in recorders]
    for step, rows in enumerate(tables):
        frame = scenes.context_parallel(traces, step).frames[-1]
        assert [frame.stage[f"rank:{rank}"].data["blocks"] for rank in range(2)] == [
            " ".join(map(str, row)) for row in rows
        ]


@pytest.mark.parametrize(("world_size", "interleave"), [(2, 1), (3, 2)])
def test_the_ranks_of_these_tests_write_what_one_engine_writes(
    tiny_model: Any, world_size: int, interleave: int
) -> None:
    """The traces are of a real run: local keys, merged, give the tokens that whole attention gives."""
    prompts = {"A": [*range(1, 12)], "B": [*range(20, 26)]}
    engine = LLMEngine(
        tiny_model, max_model_len=64, device="cpu", cache_config=CacheConfig(block_size=4, num_blocks=40),
        scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4),
    )  # fmt: skip
    outputs = engine.generate(list(prompts.values()), SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
    traces = Ranks(tiny_model, world_size, interleave).run({name: (ids, 6, 0) for name, ids in prompts.items()})
    for trace in traces:
        accepted = trace.events(TokenAccepted)
        for name, output in zip(prompts, outputs, strict=True):
            assert [e.token_id for e in accepted if e.request_id == name] == list(output.output_token_ids)


@pytest.mark.slow
def test_engines_in_processes_of_their_own_record_what_the_scene_needs(run_ranks: Any) -> None:
    """And what they record is what the ranks of these tests do in one process, line for line of the step."""
    folder, _ = run_ranks({"A": ("To be, or n", 4)}, world_size=2, interleave=2, budget=16, records=True)
    traces = [Trace.load(folder / f"{rank}.jsonl") for rank in range(2)]
    scene = scenes.context_parallel(traces, 0)
    alike = scenes.context_parallel(recorded_ranks(2, 2), 0)
    assert [frame.caption for frame in scene.frames] == [frame.caption for frame in alike.frames]
    for frame, other in zip(scene.frames, alike.frames, strict=True):
        assert (cells(frame), slots(frame), lengths(frame)) == (cells(other), slots(other), lengths(other))
    key, line = scene.frames[-1].source or ("", 0)
    source = scene.sources[key]
    assert source.lines[line - source.first_line].strip() == "logits = self.forward(inputs)"


# --- the way of a token, and attention ------------------------------------------------------------------------------


def test_a_token_keeps_its_identity_on_its_way_to_its_rank() -> None:
    scene = scenes.context_parallel(recorded_ranks(2, 2), 0)
    place, arrived = scene.frames[1], scene.frames[2]
    assert place.change == "A’s token “T” at position 0 is rank 0’s: 0 // 2 % 2 = 0."
    assert arrived.change == "It gets slot 4 on rank 0."
    assert arrived.detail == "Offset 0 in block 1: 1 · 4 + 0 = 4. The other rank computes -1 (PAD): nothing to write."
    assert set(cells(arrived)) - set(cells(place)) == {0}
    assert place.stage["tok:0"].y < arrived.stage["tok:0"].y
    block, token = arrived.stage["block:0:0"], arrived.stage["tok:0"]
    assert block.x <= token.x <= block.x + block.w
    assert block.y <= token.y <= block.y + block.h
    (way,) = arrived.arrows
    assert block.x <= way.x2 <= block.x + block.w
    assert slots(arrived) == {(0, 0): 4, (1, 0): PAD}


def test_tokens_that_show_something_new_go_first() -> None:
    scene = scenes.context_parallel(recorded_ranks(2, 2), 0)
    arrivals = [set(cells(b)) - set(cells(a)) for a, b in zip(scene.frames, scene.frames[1:], strict=False)]
    assert [min(new) for new in arrivals if len(new) == 1] == [0, 2, 4, 8]  # rank 0, rank 1, rank 0 again, a column
    rest = next(new for new in arrivals if len(new) > 1)
    assert rest == {1, 3, 5, 6, 7, 9, 10}
    assert shown(scene, "SlotsComputed").change == "All 11 tokens have a slot, each on one rank."


def test_a_decode_adds_one_token_on_one_rank() -> None:
    traces = recorded_ranks(2, 1)
    scene = scenes.context_parallel(traces, 3, "A")
    assert scene.frames[0].change == "A’s 14 tokens are shared by 2 ranks; 1 is new in this step."
    assert set(cells(scene.frames[0])) == set(range(13))
    assert set(cells(scene.frames[-1])) == set(range(14))
    assert "1 other request is shared in the same way." in scene.frames[0].detail


def test_a_rank_without_keys_counts_nothing() -> None:
    traces = Ranks(smallest_model(64), 3, 2).run({"A": ([5, 6, 7], 1, 0)})
    scene = scenes.context_parallel(traces)
    states, merged = scene.frames[-2], scene.frames[-1]
    assert [states.stage[f"state:{rank}"].data["keys"] for rank in range(3)] == [2, 1, 0]
    assert "Without keys lse is −∞: 1 rank will count nothing." in states.detail
    assert [merged.stage[f"state:{rank}"].data["merged"] for rank in range(3)] == [1, 1, 0]
    assert merged.change == "The 2 states become one: attention over all 3 keys."
    assert len(merged.arrows) == 2


def test_frames_name_the_rank_whose_line_ran() -> None:
    traces = recorded_ranks(2, 2)
    scene = scenes.context_parallel(traces, 0)
    assert len(set(scene.traces)) == 2
    for frame in scene.frames:
        for position, (rank, _) in cells(frame).items():
            if f"tok:{position}" in frame.focus:
                assert frame.trace == rank
        if frame.beat == "prepare":
            assert frame.source is not None
            source = scene.sources[frame.source[0]]
            assert "compute_slot_mapping" in source.lines[frame.source[1] - source.first_line]
            assert source.counterpart is not None
        record = traces[frame.trace].records[frame.record]
        if frame.event is not None:
            assert record.event.kind == frame.event


def test_one_rank_has_everything_and_one_trace_is_enough() -> None:
    scene = scenes.context_parallel(five_recorded_requests())
    last = scene.frames[-1]
    assert lengths(last) == {0: int(last.stage["merged"].data["keys"])}
    assert PAD not in slots(last).values()
    assert last.change.startswith("One state is all there is")
    assert all("Weighted" not in question.answer for question in scene.questions)


def test_ten_ranks_are_left_out_and_counted_and_long_requests_fit() -> None:
    traces = Ranks(smallest_model(900), 10, 4, block_size=16, budget=800, max_model_len=900).run(
        {"A": ([7] * 300, 2, 0)}
    )
    scene = scenes.context_parallel(traces)
    assert len(lengths(scene.frames[-1])) == 8
    assert any("2 ranks not shown" in part.text for part in scene.frames[0].stage["band:tokens"].parts)
    assert scene.height < 800
    for frame in scene.frames:
        assert len(frame.stage) < 800
        for actor in frame.stage.values():
            assert actor.x >= 0
            assert actor.x + actor.w <= scene.width
            assert actor.y + actor.h <= scene.height
            assert all(actor.x + part.x + part.w <= scene.width for part in actor.parts)


@pytest.mark.parametrize("interleave", [1, 16])
def test_a_long_request_shows_tokens_of_several_runs(interleave: int) -> None:
    traces = Ranks(smallest_model(900), 2, interleave, block_size=16, budget=800, max_model_len=900).run(
        {"A": ([7] * 130, 1, 0)}
    )
    last = shown(scenes.context_parallel(traces), "SlotsComputed")
    runs = {position // interleave for _, position in slots(last)}
    assert len(runs) > 3
    assert {rank for rank, slot in ((r, s) for (r, _), s in slots(last).items()) if slot != PAD} == {0, 1}


# --- what cannot be shown -------------------------------------------------------------------------------------------


def test_traces_that_do_not_belong_together_are_refused() -> None:
    first, second = recorded_ranks(2, 2)
    with pytest.raises(TraceError, match="traces of rank 0: give one of each, 0 to 1"):
        scenes.context_parallel([first])
    with pytest.raises(TraceError, match="traces of rank 1, 1"):
        scenes.context_parallel([second, second])
    with pytest.raises(TraceError, match="not of one run, their settings differ"):
        scenes.context_parallel([first, recorded_ranks(2, 1)[1]])
    other = Ranks(smallest_model(64), 2, 2).run({"Z": ([1, 2, 3], 2, 0)})
    with pytest.raises(TraceError, match="rank 1 prepared other inputs in step 0"):
        scenes.context_parallel([first, other[1]])
    for nothing in ([], ["trace"], [None]):
        with pytest.raises(TraceError, match="give a list of traces, one of each rank"):
            scenes.context_parallel(nothing)


def test_settings_that_contradict_the_slots_are_refused() -> None:
    traces = [with_facts(trace, interleave=1) for trace in recorded_ranks(2, 2)]
    with pytest.raises(TraceError, match="rank 0 computed slot 5 for position 1 of request 'A'"):
        scenes.context_parallel(traces)


@pytest.mark.parametrize("bad", [{"world_size": 0}, {"rank": -1}, {"interleave": True}, {"rank": None}])
def test_a_trace_must_say_which_rank_it_is_of(bad: dict[str, Any]) -> None:
    first, second = recorded_ranks(2, 2)
    with pytest.raises(TraceError, match="trace 1 does not say which rank it is of"):
        scenes.context_parallel([first, with_facts(second, **bad)])
    bare = replace(second, settings={"block_size": 4})
    with pytest.raises(TraceError, match="its settings need kv_cache_groups with context_parallel"):
        scenes.context_parallel([first, bare])


def test_what_is_not_in_the_traces_is_a_clear_error() -> None:
    traces = recorded_ranks(2, 2)
    with pytest.raises(TraceError, match="no step 99"):
        scenes.context_parallel(traces, 99)
    with pytest.raises(TraceError, match="request 'B' has no tokens in step 0; those that run: A"):
        scenes.context_parallel(traces, 0, "B")
    with pytest.raises(TraceError, match="request 'X' has no tokens in any step"):
        scenes.context_parallel(traces, None, "X")
    last = max(record.step for record in traces[0])
    bare = [
        replace(trace, records=tuple(r for r in trace if r.step == last or not isinstance(r.event, InputsPrepared)))
        for trace in traces
    ]
    with pytest.raises(TraceError, match="nothing runs in step 0"):
        scenes.context_parallel(bare, 0)
    slotless = [
        replace(trace, records=tuple(r for r in trace if not isinstance(r.event, SlotsComputed))) for trace in traces
    ]
    with pytest.raises(TraceError, match="no step of this trace computes slots"):
        scenes.context_parallel(slotless)
    late = [replace(trace, records=tuple(r for r in trace if r.step > 2)) for trace in traces]
    with pytest.raises(TraceError, match="does not tell the whole block-table row"):
        scenes.context_parallel(late, 3)


def test_without_a_forward_pass_attention_is_still_told() -> None:
    """As a rank records that prepares its inputs and has no model."""
    traces = [
        replace(trace, records=tuple(r for r in trace if not isinstance(r.event, ForwardFinished)))
        for trace in recorded_ranks(2, 2)
    ]
    scene = scenes.context_parallel(traces, 0)
    assert scene.frames[-1].event is None
    assert scene.event_names == {"SlotsComputed": "slots"}


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "x" * 10_000, "שלום", "🦜", "", "\ud800"])
def test_hostile_names_are_text(name: str) -> None:
    def renamed(event: Any) -> Any:
        fields = {field: getattr(event, field) for field in event.__dataclass_fields__}
        fields = {
            key: name if value == "A" else tuple(name if item == "A" else item for item in value)
            if key == "request_ids" else value
            for key, value in fields.items()
        }  # fmt: skip
        return type(event)(**fields)

    traces = [
        replace(trace, records=tuple(Record(r.step, r.beat, renamed(r.event), r.source) for r in trace))
        for trace in recorded_ranks(2, 1)
    ]
    scene = scenes.context_parallel(traces, 1)
    assert name in scene.requests
    assert Scene.from_json(scene.to_json()).to_json() == scene.to_json()
    assert "<img" not in widgets.to_html(scene)
    for frame in scene.frames:
        assert len(frame.caption) < 700
        assert all(len(part.text) < 90 for actor in frame.stage.values() for part in actor.parts)


@pytest.mark.browser
@pytest.mark.parametrize("ranks", [(2, 2), (4, 1)])
def test_in_chromium_each_frame_is_drawn_and_nothing_is_cut_off(
    browser: Any, tmp_path: Path, ranks: tuple[int, int]
) -> None:
    scene = scenes.context_parallel(recorded_ranks(*ranks), 0)
    context = browser.new_context(viewport={"width": 1000, "height": 800}, offline=True, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(widgets.export_html(scene, tmp_path / "scene.html").as_uri())
    page.wait_for_selector("[data-pagedlab-player]")
    for frame in scene.frames:
        said = re.sub(r"\s+", " ", page.get_by_test_id("caption").inner_text()).strip()
        assert said == re.sub(r"\s+", " ", frame.caption)
        drawn = page.evaluate(
            "() => [...document.querySelectorAll('.pl-actor:not(.pl-leave)')].map((node) => node.dataset.key)"
        )
        assert set(drawn) == set(frame.stage)
        outside = page.evaluate(
            """() => {
                const stage = document.querySelector('.pl-stage').getBoundingClientRect();
                return [...document.querySelectorAll('.pl-actor text')].filter((node) => {
                    const box = node.getBoundingClientRect();
                    return box.left < stage.left - 1 || box.right > stage.right + 1 || box.bottom > stage.bottom + 1;
                }).map((node) => node.textContent);
            }"""
        )
        assert outside == []
        if frame is not scene.frames[-1]:
            page.locator("[data-action=next]").click()
    context.close()
    assert errors == []
