"""Schedule a step while blocks run short: preempt who came last, resume who was preempted.

vLLM counterpart: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.schedule``, ``._preempt_request``), and what
``_update_states`` of ``vllm/v1/worker/gpu_model_runner.py`` does with block ids, at 0.25.1. What differs: token budget
and seats always suffice, the policy is first come first served, and there is no prefix cache. Scheduler and worker
share one list of block ids for each request, which outlives the preemption as the worker's does in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Schedule one step in which blocks may run short.

A request has `num_prompt_tokens + num_output_tokens` tokens. In this step it computes those that are not in
`num_computed_tokens` yet, and then **all** of them need room: `block_size` tokens fit into a block. What a running
request holds is in `block_ids`, in the order of its tokens; what is free is in `free_block_ids`, the next one first.

1. **The running requests**, in the order of `running`. As long as fewer blocks are free than the request lacks, the
   **last** of `running` is preempted. It leaves `running` and becomes the first of `waiting`; its blocks go to the head
   of `free_block_ids`, its last one first; and nothing of it is computed any more. If that was the very request which
   lacks blocks, the pass ends. Otherwise the request gets the blocks that it lacks, behind those that it holds, and all
   its tokens count as computed.
2. **The waiting requests**, but only in a step that has preempted nobody. As long as enough blocks are free for all
   tokens of the first of `waiting`, it moves to the end of `running`. Its blocks are those that it gets now, and all
   its tokens count as computed. If the first does not fit, all behind it wait too.

The worker keeps what it knew of a preempted request, its old block ids too. So for one that waits, `block_ids` may hold
ids that are others' by now. Change the lists and dicts in place and return nothing.
"""


def preempt_resume(
    running: list[str],
    waiting: list[str],
    num_prompt_tokens: dict[str, int],
    num_output_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    block_ids: dict[str, list[int]],
    free_block_ids: list[int],
    block_size: int,
) -> None:
    """Look for room for one request after the other; make it at the cost of the last."""
    has_preempted = False
    for request_id in list(running):
        num_tokens = num_prompt_tokens[request_id] + num_output_tokens[request_id]
        while request_id in running and (len(block_ids[request_id]) + len(free_block_ids)) * block_size < num_tokens:
            has_preempted = True
            victim = running.pop()
            waiting.insert(0, victim)
            num_computed_tokens[victim] = 0
            for block_id in block_ids[victim]:
                free_block_ids.insert(0, block_id)
        if request_id not in running:
            break
        while len(block_ids[request_id]) * block_size < num_tokens:
            block_ids[request_id].append(free_block_ids.pop(0))
        num_computed_tokens[request_id] = num_tokens
    while len(waiting) > 0 and not has_preempted:
        request_id = waiting[0]
        num_tokens = num_prompt_tokens[request_id] + num_output_tokens[request_id]
        if len(free_block_ids) * block_size < num_tokens:
            break
        running.append(waiting.pop(0))
        block_ids[request_id] = []
        while len(block_ids[request_id]) * block_size < num_tokens:
            block_ids[request_id].append(free_block_ids.pop(0))
        num_computed_tokens[request_id] = num_tokens


def without_stale_blocks(values: Values) -> Mapping[str, Any]:
    """Leave out the block ids of requests that wait."""
    running = values["running"]
    held = {name: ids for name, ids in values["block_ids"].items() if name in running}
    return {**values, "block_ids": held}


def step(
    requests: Mapping[str, tuple[int, int, Sequence[int]]],
    waiting: str = "",
    free: Sequence[int] = (),
    block_size: int = 4,
) -> dict[str, Any]:
    """Return the inputs for requests of (prompt tokens, output tokens, block ids).

    Those in ``waiting`` wait, and have computed nothing. Of the others each is to compute its last token.
    """
    return {
        "running": [name for name in requests if name not in waiting],
        "waiting": list(waiting),
        "num_prompt_tokens": {name: prompt for name, (prompt, _, _) in requests.items()},
        "num_output_tokens": {name: output for name, (_, output, _) in requests.items()},
        "num_computed_tokens": {
            name: 0 if name in waiting else prompt + output - 1 for name, (prompt, output, _) in requests.items()
        },
        "block_ids": {name: list(ids) for name, (_, _, ids) in requests.items() if ids},
        "free_block_ids": list(free),
        "block_size": block_size,
    }


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four requests that decode, up to two that wait, and few free blocks."""
    block_size = draw(st.sampled_from([2, 4]))
    ids = iter(draw(st.permutations(range(1, 21))))
    requests: dict[str, tuple[int, int, Sequence[int]]] = {}
    for name in "ABCD"[: draw(st.sampled_from([2, 1, 3, 4, 0]))]:
        prompt, output = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        num_blocks = -(-(prompt + output - 1) // block_size)
        requests[name] = (prompt, output, [next(ids) for _ in range(num_blocks)])
    waiting = "EF"[: draw(st.integers(0 if requests else 1, 2))]
    taken = [block_id for _, _, held in requests.values() for block_id in held]
    free = [next(ids) for _ in range(draw(st.integers(0, 3)))]
    for name in waiting:
        stale = draw(st.lists(st.sampled_from([*taken, *free, 20]), max_size=3, unique=True))
        requests[name] = (draw(st.integers(1, 3)), draw(st.integers(1, 3)) if stale else 0, stale)
    return step(requests, waiting, free, block_size)


EXERCISE = Exercise(
    name="preempt_resume",
    lesson="08-preemption",
    title="Preempt and resume",
    task=TASK,
    reference=preempt_resume,
    cases=(
        Case("one block too few, and a last one that gives way", **step({"A": (6, 3, [1, 2]), "B": (5, 2, [3, 4])})),
        Case(
            "a request that comes back, with what it had written",
            **step({"A": (4, 2, [1, 2]), "B": (5, 4, [2, 5])}, "B", free=[4, 3, 5]),
        ),
        Case("a last one that lacks a block itself", **step({"A": (6, 2, [1, 2]), "B": (5, 4, [3, 4])})),
        Case(
            "a step that preempts while others wait",
            **step({"A": (6, 3, [1, 2]), "B": (9, 2, [3, 4, 5]), "C": (3, 0, [])}, "C"),
        ),
        Case(
            "two that lack a block, and two that give way",
            **step({"A": (3, 2, [1]), "B": (2, 3, [2]), "C": (2, 2, [3]), "D": (1, 2, [4])}),
        ),
        Case("blocks for all", **step({"A": (4, 1, [1]), "B": (6, 1, [2, 3]), "C": (5, 0, [])}, "C", free=[7, 6, 5])),
        Case(
            "a waiting request that does not fit, and a short one behind it",
            **step({"A": (4, 2, [1, 2]), "B": (5, 4, [3, 4]), "C": (2, 0, [])}, "BC", free=[4, 3]),
        ),
        Case("a request that waits, and just enough blocks", **step({"A": (8, 0, [])}, "A", free=[2, 1])),
        Case("no request at all", **step({}, free=[1, 2])),
    ),
    strategy=steps(),
    changes=("running", "waiting", "num_computed_tokens", "block_ids", "free_block_ids"),
    view=without_stale_blocks,
)
