"""The chart of memory shows what the pool itself said in each step."""

from __future__ import annotations

import pytest

from pagedlab import charts
from pagedlab.errors import TraceError
from pagedlab.events import BlocksEvicted, BlocksTouched, RequestPreempted
from pagedlab.trace import Trace

RUNS = ["calm", "crowded", "cached", "one_step"]


@pytest.fixture(params=RUNS)
def served(request: pytest.FixtureRequest):
    return request.getfixturevalue(request.param)


def test_the_layers_are_what_the_pool_held_while_the_model_ran(served) -> None:
    figure = charts.memory(served.trace)
    held, cached, empty = (layer.y for layer in figure.data)
    assert list(zip(held[:-1], cached[:-1], empty[:-1], strict=True)) == served.blocks
    assert [held[-1], cached[-1], empty[-1]] == list(served.blocks[-1])  # the last step has a width too
    assert figure.data[0].x == tuple(at - 0.5 for at in range(len(served.blocks) + 1))


def test_the_run_with_caching_hits_and_evicts_so_that_it_tests_something(cached) -> None:
    assert cached.trace.events(BlocksTouched)
    assert cached.trace.events(BlocksEvicted)
    assert max(count for _, count, _ in cached.blocks) > 3


def test_the_title_says_how_full_memory_gets(calm) -> None:
    most = max(held for held, _, _ in calm.blocks)
    step = [held for held, _, _ in calm.blocks].index(most)
    figure = charts.memory(calm.trace)
    assert figure.layout.title.text == (
        f"The fullest step fills {most / 59:.0%} of memory: {most} of 59 blocks are held in step {step}"
    )


def test_the_title_says_that_memory_ran_out_and_each_preemption_has_its_cross(crowded) -> None:
    figure = charts.memory(crowded.trace)
    lost = [record.step for record in crowded.trace if isinstance(record.event, RequestPreempted)]
    assert lost
    assert figure.layout.title.text.startswith(f"Memory ran out: {len(lost)} preemption")
    assert [note.x for note in figure.layout.annotations if note.text == "×"] == sorted(set(lost))


def test_the_summary_counts_the_last_step_and_the_mean(cached) -> None:
    held, free_but_cached, empty = cached.blocks[-1]
    mean = sum(count for count, _, _ in cached.blocks) / len(cached.blocks)
    told = charts.summary(charts.memory(cached.trace))
    assert f"{mean:.1f} on average" in told
    assert f"In the last step {held} " in told
    assert f"{free_but_cached} {'is' if free_but_cached == 1 else 'are'} free but cached" in told
    assert f"{empty} {'is' if empty == 1 else 'are'} empty" in told


def test_a_pool_that_stays_nearly_empty_does_not_flatten_the_chart(serve) -> None:
    served = serve({"A": (3, 2)}, blocks=600)
    figure = charts.memory(served.trace)
    assert figure.layout.yaxis.range[1] < 10
    assert any("599, far above" in note.text for note in figure.layout.annotations)
    assert "fills less than 1% of memory" in figure.layout.title.text  # and not 0%


def test_a_trace_that_begins_in_the_middle_knows_what_is_held_once_the_engine_has_said_what_is_free(calm) -> None:
    begin = next(at for at, record in enumerate(calm.trace.records) if record.step == 2)
    figure = charts.memory(Trace(calm.trace.records[begin:], settings=calm.trace.settings))
    steps, held = figure.data[0].customdata, figure.data[0].y
    assert dict(zip(steps[1:], held[1:], strict=True)) == {
        at: count for at, (count, _, _) in enumerate(calm.blocks) if at >= 3
    }  # step 2 has said it when it was over


def test_a_trace_without_steps_or_without_a_pool_is_refused(calm) -> None:
    with pytest.raises(TraceError, match="record while the engine runs"):
        charts.memory(Trace((), settings={"num_blocks": 8}))
    for settings in ({}, {"num_blocks": 1}, {"num_blocks": "many"}):
        with pytest.raises(TraceError, match="num_blocks"):
            charts.memory(Trace(calm.trace.records, settings=settings))
