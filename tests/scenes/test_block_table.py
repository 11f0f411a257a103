"""The scene `block_table`: what the host's table and the device's copy hold is what the trace says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import five_recorded_requests
from traces import five_requests, make_trace

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes
from pagedlab.errors import TraceError
from pagedlab.events import (
    BlocksAppended,
    BlockTableCommitted,
    Event,
    RowAdded,
    RowMoved,
    RowsSwapped,
    SlotsComputed,
    StepStarted,
)
from pagedlab.scenes import Frame, Scene
from pagedlab.scenes.block_table_state import BYTES_PER_CELL, TableReplay, blocks_per_kv_block, table_columns
from pagedlab.trace import Record, Trace


def host(frame: Frame, group: int = 0) -> dict[str, tuple[int, str]]:
    """Request: its row and its live blocks, as drawn."""
    return {
        str(actor.data["request"]): (int(actor.data["row"]), str(actor.data["blocks"]))
        for key, actor in frame.stage.items()
        if key.startswith(f"row:{group}:")
    }


def device(frame: Frame, group: int = 0) -> dict[int, str]:
    return {
        int(actor.data["row"]): str(actor.data["blocks"])
        for key, actor in frame.stage.items()
        if key.startswith(f"device:{group}:")
    }


def travellers(frame: Frame) -> dict[tuple[int, int], tuple[str, int]]:
    return {
        (int(a.data["row"]), int(a.data["column"])): (str(a.data["place"]), int(a.data["block"]))
        for key, a in frame.stage.items()
        if key.startswith("sent:")
    }


def shown(scene: Scene, event: str, nth: int = 0) -> Frame:
    return scene.frames[scene.frame_of(event, nth)]


def script(*steps: Sequence[Event], **options: int) -> Trace:
    """A trace of these events, step by step, as no engine of ours may have made it."""
    records = [
        Record(step, "prepare", event, None)
        for step, events in enumerate(steps)
        for event in (StepStarted(step), *events)
    ]
    return Trace(tuple(records), {}, {}, dict(options))


def swapping_engine(model, commit_mode: str = "changed") -> LLMEngine:
    """A's long prompt is cut, B's short one is not: B decodes first, and has to change rows with A; C comes last."""
    engine = LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, long_prefill_token_threshold=6),
        cache_config=CacheConfig(block_size=4, num_blocks=40),
        max_model_len=64,
        device="cpu",
    )
    engine.runner.decode_threshold = 1
    engine.runner.input_batch.block_table.commit_mode = commit_mode
    for request_id, prompt in {"A": range(1, 25), "B": range(30, 33), "C": range(40, 49)}.items():
        engine.add_request(request_id, list(prompt), SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    return engine


def swapping_trace(model) -> Trace:
    engine = swapping_engine(model)
    recorder = record(engine)
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.stop()


@pytest.mark.parametrize("commit_mode", ["changed", "full"])
def test_the_replay_is_what_really_lies_in_both_memories(tiny_model, commit_mode: str) -> None:
    engine = swapping_engine(tiny_model, commit_mode)
    recorder = record(engine)
    memories = []
    while engine.has_unfinished_requests():
        engine.step()
        buffer = engine.runner.input_batch.block_table[0].table
        memories.append((buffer.np.tolist(), buffer.gpu.tolist()))
    trace, replay = recorder.stop(), TableReplay()
    assert {r.event.mode for r in trace if isinstance(r.event, BlockTableCommitted)} == {commit_mode}
    assert any(isinstance(r.event, RowsSwapped) for r in trace)
    records = list(trace)
    for step, (on_host, on_device) in enumerate(memories):
        while records and records[0].step <= step:
            replay.apply(records.pop(0).event)
        for row, state in replay.rows.items():
            for entries, memory in ((state.host, on_host), (state.device, on_device)):
                assert [entry.block if entry else 0 for entry in entries] == memory[row][: len(entries)]
        scene = scenes.block_table(trace, step)
        assert scene.frames[scene.frame_of("BlockTableCommitted")].stage["meter"].data["mode"] == commit_mode


def test_the_first_step_in_which_a_row_moves_is_the_default() -> None:
    trace = five_recorded_requests()
    assert scenes.block_table(trace).frames[0].step == next(r.step for r in trace if isinstance(r.event, RowMoved))


def test_a_row_moves_on_the_host_and_the_device_is_behind_until_the_commit() -> None:
    scene = scenes.block_table(five_recorded_requests())
    move, commit = shown(scene, "RowMoved"), shown(scene, "BlockTableCommitted")
    assert host(move)["E"] == (1, "11 12")
    assert move.stage["track:0:4"].data["stale"] == "0 0"
    assert device(move)[1] == "4 5"  # B's, stale
    assert device(commit)[1] == "11 12"
    assert move.change == "E moves from row 4 to row 1: 2 entries are copied."
    assert move.arrows
    before = scene.frames[scene.frame_of("RowMoved") - 1]
    assert before.stage["row:0:E"].y == before.stage["track:0:4"].y
    assert move.stage["row:0:E"].y == move.stage["track:0:1"].y


def test_the_cells_that_travel_are_those_the_commit_names() -> None:
    trace = five_recorded_requests()
    for step in range(trace.num_steps):
        if not any(isinstance(r.event, BlockTableCommitted) for r in trace.of_step(step)):
            continue
        event = next(r.event for r in trace.of_step(step) if isinstance(r.event, BlockTableCommitted))
        scene = scenes.block_table(trace, step)
        at = scene.frame_of("BlockTableCommitted")
        named = {(row, start + i): block for row, start, ids in event.changed for i, block in enumerate(ids)}
        assert travellers(scene.frames[at - 1]) == {cell: ("host", block) for cell, block in named.items()}
        assert travellers(scene.frames[at]) == {cell: ("device", block) for cell, block in named.items()}
        meter = scene.frames[at].stage["meter"].data
        assert (meter["mode"], meter["bytes"]) == (event.mode, event.num_bytes)
        assert f"{event.num_bytes:,} bytes" in scene.frames[at].caption


def test_the_replay_knows_of_every_cell_that_the_engine_sends(tiny_model) -> None:
    """What differs between host and device is sent: the events tell all that happened to the tables."""
    for trace in (five_recorded_requests(), swapping_trace(tiny_model)):
        table = TableReplay()
        for seen in trace:
            if isinstance(seen.event, BlockTableCommitted):
                named = {(row, start + i): b for row, start, ids in seen.event.changed for i, b in enumerate(ids)}
                assert set(table.pending(seen.event.num_rows)) <= set(named)
                for (row, column), block in named.items():
                    entry = table.rows[row].host[column]
                    assert entry is not None
                    assert entry.block == block
            table.apply(seen.event)


def test_the_line_of_each_frame_is_the_one_that_ran() -> None:
    scene = scenes.block_table(five_recorded_requests())
    lit = {frame.event: frame.source for frame in scene.frames if frame.event}
    for key, line in filter(None, lit.values()):
        source = scene.sources[key]
        assert source.first_line <= line < source.first_line + len(source.lines)
        assert source.counterpart is not None, f"{source.name} has no counterpart at vLLM"
    assert scene.sources[lit["BlockTableCommitted"][0]].counterpart == (
        "vllm/v1/worker/block_table.py", "MultiGroupBlockTable.commit_block_table",
    )  # fmt: skip


def test_rows_that_kernels_do_not_read_wait_for_their_commit() -> None:
    scene = scenes.block_table(five_recorded_requests())
    commit = shown(scene, "BlockTableCommitted")
    assert device(commit)[3] == "9 10 14"
    assert commit.stage["device:0:3"].data["read"] == 0
    assert "Rows 3 and 4 wait." in commit.detail


def test_a_block_joins_its_row_behind_the_live_entries() -> None:
    trace = five_recorded_requests()
    step = next(r.step for r in trace if isinstance(r.event, BlocksAppended))
    grown = [r.event for r in trace.of_step(step) if isinstance(r.event, BlocksAppended)]
    scene = scenes.block_table(trace, step)
    before, after = host(scene.frames[0]), host(shown(scene, "BlocksAppended"))
    for event in grown:
        assert after[event.request_id][1] == " ".join([before[event.request_id][1], *map(str, event.block_ids)])


def test_two_rows_swap_and_exchange_as_much_as_the_longer_one_holds(tiny_model) -> None:
    trace = swapping_trace(tiny_model)
    event = next(r for r in trace if isinstance(r.event, RowsSwapped))
    scene = scenes.block_table(trace)
    at = scene.frame_of("RowsSwapped")
    before, after = host(scene.frames[at - 1]), host(scene.frames[at])
    assert scene.frames[0].step == event.step
    assert {who: row for who, (row, _) in before.items()} == {"A": 0, "B": 1, "C": 2}
    assert {who: row for who, (row, _) in after.items()} == {"A": 1, "B": 0, "C": 2}
    assert {who: held for who, (_, held) in before.items()} == {who: held for who, (_, held) in after.items()}
    longest = max(len(before[who][1].split()) for who in "AB")
    assert f"{longest} entries of each row are exchanged" in scene.frames[at].detail
    assert len(scene.frames[at].arrows) == 2


def test_a_full_commit_sends_whole_rows_and_tells_their_width() -> None:
    trace = five_requests()
    event = next(r.event for r in trace.of_step(3) if isinstance(r.event, BlockTableCommitted))
    assert event.mode == "full"
    assert table_columns(trace) == (8, True)
    scene = scenes.block_table(trace)
    commit = shown(scene, "BlockTableCommitted")
    assert commit.change == f"All {event.num_rows} rows are sent whole: {event.num_bytes} bytes."
    assert f"{event.num_rows} rows × 8 columns × 4 = {event.num_bytes} bytes" in commit.detail
    live = dict(host(commit).values())
    assert all(device(commit)[row].startswith(held) for row, held in live.items())
    choice, number = scene.questions
    assert choice.answer == f"Rows 0 to {event.num_rows - 1}, from end to end"
    assert number.answer == str(event.num_bytes)


def test_which_cells_are_sent_is_asked_before_anything_happens() -> None:
    scene = scenes.block_table(five_recorded_requests())
    choice, number = scene.questions
    assert choice.prompt == "B and D leave and E moves from row 4 to 1. Which entries does the commit send?"
    assert choice.answer == "Row 1, columns 0 and 1"
    assert choice.ask_frame == 0
    assert scene.frames[choice.frame].event == scene.frames[number.frame].event == "BlockTableCommitted"
    assert number.answer == str(2 * BYTES_PER_CELL)
    assert number.reasons["8"].startswith("That is the blocks alone.")


def test_nothing_sent_is_said_and_asked() -> None:
    trace = five_recorded_requests()
    step = next(r.step for r in trace if isinstance(r.event, BlockTableCommitted) and not r.event.num_bytes)
    scene = scenes.block_table(trace, step)
    assert shown(scene, "BlockTableCommitted").change == "Nothing is sent: 0 bytes."
    (question,) = scene.questions
    assert question.answer == "Nothing"


def test_manager_blocks_become_kernel_blocks() -> None:
    trace = script(
        (
            RowAdded(0, "A", 5, 0, ((3, 5),)),
            BlocksAppended(0, "A", 0, (6,)),
            BlockTableCommitted(0, 1, 48, "changed", ((0, 0, (6, 7, 10, 11, 12, 13)),)),
            SlotsComputed(0, (12,), 2, "numpy"),
        ),
        block_size=4,
    )
    assert blocks_per_kv_block(trace) == 2
    scene = scenes.block_table(trace)
    assert host(shown(scene, "RowAdded"))["A"] == (0, "6 7 10 11")
    assert host(shown(scene, "BlocksAppended"))["A"] == (0, "6 7 10 11 12 13")
    assert "5 becomes 10 and 11" in shown(scene, "RowAdded").detail
    assert "6 becomes 12 and 13" in shown(scene, "BlocksAppended").detail
    assert device(shown(scene, "BlockTableCommitted"))[0] == "6 7 10 11 12 13"


def test_each_group_has_its_own_table_and_commit() -> None:
    trace = script(
        (
            RowAdded(0, "A", 5, 0, ((3, 5), (9,))),
            BlockTableCommitted(0, 1, 16, "changed", ((0, 0, (3, 5)),)),
            BlockTableCommitted(1, 1, 8, "changed", ((0, 0, (9,)),)),
        )
    )
    scene = scenes.block_table(trace)
    added = shown(scene, "RowAdded")
    assert host(added)["A"] == (0, "3 5")
    assert host(added, group=1)["A"] == (0, "9")
    first, second = shown(scene, "BlockTableCommitted"), shown(scene, "BlockTableCommitted", 1)
    assert (device(first)[0], device(first, group=1)[0]) == ("3 5", "")
    assert (device(second)[0], device(second, group=1)[0]) == ("3 5", "9")
    many = script((RowAdded(0, "A", 5, 0, tuple((at,) for at in range(1, 6))),))
    assert scenes.block_table(many).frames[0].stage["groups"].parts[0].text == "⋯ 2 groups more"


def test_a_trace_that_begins_in_the_middle_shows_what_it_tells() -> None:
    trace = script((BlocksAppended(2, "A", 0, (8,)), BlockTableCommitted(0, 3, 8, "changed", ((1, 4, (7,)),))))
    scene = scenes.block_table(trace)
    assert device(scene.frames[-1])[1] == "? ? ? ? 7"
    assert host(scene.frames[-1])["A"] == (2, "8")


def test_forty_requests_are_left_out_and_counted() -> None:
    prompts = {f"request-{at}": "x" * (3 + 7 * at % 60) for at in range(40)}
    trace = make_trace(prompts, [3 + at % 5 for at in range(40)], budget=2000, seats=64, num_blocks=2000)
    scene = scenes.block_table(trace)
    heads = [part.text for part in scene.frames[0].stage["heads:0"].parts]
    drawn = {key for key in scene.frames[0].stage if key.startswith("track:")}
    told = sum(int(words.split()[1]) for words in heads if words.startswith("⋯"))
    assert len(drawn) + told == 40
    assert scene.height < 480
    for frame in scene.frames:
        for actor in frame.stage.values():
            assert actor.x + actor.w <= scene.width
            assert all(actor.x + part.x + part.w <= scene.width for part in actor.parts)


def test_nothing_to_show_is_a_clear_error() -> None:
    with pytest.raises(TraceError, match="no step of this trace touches the block table"):
        scenes.block_table(script(()))
    with pytest.raises(TraceError, match="nothing happens to the block table in step 0"):
        scenes.block_table(script(()), 0)
    with pytest.raises(TraceError, match="no step 99"):
        scenes.block_table(five_requests(), 99)


def _live(table: TableReplay) -> Mapping[str, tuple[int, str]]:
    return {
        row.request_id: (at, " ".join(map(str, row.live)))
        for at, row in table.rows.items()
        if row.request_id is not None
    }


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=10),
    st.integers(4, 64),
    st.integers(1, 6),
)
def test_in_every_frame_the_tables_are_those_of_a_replay(
    requests: list[tuple[int, int, int]], budget: int, seats: int
) -> None:
    prompts = {f"r{at}": "x" * length for at, (length, _, _) in enumerate(requests)}
    trace = make_trace(
        prompts, [output for _, output, _ in requests], budget=budget, seats=seats, num_blocks=200,
        arrivals=[arrival for _, _, arrival in requests],
    )  # fmt: skip
    table, done = TableReplay(), 0
    for step in range(trace.num_steps):
        scene = scenes.block_table(trace, step)
        for frame in scene.frames:
            while done <= frame.record:
                table.apply(trace.records[done].event)
                done += 1
            live = _live(table)
            assert host(frame) == {who: live[who] for who in host(frame)}
            for row, held in device(frame).items():
                entries = table.rows[row].device if row in table.rows else []
                assert held == " ".join("?" if entry is None else str(entry.block) for entry in entries)
        assert all(question.ask_frame < question.frame for question in scene.questions)
