"""The captions of the scene `timeline`: what changed, shown in bold, and what there is to say about it.

>>> from pagedlab.events import RequestAdded
>>> arrived([RequestAdded("A", (1, 2, 3), max_tokens=4)])[0]
'A arrives with a prompt of 3 tokens.'

All of it is made of the trace's own values. vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pagedlab.events import RequestAborted, RequestAdded, RequestFinished, RequestPreempted
from pagedlab.scenes.admission import is_static, why_passed_over, why_waits
from pagedlab.scenes.replay import Replay
from pagedlab.scenes.words import are, counted, finish, listed, name, names

if TYPE_CHECKING:
    from pagedlab.scenes.timeline_runs import Grant, Run

Caption = tuple[str, str]

SETTINGS = {
    "max_num_batched_tokens": "budget {:,}",
    "max_num_seqs": "{:,} seats",
    "num_blocks": "{:,} blocks",
    "block_size": "blocks of {:,}",
    "policy": "by {}",
    "model": "{}",
}
"""What tells two engines apart, where the way of batching does not."""


_CHUNKED = {True: "Chunked prefill", False: "Whole prompts"}


def titles(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each engine: how it batches, and in what it differs from the others.

    >>> titles([{"max_num_seqs": 4}, {"scheduler": "StaticBatchScheduler", "max_num_seqs": 4}])
    ['Continuous batching', 'Static batching']
    """
    chunks = {settings.get("enable_chunked_prefill") is not False for settings in all_settings}
    if len(chunks) > 1 and not any(map(is_static, all_settings)):
        ways = [_CHUNKED[settings.get("enable_chunked_prefill") is not False] for settings in all_settings]
    else:
        ways = [_way(settings) for settings in all_settings]
    if len(set(ways)) < len(ways):
        ways = [", ".join([way, *_differing(s, all_settings)]) for way, s in zip(ways, all_settings, strict=True)]
    if len(set(ways)) < len(ways):
        ways = [f"{way} ({chr(ord('a') + at)})" for at, way in enumerate(ways)]
    return ways


def _way(settings: Mapping[str, Any]) -> str:
    way = "Static batching" if is_static(settings) else "Continuous batching"
    return f"{way}, whole prompts" if settings.get("enable_chunked_prefill") is False else way


def _differing(settings: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = [key for key in SETTINGS if len({str(other.get(key)) for other in all_settings}) > 1]
    shown = [(SETTINGS[key], settings.get(key)) for key in keys]
    return [form.format(value if isinstance(value, int) else str(value)) if ":," not in form or isinstance(value, int)
            else "" for form, value in shown if value is not None]  # fmt: skip


_MAX_SIZES = 5
"""Of so many prompts each length is told; of more, the shortest and the longest."""


def arrived(events: Sequence[RequestAdded]) -> Caption:
    """Say who comes, and with how long a prompt."""
    sizes = [len(event.prompt_token_ids) for event in events]
    if len(events) == 1:
        event = events[0]
        return (
            f"{name(event.request_id)} arrives with a prompt of {counted(sizes[0], 'token')}.",
            f"It may write up to {event.max_tokens:,}. Until a step admits it, it waits.",
        )
    same = len(set(sizes)) == 1
    how_long = f"{counted(sizes[0], 'token')} each" if same else f"{listed([f'{size:,}' for size in sizes])} tokens"
    if not same and len(sizes) > _MAX_SIZES:
        how_long = f"{min(sizes):,} to {max(sizes):,} tokens"
    limits = sorted({event.max_tokens for event in events})
    up_to = f"up to {limits[0]:,}" if len(limits) == 1 else f"between {limits[0]:,} and {limits[-1]:,} at most"
    return (
        f"{names([event.request_id for event in events])} arrive with prompts of {how_long}.",
        f"Each may write {up_to}. Until a step admits them, they wait.",
    )


def granted(grants: Sequence[Grant], budget: int | None, *, is_chunked: bool) -> Caption:
    """Say who gets how many tokens, and why not more or fewer."""
    last = grants[-1].event
    of_budget = "" if budget is None else f" of {budget:,}"
    left = f"{last.budget_left:,}{of_budget} {are(last.budget_left)} left in the budget."
    if not grants[0].is_prefill:
        who = [grant.request_id for grant in grants]
        verb = "decodes: it gets 1 token" if len(who) == 1 else "decode: they get 1 token each"
        newest = "its newest token" if len(who) == 1 else "the newest token of each"
        return f"{names(who)} {verb}.", f"Only {newest} is not computed yet. {left}"
    begins = {"new": "is admitted and gets", "resumed": "resumes and gets"}.get(last.status, "gets")
    if last.status == "new" and budget is None:
        begins = "gets"
    todo = last.num_tokens - last.num_computed_tokens
    had = last.budget_left + last.num_scheduled_tokens
    change = f"{name(last.request_id)} {begins} {counted(last.num_scheduled_tokens, 'token')}."
    again = "All that it had was lost, so it computes it again: " if last.status == "resumed" else ""
    if last.num_scheduled_tokens < todo:
        why = "all that the budget has left" if last.num_scheduled_tokens == had else "as much as one request may get"
        told = f"{last.num_scheduled_tokens:,} of the {todo:,} that are to do, {why}. The rest comes in later steps."
    elif last.num_computed_tokens:
        known = "computed" if last.status == "running" else "in the prefix cache"
        told = f"{last.num_computed_tokens:,} {are(last.num_computed_tokens)} {known}, and this is the rest. {left}"
    else:
        whole = "at one go" if is_chunked else "at one go, as chunks are off"
        told = f"its {counted(todo, 'token')} {whole}. {left}"
    told = again + told
    return change, told[0].upper() + told[1:]


def preempted(event: RequestPreempted, needed_by: str | None, by_priority: bool) -> Caption:
    """Say who loses its blocks, for whom, and what is lost."""
    why = "is the least urgent of those that run" if by_priority else "is the last of the running requests"
    whom = f"; {name(needed_by)} needs them" if needed_by is not None and needed_by != event.request_id else ""
    return (
        f"{name(event.request_id)} is preempted: too few blocks are free{whom}.",
        f"It {why}. Its {counted(event.num_computed_tokens, 'computed token')} {are(event.num_computed_tokens)} lost, "
        "and it waits again, to compute them anew.",
    )


def decided(
    step: int,
    settings: Mapping[str, Any],
    running_before: Sequence[str],
    decided: Replay,
    idle: int,
    ran: Sequence[str],
) -> tuple[str, str, str]:
    """Say who is left out of a step and which seats stay idle; and what of it would be news in the next step."""
    waiting = decided.waiting
    passed = [item for item in decided.running if item not in ran]
    if not waiting and not passed:
        return ("", "", "") if ran else (f"Nothing runs in step {step}.", "Nobody is there.", "nothing")
    parts, news = [], []
    if passed:
        why = why_passed_over(decided)
        parts.append(f"{names(passed)} {'sits' if len(passed) == 1 else 'sit'} idle: {why}.")
        news.append(f"{passed} {why}")
    change = f"{names(passed)} {'gets' if len(passed) == 1 else 'get'} nothing in step {step}."
    if waiting:
        why = why_waits(settings, running_before, waiting, decided)
        still = f"{counted(idle, 'seat')} {'stays' if idle == 1 else 'stay'} idle"
        change = f"{still} although {names(waiting)} {'waits' if len(waiting) == 1 else 'wait'}." if idle else (
            f"{names(waiting)} {'waits' if len(waiting) == 1 else 'wait'}."
        )  # fmt: skip
        parts.append(f"{why[0].upper()}{why[1:]}.")
        news.append(f"{idle} {waiting} {why.partition('(')[0].rstrip('0123456789 ')}")
    return change, " ".join(parts), "; ".join(news)


def ended(
    gone: Sequence[RequestFinished | RequestAborted], running: Sequence[str], waiting: Sequence[str], *, is_static: bool
) -> Caption:
    """Say who leaves, and what becomes of the seats."""
    who = [event.request_id for event in gone]
    one = gone[0]
    if len(gone) > 1:
        change = f"{names(who)} end."
    elif isinstance(one, RequestFinished):
        change = f"{name(one.request_id)} ends after {counted(one.num_output_tokens, 'output token')}."
    else:
        change = f"{name(one.request_id)} is withdrawn."
    why = f"It {finish(one.reason)}. " if len(gone) == 1 and isinstance(one, RequestFinished) else ""
    seat = "Its seat" if len(gone) == 1 else "Their seats"
    if is_static and running:
        idle = "stays" if len(gone) == 1 else "stay"
        return (
            change,
            f"{why}{seat} {idle} empty until {names(running)} {'has' if len(running) == 1 else 'have'} ended.",
        )
    next_step = f"the next step can give {'it' if len(gone) == 1 else 'them'} to {name(waiting[0])}" if waiting else ""
    is_free = "is" if len(gone) == 1 else "are"
    return change, f"{why}{seat} {is_free} free: {next_step or 'nobody waits for a seat'}."


def opening(runs: Sequence[Run], titles: Sequence[str], axis: str) -> Caption:
    """Say what will be seen, and how to read it."""
    how = (
        "A block is a chunk of a prefill, with its number of tokens; a bar is one decoded token. Below: who has a seat "
        "in a step, and how the step’s budget is spent."
    )
    if len(runs) == 1:
        run = runs[0]
        return f"{counted(len(run.requests), 'request')} in {counted(run.num_steps, 'step')}, on one engine.", how
    same = len({tuple(sorted(run.prompts.items())) for run in runs}) == 1
    what = f"the same {counted(len(runs[0].requests), 'request')}" if same else "different requests"
    return f"{listed(titles)}: {what}, one axis of {'steps' if axis == 'steps' else 'modelled time'}.", how


def summary(runs: Sequence[Run], titles: Sequence[str], milliseconds: Sequence[float] | None) -> list[str]:
    """Return one sentence for each engine: what its run came to."""
    told = []
    for at, (run, title) in enumerate(zip(runs, titles, strict=True)):
        long = "" if milliseconds is None else f" ({milliseconds[at]:,.1f} ms modelled)"
        budget = f" of {run.budget * run.num_steps:,}" if run.budget else ""
        facts = [
            f"{counted(run.num_steps, 'step')}{long}",
            f"{run.num_ended:,} of {counted(len(run.requests), 'request')} ended",
            f"{run.num_tokens:,}{budget} tokens of budget spent",
        ]
        if run.num_seats:
            seat_steps = sum(len(column.seats) for column in run.columns)
            facts.append(f"{run.idle_seat_steps:,} of {counted(seat_steps, 'seat-step')} idle")
        if run.num_preemptions:
            facts.append(counted(run.num_preemptions, "preemption"))
        told.append(f"{title}: {', '.join(facts)}.")
    return told
