"""`show_tokens` shows a lesson's chart where there are pictures, and its numbers where there are none."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from pagedlab import LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.charts import showing
from pagedlab.charts.budget_chart import parts_of
from pagedlab.errors import ChartError
from pagedlab.teaching import charts
from pagedlab.trace import Trace

MIME = "application/vnd.plotly.v1+json"


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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a notebook is given to display."""
    bundles: list[dict[str, Any]] = []
    for module, name in ((charts, "in_notebook"), (showing, "_in_notebook")):
        monkeypatch.setattr(module, name, lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: bundles.append(data))
    return bundles


def test_requests_are_numbered_as_they_were_added_not_as_they_were_scheduled(
    trace: Trace, shown: list[dict[str, Any]]
) -> None:
    charts.show_tokens(trace, "a finding")
    bars = shown[0][MIME]["data"]
    assert [(bar["name"], bar["marker"]["color"]) for bar in bars] == [("Z", "#0072B2"), ("Y", "#E69F00")]
    granted = parts_of(trace, "request")
    assert granted["Y"][0] > granted["Z"][0]  # the scheduler's order is the other
    assert list(bars[0]["y"]) == [count or None for count in granted["Z"]]


def test_the_lesson_gives_the_title_and_the_words_below_begin_with_it(
    trace: Trace, shown: list[dict[str, Any]]
) -> None:
    charts.show_tokens(trace, "26 prompt tokens & 60 new ones", by="kind")
    chart, words = shown
    assert chart[MIME]["layout"]["title"]["text"] == "26 prompt tokens &amp; 60 new ones"
    assert words["text/plain"].startswith("26 prompt tokens & 60 new ones.")
    assert "prompt tokens 26 and output tokens 58" in words["text/plain"]  # the last token of each is not computed


def test_where_there_are_no_pictures_the_same_bundle_has_the_numbers(trace: Trace, shown: list[dict[str, Any]]) -> None:
    charts.show_tokens(trace, "a finding")
    table = shown[0]["text/plain"].splitlines()
    assert table[0] == "a finding"
    assert [line.split("|")[0].strip() for line in table[2:]] == ["Z", "Y"]


def test_the_table_says_how_many_steps_it_leaves_out(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    charts.show_tokens(trace, "a finding")
    title, steps, first, *_ = capsys.readouterr().out.splitlines()
    assert title == "a finding"
    assert steps.endswith(f"23   (step) … {trace.num_steps - 24} more steps")
    assert first.partition("|")[2].split() == [str(count or ".") for count in parts_of(trace, "request")["Z"][:24]]
    assert "more" not in charts._table({"A": [1] * 24}, "t")


def test_a_notebook_without_plotly_gets_the_table(
    trace: Trace, shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(name: str) -> ModuleSpec | None:
        assert name == "plotly"
        return None

    monkeypatch.setattr(charts, "find_spec", find)
    charts.show_tokens(trace, "a finding")
    assert shown == []
    assert capsys.readouterr().out.startswith("a finding\n")


def test_what_a_bar_can_be_made_of_is_told(trace: Trace) -> None:
    with pytest.raises(ChartError, match="'phase', 'kind', 'request'"):
        charts.show_tokens(trace, "a finding", by="colour")
