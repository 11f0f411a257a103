"""Share out the token budget of one step: the running requests first, then the waiting ones.

vLLM counterpart: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.schedule``) at 0.25.1. What differs: blocks always
suffice, so nobody is preempted and nobody waits for memory; there are no prefix hits, no drafts and no
``long_prefill_token_threshold``; a request is its name, and what is known of it stands in dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Decide how many tokens each request computes in the next step.

There is no prefill phase and no decode phase. Request `r` has `num_tokens[r]` tokens, prompt and output together, of
which `num_computed_tokens[r]` are computed. It wants the others: one token if it decodes, many if its prompt has just
come. A step has a **budget** of `max_num_batched_tokens` tokens, which all requests share. Blocks suffice for all.

1. **The running requests**, in the order of `running`. Each gets what it wants, or what is left of the budget if that
   is less. When nothing is left, the step is full.
2. **The waiting requests**, as long as some budget is left, somebody waits, and fewer than `max_num_seqs` requests run.
   The first of `waiting` gets what it wants, or what is left of the budget, and moves to the end of `running`. But if
   `enable_chunked_prefill` is false, its prompt may not be cut: if it wants more than what is left, it stays, and **all
   behind it** stay too.

Return a dict: how many tokens each request gets. Who gets none is not in it. The step is promised, so add the tokens to
`num_computed_tokens` at once. Change `running`, `waiting` and `num_computed_tokens` in place.
"""


def schedule(
    running: list[str],
    waiting: list[str],
    num_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    enable_chunked_prefill: bool,
) -> dict[str, int]:
    """Ask one request after the other."""
    num_scheduled_tokens: dict[str, int] = {}
    budget = max_num_batched_tokens
    for request_id in running:
        num_new_tokens = min(num_tokens[request_id] - num_computed_tokens[request_id], budget)
        if num_new_tokens > 0:
            budget -= num_new_tokens
            num_scheduled_tokens[request_id] = num_new_tokens
            num_computed_tokens[request_id] += num_new_tokens
    while budget > 0 and len(waiting) > 0 and len(running) < max_num_seqs:
        request_id = waiting[0]
        num_new_tokens = num_tokens[request_id] - num_computed_tokens[request_id]
        if num_new_tokens > budget and not enable_chunked_prefill:
            break
        num_new_tokens = min(num_new_tokens, budget)
        running.append(waiting.pop(0))
        budget -= num_new_tokens
        num_scheduled_tokens[request_id] = num_new_tokens
        num_computed_tokens[request_id] += num_new_tokens
    return num_scheduled_tokens


def what_was_decided(values: Values) -> Mapping[str, Any]:
    """Give what is returned its name, and its place before all else."""
    num_scheduled_tokens = values["returned"]
    changed = {name: value for name, value in values.items() if name != "returned"}
    return {"num_scheduled_tokens": num_scheduled_tokens, **changed}


def step(
    requests: Mapping[str, tuple[int, int]],
    waiting: str = "",
    budget: int = 16,
    seats: int = 4,
    *,
    chunked: bool = True,
) -> dict[str, Any]:
    """Return the inputs for requests of (tokens, of which are computed); those in ``waiting`` wait, the others run."""
    return {
        "running": [name for name in requests if name not in waiting],
        "waiting": list(waiting),
        "num_tokens": {name: num_tokens for name, (num_tokens, _) in requests.items()},
        "num_computed_tokens": {name: num_computed for name, (_, num_computed) in requests.items()},
        "max_num_batched_tokens": budget,
        "max_num_seqs": seats,
        "enable_chunked_prefill": chunked,
    }


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Any step. With chunks off, a prompt fits an empty one, and whoever runs decodes."""
    chunked = draw(st.sampled_from([True, False]))
    seats = draw(st.integers(1, 4))
    budget = draw(st.integers(seats, 12))
    requests: dict[str, tuple[int, int]] = {}
    for name in "ABCD"[: draw(st.integers(0, seats))]:
        num_computed = draw(st.integers(1, 9))
        requests[name] = (num_computed + (draw(st.sampled_from([1, 1, 5, 20])) if chunked else 1), num_computed)
    waiting = "EFGH"[: draw(st.integers(0 if requests else 1, 4))]
    for name in waiting:
        requests[name] = (draw(st.integers(1, 20 if chunked else budget)), 0)
    return step(requests, waiting, budget, seats, chunked=chunked)


EXERCISE = Exercise(
    name="schedule",
    lesson="07-token-budget",
    title="Schedule a step",
    task=TASK,
    reference=schedule,
    cases=(
        Case("two that decode, and a prompt that fits", **step({"A": (9, 8), "B": (5, 4), "C": (6, 0)}, "C")),
        Case("a prompt of which the budget takes a part", **step({"A": (9, 8), "B": (40, 0)}, "B")),
        Case("a prompt that goes on, and one behind it", **step({"A": (40, 15), "B": (9, 8), "C": (6, 0)}, "C")),
        Case("more prompts than seats", **step({"A": (9, 8), "B": (3, 0), "C": (2, 0), "D": (2, 0)}, "BCD", seats=3)),
        Case(
            "chunks that are off, and a prompt that does not fit today",
            **step({"A": (9, 8), "B": (16, 0)}, "B", chunked=False),
        ),
        Case(
            "chunks that are off, and a short prompt behind a long one",
            **step({"A": (9, 8), "B": (16, 0), "C": (3, 0)}, "BC", chunked=False),
        ),
        Case("a prompt that just fits", **step({"A": (9, 8), "B": (15, 0), "C": (3, 0)}, "BC", chunked=False)),
        Case("a full batch that decodes", **step({"A": (9, 8), "B": (5, 4), "C": (3, 0)}, "C", budget=8, seats=2)),
        Case("the first step, before which nobody runs", **step({"A": (3, 0), "B": (11, 0), "C": (5, 0)}, "ABC")),
        Case("no request at all", **step({})),
    ),
    strategy=steps(),
    changes=("running", "waiting", "num_computed_tokens"),
    view=what_was_decided,
)
