"""The captions of the scene `preemption`, computed from what the trace tells.

>>> of_these([4, 7], [7, 9])
[7]

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagedlab.events import BlocksAllocated, BlocksEvicted, Event, ForwardFinished, RequestScheduled
from pagedlab.scenes.admission import why_waits
from pagedlab.scenes.preemption_state import Held, QueueState
from pagedlab.scenes.replay import GROUP, Replay
from pagedlab.scenes.step_captions import ids_of
from pagedlab.scenes.words import are, begin, blocks, counted, either, finish, listed, name, names

Caption = tuple[str, str]


def of_these(block_ids: Iterable[int], known: Iterable[int]) -> list[int]:
    """Return the blocks that are among the known ones, in their order."""
    wanted = set(known)
    return [block for block in block_ids if block in wanted]


def _free(state: QueueState) -> str:
    count = state.pool.num_free
    if count is None:
        return ""
    return "no block is free" if count == 0 else f"{counted(count, 'block')} {are(count)} free"


# --- the pool runs dry --------------------------------------------------------------------------------------


def opening(state: QueueState, step: int) -> Caption:
    """Say what the step finds."""
    change = f"Step {step} finds {names(state.running)} running" + (f", and {_free(state)}." if _free(state) else ".")
    if not state.running:
        return change, ""
    size, one = state.block_size, [state.request(item) for item in state.running]
    if any(request.num_tokens - request.num_computed != 1 for request in one):
        return change, f"Each computes its next tokens in this step; a block has room for {size}."
    full = [request.request_id for request in one if request.num_computed % size == 0]
    if not full:
        return change, f"Each computes one token in this step; a block has room for {size}."
    have = either(len(full), "has its last block full and needs", "have their last blocks full and need")
    return change, f"Each computes one token in this step. {names(full)} {have} {counted(len(full), 'new block')}."


def granted(events: Sequence[Event], state: QueueState, given_up: Sequence[int]) -> Caption:
    """Say who got tokens and blocks; ``given_up`` are the blocks that the step's victims lost."""
    grants = [event for event in events if isinstance(event, RequestScheduled)]
    taken = {
        event.request_id: list(event.block_ids)
        for event in events
        if isinstance(event, BlocksAllocated) and event.group == GROUP
    }
    evicted = ids_of(events, BlocksEvicted)
    who = names([grant.request_id for grant in grants])
    count = grants[0].num_scheduled_tokens
    each = counted(count, "token") + (" each" if len(grants) > 1 else "")
    if any(grant.num_scheduled_tokens != count for grant in grants):
        each = counted(sum(grant.num_scheduled_tokens for grant in grants), "token") + " together"
    change = f"{who} {either(len(grants), 'gets', 'get')} {each}"
    own = [f"{name(request_id)} takes {blocks(ids)}" for request_id, ids in taken.items()]
    if len(grants) == 1 and len(own) == 1:
        change += f", and {blocks(next(iter(taken.values())))} to keep {either(count, 'it', 'them')} in"
    elif own:
        change += f": {listed(own)}"
    parts = []
    if again := of_these([block for ids in taken.values() for block in ids], given_up):
        parts.append(f"{begin(blocks(again))} {either(len(again), 'was', 'were')} given up a moment ago.")
    if evicted:
        parts.append(f"What {blocks(evicted)} had in the prefix cache is forgotten.")
    left = _free(state)
    return f"{change}.", " ".join([*parts, f"{begin(left)} now." if left else ""]).strip()


def dry(needy: str, needed: int | None, state: QueueState, *, again: bool) -> Caption:
    """Say that a request finds too few blocks."""
    wants = f"needs {counted(needed, 'block')}" if needed else "needs a block"
    still = "still " if again else ""
    change = f"{name(needy)} {still}{wants}, and {_free(state) or 'too few are free'}."
    return change, (
        "A running request is not made to wait: somebody has to give up all of its blocks, and compute its tokens "
        "again later."
    )


def preempted(victim: Held, needy: str, state: QueueState) -> Caption:
    """Say who is preempted, and why that one."""
    who = name(victim.request_id)
    order = (
        "has the largest (priority, arrival time) of all that run" if state.by_priority else "is the last of the list"
    )
    change = f"{who} is preempted: it leaves the running list."
    if victim.request_id == needy:
        return change, f"It needs room itself, but it {order}: nobody else gives way to it."
    came = "" if state.by_priority else ", the last that came"
    return change, f"{name(needy)} needs room, and {who} {order}{came}. It is not asked how much it holds or has done."


def freed(block_ids: Sequence[int], state: QueueState) -> Caption:
    """Say where the victim's blocks go."""
    ids = list(block_ids)
    order = "" if len(ids) == 1 else ", the last one first"
    change = f"Its {either(len(ids), 'block goes', 'blocks go')} back{order}: {blocks(ids).split(' ', 1)[1]}."
    kept = [block for block in ids if block in state.pool.holders]
    gone = [block for block in ids if block not in state.pool.holders]
    hashed = of_these(gone, state.pool.remembered)
    bare = [block for block in gone if block not in state.pool.remembered]
    parts = []
    if bare:
        parts.append(
            f"{begin(blocks(bare))} {either(len(bare), 'goes', 'go')} to the head of the free queue, to be taken next."
        )
    if hashed:
        parts.append(
            f"{begin(blocks(hashed))} {either(len(hashed), 'has its hash and goes', 'have their hashes and go')} to "
            f"the end of the free queue: until {either(len(hashed), 'it is', 'they are')} taken, "
            f"{either(len(hashed), 'it', 'they')} can be found again."
        )
    if kept:
        holders = names(dict.fromkeys(holder for block in kept for holder in state.pool.holders[block]))
        parts.append(f"{begin(blocks(kept))} {are(len(kept))} still held by {holders}.")
    return change, " ".join(parts)


def requeued(victim: Held, state: QueueState) -> Caption:
    """Say that the victim waits, with nothing computed."""
    where = (
        "goes back to its place in the priority queue" if state.by_priority else "goes to the head of the waiting queue"
    )
    lost = f"computed falls from {victim.num_lost:,} to 0" if victim.num_lost else "nothing of it was computed"
    change = f"{name(victim.request_id)} {where}: {lost}."
    own = victim.num_tokens - victim.num_prompt
    made = f", {victim.num_prompt:,} of its prompt and {own:,} that it wrote" if victim.num_prompt and own else ""
    stay = either(victim.num_tokens, "stays", "stay")
    return change, (
        f"Its {counted(victim.num_tokens, 'token')} {stay}{made}. What is lost are their keys and values: they will be "
        "computed again."
    )


def nobody_admitted(state: QueueState) -> Caption:
    """Say that a step that preempts admits nobody."""
    left = state.budget_left
    budget = "" if left is None else f"{counted(left, 'token')} of the budget {are(left)} left and "
    wait = either(len(state.waiting), "waits", "wait")
    change = f"Nobody is admitted in this step, though {names(state.waiting)} {wait}."
    return change, (
        f"{begin(budget + _free(state))}, but a step that preempts admits nobody: what it would give, it has just "
        "taken away from somebody."
    )


def row_removed(rows: Sequence[tuple[str, int]], state: QueueState) -> Caption:
    """Say that the victims' rows leave the batch."""
    who, row = rows[0]
    ids = state.request(who).worker_blocks
    change = (
        f"{name(who)}’s row {row} leaves the batch."
        if len(rows) == 1
        else f"The rows of {names([request_id for request_id, _ in rows])} leave the batch."
    )
    old = f": {name(who)} had {blocks(ids)}" if ids else ""
    return (
        change,
        f"The worker keeps what it knows of a request, the old block ids too{old}. They mean nothing now.",
    )


def forward(event: ForwardFinished, again: int, without: Sequence[str]) -> Caption:
    """Say what the forward pass computed."""
    change = f"The forward pass computes {counted(event.num_tokens, 'token')}"
    change += f", {again:,} of them for the second time." if again else "."
    return change, f"{names(without)} {are(len(without))} not in it." if without else ""


def ended(request_id: str, reason: str, block_ids: Sequence[int], state: QueueState) -> Caption:
    """Say that a request ended, and what that frees."""
    ids = list(block_ids)
    left = _free(state)
    return f"{name(request_id)} {finish(reason)} and gives back {blocks(ids)}.", f"{begin(left)} now." if left else ""


def all_ended(each: Sequence[tuple[str, str, Sequence[int]]], state: QueueState) -> list[str]:
    """Say who ended and what that frees: one by one if they are few, else together."""
    if len(each) <= 2:
        return [ended(*one, state)[0].rstrip(".") for one in each]
    count = len({block for _, _, ids in each for block in ids})
    return [f"{names([request_id for request_id, _, _ in each])} end and give back {counted(count, 'block')}"]


# --- waiting --------------------------------------------------------------------------------------------------


def waits(
    steps: Sequence[int], victim: str, why: str, decided: Sequence[str] = (), ended: Sequence[str] = ()
) -> Caption:
    """Say that the victim waits, for one step or for several in which nothing else happens.

    ``decided`` is what the scheduler did before it came to the victim, ``ended`` what the step brought.
    """
    span = f"Step {steps[0]}" if len(steps) == 1 else f"Steps {steps[0]} to {steps[-1]}"
    parts = [f"{listed(decided)}."] if decided else []
    parts += [why] if why else []
    parts += [f"Then {listed(ended)}."] if ended else []
    return f"{span}: {name(victim)} waits.", " ".join(parts)


def why_it_waits(victim: str, running_before: Sequence[str], state: QueueState) -> str:
    """Say why the victim is not admitted in a step, as the scheduler is done."""
    if victim not in state.waiting:
        return ""
    decided = Replay(state.block_size)
    decided.running, decided.waiting = list(state.running), list(state.waiting)
    decided.preempted, decided.budget_left = list(state.preempted), state.budget_left
    decided.num_free_blocks = state.pool.num_free
    first = state.waiting[0]
    decided.request(first).prompt = [None] * state.request(first).num_tokens
    why = why_waits(state.trace.settings, running_before, state.waiting, decided)
    if first != victim:
        return f"{name(first)} is before it, and waits too: {why}."
    return f"{begin(why)}."


# --- the way back ---------------------------------------------------------------------------------------------


def next_to_resume(victim: Held, state: QueueState) -> Caption:
    """Say that the victim can be admitted again."""
    left = _free(state)
    return (
        f"{begin(left) + ', and ' if left else ''}{name(victim.request_id)} is next: it is admitted again.",
        f"It holds {counted(victim.num_tokens, 'token')}, and had computed {victim.num_lost:,} of them when it was "
        "preempted.",
    )


def found_again(block_ids: Sequence[int], victim: Held, state: QueueState) -> Caption:
    """Say what the prefix cache still has of the victim."""
    ids = list(block_ids)
    count = len(victim.blocks) * state.block_size
    return (
        f"{begin(blocks(ids))} still {either(len(ids), 'has', 'have')} {either(len(ids), 'its hash', 'their hashes')}: "
        f"{counted(count, 'token')} {are(count)} found in the prefix cache.",
        f"Nobody has taken {either(len(ids), 'it', 'them')} meanwhile, so that part is not computed again.",
    )


def taken_again(block_ids: Sequence[int], victim: Held, old: Sequence[int], evicted: Sequence[int]) -> Caption:
    """Say which new blocks the victim takes."""
    ids = list(block_ids)
    same = of_these(ids, old)
    parts = [f"It had {blocks(list(old))} before."] if old else []
    if same:
        parts.append(
            f"That {blocks(same)} {are(len(same))} among them again is chance: "
            f"{either(len(same), 'it came', 'they came')} from the head of the free queue."
        )
    if evicted:
        parts.append(f"What {blocks(list(evicted))} had in the prefix cache is forgotten.")
    return f"{name(victim.request_id)} takes {blocks(ids)}.", " ".join(parts)


def resumed(event: RequestScheduled, victim: Held) -> Caption:
    """Say how much the victim computes again."""
    who, todo = name(event.request_id), event.num_tokens - event.num_computed_tokens
    again = max(0, min(victim.reached, event.num_tokens) - event.num_computed_tokens)
    tokens = counted(event.num_tokens, "token")
    change = f"{who} resumes: {todo:,} of its {tokens} are to be computed, {again:,} of them again."
    found = (
        f"{counted(event.num_computed_tokens, 'token')} {are(event.num_computed_tokens)} in the prefix cache. "
        if event.num_computed_tokens
        else ""
    )
    if event.num_scheduled_tokens < todo:
        return change, (
            f"{found}This step has room for {event.num_scheduled_tokens:,}. It is a prefill like that of a new prompt, "
            "over prompt and output alike."
        )
    return change, f"{found}It is one prefill over prompt and output alike, as if all of it were a prompt."


def replaced(old: Sequence[int], new: Sequence[int], request_id: str, row: int) -> Caption:
    """Say that the new block ids replace the old ones."""
    replace = either(len(new), "replaces", "replace")
    before = blocks(list(old)) if old else "nothing"
    change = f"{name(request_id)} is written into row {row}: {blocks(list(new))} {replace} {before}."
    return change, (
        "A running request’s new blocks are appended to its row. A resumed request’s replace it: the old ids may be "
        "somebody else’s, and to append would put them first."
    )


def catching_up(step: int, event: ForwardFinished, victim: Held) -> Caption:
    """Say how far the victim is."""
    left = victim.num_lost - victim.start - victim.granted
    who = name(victim.request_id)
    if not victim.granted:
        return f"Step {step}: {who} gets no tokens.", f"{left:,} are still to be computed again."
    done = f"Step {step} computes {counted(victim.granted, 'token')} of {who}"
    return (
        f"{done}; {left:,} are still to be computed again.",
        f"The forward pass has {counted(event.num_tokens, 'token')}.",
    )


def closing(victim: Held, state: QueueState, how: str, num_steps: int, num_found: int) -> Caption:
    """Say what came of it: ``how`` is ``"back"``, ``"again"``, ``"gone"`` or ``"end"``."""
    who = name(victim.request_id)
    share = f" ({state.num_again / state.num_computed_tokens:.0%})" if state.num_again else ""
    total = (
        f"So far {counted(len(state.losses), 'preemption')} and {state.num_again:,} of "
        f"{counted(state.num_computed_tokens, 'token')} computed again{share}."
    )
    if how == "again":
        return f"{who} is preempted again before it is where it was.", f"That is thrashing. {total}"
    if how == "gone":
        return f"{who} has left before it was where it had been.", total
    if how == "end":
        return f"The recording ends before {who} is where it was.", total
    found = f", {num_found:,} found in the prefix cache" if num_found else ""
    lost = victim.num_lost
    out = "the very next step" if num_steps <= 1 else f"{num_steps} steps later"
    return (
        f"{who} is where it was, {out}.",
        f"{counted(lost, 'computed token')} {either(lost, 'was', 'were')} lost{found}, "
        f"{max(0, lost - num_found):,} computed again. {total}",
    )
