"""The chart of the budget shows who was granted what, and who waited, as the events and the scheduler say."""

from __future__ import annotations

from collections import Counter

import pytest

from pagedlab import charts
from pagedlab.charts.steps import steps_of
from pagedlab.charts.template import COLORS, GREYS
from pagedlab.errors import ChartError, TraceError
from pagedlab.events import RequestAdded, RequestPreempted, RequestScheduled
from pagedlab.trace import Trace


def granted(trace: Trace) -> Counter[tuple[str, int]]:
    """Tokens by request and step, without what a preemption took back."""
    got: Counter[tuple[str, int]] = Counter()
    for record in trace:
        match record.event:
            case RequestScheduled(request_id=request_id, num_scheduled_tokens=tokens):
                got[request_id, record.step] += tokens
            case RequestPreempted(request_id=request_id):
                got.pop((request_id, record.step), None)
    return got


def bars(figure, axis: str = "y") -> dict[str, list[int]]:
    return {bar.name: [count or 0 for count in bar.y] for bar in figure.data if (bar.yaxis or "y") == axis}


@pytest.mark.parametrize("run", ["calm", "crowded", "cached", "static", "one_step"])
def test_bars_are_what_each_request_was_granted(run: str, request: pytest.FixtureRequest) -> None:
    served = request.getfixturevalue(run)
    shown = bars(charts.budget(served.trace, by="request"))
    assert list(shown) == [event.request_id for event in served.trace.events(RequestAdded)]
    assert {(name, at): count for name, counts in shown.items() for at, count in enumerate(counts) if count} == dict(
        granted(served.trace)
    )


@pytest.mark.parametrize("run", ["calm", "crowded", "static"])
def test_those_that_wait_are_the_schedulers_queue(run: str, request: pytest.FixtureRequest) -> None:
    served = request.getfixturevalue(run)
    assert max(served.waiting) > 0
    assert bars(charts.budget(served.trace), "y2") == {"waiting": served.waiting}
    assert bars(charts.budget(served.trace, waiting=False), "y2") == {}


def test_nobody_waits_so_there_is_no_second_panel(one_step) -> None:
    figure = charts.budget(one_step.trace)
    assert "waiting" not in {bar.name for bar in figure.data}
    assert "wait" not in charts.summary(figure)


@pytest.mark.parametrize("by", ["phase", "kind"])
def test_both_parts_add_up_to_all_that_was_granted(by: str, crowded) -> None:
    first, rest = bars(charts.budget(crowded.trace, by=by)).values()
    per_step = Counter(step for (_, step), count in granted(crowded.trace).items() for _ in range(count))
    assert [a + b for a, b in zip(first, rest, strict=True)] == [per_step[at] for at in range(len(first))]


def test_output_that_a_preemption_lost_is_computed_again_in_a_prefill_but_is_no_prompt(crowded) -> None:
    phase, kind = (bars(charts.budget(crowded.trace, by=by)) for by in ("phase", "kind"))
    prompts = {event.request_id: len(event.prompt_token_ids) for event in crowded.trace.events(RequestAdded)}
    by_hand = Counter()
    for record in crowded.trace:
        if isinstance(record.event, RequestScheduled):
            event = record.event
            for position in range(event.num_computed_tokens, event.num_computed_tokens + event.num_scheduled_tokens):
                by_hand[record.step] += position < prompts[event.request_id]
    assert kind["prompt tokens"] == [by_hand[at] for at in range(len(kind["prompt tokens"]))]
    assert sum(phase["prefill"]) > sum(kind["prompt tokens"])


def test_the_title_counts_the_steps_that_spend_the_whole_budget(crowded) -> None:
    per_step = Counter()
    for (_, step), count in granted(crowded.trace).items():
        per_step[step] += count
    full = sum(count == 16 for count in per_step.values())
    assert full > 1
    figure = charts.budget(crowded.trace)
    assert figure.layout.title.text == (
        f"{full} of {crowded.trace.num_steps} steps spend the whole budget of 16 tokens, while up to "
        f"{max(crowded.waiting)} request waits"
    )
    told = charts.summary(figure)
    assert f"{per_step.total()} tokens, {per_step.total() / 16 / crowded.trace.num_steps:.0%} of the budgets" in told
    assert f"Requests wait in {sum(map(bool, crowded.waiting))} steps" in told


def test_a_budget_that_is_never_spent_is_told_so(one_step) -> None:
    title = charts.budget(one_step.trace).layout.title.text
    assert title == "No step spends the whole budget of 40 tokens, the fullest one 3"


def test_a_trace_that_does_not_tell_its_budget_is_shown_without_one(one_step) -> None:
    figure = charts.budget(Trace(one_step.trace.records, settings={"max_num_batched_tokens": "big"}))
    assert figure.layout.title.text == "3 tokens in 1 step"
    assert not figure.layout.shapes


def test_a_budget_far_above_all_that_is_granted_does_not_flatten_the_chart(serve) -> None:
    served = serve({"A": (3, 2)}, budget=4000)
    figure = charts.budget(served.trace)
    assert figure.layout.yaxis.range[1] < 5
    assert any(note.text == "the budget: 4,000, far above" for note in figure.layout.annotations)
    assert "less than 1% of the budgets of 2 steps" in charts.summary(figure)


def test_a_title_can_be_given_and_is_no_markup(one_step) -> None:
    figure = charts.budget(one_step.trace, title="<b>A & B</b>")
    assert figure.layout.title.text == "&lt;b&gt;A &amp; B&lt;/b&gt;"
    assert charts.summary(figure).startswith("<b>A & B</b>.")


def test_requests_have_colours_and_what_is_no_request_has_none(calm) -> None:
    by_request = [bar.marker.color for bar in charts.budget(calm.trace, by="request", waiting=False).data]
    assert by_request == list(COLORS[:6])
    for by in ("phase", "kind"):
        looks = {(bar.marker.color, bar.marker.pattern.shape) for bar in charts.budget(calm.trace, by=by).data[:2]}
        assert {color for color, _ in looks} == set(GREYS)
        assert len({shape for _, shape in looks}) == 2


def test_a_trace_of_later_steps_keeps_their_numbers(calm) -> None:
    begin = next(at for at, record in enumerate(calm.trace.records) if record.step == 3)
    figure = charts.budget(Trace(calm.trace.records[begin:], settings=calm.trace.settings), by="request")
    assert set(figure.data[0].x) == set(range(3, calm.trace.num_steps))
    assert {bar.name for bar in figure.data} > {"C"}


def test_a_trace_that_stops_in_the_middle_of_a_step_shows_what_was_granted(calm) -> None:
    end = max(at for at, record in enumerate(calm.trace.records) if isinstance(record.event, RequestScheduled))
    cut = Trace(calm.trace.records[: end + 1], settings=calm.trace.settings)
    assert [step.num_tokens for step in steps_of(cut)] == [step.num_tokens for step in steps_of(calm.trace)]


def test_wrong_ways_and_empty_traces_are_refused(calm) -> None:
    with pytest.raises(ChartError, match="'phase', 'kind', 'request'"):
        charts.budget(calm.trace, by="user")
    with pytest.raises(TraceError, match="record while the engine runs"):
        charts.budget(Trace(()))
