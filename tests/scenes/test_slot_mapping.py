"""The scene `slot_mapping`: the way of a token ends in the slot that the trace says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import five_recorded_requests
from traces import five_requests, make_trace

from pagedlab import scenes, widgets
from pagedlab.errors import TraceError
from pagedlab.events import (
    BlocksAllocated,
    BlockTableCommitted,
    InputsPrepared,
    RequestAdded,
    RequestScheduled,
    RowAdded,
    SlotsComputed,
    StepStarted,
)
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.slot_mapping_stage import tile_of
from pagedlab.trace import Record, Trace


def of_step(trace: Trace, step: int) -> tuple[InputsPrepared, SlotsComputed]:
    inputs = next(r.event for r in trace.of_step(step) if isinstance(r.event, InputsPrepared))
    slots = next(r.event for r in trace.of_step(step) if isinstance(r.event, SlotsComputed))
    return inputs, slots


def by_token(inputs: InputsPrepared, slots: SlotsComputed) -> dict[tuple[str, int], int]:
    return {
        (who, inputs.positions[at]): slots.slot_mapping[at]
        for row, who in enumerate(inputs.request_ids)
        for at in range(inputs.query_start_loc[row], inputs.query_start_loc[row + 1])
    }


def drawn_slots(frame: Frame) -> dict[tuple[str, int], int]:
    return {
        (str(a.data["request"]), int(a.data["position"])): int(a.data["slot"])
        for key, a in frame.stage.items()
        if key.startswith("slot:")
    }


def targets(frame: Frame) -> set[int]:
    """The slots of the KV cache that are lit."""
    return {
        int(part.title.split()[1].rstrip(":"))
        for key, actor in frame.stage.items()
        if key.startswith("block:")
        for part in actor.parts
        if "target" in part.style
    }


def script(slots: tuple[int, ...], kernel_block_size: int, **options: int) -> Trace:
    """One request of three tokens in manager blocks 3 and 5, with these slots."""
    events = (
        RequestAdded("A", (5, 6, 7, 8, 9), 4),
        StepStarted(0),
        BlocksAllocated("A", 0, (3, 5), 5),
        RequestScheduled("A", "new", 3, 2, 5, 0),
        RowAdded(0, "A", 3, 0, ((3, 5),)),
        BlockTableCommitted(0, 1, 16, "changed", ()),
        InputsPrepared(("A",), (7, 8, 9), (2, 3, 4), (0, 3), (5,), (2,), (False,)),
        SlotsComputed(0, slots, kernel_block_size, "numpy"),
    )
    return Trace(tuple(Record(0, "prepare", event, None) for event in events), {}, {}, dict(options))


def test_each_slot_that_appears_is_the_one_of_the_event() -> None:
    trace = five_recorded_requests()
    for step in range(trace.num_steps):
        if not any(isinstance(r.event, SlotsComputed) for r in trace.of_step(step)):
            continue
        expected = by_token(*of_step(trace, step))
        scene = scenes.slot_mapping(trace, step)
        for frame in scene.frames:
            assert drawn_slots(frame).items() <= expected.items()
        assert drawn_slots(scene.frames[0]) == {}
        last = scene.frames[scene.frame_of("SlotsComputed")]
        assert set(drawn_slots(last)) == {
            (str(a.data["request"]), int(a.data["position"]))
            for a in last.stage.values()
            if a.key.startswith("tok:") and "position" in a.data
        }


def test_a_token_goes_from_its_position_by_its_entry_to_its_slot() -> None:
    trace = five_recorded_requests()
    scene = scenes.slot_mapping(trace, 3)  # A, E and C each have one token
    place, column, slot = scene.frames[1:4]
    assert place.change == "A’s token “␣” stands at place 0: row 0, position 13."
    assert column.change == "Position 13 lies in column 13 // 4 = 3, which says block 13."
    assert slot.change == "Offset 13 % 4 = 1 in block 13: slot 53."
    assert column.focus == ("entry:0:3",)
    assert column.stage["entry:0:3"].data["block"] == 13
    assert (len(place.arrows), len(column.arrows), len(slot.arrows)) == (0, 1, 2)
    assert targets(column) == set()
    assert targets(slot) == {53}
    assert targets(scene.frames[scene.frame_of("SlotsComputed")]) == {53, 51, 35}
    way = slot.arrows[1]
    block = slot.stage["block:13"]
    assert block.x <= way.x2 <= block.x + block.w
    assert block.y <= way.y2 <= block.y + block.h


def test_the_default_is_a_step_of_several_requests() -> None:
    trace = make_trace({"A": "abc", "B": "xyz"}, [6, 3], arrivals=[0, 2])
    assert scenes.slot_mapping(trace).frames[0].step == 2


def test_neighbours_in_position_may_lie_far_apart() -> None:
    scene = scenes.slot_mapping(script((14, 15, 20), kernel_block_size=4, block_size=4, num_blocks=8))
    (told,) = [frame.detail for frame in scene.frames if "It follows position" in frame.detail]
    assert told.endswith("5 · 4 + 0 = 20. It follows position 3, which has slot 15: 5 slots away.")


def test_the_slot_is_asked_before_its_token_goes_the_way() -> None:
    trace = five_recorded_requests()
    for step in range(trace.num_steps - 1):
        scene = scenes.slot_mapping(trace, step)
        (question,) = scene.questions
        before, after = drawn_slots(scene.frames[question.ask_frame]), drawn_slots(scene.frames[question.frame])
        (token,) = set(after) - set(before)
        assert after[token] == int(question.answer) == by_token(*of_step(trace, step))[token]
        assert question.ask_frame < question.frame


def test_the_line_of_each_frame_is_the_one_that_ran() -> None:
    scene = scenes.slot_mapping(five_recorded_requests())
    for frame in scene.frames:
        assert frame.source is not None
        source = scene.sources[frame.source[0]]
        assert source.counterpart == ("vllm/v1/worker/block_table.py", "MultiGroupBlockTable.compute_slot_mapping")


def test_programs_are_tiles_of_the_kernels_size() -> None:
    from pagedlab.kernels.slot_mapping import token_tile

    for tokens in (1, 64, 2**14, 2**14 + 1, 2**18 - 1, 2**18, 2**20):
        assert tile_of(tokens) == token_tile(tokens)
    trace = make_trace({"A": "x" * 100, "B": "y" * 30}, [2, 2], budget=200)
    programs = scenes.slot_mapping(trace, 0).frames[-1].stage["programs"].data
    assert programs == {"tile": 64, "tiles": 4, "requests": 2, "tokens": 130, "padding": 70}


def test_kernel_blocks_are_what_columns_and_slots_are_made_of() -> None:
    scene = scenes.slot_mapping(script((14, 15, 20), kernel_block_size=2, block_size=4, num_blocks=8))
    assert "(The kernel’s blocks; those of the manager hold 4.)" in scene.frames[0].detail
    entries = [scene.frames[0].stage[f"entry:0:{column}"].data["block"] for column in range(4)]
    assert entries == [6, 7, 10, 11]
    assert drawn_slots(scene.frames[-1]) == {("A", 2): 14, ("A", 3): 15, ("A", 4): 20}
    assert targets(scene.frames[-1]) == {14, 15, 20}


def test_tokens_of_another_rank_have_no_slot_here() -> None:
    scene = scenes.slot_mapping(script((-1, 13, -1), kernel_block_size=4, block_size=4, num_blocks=8))
    done = scene.frames[scene.frame_of("SlotsComputed")]
    assert done.change == "1 of 3 tokens have a slot here."
    assert "2 are kept by another rank: -1 (PAD)" in done.detail
    pads = [part.text for key, a in done.stage.items() if key.startswith("slot:") for part in a.parts]
    assert sorted(pads) == ["13", "PAD", "PAD"]
    assert scene.questions == ()


def test_forty_requests_are_left_out_and_counted() -> None:
    prompts = {f"request-{at}": "x" * (3 + 7 * at % 60) for at in range(40)}
    trace = make_trace(prompts, [3] * 40, budget=2000, seats=64, num_blocks=2000)
    scene = scenes.slot_mapping(trace)
    rows = [key for key in scene.frames[0].stage if key.startswith("row:")]
    assert any(part.text == f"{40 - len(rows)} rows more" for part in scene.frames[0].stage["band:table"].parts)
    assert scene.height < 620
    for frame in scene.frames:
        for actor in frame.stage.values():
            assert actor.x + actor.w <= scene.width
            assert all(actor.x + part.x + part.w <= scene.width for part in actor.parts)


@pytest.mark.parametrize("scene_of", [scenes.block_table, scenes.slot_mapping])
@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "x" * 10_000, "שלום", "🦜", "", "\ud800"])
def test_hostile_names_are_text(name: str, scene_of: Any) -> None:
    scene = scene_of(make_trace({name: "To be", "B": "or"}, [5, 2]))
    assert Scene.from_json(scene.to_json()).to_json() == scene.to_json()
    for frame in scene.frames:
        assert len(frame.caption) < 700
        assert all(len(part.text) < 90 for actor in frame.stage.values() for part in actor.parts)


def test_nothing_to_show_is_a_clear_error() -> None:
    empty = Trace((Record(0, None, StepStarted(0), None),), {}, {}, {})
    with pytest.raises(TraceError, match="no step of this trace computes slots"):
        scenes.slot_mapping(empty)
    with pytest.raises(TraceError, match="step 0 computes no slots"):
        scenes.slot_mapping(empty, 0)
    with pytest.raises(TraceError, match="no step 99"):
        scenes.slot_mapping(five_requests(), 99)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=10),
    st.integers(4, 64),
    st.sampled_from([1, 2, 4, 16]),
)
def test_any_step_can_be_shown_and_every_way_ends_right(
    requests: list[tuple[int, int]], budget: int, block_size: int
) -> None:
    prompts = {f"r{at}": "x" * length for at, (length, _) in enumerate(requests)}
    trace = make_trace(prompts, [o for _, o in requests], budget=budget, block_size=block_size, num_blocks=600)
    for step in range(min(trace.num_steps, 6)):
        inputs, slots = of_step(trace, step)
        if not inputs.positions:
            continue
        scene = scenes.slot_mapping(trace, step)
        expected = by_token(inputs, slots)
        for frame in scene.frames:
            assert drawn_slots(frame).items() <= expected.items()
            total = frame.stage["sum"].data
            if total.get("slot", "") != "":
                assert total["slot"] == slots.slot_mapping[int(total["at"])]


# --- in the player ---------------------------------------------------------------------------------------------


def in_the_page(page: Any) -> dict[str, str]:
    """Each actor's key, and all of it."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('.pl-actor:not(.pl-leave)')].map(n => [n.dataset.key, n.outerHTML])"
        )
    )


@pytest.mark.browser
@pytest.mark.parametrize("scene_of", [scenes.block_table, scenes.slot_mapping])
def test_in_chromium_back_after_next_restores_each_frame_and_nothing_is_cut_off(
    browser: Any, tmp_path: Path, scene_of: Any
) -> None:
    prompts = {
        "A": "To be, or n",
        "<img src=x onerror=alert(1)>": "not to",
        "שלום": "that is t",
        "": "he",
        "🦜": "tion:",
    }
    scene = scene_of(make_trace(prompts, [9, 3, 8, 3, 9], budget=64))
    context = browser.new_context(viewport={"width": 1000, "height": 800}, offline=True, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(widgets.export_html(scene, tmp_path / "scene.html").as_uri())
    page.wait_for_selector("[data-pagedlab-player]")
    seen = []
    for frame in scene.frames:
        said = re.sub(r"\s+", " ", page.get_by_test_id("caption").inner_text()).strip()
        assert said == re.sub(r"\s+", " ", frame.caption)
        seen.append(in_the_page(page))
        assert set(seen[-1]) == set(frame.stage)
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
    for expected in reversed(seen[:-1]):
        page.locator("[data-action=back]").click()
        assert in_the_page(page) == expected
    context.close()
    assert errors == []
