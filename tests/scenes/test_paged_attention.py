"""The scene `paged_attention`: what it says is read is what the kernel's reference needs, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attending import engine_of, facts, one_long_request, run, scattered
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Ranks, recorded_ranks
from recorded import five_recorded_requests
from traces import five_requests, make_trace

from pagedlab import SamplingParams, record, scenes, widgets
from pagedlab.conformance import smallest_model
from pagedlab.errors import TraceError
from pagedlab.events import (
    BlocksAllocated,
    BlocksTouched,
    BlockTableCommitted,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestAdded,
    RequestScheduled,
    RowAdded,
    SlotsComputed,
    StepStarted,
)
from pagedlab.kernels.paged_attention import paged_attention_torch
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.paged_attention_state import AttentionStep
from pagedlab.trace import Record, Trace


def last_of(scene: Scene, request_id: str) -> Frame:
    """The frame in which a request has read all of its keys."""
    frames = [frame for frame in scene.frames if frame.event == "ForwardFinished"]
    return next(
        frame
        for frame in frames
        if any(part.text.startswith(f"of {request_id}") for part in frame.stage["band:keys"].parts)
    )


# --- what is read is what the reference needs ---------------------------------------------------------------------


def check_against_the_reference(scene: Scene, trace: Trace, step: int) -> None:
    """Give the reference the keys that the scene says are read, and NaN everywhere else: it must not notice.

    A query of zeros likes all keys alike: the log-sum-exp of its scores is the logarithm of how many it sees.
    """
    inputs = next(r.event for r in trace.of_step(step) if isinstance(r.event, InputsPrepared))
    size = next(r.event.block_size for r in trace.of_step(step) if isinstance(r.event, SlotsComputed))
    window = trace.settings["kv_cache_groups"][0]["window"] if "kv_cache_groups" in trace.settings else None
    seen: set[int] = set()
    for frame in [frame for frame in scene.frames if frame.event == "ForwardFinished"]:
        queries = facts(frame, "query")
        row = int(queries[0]["row"])
        seen.add(row)
        begin, end = inputs.query_start_loc[row : row + 2]
        entries = {int(e["column"]): int(e["block"]) for e in facts(frame, "entry") if e["row"] == row}
        keys = {int(k["column"]): k for k in facts(frame, "keys")}
        assert all(entries.get(column, k["block"]) == k["block"] for column, k in keys.items())
        entries |= {column: int(k["block"]) for column, k in keys.items()}
        if any(key.startswith("hidden:") for key in frame.stage) or len(entries) != max(entries) + 1:
            continue  # blocks that have no room are counted; readings are compared elsewhere
        num_slots = (max(entries.values()) + 1) * size
        cache = torch.full((num_slots, 1, 2), torch.nan, dtype=torch.float64)
        read = [
            int(k["block"]) * size + offset
            for k in keys.values()
            for offset in range(int(k["first"]), int(k["first"]) + int(k["read"]))
        ]
        table = torch.tensor([[entries[column] for column in sorted(entries)]], dtype=torch.int32)

        def lse_with(slots: Sequence[int]) -> torch.Tensor:
            memory = cache.clone()  # noqa: B023 - called at once
            memory[list(slots)] = 1.0
            lse = torch.empty(end - begin, 1, dtype=torch.float64)  # noqa: B023
            query = torch.zeros(end - begin, 1, 2, dtype=torch.float64)  # noqa: B023
            paged_attention_torch(
                query, memory, memory, torch.tensor([0, end - begin]),  # noqa: B023
                torch.tensor([inputs.seq_lens[row]]), table, size, torch.empty_like(query), lse=lse,  # noqa: B023
                sliding_window=window,
            )  # fmt: skip
            return lse[:, 0]

        lse = lse_with(read)
        assert not lse.isnan().any(), "a key was read that the scene does not show"
        assert lse_with(read[1:]).isnan().any(), "a key is shown that is not read"
        assert lse_with(read[:-1]).isnan().any()
        first = inputs.positions[begin]
        for query in queries:
            assert query["sees"] == round(float(lse[int(query["position"]) - first].exp()))
        row_facts = next(r for r in facts(frame, "row") if r["row"] == row)
        assert row_facts["keys"] == len(read)
    assert seen


def test_the_kernels_reference_needs_what_is_read_and_nothing_else() -> None:
    trace = scattered()
    for step in range(trace.num_steps - 1):
        check_against_the_reference(scenes.paged_attention(trace, step), trace, step)


@pytest.mark.parametrize("window", [1, 3, 6, 30])
def test_outside_the_window_nothing_is_read(tiny_model: Any, window: int) -> None:
    requests = {"A": (range(1, 8), 9, 0), "B": (range(20, 41), 3, 2)}
    (trace,) = Ranks(tiny_model, window=window).run({name: ([*ids], n, at) for name, (ids, n, at) in requests.items()})
    for step in range(trace.num_steps - 1):
        scene = scenes.paged_attention(trace, step)
        check_against_the_reference(scene, trace, step)
        for frame in scene.frames:
            for query in facts(frame, "query"):
                assert query["sees"] <= window
    scene = scenes.paged_attention(trace, 2)
    assert f"It sees {window} key" in scene.frames[0].detail


def test_blocks_before_the_window_are_not_seen(tiny_model: Any) -> None:
    (trace,) = Ranks(tiny_model, window=6).run({"A": ([*range(1, 8)], 9, 0)})
    step = 7  # A's query is at position 13 and sees positions 8 to 13
    scene = scenes.paged_attention(trace, step)
    entries = {int(e["column"]): e["state"] for e in facts(last_of(scene, "A"), "entry")}
    assert entries == {0: "stale", 1: "stale", 2: "read", 3: "read"}
    asked = scene.frames[1]
    assert asked.change.endswith("at position 13 looks at 6 keys: positions 8 to 13.")
    assert "columns 0 and 1 are not seen" in asked.detail


def test_a_block_before_the_window_may_be_anothers_by_now(tiny_model: Any) -> None:
    requests = {"A": ([*range(1, 8)], 9, 0), "B": ([*range(20, 41)], 3, 5)}
    (trace,) = Ranks(tiny_model, window=6).run(requests)
    scene = scenes.paged_attention(trace, 5)
    asked = next(frame for frame in scene.frames if frame.change.startswith("A’s token"))
    assert asked.detail.endswith("(The row still names block 1, by now in the hands of B.)")
    (seen,) = [question for question in scene.questions if "first query" in question.prompt]
    assert seen.reasons["6"].startswith("So many does the last query see.")
    assert "Its window is 6 tokens." in seen.prompt


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=9),
    st.integers(4, 60),
    st.sampled_from([1, 2, 4, 16, 64]),
)
def test_any_step_can_be_shown(requests: list[tuple[int, int, int]], budget: int, block_size: int) -> None:
    trace = make_trace(
        {f"r{at}": "x" * length for at, (length, _, _) in enumerate(requests)}, [n for _, n, _ in requests],
        budget=budget, block_size=block_size, num_blocks=600, arrivals=[at for *_, at in requests],
    )  # fmt: skip
    steps = [r.step for r in trace if isinstance(r.event, InputsPrepared) and r.event.positions]
    for step in steps[:5]:
        scene = scenes.paged_attention(trace, step)
        check_against_the_reference(scene, trace, step)
        for question in scene.questions:
            assert 0 <= question.ask_frame < question.frame
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene
        for frame in scene.frames:
            assert set(frame.focus) <= set(frame.stage)
            for actor in frame.stage.values():
                assert actor.x >= 0
                assert actor.x + actor.w <= scene.width
                assert actor.y + actor.h <= scene.height
                assert all(actor.x + part.x + part.w <= scene.width for part in actor.parts)


def test_the_rows_are_those_of_the_real_table(tiny_model: Any) -> None:
    engine = engine_of(tiny_model, budget=12)
    recorder = record(engine)
    for name, ids in {"A": range(1, 10), "B": range(20, 41), "C": range(50, 53)}.items():
        engine.add_request(name, [*ids], SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))
    tables = []
    while engine.has_unfinished_requests():
        engine.step()
        table = engine.runner.input_batch.block_table[0]
        tables.append([table.row(row).tolist() for row in range(engine.runner.input_batch.num_reqs)])
    trace = recorder.stop()
    for step, rows in enumerate(tables):
        if not any(isinstance(r.event, ForwardFinished) for r in trace.of_step(step)):
            continue
        for reading in AttentionStep(trace, step, None).readings:
            assert list(reading.row_blocks) == rows[reading.row]


# --- the walk -----------------------------------------------------------------------------------------------------


def test_a_query_reads_block_after_block_in_the_order_of_its_row() -> None:
    scene = scenes.paged_attention(scattered(), 6)
    assert scene.frames[0].change == "3 rows ask with 20 query tokens."
    assert scene.frames[1].change == "A’s token “h” at position 12 looks at 13 keys: positions 0 to 12."
    walk = scene.frames[2:6]
    assert [frame.change for frame in walk] == [
        "Column 0 says block 3: its 4 keys are read.",
        "Column 1 says block 4: its 4 keys are read.",
        "Column 2 says block 1: its 4 keys are read.",
        "Column 3 says block 7: offset 0 is read.",
    ]
    assert "6 query heads share 2 KV heads: what is read once serves 3 of them." in walk[0].detail
    assert "In memory it lies before block 4; the row gives the order, not memory." in walk[2].detail
    assert "Offsets 1 to 3 have no token of A yet: masked" in walk[3].detail
    assert "(Keys of Y do, left from before.)" in walk[3].detail
    for at, frame in enumerate(walk):
        assert [k["block"] for k in facts(frame, "keys")] == [3, 4, 1, 7][: at + 1]
        keys = sorted((a.x, k) for k, a in frame.stage.items() if k.startswith("keys:"))
        assert [key for _, key in keys] == [f"keys:2:{column}" for column in range(at + 1)]
        assert len(frame.arrows) == 2
        block = frame.stage[f"block:{[3, 4, 1, 7][at]}"]
        way = frame.arrows[0]
        assert block.x <= way.x2 <= block.x + block.w
        assert block.y <= way.y2 <= block.y + block.h
        new = frame.stage[f"keys:2:{at}"]
        assert new.origin is not None
        assert block.x <= new.origin[0] <= block.x + block.w  # it comes from where it lies in memory


def lit(frame: Frame) -> set[int]:
    """The slots of the KV cache that are lit."""
    return {
        int(part.title.split()[1].rstrip(":"))
        for key, actor in frame.stage.items()
        if key.startswith("block:")
        for part in actor.parts
        if "target" in part.style
    }


def test_lit_are_the_slots_that_were_read() -> None:
    trace = scattered()
    scene = scenes.paged_attention(trace, 6)
    assert [sorted(lit(frame)) for frame in scene.frames[1:6]] == [
        [], [*range(12, 16)], [*range(12, 20)], [*range(4, 8), *range(12, 20)], [*range(4, 8), *range(12, 20), 28],
    ]  # fmt: skip
    readings = AttentionStep(trace, 6, None).readings
    every = {slot for it in readings for column in it.columns for slot in it.slots(column)}
    assert lit(scene.frames[-1]) == every
    written = next(r.event.slot_mapping for r in trace.of_step(6) if isinstance(r.event, SlotsComputed))
    assert set(written) <= every  # what a step computes, it also looks at


def test_a_chunks_queries_see_no_key_behind_them() -> None:
    scene = scenes.paged_attention(scattered(), 6)
    chunk = last_of(scene, "B")
    assert chunk.change == "B’s 18 query tokens, positions 0 to 17, read 18 keys in blocks 9, 10, 11, 12 and 13."
    assert [(q["position"], q["sees"]) for q in sorted(facts(chunk, "query"), key=lambda q: q["position"])] == [
        (0, 1), (4, 5), (8, 9), (13, 14), (17, 18),
    ]  # fmt: skip
    assert any("of B, for 5 of its 18 queries" in part.text for part in chunk.stage["band:keys"].parts)


def test_the_mask_is_drawn_to_scale() -> None:
    scene = scenes.paged_attention(scattered(), 6)
    chunk = last_of(scene, "B")
    key_w = chunk.stage["keys:1:0"].w / 4
    for key, actor in chunk.stage.items():
        if key.startswith("query:"):
            runs = [part for part in actor.parts if part.kind == "swatch"]
            assert sum(run.w + 1 for run in runs) == int(actor.data["sees"]) * key_w
            assert {scene.requests[run.owner] for run in runs if run.owner is not None} == {"B"}
            assert all(part.owner is not None for part in runs)


def test_the_default_is_a_scattered_decode_beside_a_chunk() -> None:
    scene = scenes.paged_attention(scattered())
    assert scene.frames[0].step == 2  # A has grown into X's block, and C's prompt is computed
    assert scenes.paged_attention(make_trace({"A": "abc"}, [3])).frames[0].step == 0
    assert scenes.paged_attention(make_trace({"A": "abc", "B": "xyz"}, [6, 3], arrivals=[0, 2])).frames[0].step == 2


def test_what_is_shared_is_told(tiny_model: Any) -> None:
    prefix = [*range(1, 9)]
    trace = run(engine_of(tiny_model), {"A": ([*prefix, 40], 6, 0), "B": ([*prefix, 41], 6, 2)})
    assert trace.events(BlocksTouched)
    scene = scenes.paged_attention(trace, 3)
    told = [frame.caption for frame in scene.frames]
    assert any("reads it too: the same tokens, the same keys." in caption for caption in told)
    assert any("It shares blocks 1 and 2 with " in caption for caption in told)


def test_bytes_are_those_of_the_real_cache() -> None:
    engine = engine_of()
    trace = run(engine, {"A": ("To be, ", 3, 0), "B": ("or not", 3, 0)})
    scene = scenes.paged_attention(trace, 1)
    cache = engine.runner.kv_cache.data
    per_token = cache[:, :, 0].numel() * cache.element_size()
    keys = sum(reading.num_keys for reading in AttentionStep(trace, 1, None).readings)
    last = scene.frames[-1]
    assert last.change == f"The step has read {keys} keys and as many values: {keys * per_token:,} bytes."
    assert sum(int(row["keys"]) for row in facts(last, "row")) == keys
    (question,) = [q for q in scene.questions if "How many bytes" in q.prompt]
    assert question.answer == str(keys * per_token)
    assert question.frame == len(scene.frames) - 1


def test_a_trace_that_knows_no_model_counts_keys_only() -> None:
    scene = scenes.paged_attention(five_requests(), 1)
    assert scene.frames[-1].change.endswith("keys and as many values.")
    assert all("bytes" not in frame.caption for frame in scene.frames)
    assert all("bytes" not in question.prompt for question in scene.questions)
    assert any("A key is read once for all query heads" in frame.detail for frame in scene.frames)


def test_the_line_of_each_frame_is_one_that_ran() -> None:
    trace = five_recorded_requests()
    scene = scenes.paged_attention(trace)
    lines = {}
    for frame in scene.frames:
        assert frame.source is not None
        source = scene.sources[frame.source[0]]
        lines[frame.beat] = source.lines[frame.source[1] - source.first_line].strip()
        assert source.counterpart is not None
        assert trace.records[frame.record].step == frame.step
    assert lines["execute"] == "logits = self.forward(inputs)"
    assert set(lines) == {"prepare", "execute"}


# --- questions ----------------------------------------------------------------------------------------------------


def test_questions_are_asked_before_their_answer_is_shown() -> None:
    trace = scattered()
    scene = scenes.paged_attention(trace, 6)
    order, offsets, seen, size = scene.questions
    assert order.answer == "Blocks 3, 4, 1, 7"
    assert "Blocks 1, 3, 4, 7" in order.choices
    assert order.reasons["Block 7"] == "There lies its own key. It looks at all 13 keys up to its own, in 4 blocks."
    assert order.ask_frame == 0
    assert (offsets.answer, offsets.frame) == ("1", 5)
    assert offsets.reasons["0"].startswith("That is the offset of its own key, 12 % 4.")
    assert "keys:2:3" not in scene.frames[offsets.ask_frame].stage
    assert "keys:2:3" in scene.frames[offsets.frame].stage
    assert (seen.answer, seen.reasons["18"]) == (
        "1", "So many does the last query see. The first one does not look at those behind it."
    )  # fmt: skip
    assert not [q for q in facts(scene.frames[seen.ask_frame], "query") if q["row"] == 1]
    assert size.prompt.startswith("The step reads 42 keys and as many values.")


def test_a_chunk_that_goes_on_sees_what_was_computed_before() -> None:
    trace = run(engine_of(budget=8), {"A": ("To be, or not to", 2, 0)})
    scene = scenes.paged_attention(trace, 1)
    (seen,) = [question for question in scene.questions if "first query" in question.prompt]
    assert seen.answer == "9"
    assert seen.reasons["8"] in (
        "8 come before it. It sees its own key, too.",
        "So many queries are in the chunk. A query sees the keys before it, computed earlier too.",
    )
    assert seen.reasons["1"] == "Its own, and also the 8 before it: they are in the KV cache."


# --- odd traces ---------------------------------------------------------------------------------------------------


def script(*events: Event, **options: int) -> Trace:
    return Trace(tuple(Record(0, "execute", event, None) for event in (StepStarted(0), *events)), {}, {}, dict(options))


def hybrid(block_ids: tuple[int, ...] = (3, 5), slots: tuple[int, ...] = (14, 15, 20)) -> Trace:
    """One request of five tokens in blocks of four, which are two each of the kernel's."""
    return script(
        RequestAdded("A", (5, 6, 7, 8, 9), 4), BlocksAllocated("A", 0, block_ids, 5),
        RequestScheduled("A", "new", 3, 2, 5, 0), RowAdded(0, "A", 3, 0, (block_ids,)),
        BlockTableCommitted(0, 1, 16, "changed", ()),
        InputsPrepared(("A",), (7, 8, 9), (2, 3, 4), (0, 3), (5,), (2,), (False,)),
        SlotsComputed(0, slots, 2, "numpy"), ForwardFinished(3, 1, 0.1), block_size=4, num_blocks=8,
    )  # fmt: skip


def test_kernel_blocks_are_read_where_manager_blocks_lie() -> None:
    scene = scenes.paged_attention(hybrid())
    reads = [frame for frame in scene.frames if frame.change.startswith("Column ")]
    assert [frame.change for frame in reads] == [
        "Column 0 says block 6: its 2 keys are read.",
        "Column 1 says block 7: its 2 keys are read.",
        "Column 2 says block 10: offset 0 is read.",
    ]
    assert [sorted(lit(frame)) for frame in reads] == [[12, 13], [12, 13, 14, 15], [12, 13, 14, 15, 20]]
    assert "block:3" in reads[1].focus


def test_rows_whose_blocks_are_not_known_are_counted_out() -> None:
    trace = five_recorded_requests()
    cut = next(at for at, record_ in enumerate(trace.records) if isinstance(record_.event, RowAdded))
    known = replace(trace, records=tuple(r for at, r in enumerate(trace.records) if at != cut))
    scene = scenes.paged_attention(known, 0)
    assert scene.frames[0].change.startswith("4 rows ask")
    assert "(Of 1 row more the trace does not tell the blocks.)" in scene.frames[0].detail
    nobody = replace(trace, records=tuple(r for r in trace if not isinstance(r.event, RowAdded)))
    with pytest.raises(TraceError, match="does not tell the block table of step 0: record from before"):
        scenes.paged_attention(nobody, 0)


def test_nothing_to_show_is_a_clear_error() -> None:
    empty = Trace((Record(0, None, StepStarted(0), None),), {}, {}, {})
    with pytest.raises(TraceError, match="no step of this trace has a forward pass"):
        scenes.paged_attention(empty)
    with pytest.raises(TraceError, match="nothing runs in step 0"):
        scenes.paged_attention(empty, 0)
    with pytest.raises(TraceError, match="no step 99"):
        scenes.paged_attention(five_requests(), 99)
    without = hybrid()
    for kind, words in ((ForwardFinished, "step 0 has no forward pass"), (SlotsComputed, "step 0 computes no slots")):
        bare = replace(without, records=tuple(r for r in without if not isinstance(r.event, kind)))
        with pytest.raises(TraceError, match=words):
            scenes.paged_attention(bare, 0)


def test_one_rank_of_several_is_shown_elsewhere() -> None:
    with pytest.raises(TraceError, match=r"one rank of 2.*scenes\.context_parallel"):
        scenes.paged_attention(recorded_ranks(2, 1)[0])
    (whole,) = Ranks(smallest_model(64)).run({"A": ([1, 2, 3], 2, 0)})
    assert scenes.paged_attention(whole).frames


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "x" * 10_000, "שלום", "🦜", "", "\ud800"])
def test_hostile_names_are_text(name: str) -> None:
    scene = scenes.paged_attention(make_trace({name: "To be", "B": "or"}, [5, 2]), 1)
    assert Scene.from_json(scene.to_json()).to_json() == scene.to_json()
    assert "<img" not in widgets.to_html(scene)
    for frame in scene.frames:
        assert len(frame.caption) < 700
        assert all(len(part.text) < 90 for actor in frame.stage.values() for part in actor.parts)


@pytest.mark.browser
@pytest.mark.parametrize("which", ["scattered", "long"])
def test_in_chromium_each_frame_is_drawn_and_nothing_is_cut_off(browser: Any, tmp_path: Path, which: str) -> None:
    scene = (
        scenes.paged_attention(scattered(), 6) if which == "scattered" else scenes.paged_attention(one_long_request())
    )
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
