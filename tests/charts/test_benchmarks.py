"""Bars of kernels and of a step show the committed measurements, with their floors."""

from __future__ import annotations

from typing import Any

import pytest

from pagedlab import charts
from pagedlab.bench.recorded import recorded_kernels
from pagedlab.charts.labels import digits
from pagedlab.errors import ChartError

DATA = recorded_kernels()


def rows_of(kernel: str, needed: str = "microseconds") -> list[dict[str, Any]]:
    return [row for row in DATA["rows"] if row["kernel"] == kernel and needed in row]


def floors(figure, dash: str) -> list[float]:
    return [shape.x0 for shape in figure.layout.shapes if shape.line.dash == dash]


def test_bars_are_the_measured_times_and_floors_stand_in_their_rows() -> None:
    rows = rows_of("slot_mapping", "launch_floor")
    figure = charts.kernel_bars(rows, others=["vLLM 0.25.1"])
    ours, theirs = figure.data
    assert (ours.name, theirs.name) == ("pagedlab", "vLLM 0.25.1")
    assert list(ours.x) == [row["microseconds"] for row in rows]
    assert list(theirs.x) == [row["others"]["vLLM 0.25.1"] for row in rows]
    assert floors(figure, "solid") == [row["launch_floor"] for row in rows]
    assert floors(figure, "dot") == [row["bytes_floor"] for row in rows]
    for at, shape in enumerate(figure.layout.shapes[: len(rows)]):
        assert (shape.y0 + shape.y1) / 2 == pytest.approx(at)
    assert {"launch floor", "bytes floor"} <= {note.text for note in figure.layout.annotations}


def test_the_title_says_how_much_faster_from_the_least_to_the_most() -> None:
    rows = rows_of("slot_mapping", "launch_floor")
    ratios = sorted(row["others"]["vLLM 0.25.1"] / row["microseconds"] for row in rows)
    figure = charts.kernel_bars(rows)
    assert figure.layout.title.text == (
        f"Slot mapping: {ratios[0]:.1f} to {ratios[-1]:.0f} times as fast as vLLM 0.25.1, in {len(rows)} cases"
    )
    told = charts.summary(figure)
    times = sorted(row["microseconds"] for row in rows)
    assert f"pagedlab: {digits(times[0])} to {digits(times[-1])} µs." in told
    assert f"Launch floor: {digits(rows[0]['launch_floor'])} µs." in told


def test_in_gb_per_s_others_are_as_much_slower_and_the_floor_is_the_speed_of_the_copy() -> None:
    rows = rows_of("paged_attention", "gb_per_s")
    figure = charts.kernel_bars(rows, measure="gb_per_s")
    ours, other = figure.data[:2]
    assert ours.x == pytest.approx([row["gb_per_s"] for row in rows])
    for row, speed in zip(rows, other.x, strict=True):
        time = row["others"].get(other.name)
        assert (speed is None) == (time is None)  # nobody has measured it there
        assert time is None or speed / row["gb_per_s"] == pytest.approx(row["microseconds"] / time)
    (copy,) = rows_of("copy")
    assert floors(figure, "dot") == pytest.approx([copy["gb_per_s"]] * len(rows), rel=0.02)
    shares = sorted(row["bytes_floor"] / row["microseconds"] for row in rows)
    assert f"at {shares[0]:.0%} to {shares[-1]:.0%} of a large copy" in figure.layout.title.text


@pytest.mark.parametrize("kernel", ["slot_mapping", "commit", "kv_cache_write", "paged_attention"])
def test_every_measured_kernel_can_be_drawn_with_its_words_inside_the_plot(kernel: str) -> None:
    rows = rows_of(kernel)
    figure = charts.kernel_bars(rows)
    assert figure.data[0].text[0].startswith("pagedlab: ")
    stop = figure.layout.xaxis.range[1]
    high = max(value for bar in figure.data for value in bar.x if value is not None)
    assert (10**stop if figure.layout.xaxis.type == "log" else stop) > 1.02 * high


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no rows"),
        ([{"kernel": "a", "case": "x", "microseconds": 1}, {"kernel": "b"}], {}, "several kernels, "),
        ([{"kernel": "a", "case": "x"}], {}, "'x' has no microseconds"),
        ([{"kernel": "a", "case": "x", "microseconds": 1}], {"measure": "gb_per_s"}, "'x' has no gb_per_s"),
        ([{"kernel": "a", "case": "x", "microseconds": 1}], {"measure": "hours"}, "'microseconds' or 'gb_per_s'"),
        ([{"kernel": "a", "case": "x", "microseconds": 1}], {"others": ["me"]}, "no row has a figure of 'me'"),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(rows, options, message: str) -> None:
    with pytest.raises(ChartError, match=message):
        charts.kernel_bars(rows, **options)


WAYS = {way: DATA["engine"][way]["step_us"] for way in ("graphs", "eager", "torch")}


def test_the_parts_of_a_step_are_stacked_up_to_their_sums() -> None:
    figure = charts.step_parts(WAYS, step="a step of 256 decodes")
    assert {bar.name: list(bar.x) for bar in figure.data} == {
        part: [of[part] for of in WAYS.values()] for part in WAYS["graphs"]
    }
    assert figure.layout.barmode == "stack"
    sums = [sum(of.values()) for of in WAYS.values()]
    assert [note.text for note in figure.layout.annotations] == list(map(digits, sums))
    looks = {(bar.marker.color, bar.marker.pattern.shape) for bar in figure.data}
    assert len(looks) == len(figure.data)


def test_the_title_says_what_most_of_the_quickest_and_of_the_slowest_step_is() -> None:
    title = charts.step_parts(WAYS).layout.title.text.replace("<br>", " ")
    sums = {way: sum(of.values()) for way, of in WAYS.items()}
    for way in (min(sums, key=sums.__getitem__), max(sums, key=sums.__getitem__)):
        part = max(WAYS[way], key=WAYS[way].__getitem__)
        assert f"{digits(sums[way])} µs, {WAYS[way][part] / sums[way]:.0%} of it {part}, with {way}" in title


def test_ways_of_other_parts_or_none_are_refused() -> None:
    with pytest.raises(ChartError, match="no step to show"):
        charts.step_parts({})
    with pytest.raises(ChartError, match="no step to show"):
        charts.step_parts({"a": {}})
    with pytest.raises(ChartError, match="b has the parts z; the first way has x, y"):
        charts.step_parts({"a": {"x": 1, "y": 2}, "b": {"z": 3}})
