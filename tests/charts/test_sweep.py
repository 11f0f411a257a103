"""A sweep draws what it was given, and marks a knee only where a curve bends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab import charts
from pagedlab.charts.labels import digits
from pagedlab.errors import ChartError
from pagedlab.trace.time_model import GPUS, MODELS, timeline

SATURATING = [{"budget": x, "speed": y} for x, y in ((16, 10), (32, 52), (64, 95), (128, 98), (256, 100))]
LABELS = {"budget": "token budget", "speed": "tokens/s"}


def knees(figure) -> list[float]:
    return [shape.x0 for shape in figure.layout.shapes]


def test_the_curve_is_the_results_in_order_of_the_knob() -> None:
    figure = charts.sweep(SATURATING[::-1], x="budget", y="speed", labels=LABELS)
    (curve,) = figure.data
    assert curve.x == (16, 32, 64, 128, 256)
    assert curve.y == (10, 52, 95, 98, 100)
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.title.text == "token budget"


def test_the_knee_is_marked_and_the_title_says_what_is_done_by_then() -> None:
    figure = charts.sweep(SATURATING, x="budget", y="speed", labels=LABELS)
    assert knees(figure) == [64]
    assert figure.layout.annotations[-1].x == math.log10(64)  # on a logarithmic axis, notes count in decades
    assert figure.layout.title.text == "Tokens/s goes from 10 to 100, 94% of that by token budget 64"


def test_a_curve_that_explodes_has_its_knee_where_it_leaves_the_ground() -> None:
    rows = [{"rate": rate, "wait": wait} for rate, wait in ((1, 10), (2, 11), (3, 12), (4, 14), (5, 30), (6, 200))]
    figure = charts.sweep(rows, x="rate", y="wait", labels={"wait": "waiting time, ms"})
    assert knees(figure) == [5]
    assert figure.layout.title.text == "Waiting time goes from 10 to 200 ms, 89% of that after rate 5"


@given(
    slope=st.floats(-50, 50).filter(lambda slope: abs(slope) > 0.1),
    x=st.lists(st.integers(0, 100), min_size=2, max_size=9, unique=True).map(sorted),
)
def test_a_straight_line_has_no_knee(slope: float, x: list[int]) -> None:
    # From 8 times on the horizontal axis is logarithmic; a line that is straight there has none either.
    across = [math.log(value) for value in x] if x[0] > 0 and x[-1] >= 8 * x[0] else x
    assert charts.knee(x, [7 + slope * value for value in across]) is None


@given(st.lists(st.floats(0, 100), min_size=4, max_size=12))
def test_a_knee_is_never_an_end_of_the_curve(curve: list[float]) -> None:
    at = charts.knee(list(range(1, len(curve) + 1)), curve)
    assert at is None or 0 < at < len(curve) - 1


def test_a_curve_that_goes_up_and_down_has_no_knee_and_the_title_names_both_ends() -> None:
    rows = [{"size": size, "speed": speed} for size, speed in ((1, 5), (2, 80), (3, 90), (4, 60), (5, 20))]
    figure = charts.sweep(rows, x="size", y="speed")
    assert knees(figure) == []
    assert figure.layout.title.text == "Speed is least at size 1 (5), most at 3 (90)"


def test_noise_at_the_end_of_a_curve_does_not_hide_its_knee() -> None:
    noisy = [*SATURATING[:-1], {"budget": 256, "speed": 97}]
    assert knees(charts.sweep(noisy, x="budget", y="speed")) == [64]


def test_measures_of_real_runs_have_a_panel_each(serve) -> None:
    rows = []
    for budget in (8, 16, 32, 64):
        modelled = timeline(serve(budget=budget).trace, GPUS["H200"], MODELS["Llama-3-8B"])
        first, speed = modelled.mean_time_to_first_token, modelled.tokens_per_second
        rows.append({"budget": budget, "first": first, "speed": speed})
    figure = charts.sweep(rows, x="budget", y=["first", "speed"], labels={"first": "time to first token, ms"})
    assert [curve.y for curve in figure.data] == [tuple(row[key] for row in rows) for key in ("first", "speed")]
    assert [curve.yaxis for curve in figure.data] == ["y", "y2"]
    upper, lower = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert upper[0] > lower[1]
    told = charts.summary(figure)
    assert told.startswith("budget: 8, 16, 32 and 64. Time to first token ")
    assert digits(rows[0]["first"]) in told
    assert digits(rows[-1]["speed"]) in told


def test_labels_are_no_markup() -> None:
    figure = charts.sweep(SATURATING, x="budget", y="speed", labels={"budget": "<b>budget", "speed": "<i>speed"})
    assert "<b>" not in str(figure.to_plotly_json()).replace(charts.summary(figure), "")
    assert "<i>" not in str(figure.to_plotly_json()).replace(charts.summary(figure), "")


def test_one_setting_is_a_point_and_a_flat_curve_is_told_so() -> None:
    alone = charts.sweep([{"n": 4, "y": 2.5}], x="n", y="y")
    assert alone.layout.title.text == "Y is 2.5 at n 4, the only setting that was tried"
    flat = charts.sweep([{"n": n, "y": 7} for n in range(5)], x="n", y="y")
    assert flat.layout.title.text == "Y stays at 7, whatever n is"
    assert knees(flat) == []


@pytest.mark.parametrize(
    ("results", "y", "message"),
    [
        ([], "y", "no results"),
        ([{"n": 1}], "y", "result 0 has no 'y'; it has 'n'"),
        ([{"n": 1, "y": "fast"}], "y", "y is 'fast'; a chart needs a finite number"),
        ([{"n": 1, "y": math.nan}], "y", "finite"),
        ([{"n": True, "y": 1}], "y", "n is True"),
        ([{"n": 1, "y": 1}, {"n": 1, "y": 2}], "y", "two results have n = 1"),
        ([{"n": 1, "y": 1}], [], "names no measure"),
    ],
)
def test_results_that_cannot_be_drawn_are_refused(results, y, message: str) -> None:
    with pytest.raises(ChartError, match=message):
        charts.sweep(results, x="n", y=y)
