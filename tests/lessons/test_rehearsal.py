"""A rehearsal decides as an engine does, and keeps the time model's clock."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.errors import ConfigError, DuplicateRequestError, IntegrityError, PagedlabError, RequestError
from pagedlab.events import BlocksAllocated, RequestScheduled, StepFinished
from pagedlab.teaching import PEOPLE, serve
from pagedlab.teaching.rehearsal import Visitor, rehearse
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPUS, MODELS, timeline

SEVEN = [Visitor(name, 0, len(prompt), length) for name, (prompt, length) in PEOPLE.items()]


def grants(trace: Trace) -> list[tuple[int, RequestScheduled]]:
    return [(record.step, record.event) for record in trace if isinstance(record.event, RequestScheduled)]


@pytest.mark.parametrize("budget", [8, 16, 128])
def test_a_rehearsal_gives_everybody_what_the_engine_with_its_model_gives(budget: int) -> None:
    rehearsed = rehearse(SEVEN, budget=budget, seats=4, block_size=4).trace
    assert grants(rehearsed) == grants(serve(budget=budget).trace)


def test_its_blocks_are_the_engines() -> None:
    engine = serve()
    rehearsed = rehearse(SEVEN, budget=128, seats=4, block_size=4, num_blocks=engine.engine.config.num_blocks).trace
    assert rehearsed.events(BlocksAllocated) == engine.trace.events(BlocksAllocated)
    assert rehearsed.events(StepFinished) == engine.trace.events(StepFinished)


def test_its_clock_is_that_of_the_time_model() -> None:
    rehearsal = rehearse(SEVEN, budget=16, seats=4)
    assert rehearsal.timeline == timeline(rehearsal.trace, GPUS["H200"], MODELS["Llama-3-8B"])


def test_who_comes_in_the_middle_of_a_step_waits_from_then_on() -> None:
    long, late = Visitor("long", 0, 8000, 1), Visitor("late", 1, 10, 1)
    rehearsal = rehearse([late, long], budget=8192, seats=2)
    first, second = rehearsal.timeline.step_ends
    assert rehearsal.timeline.requests[1].added == 1
    assert rehearsal.time_to_first_token("late") == second - 1
    assert second > first > 100


def test_the_clock_goes_on_to_the_next_visitor_if_nobody_is_there() -> None:
    early, late = Visitor("early", 0, 10, 1), Visitor("late", 5000, 10, 1)
    rehearsal = rehearse([early, late])
    assert rehearsal.timeline.step_ends[1] > 5000
    assert rehearsal.time_to_first_token("late") == pytest.approx(rehearsal.time_to_first_token("early"))
    assert rehearsal.longest_wait("early") == 0


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=8),
    st.integers(4, 40),
)
def test_no_step_goes_beyond_the_budget_and_everybody_is_served(
    crowd: list[tuple[float, int, int]], budget: int
) -> None:
    visitors = [Visitor(f"r{number}", *of) for number, of in enumerate(crowd)]
    rehearsal = rehearse(visitors, budget=budget, seats=4, block_size=4)
    for _, step in groupby(grants(rehearsal.trace), key=lambda item: item[0]):
        assert sum(event.num_scheduled_tokens for _, event in step) <= budget
    wanted = {visitor.name: visitor.num_output_tokens for visitor in visitors}
    assert {request.request_id: len(request.token_times) for request in rehearsal.timeline.requests} == wanted


def test_a_small_pool_preempts_and_still_serves_all() -> None:
    rehearsal = rehearse(SEVEN, budget=128, seats=4, block_size=4, num_blocks=14)
    assert {"resumed", "new"} <= {event.status for _, event in grants(rehearsal.trace)}
    assert all(len(request.token_times) == PEOPLE[request.request_id][1] for request in rehearsal.timeline.requests)


@pytest.mark.parametrize(
    ("visitors", "options", "error", "says"),
    [
        ([], {}, RequestError, "no visitors"),
        ([Visitor("A", -1, 5, 5)], {}, RequestError, "at least 0 ms"),
        ([Visitor("A", 0, 0, 5)], {}, RequestError, "at least 1 token"),
        ([Visitor("A", 0, 5, 0)], {}, RequestError, "at least 1 token"),
        ([Visitor("A", 0, 5, 5)], {"max_model_len": 9}, RequestError, r"max_model_len \(9\)"),
        ([Visitor("A", 0, 5, 5)] * 2, {}, DuplicateRequestError, "'A'"),
        ([Visitor("A", 0, 50, 5)], {"budget": 54, "seats": 1, "enable_chunked_prefill": False}, ConfigError, "54"),
        ([Visitor("A", 0, 50, 5)], {"num_blocks": 2}, IntegrityError, "too small"),
    ],
)
def test_what_cannot_be_rehearsed_is_named(
    visitors: list[Visitor], options: dict[str, int], error: type[PagedlabError], says: str
) -> None:
    with pytest.raises(error, match=says):
        rehearse(visitors, **options)


def test_asking_for_somebody_who_was_not_there_is_named() -> None:
    with pytest.raises(RequestError, match="'Z'"):
        rehearse(SEVEN).longest_wait("Z")
