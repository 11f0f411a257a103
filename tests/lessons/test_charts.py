from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pagedlab import LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.teaching import charts
from pagedlab.trace import Trace

PLAYER = Path(charts.__file__).parents[1] / "widgets" / "player.js"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Z is added first; Y, of higher priority, is scheduled first."""
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, policy="priority")
    engine = LLMEngine("quill", scheduler_config=config)
    recorder = record(engine)
    for name, priority in (("Z", 1), ("Y", 0)):
        params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
        engine.add_request(name, "To be, or not", params, priority=priority)
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.stop()


def figure(trace: Trace, by: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(charts, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    charts.show_tokens(trace, "a finding", by=by)
    chart: dict[str, Any] = shown[0]["application/vnd.plotly.v1+json"]
    return chart


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_request_looks_as_in_the_player() -> None:
    lists = dict(re.findall(r"^const (COLOURS|PATTERNS) = \[(.*)\];", PLAYER.read_text(encoding="utf-8"), re.MULTILINE))
    names = {"": "plain", "/": "hatched", ".": "dotted", "x": "crossed", "-": "striped"}
    assert re.findall(r'"(.*?)"', lists["COLOURS"]) == list(charts.COLORS)
    assert re.findall(r'"(.*?)"', lists["PATTERNS"]) == [names[pattern] for pattern in charts.PATTERNS]


def test_requests_are_numbered_as_they_were_added_not_as_they_were_scheduled(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = figure(trace, "request", monkeypatch)["data"]
    assert [(bar["name"], bar["marker"]["color"]) for bar in bars] == [("Z", "#0072B2"), ("Y", "#E69F00")]
    granted = charts.tokens_by_request(trace)
    assert granted["Y"][0] > granted["Z"][0]  # the scheduler's order is the other


def test_kinds_of_tokens_look_like_no_request(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = figure(trace, "kind", monkeypatch)["data"]
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars}
    assert len(looks) == 2
    assert not {color for color, _ in looks} & set(charts.COLORS)


def test_text_is_large_enough_and_readable_on_what_is_behind_it(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = figure(trace, "request", monkeypatch)
    layout = chart["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == charts.GROUND  # on any page
    assert contrast(layout["font"]["color"], charts.GROUND) >= 4.5
    sizes = [layout["font"]["size"], layout["title"]["font"]["size"], layout["uniformtext"]["minsize"]]
    assert min(sizes) >= 13
    many = charts._figure({name: [1] for name in "ABCDEFG"}, [charts._look(index) for index in range(7)], 1, "t")
    for bar in many.data:
        assert contrast(bar.insidetextfont.color, bar.marker.color) >= 4.5, bar.name


def test_the_table_says_how_many_steps_it_leaves_out(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    charts.show_tokens(trace, "a finding")
    title, steps, first, *_ = capsys.readouterr().out.splitlines()
    assert title == "a finding"
    assert steps.endswith(f"23   (step) … {trace.num_steps - 24} more steps")
    assert len(first.partition("|")[2].split()) == 24
    assert "more" not in charts._text({"A": [1] * 24}, "t")
