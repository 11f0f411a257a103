"""The chart of latencies shows the times of the trace's own time model, and its percentiles are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab import LLMEngine, SamplingParams, SchedulerConfig, charts, record
from pagedlab.charts.labels import digits
from pagedlab.charts.latency_chart import MEASURES, Spread, times_of
from pagedlab.errors import ChartError, TraceError
from pagedlab.events import RequestAborted, RequestFinished, TokenAccepted
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPUS, MODELS, timeline

H200, LLAMA = GPUS["H200"], MODELS["Llama-3-8B"]
FIRST, BETWEEN, IN_ALL = MEASURES


@pytest.fixture
def engine(tiny_model) -> LLMEngine:
    config = SchedulerConfig(max_num_batched_tokens=40, max_num_seqs=4)
    return LLMEngine(tiny_model, scheduler_config=config, max_model_len=40, device="cpu")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_percentiles_are_those_of_numpy(times: list[float]) -> None:
    spread = Spread.of(times)
    found = [spread.least, spread.p25, spread.median, spread.p75, spread.p99]
    assert np.allclose(found, np.percentile(times, [0, 25, 50, 75, 99]), rtol=1e-9, atol=1e-9)
    assert spread.count == len(times)


def test_times_are_those_of_the_time_model(calm) -> None:
    times = times_of(calm.trace, H200, LLAMA)
    modelled = timeline(calm.trace, H200, LLAMA)
    assert times[FIRST] == [request.time_to_first_token for request in modelled.requests]
    assert np.mean(times[BETWEEN]) == pytest.approx(modelled.mean_inter_token_latency)
    # Every request of this run ends: its time in all is all the times that it waited.
    assert times[IN_ALL] == pytest.approx(
        [request.time_to_first_token + sum(request.inter_token_latencies) for request in modelled.requests]
    )
    assert len(times[BETWEEN]) == len(calm.trace.events(TokenAccepted)) - len(modelled.requests)


def test_boxes_and_points_are_drawn_from_these_times(calm, static) -> None:
    figure = charts.latency(static.trace, calm.trace)
    boxes = [item for item in figure.data if item.type == "box"]
    points = [item for item in figure.data if item.type == "scatter"]
    expected = [(measure, run) for measure in MEASURES for run in (static, calm)]
    for (measure, run), box, dots in zip(expected, boxes, points, strict=True):
        times = times_of(run.trace, H200, LLAMA)[measure]
        drawn = (box.lowerfence[0], box.q1[0], box.median[0], box.q3[0], box.upperfence[0])
        assert drawn == pytest.approx(np.percentile(times, [0, 25, 50, 75, 99]))
        assert list(dots.x) == sorted(times)
    assert list(figure.layout.yaxis.ticktext) == ["Static batching", "Continuous batching"]


def test_the_title_tells_the_greatest_difference(calm, static) -> None:
    figure = charts.latency(static.trace, calm.trace)
    ratios = {}
    for measure in MEASURES:
        for what, share in (("Median", 50), ("P99 of the", 99)):
            slow, quick = (np.percentile(times_of(run.trace, H200, LLAMA)[measure], share) for run in (static, calm))
            ratios[f"{what} {measure}"] = slow / quick
    greatest = max(ratios, key=lambda what: max(ratios[what], 1 / ratios[what]))
    title = figure.layout.title.text.replace("<br>", " ")
    assert title.startswith(f"{greatest}: ")
    assert title.endswith(f"({ratios[greatest]:.1f} times), Static batching")
    assert charts.summary(figure).startswith(f"{title}. Modelled for Llama-3-8B on H200.")


def test_of_one_engine_the_title_tells_the_first_token(calm) -> None:
    figure = charts.latency(calm.trace, gpu=GPUS["L4"], model=MODELS["quill"], overhead_seconds=0.0)
    times = times_of(calm.trace, GPUS["L4"], MODELS["quill"], 0.0)[FIRST]
    median, p99 = (digits(float(np.percentile(times, share))) for share in (50, 99))
    assert figure.layout.title.text == f"Half of the first tokens come within {median} ms, 99 of 100 within {p99} ms"
    assert f"{FIRST}: median {median}, p99 {p99} ms (6 values)" in charts.summary(figure)


def test_two_engines_that_do_the_same_are_told_so(calm) -> None:
    figure = charts.latency(calm.trace, calm.trace, names=["one", "the other"])
    assert figure.layout.title.text == "No median and no p99 differs by 5% or more"


def test_who_is_aborted_or_has_not_ended_has_no_time_in_all(engine: LLMEngine) -> None:
    recorder = record(engine)
    for name, length in (("ends", 2), ("goes", 20), ("stays", 20)):
        engine.add_request(name, [1, 2, 3], SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.abort_request("goes")
    trace = recorder.stop()
    assert trace.events(RequestAborted)
    assert [(event.request_id, event.reason) for event in trace.events(RequestFinished)] == [
        ("ends", "length"),
        ("goes", "abort"),
    ]
    times = times_of(trace, H200, LLAMA)
    assert (len(times[FIRST]), len(times[BETWEEN]), len(times[IN_ALL])) == (3, 1 + 3 + 3, 1)


def test_an_id_that_is_used_again_is_another_request(engine: LLMEngine) -> None:
    recorder = record(engine)
    for length in (2, 5):
        engine.add_request("A", [1, 2, 3], SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step()
    times = times_of(recorder.stop(), H200, LLAMA)
    assert len(times[IN_ALL]) == len(times[FIRST]) == 2
    assert times[IN_ALL][0] < times[IN_ALL][1]


def test_one_step_has_no_time_between_tokens_and_so_no_panel_for_it(one_step) -> None:
    figure = charts.latency(one_step.trace)
    headings = [note.text for note in figure.layout.annotations if note.templateitemname]
    assert headings == [f"{FIRST}, ms", f"{IN_ALL}, ms"]


def test_what_cannot_be_drawn_is_refused(calm) -> None:
    with pytest.raises(TraceError, match="no finished step"):
        charts.latency(Trace(()))
    with pytest.raises(ChartError, match="5 traces are too many"):
        charts.latency(*[calm.trace] * 5)
    with pytest.raises(ChartError, match="1 names for 2 traces"):
        charts.latency(calm.trace, calm.trace, names=["a"])
    no_tokens = Trace(tuple(r for r in calm.trace if not isinstance(r.event, TokenAccepted)), settings={})
    with pytest.raises(TraceError, match="no request of 'Continuous batching' has got a token"):
        charts.latency(no_tokens)
