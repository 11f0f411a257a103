"""Predictions about the scene `timeline`: how many tokens somebody gets, who is preempted, who takes a free seat.

The answers come from the trace, like everything in `pagedlab.scenes.questions`, whose style this follows.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pagedlab.scenes.questions import tokens_granted
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.timeline_runs import SCHEDULE, Moment, Run
from pagedlab.scenes.words import are, counted, name, names

Shown = Sequence[tuple[int, Moment] | None]
"""For each frame the engine and the moment that it shows."""

_MOST_CHOICES = 6


def questions_of_timeline(scene: Scene, runs: Sequence[Run], titles: Sequence[str], shown: Shown) -> Iterator[Question]:
    """Give one question of each kind, about the first engine that has an answer to it.

    Parameters
    ----------
    scene : Scene
    runs : sequence of Run
    titles : sequence of str
        What each engine is called.
    shown : sequence of (int, Moment) or None
        For each frame the engine and the moment that it shows.
    """
    for ask in (how_many_tokens, who_is_preempted, who_takes_the_seat):
        for lane, run in enumerate(runs):
            question = ask(scene, run, lane, shown)
            if question is not None:
                where = f"{titles[lane]}. " if len(runs) > 1 else ""
                yield replace(question, prompt=where + question.prompt)
                break


def how_many_tokens(scene: Scene, run: Run, lane: int, shown: Shown) -> Question | None:
    """Ask how many tokens a request gets: the first that is cut into chunks, else the last that is not."""
    prefills = [
        (at, moment, grant)
        for at, moment in _of_lane(shown, lane)
        for grant in moment.grants
        if grant.is_prefill and grant in run.columns[moment.column].grants
    ]
    cut = [item for item in prefills if item[2].is_cut]
    if not prefills:
        return None
    at, moment, grant = (cut[:1] or prefills[-1:])[0]
    frames = tuple(scene.frames[at] for at, _ in _of_lane(shown, lane))
    step = run.columns[moment.column].step
    question = tokens_granted(replace(scene, frames=frames), run.trace, step, grant.request_id)
    return replace(question, ask_frame=_before_step(shown, lane, moment.column), frame=at)


def who_is_preempted(scene: Scene, run: Run, lane: int, shown: Shown) -> Question | None:
    """Ask who loses its blocks in the first step that runs out of them. None if none does, or there is no choice."""
    found = next(((at, moment) for at, moment in _of_lane(shown, lane) if moment.lost), None)
    if found is None:
        return None
    at, moment = found
    right = moment.lost[0]
    before = _before_step(shown, lane, moment.column)
    # In the order of seats; who came last is the last of the running requests, whichever seat it has.
    running = [item for item in _seats_before(shown, lane, before) if item is not None]
    others = [item for item in running if item != right][: _MOST_CHOICES - 1]
    if not others or right not in running:  # a recording may begin too late to tell who ran
        return None
    by_priority = run.trace.settings.get("policy") == "priority"
    rule = (
        "the one with the largest (priority, arrival time) goes"
        if by_priority
        else "the one that joined the running requests last goes"
    )
    choices = {item: _choice(item, at) for at, item in enumerate(running) if item == right or item in others}
    reasons = {
        choices[item]: f"{name(item)} keeps its blocks: when somebody must go, {rule}, and that is {name(right)}."
        for item in others
    }
    step = run.columns[moment.column].step
    again = moment.lost_tokens
    return Question(
        f"{names(running)} run, and in step {step} too few blocks are free for all of them. Who is preempted"
        f"{' first' if len(run.columns[moment.column].lost) > 1 else ''}?",
        "choice",
        choices[right],
        tuple(choices.values()),
        reasons,
        f"When somebody must go, {rule}. {name(right)} loses {counted(again, 'computed token')} and waits again.",
        before,
        at,
    )


def _choice(request_id: str, at: int) -> str:
    """Return a request as a choice; two long names may look alike, their seats never do."""
    return f"{name(request_id)}, in seat {at}"


def who_takes_the_seat(scene: Scene, run: Run, lane: int, shown: Shown) -> Question | None:
    """Ask, of static batching, who gets a seat that is free while somebody waits. None if that never happens."""
    if not run.is_static:
        return None
    found = next(
        (
            (at, moment)
            for at, moment in _of_lane(shown, lane)
            if moment.kind is None and moment.phase == SCHEDULE and moment.waiting and None in moment.seats
            and any(moment.seats)
        ),
        None,
    )  # fmt: skip
    if found is None:
        return None
    at, moment = found
    running = [item for item in moment.seats if item is not None]
    idle = moment.seats.count(None)
    step = run.columns[moment.column].step
    right = f"Nobody: {counted(idle, 'seat')} {'stays' if idle == 1 else 'stay'} idle"
    first = f"{name(moment.waiting[0])}: it is the next in the queue"
    nobody_yet = f"Nobody: there is no budget for {name(moment.waiting[0])}"
    left = run.budget - run.columns[moment.column].num_tokens if run.budget else None
    reasons = {
        first: f"That is continuous batching. This engine takes nobody in until {names(running)} have ended."
        if len(running) > 1
        else f"That is continuous batching. This engine takes nobody in until {name(running[0])} has ended."
    }
    if left:
        reasons[nobody_yet] = f"{left:,} of the {run.budget:,} tokens {are(left)} left over. It is not the budget."
    return Question(
        f"As step {step} begins, {counted(idle, 'seat')} {are(idle)} free and {names(moment.waiting)} "
        f"{'waits' if len(moment.waiting) == 1 else 'wait'}. Who sits down?",
        "choice",
        right,
        (first, right, *list(reasons)[1:]),
        reasons,
        moment.detail,
        _before_step(shown, lane, moment.column),
        at,
    )


def _of_lane(shown: Shown, lane: int) -> list[tuple[int, Moment]]:
    """Return the frames of one engine, with their moments."""
    return [(at, item[1]) for at, item in enumerate(shown) if item is not None and item[0] == lane]


def _before_step(shown: Shown, lane: int, column: int) -> int:
    """Return the last frame before the engine's scheduler begins to share out a step."""
    first = next(at for at, moment in _of_lane(shown, lane) if moment.column == column and moment.phase == SCHEDULE)
    return first - 1


def _seats_before(shown: Shown, lane: int, frame: int) -> tuple[str | None, ...]:
    return next((moment.seats for at, moment in reversed(_of_lane(shown, lane)) if at <= frame), ())
