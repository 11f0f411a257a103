"""Give the seats of those who have finished to those who wait.

vLLM counterpart: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.update_from_output``, which takes out who has
finished, and the waiting pass of ``Scheduler.schedule``) at 0.25.1. What differs: only seats are short; token budget
and blocks always suffice.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise

TASK = """
A step is over, and the requests in `finished` ended with it. Before the next one, refill the seats.

- `running` are the requests that have a seat, in the order in which they got it. There are `max_num_seqs` seats.
- `waiting` are those that have none yet, in the order in which they came.

First, whoever has finished leaves `running`; the others keep their order. Then, as long as a seat is free and somebody
waits, the **first** of `waiting` moves to the **end** of `running`.

So a request waits for *a* seat, never for a whole batch to end: that is all of continuous batching.

Change `running` and `waiting` in place and return nothing.
"""


def refill_seats(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """Look at every request that was running, then at every seat that is free."""
    for request_id in sorted(finished):
        running.remove(request_id)
    while len(running) < max_num_seqs and len(waiting) > 0:
        running.append(waiting.pop(0))


def seats(running: str, waiting: str, finished: str, max_num_seqs: int) -> dict[str, Any]:
    """Return the inputs for requests of one letter each."""
    return {
        "running": list(running),
        "waiting": list(waiting),
        "finished": set(finished),
        "max_num_seqs": max_num_seqs,
    }


@st.composite
def any_seats(draw: st.DrawFn) -> dict[str, Any]:
    """One to four seats, at least one of them taken, and up to four requests that wait."""
    max_num_seqs = draw(st.integers(1, 4))
    num_running = draw(st.integers(1, max_num_seqs))
    ends = draw(st.lists(st.sampled_from([True, False]), min_size=num_running, max_size=num_running))
    running, waiting = "ABCD"[:num_running], "EFGH"[: draw(st.sampled_from([1, 2, 3, 4, 0]))]
    finished = "".join(name for name, has_ended in zip(running, ends, strict=True) if has_ended)
    return seats(running, waiting, finished, max_num_seqs)


EXERCISE = Exercise(
    name="refill_seats",
    lesson="01-batching",
    title="Refill the seats",
    task=TASK,
    reference=refill_seats,
    cases=(
        Case("a seat that falls free while the others go on", **seats("ABCD", "EF", "D", 4)),
        Case("a full batch that goes on", **seats("AB", "E", "", 2)),
        Case("two neighbours who have finished", **seats("ABCD", "EF", "BC", 4)),
        Case("two seats that were free before", **seats("AB", "EFG", "", 4)),
        Case("more free seats than requests that wait", **seats("ABCD", "E", "ACD", 4)),
        Case("a batch that ends as a whole", **seats("AB", "EFG", "AB", 2)),
        Case("the first step, before which nobody runs", **seats("", "ABCDE", "", 4)),
        Case("an empty queue", **seats("AB", "", "A", 2)),
        Case("no request at all", **seats("", "", "", 2)),
    ),
    strategy=any_seats(),
    changes=("running", "waiting"),
)
