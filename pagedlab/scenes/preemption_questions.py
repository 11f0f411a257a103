"""Questions about a preemption: who loses its blocks, how much is computed again, what becomes of the row.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pagedlab.events import RequestScheduled
from pagedlab.scenes.preemption_state import Held
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.scene import Question
from pagedlab.scenes.words import blocks, counted, name, names, vector


@dataclass
class Asked:
    """What the walk notes for the questions: frames, and what was so at that moment.

    ``held`` has for each running request the blocks that it holds, in the order of the list.
    """

    needy: str = ""
    held: dict[str, int] = field(default_factory=dict)
    dry_frame: int | None = None
    by_priority: bool = False
    grant: RequestScheduled | None = None
    victim: Held | None = None
    look_frame: int | None = None
    resumed_frame: int | None = None
    old_ids: tuple[int, ...] = ()
    new_ids: tuple[int, ...] = ()
    row_frame: int | None = None


def questions_of_preemption(victim: str, asked: Asked) -> Iterator[Question]:
    """Give the questions of a preemption scene."""
    if asked.dry_frame is not None:
        yield who_is_preempted(victim, asked, asked.dry_frame)
    if asked.grant is not None and asked.resumed_frame is not None and asked.look_frame is not None:
        yield tokens_again(asked.grant, asked, asked.look_frame, asked.resumed_frame)
    if asked.row_frame is not None and asked.old_ids and asked.old_ids != asked.new_ids:
        yield row_after(victim, asked, asked.row_frame)


def who_is_preempted(victim: str, asked: Asked, frame: int) -> Question:
    """Ask who loses its blocks."""
    order, who, needy = list(asked.held), name(victim), name(asked.needy)
    most = max(asked.held.values(), default=0)
    candidates = dict.fromkeys([victim, asked.needy, order[0], *(r for r in order if asked.held[r] == most), *order])
    reasons: dict[str, str] = {}
    for request_id in list(candidates)[:5]:
        if name(request_id) == who or request_id not in asked.held:
            continue
        if asked.by_priority:
            reason = f"{who} has the largest (priority, arrival time) of all that run."
        elif request_id == asked.needy:
            reason = f"It needs the block itself, but {who} came after it: the last of the running list goes."
        else:
            reason = f"{name(request_id)} came before {who}: the last of the running list goes."
        if asked.held[request_id] == most > asked.held.get(victim, 0):
            reason += " How many blocks somebody holds is not asked."
        reasons.setdefault(name(request_id), reason)
    reasons[f"Nobody: {needy} waits until a block is free"] = (
        "If all who run waited for each other’s blocks, they would wait for ever. A running request gets its tokens "
        "or is preempted."
    )
    by = " by priority" if asked.by_priority else ""
    return Question(
        f"{needy} needs a block, and too few are free. Running are {names(order, limit=8)}, in this order. Who gives "
        f"up its blocks{by}?",
        "choice",
        who,
        in_place(who, list(reasons)),
        reasons,
        f"{who} has the largest (priority, arrival time)."
        if asked.by_priority
        else f"{who} is the last of the running list: it came last, so the fewest wait behind what it has done.",
        frame,
        frame + 1,
    )


def tokens_again(grant: RequestScheduled, asked: Asked, ask_frame: int, frame: int) -> Question:
    """Ask how much a request has to compute when it resumes."""
    victim = asked.victim or Held(grant.request_id)
    who, total, hit = name(grant.request_id), grant.num_tokens, grant.num_computed_tokens
    right, own = total - hit, total - victim.num_prompt
    offers = [
        (1, "That would do if its keys and values were still there. They went with its blocks."),
        (total, f"{hit:,} are found in the prefix cache: blocks that nobody has taken meanwhile."),
        (victim.num_prompt, f"The {own:,} that it wrote count too: their keys and values went with all the others."),
        (own, f"The keys and values of its prompt, {victim.num_prompt:,} tokens, went too."),
        (victim.num_lost, "So many were computed. What was not, the token that it sampled last for one, must be too."),
        (0, "Then there would be nothing to sample from."),
    ]
    known = f", {victim.num_prompt:,} of its prompt and {own:,} that it wrote" if victim.num_prompt and own else ""
    found = f"{hit:,} are found in the prefix cache, the other" if hit else "All of its"
    return Question(
        f"{who} comes back with {counted(total, 'token')}{known}. How many of them has it to compute?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{found} {right:,} are computed: prompt and output alike, in one prefill.",
        ask_frame,
        frame,
    )


def row_after(victim: str, asked: Asked, frame: int) -> Question:
    """Ask what a resumed request's row of block ids is."""
    old, new = asked.old_ids, asked.new_ids
    right = _row(new)
    reasons = {
        _row(
            (*old, *new)
        ): "Appended, the old ids would stand first: its tokens would be read from and written to blocks that "
        "may be somebody else’s.",
        _row(old): f"It gave up {blocks(list(old))}. They may be somebody else’s by now.",
    }
    if len(new) > len(old):
        longer = (*old, *new[len(old) :])
        reasons[_row(longer)] = "Only what it lacks? It lacks all: it gave up every block that it had."
    reasons = {row: reason for row, reason in reasons.items() if row != right}
    return Question(
        f"{name(victim)}’s row was {_row(old)} when it was preempted. What is it now that it resumes?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        "The new ids replace the old ones. To a request that goes on running, new ids are appended.",
        max(0, frame - 1),
        frame,
    )


def _row(block_ids: Sequence[int]) -> str:
    return vector(block_ids, room=44)
