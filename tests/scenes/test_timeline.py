"""The scene `timeline` says what the events say: who got how many tokens in which step, who waited, who sat where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import make_trace

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes
from pagedlab.errors import TraceError
from pagedlab.events import RequestAdded, RequestFinished, RequestPreempted, RequestScheduled, StepFinished
from pagedlab.scenes import Scene
from pagedlab.scenes.timeline_scene import TimelineScene, timeline
from pagedlab.scheduling import Scheduler, StaticBatchScheduler
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPUS, MODELS
from pagedlab.trace.time_model import timeline as modelled
from pagedlab.widgets.export import to_html

LENGTHS = {"A": (19, 6), "B": (7, 3), "C": (12, 9), "D": (11, 4), "E": (9, 5), "F": (7, 3)}
HOSTILE = ["<img src=x onerror=alert(1)>", "x" * 10_000, "שלום", "🦙🦙", "", "a:0", "a", "</script>", "\ud800"]


def run(
    model, requests: Mapping[str, tuple[int, int]], *, arrivals: Sequence[int] = (), scheduler: type = Scheduler,
    budget: int = 40, seats: int = 4, blocks: int = 60, aborts: Mapping[int, str] | None = None, **scheduling: object,
) -> Trace:  # fmt: skip
    """Run requests (name to lengths of prompt and output) on the real engine."""
    engine = LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduling),
        cache_config=CacheConfig(block_size=4, num_blocks=blocks),
        max_model_len=40,
        device="cpu",
        scheduler_cls=scheduler,
    )
    recorder = record(engine)
    todo = dict(zip(requests, arrivals or [0] * len(requests), strict=True))
    step = 0
    while todo or engine.has_unfinished_requests():
        for name in [name for name, arrival in todo.items() if arrival <= step]:
            del todo[name]
            prompt, output = requests[name]
            engine.add_request(
                name,
                [1 + (7 * ord(name) + at) % 60 for at in range(prompt)],
                SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True),
            )
        if aborts and step in aborts:
            engine.abort_request(aborts[step])
        engine.step()
        step += 1
    return recorder.stop()


@pytest.fixture(scope="module")
def continuous(tiny_model) -> Trace:
    return run(tiny_model, LENGTHS, arrivals=[0, 0, 0, 0, 0, 3])


@pytest.fixture(scope="module")
def static(tiny_model) -> Trace:
    return run(tiny_model, LENGTHS, arrivals=[0, 0, 0, 0, 0, 3], scheduler=StaticBatchScheduler)


@pytest.fixture(scope="module")
def crowded(tiny_model) -> Trace:
    return run(tiny_model, {"A": (13, 12), "B": (7, 12), "C": (12, 12)}, budget=16, blocks=13)


def granted(trace: Trace, upto: int | None = None) -> dict[tuple[str, int], int]:
    """What each request got in each step, without what a preemption took back."""
    got: dict[tuple[str, int], int] = {}
    for item in trace.records[: None if upto is None else upto + 1]:
        match item.event:
            case RequestScheduled(request_id=name, num_scheduled_tokens=tokens):
                got[name, item.step] = tokens
            case RequestPreempted(request_id=name):
                got.pop((name, item.step), None)
    return got


def cells(scene: Scene, frame: int, lane: int = 0) -> dict[tuple[str, int], int]:
    return {
        (str(actor.data["request"]), int(actor.data["step"])): int(actor.data["tokens"])
        for key, actor in scene.frames[frame].stage.items()
        if key.startswith(f"cell:{lane}:")
    }


def facts(scene: Scene, frame: int, kind: str, lane: int = 0) -> dict[int, Mapping[str, str | int]]:
    """The facts of each step's seats or budget bar."""
    stage = scene.frames[frame].stage
    return {int(a.data["step"]): a.data for key, a in stage.items() if key.startswith(f"{kind}:{lane}:")}


# --- what the frames show -------------------------------------------------------------------------------------


def test_the_last_frame_shows_all_tokens_of_both_engines(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    for lane, trace in enumerate((static, continuous)):
        assert cells(scene, -1, lane) == granted(trace)
        bars = facts(scene, -1, "bar", lane)
        for step in range(trace.num_steps):
            assert bars[step]["tokens"] == sum(tokens for (_, at), tokens in granted(trace).items() if at == step)


def test_each_frame_shows_what_was_granted_by_then(continuous: Trace) -> None:
    scene = timeline(continuous)
    for at, frame in enumerate(scene.frames):
        assert cells(scene, at) == granted(continuous, frame.record), frame.id
    assert [f.event for f in scene.frames].count("RequestFinished") >= 4


def test_a_prefill_is_a_cell_with_its_number_and_a_decode_a_bar(continuous: Trace) -> None:
    stage = timeline(continuous).frames[-1].stage
    (chunk,), (decode,) = stage["cell:0:0:A"].parts, stage["cell:0:1:A"].parts
    assert (chunk.kind, chunk.text, stage["cell:0:0:A"].data["kind"]) == ("cell", "19", "prefill")
    assert (decode.kind, stage["cell:0:1:A"].data["kind"]) == ("swatch", "decode")
    assert decode.h < chunk.h
    # D's eleventh token does not fit in step 0: the last chunk of a prompt is a prefill, even of few tokens.
    assert (stage["cell:0:0:D"].data["tokens"], stage["cell:0:1:D"].data["kind"]) == (2, "prefill")


def test_an_idle_seat_is_one_that_nobody_has(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    for lane, trace in enumerate((static, continuous)):
        seats = facts(scene, -1, "seats", lane)
        for step in range(trace.num_steps):
            ran = {name for name, at in granted(trace) if at == step}
            assert (seats[step]["taken"], seats[step]["idle"]) == (len(ran), 4 - len(ran))
    assert scene.runs[0].idle_seat_steps > scene.runs[1].idle_seat_steps


def test_a_request_keeps_its_seat(continuous: Trace) -> None:
    columns = timeline(continuous).runs[0].columns
    seats = {name: {c.seats.index(name) for c in columns if name in c.seats} for name in LENGTHS}
    assert all(len(where) == 1 for where in seats.values())
    assert seats["E"] == seats["B"]  # B ends first, E waits


def test_things_keep_their_identity_and_only_the_new_moves(continuous: Trace) -> None:
    frames = timeline(continuous).frames
    for before, after in pairwise(frames):
        for key, actor in before.stage.items():
            if key in after.stage and not key.startswith("now:"):
                assert (actor.x, actor.y) == (after.stage[key].x, after.stage[key].y), key
    first = frames[2].stage["cell:0:0:A"]
    assert first.origin is not None
    assert first.origin[0] < first.x


def test_a_wait_lasts_from_the_arrival_to_the_first_tokens(continuous: Trace, static: Trace) -> None:
    scene = timeline(static, continuous)
    for lane, trace in enumerate((static, continuous)):
        first = {}
        for name, step in granted(trace):
            first.setdefault(name, step)
        waits = {a.data["request"]: a.data for k, a in scene.frames[-1].stage.items() if k.startswith(f"wait:{lane}:")}
        assert {name: data["to"] for name, data in waits.items()} == first
        assert waits["F"]["from"] == 3


def test_static_batching_is_told_with_its_reason(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    assert scene.titles == ("Static batching", "Continuous batching")
    frame = next(frame for frame in scene.frames if "stays idle" in frame.change)
    assert frame.change == "Static batching: 1 seat stays idle although E and F wait."
    assert frame.detail == "Static batching: nobody joins until the batch is empty."
    assert any(key.startswith("seats:0:") for key in frame.focus)
    assert not any("idle" in frame.change and frame.change.startswith("Continuous") for frame in scene.frames[:-1])


def test_arrivals_of_both_engines_at_once_are_one_frame(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    arrivals = [frame for frame in scene.frames if frame.event == "RequestAdded"]
    assert [frame.change for frame in arrivals] == [
        "A, B, C, D and E arrive with prompts of 19, 7, 12, 11 and 9 tokens.",
        "F arrives with a prompt of 7 tokens.",
    ]
    assert arrivals[1].focus == ("name:0:F", "name:1:F")


def test_a_preemption_shows_who_what_and_for_whom(crowded: Trace) -> None:
    scene = timeline(crowded)
    lost = crowded.events(RequestPreempted)[0]
    frame = scene.frames[scene.frame_of("RequestPreempted")]
    assert frame.change.startswith(f"{lost.request_id} is preempted: too few blocks are free; B needs them.")
    following = crowded.records[frame.record + 1 :]
    assert next(r.event.request_id for r in following if isinstance(r.event, RequestScheduled)) == "B"
    assert f"{lost.num_computed_tokens} computed tokens are lost" in frame.detail
    column = scene.runs[0].columns[frame.step]
    assert f"lost:0:{frame.step}:{lost.request_id}" in frame.stage
    assert frame.focus == (f"lost:0:{frame.step}:{lost.request_id}",)
    assert lost.request_id in column.lost
    assert cells(scene, -1) == granted(crowded)
    resumed = next(f for f in scene.frames if f"{lost.request_id} resumes" in f.change)
    assert "computes it again" in resumed.detail


def test_who_is_withdrawn_leaves_its_seat_or_the_queue(tiny_model) -> None:
    trace = run(tiny_model, {"A": (5, 6), "B": (6, 6), "C": (4, 2)}, seats=2, aborts={2: "B"})
    scene = timeline(trace)
    frame = next(frame for frame in scene.frames if "withdrawn" in frame.change)
    assert frame.change == "B is withdrawn."
    assert frame.stage["name:0:B"].data["state"] == "gone"
    assert cells(scene, -1) == granted(trace)
    assert scene.runs[0].num_ended == 3


def test_every_event_lights_the_line_that_caused_it(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    for frame in scene.frames:
        if frame.event:
            assert frame.source is not None, frame.id
            key, line = frame.source
            source = scene.sources[key]
            assert source.first_line <= line < source.first_line + len(source.lines)
    grant = scene.frames[scene.frame_of("RequestScheduled")]
    source = scene.sources[grant.source[0]]
    assert "_grant" in source.lines[grant.source[1] - source.first_line]


# --- the axis --------------------------------------------------------------------------------------------------


def test_in_milliseconds_a_step_is_as_wide_as_it_takes(continuous: Trace, tiny_model) -> None:
    whole = run(tiny_model, LENGTHS, enable_chunked_prefill=False)
    scene = timeline(whole, continuous, axis="ms", gpu=GPUS["L4"], model=MODELS["quill"])
    assert scene.titles == ("Whole prompts", "Chunked prefill")
    for lane, trace in enumerate((whole, continuous)):
        ends = modelled(trace, GPUS["L4"], MODELS["quill"]).step_ends
        assert scene.edges[lane][1:] == pytest.approx(ends)
        stage = scene.frames[-1].stage
        bars = [stage[f"bar:{lane}:{at}"] for at in range(trace.num_steps)]
        scale = bars[0].w / ends[0]
        widths = [scale * (b - a) for a, b in pairwise((0.0, *ends))]
        assert [bar.w for bar in bars] == pytest.approx(widths, abs=0.03)
    assert [times[0] for times in scene.edges] == [0.0, 0.0]
    assert "quill on L4" in scene.title


def test_300_steps_are_shown_in_pages_and_none_is_skipped() -> None:
    names = {f"r{at}": "x" * (5 + at % 17) for at in range(32)}
    trace = make_trace(names, [12 + at % 9 for at in range(32)], seats=2, num_blocks=200,
                       arrivals=[10 * at for at in range(32)])  # fmt: skip
    assert trace.num_steps > 300
    scene = timeline(trace)
    shown: dict[int, int | str] = {}
    for at, frame in enumerate(scene.frames):
        shown |= {step: data["tokens"] for step, data in facts(scene, at, "bar").items()}
        assert len(frame.stage) < 400
        assert "overview" in frame.stage
    expected = dict.fromkeys(range(trace.num_steps), 0)
    for (_, step), tokens in granted(trace).items():
        expected[step] += tokens
    assert shown == {step: tokens for step, tokens in expected.items() if step in shown}
    assert {step for step, tokens in expected.items() if tokens} <= set(shown)
    assert len(json.dumps(scene.to_json())) < 2_000_000


def test_one_step_is_enough(tiny_model) -> None:
    scene = timeline(run(tiny_model, {"A": (3, 1)}))
    assert cells(scene, -1) == {("A", 0): 3}
    assert scene.summary.startswith("Continuous batching: 1 step, 1 of 1 request ended, 3 of 40 tokens")


def test_nothing_to_show_is_a_clear_error(continuous: Trace) -> None:
    with pytest.raises(TraceError, match="no steps"):
        timeline(Trace.from_records([]))
    with pytest.raises(TraceError, match="'hours'"):
        timeline(continuous, axis="hours")
    with pytest.raises(TraceError, match="5 traces are too many"):
        timeline(*[continuous] * 5)


def test_a_recording_may_begin_at_any_step(crowded: Trace) -> None:
    for begin in range(crowded.num_steps):
        records = tuple(item for item in crowded.records if item.step >= begin)
        part = Trace(records, crowded.sources, crowded.vocabulary, crowded.settings)
        scene = timeline(part)
        assert cells(scene, -1) == granted(part)
        for question in scene.questions:
            assert question.ask_frame < question.frame


def test_what_a_cut_step_had_granted_is_not_shown_as_the_next_one(crowded: Trace) -> None:
    last = max(at for at, item in enumerate(crowded.records) if item.step == 16)
    for begin in range(0, last, 7):
        part = Trace(crowded.records[begin:], crowded.sources, crowded.vocabulary, crowded.settings)
        scenes_of = [timeline(part, axis=axis) for axis in ("steps", "ms")]
        first = scenes_of[0].runs[0].columns[0].step
        expected = {key: tokens for key, tokens in granted(part).items() if key[1] >= first}
        for scene in scenes_of:
            assert cells(scene, -1) == expected
            assert len(scene.edges[0]) == scene.runs[0].num_steps + 1


def test_a_recording_may_begin_and_end_in_the_middle(continuous: Trace) -> None:
    records = continuous.records
    begin = next(at for at, item in enumerate(records) if item.step == 3)
    end = max(at for at, item in enumerate(records) if item.beat == "prepare" and item.step == 6)
    part = Trace(records[begin:end], continuous.sources, continuous.vocabulary, continuous.settings)
    for axis in ("steps", "ms"):
        scene = timeline(part, axis=axis)
        assert cells(scene, -1) == granted(part)
        assert scene.runs[0].columns[0].step == 3


# --- questions -------------------------------------------------------------------------------------------------


def test_questions_are_answered_by_the_trace(static: Trace, continuous: Trace, crowded: Trace) -> None:
    many, seat = timeline(static, continuous).questions
    event = next(e for e in static.events(RequestScheduled) if e.request_id == "D")
    assert many.prompt.startswith("Static batching. D has 11 tokens to compute.")
    assert many.answer == str(event.num_scheduled_tokens) == "2"
    assert seat.answer == "Nobody: 1 seat stays idle"
    assert "continuous batching" in seat.reasons["E: it is the next in the queue"]
    _, who = timeline(crowded).questions
    assert who.answer == f"{crowded.events(RequestPreempted)[0].request_id}, in seat 2"
    assert len(who.choices) == 3
    for question in (many, seat, who):
        frames = question.scene.frames
        assert 0 <= question.ask_frame < question.frame < len(frames)
        # Nothing of the step that is asked about may be seen yet.
        asked = frames[question.frame].step
        lane = "0"
        assert not [k for k in frames[question.ask_frame].stage if k.startswith(f"cell:{lane}:{asked}:")]


# --- whatever comes ----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=14),
    st.integers(4, 64),
    st.integers(1, 12),
    st.booleans(),
)
def test_nothing_is_cut_off_and_all_that_is_shown_is_so(
    requests: list[tuple[int, int, int]], budget: int, seats: int, in_ms: bool
) -> None:
    trace = make_trace(
        {f"r{at}": "x" * length for at, (length, _, _) in enumerate(requests)}, [output for _, output, _ in requests],
        budget=budget, seats=seats, num_blocks=300, arrivals=[arrival for *_, arrival in requests],
    )  # fmt: skip
    scene = timeline(trace, axis="ms" if in_ms else "steps")
    for at, frame in enumerate(scene.frames):
        got = granted(trace, frame.record)
        for key, tokens in cells(scene, at).items():
            assert got[key] == tokens
        places = [(a.x, (a.y - 49) // 23) for key, a in frame.stage.items() if key.startswith("cell:")]
        assert len(set(places)) == len(places)  # no two requests in one place
        tags = [a.y for key, a in frame.stage.items() if key.startswith("name:")]
        assert len(set(tags)) == len(tags)
        for key, actor in frame.stage.items():
            assert actor.x >= -1, key
            assert actor.x + actor.w <= scene.width + 0.1, key
            assert actor.y >= 0, key
            assert actor.y + actor.h <= scene.height + 0.1, key
        assert set(frame.focus) <= set(frame.stage)
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))).frames == scene.frames


def test_hostile_names_are_text() -> None:
    trace = make_trace({name: "x" * (3 + at) for at, name in enumerate(HOSTILE)}, [4] * len(HOSTILE), seats=3)
    scene = timeline(trace, trace)
    assert scene.titles == ("Continuous batching (a)", "Continuous batching (b)")
    assert set(scene.requests) == set(HOSTILE)
    assert "<img" not in to_html(scene)
    for frame in scene.frames:
        assert len(frame.caption) < 800
    names = [part.text for key, actor in scene.frames[-1].stage.items() if key.startswith("name:0:")
             for part in actor.parts if part.kind == "text"]  # fmt: skip
    assert all(len(text) <= 7 for text in names)
    assert "<img" not in str(scene.to_plotly().to_dict())


# --- the figure --------------------------------------------------------------------------------------------------


def test_the_figure_holds_the_numbers_of_the_trace(static: Trace, continuous: Trace) -> None:
    scene = timeline(static, continuous)
    chart = scene.to_plotly()
    for lane, trace in enumerate((static, continuous)):
        shares = [bar for bar in chart.data if bar.yaxis == f"y{3 * lane + 2}"]
        got = {(bar.name, int(x)): y for bar in shares for x, y in zip(bar.x, bar.y, strict=True)}
        assert got == granted(trace)
        (idle,) = [bar for bar in chart.data if bar.yaxis == f"y{3 * lane + 3}"]
        assert sum(idle.y) == scene.runs[lane].idle_seat_steps
    assert chart.layout.title.text.replace("<br>", " ") == (
        f"Static batching: {static.num_steps} steps, {scene.runs[0].idle_seat_steps} seat-steps idle; "
        f"Continuous batching: {continuous.num_steps} steps, {scene.runs[1].idle_seat_steps} seat-steps idle"
    )
    assert chart.layout.meta["summary"] == scene.summary


def test_the_summary_counts_what_happened(crowded: Trace) -> None:
    budget = 16 * crowded.num_steps
    idle = 4 * crowded.num_steps - len(granted(crowded))
    assert timeline(crowded).summary == (
        f"Continuous batching: {crowded.num_steps} steps, {len(crowded.events(RequestFinished))} of "
        f"{len(crowded.events(RequestAdded))} requests ended, {sum(granted(crowded).values())} of {budget} tokens of "
        f"budget spent, {idle} of {4 * crowded.num_steps} seat-steps idle, "
        f"{len(crowded.events(RequestPreempted))} preemption."
    )
    assert crowded.events(StepFinished)[-1].running == ()


def test_the_figure_looks_like_all_charts(crowded: Trace) -> None:
    from pagedlab.charts.template import LIGHT, look, plotly_template

    scene = timeline(crowded)
    chart = scene.to_plotly()
    assert chart.layout.template == plotly_template(LIGHT)
    for request_id in scene.requests:
        looks = {(bar.marker.color, bar.marker.pattern.shape) for bar in chart.data if bar.name == request_id}
        assert looks == {look(scene.requests.index(request_id))}


def test_the_scene_survives_json_and_is_exported(continuous: Trace) -> None:
    scene = scenes.timeline(continuous)
    assert isinstance(scene, TimelineScene)
    read = Scene.from_json(json.loads(json.dumps(scene.to_json())))
    assert (read.frames, read.asked, read.requests) == (scene.frames, scene.asked, scene.requests)
    assert scene.sources == read.sources != {}
