"""The two charts of the course's seed 003, out of the two schedulers: 4 seats, 12 steps, 4 requests against 7."""

from __future__ import annotations

import pytest

from pagedlab.config import SchedulerConfig
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.scheduling import Scheduler, StaticBatchScheduler

SEATS, STEPS = 4, 12
# Name, steps it computes, the step (from 1) at which it arrives: E, F, G come while the first four run.
REQUESTS = (("A", 3, 1), ("B", 11, 1), ("C", 5, 1), ("D", 2, 1), ("E", 4, 3), ("F", 6, 4), ("G", 4, 7))


def chart(scheduler_type: type[Scheduler]) -> tuple[dict[str, str], int]:
    """Return each request's row of the chart (■ computing, ✓ done) and the idle seat-steps."""
    manager = KVCacheManager([FullAttentionSpec(4)], num_blocks=99, max_model_len=32)
    scheduler = scheduler_type(SchedulerConfig(16, max_num_seqs=SEATS), manager, max_model_len=32)
    rows: dict[str, list[str]] = {}
    done: list[str] = []
    idle = 0
    for step in range(1, STEPS + 1):
        for name, length, arrival in REQUESTS:
            if arrival == step:
                params = SamplingParams(max_tokens=length, temperature=0)
                scheduler.add_request(Request(name, [1], params, arrival_time=step))
        for name in done:
            rows[name][step - 1] = "✓"
        output = scheduler.schedule()
        idle += SEATS - len(output.scheduled)
        for name, _ in output.scheduled:
            rows.setdefault(name, [" "] * STEPS)[step - 1] = "■"
        result = scheduler.update_from_output(output, {name: (7,) for name, _ in output.scheduled})
        done = list(result.finish_reasons)
    return {name: "".join(row).rstrip() for name, row in rows.items()}, idle


def test_static_batching_leaves_seats_empty_until_the_longest_has_finished() -> None:
    rows, idle = chart(StaticBatchScheduler)
    served = {name: row for name, row in rows.items() if "✓" in row}
    assert served == {"A": "■■■✓", "B": "■■■■■■■■■■■✓", "C": "■■■■■✓", "D": "■■✓"}
    # In the twelfth step the batch is over, and the three that waited begin, leaving one seat.
    assert idle == 11 * SEATS - (3 + 11 + 5 + 2) + 1


def test_continuous_batching_serves_seven_in_the_same_twelve_steps() -> None:
    rows, idle = chart(Scheduler)
    assert rows == {
        "A": "■■■✓",
        "B": "■■■■■■■■■■■✓",
        "C": "■■■■■✓",
        "D": "■■✓",
        "E": "  ■■■■✓",
        "F": "   ■■■■■■✓",
        "G": "      ■■■■✓",
    }
    assert idle == SEATS * STEPS - sum(length for _, length, _ in REQUESTS)


@pytest.mark.parametrize("scheduler_type", [Scheduler, StaticBatchScheduler])
def test_both_serve_everybody_in_the_end(scheduler_type: type[Scheduler]) -> None:
    manager = KVCacheManager([FullAttentionSpec(4)], num_blocks=99, max_model_len=32)
    scheduler = scheduler_type(SchedulerConfig(16, max_num_seqs=2), manager, max_model_len=32)
    for name, length, arrival in REQUESTS:
        scheduler.add_request(Request(name, [1], SamplingParams(max_tokens=length), arrival_time=arrival))
    finished: set[str] = set()
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        finished |= scheduler.update_from_output(
            output, {name: (7,) for name, _ in output.scheduled}
        ).finish_reasons.keys()
        scheduler.check_integrity()
    assert finished == {name for name, *_ in REQUESTS}
