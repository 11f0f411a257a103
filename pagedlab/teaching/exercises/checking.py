"""Check a submission: the whole way from a source to a verdict.

    verdict = check(find_exercise("condense"), Submission(source, "my.py"))
    verdict.passed, verdict.text

The judge is this process; the submission runs in another (`pagedlab.teaching.exercises.sandbox`).

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.kernels import backend
from pagedlab.teaching.exercises.answers import same_answer
from pagedlab.teaching.exercises.exercise import SPEED, Exercise
from pagedlab.teaching.exercises.hints import GENERAL, Hint
from pagedlab.teaching.exercises.matching import misconception
from pagedlab.teaching.exercises.playing import Played, reference_steps
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.sandbox import Sandbox, Submission, SubmissionEndedError
from pagedlab.teaching.exercises.searching import Examiner, Finding
from pagedlab.teaching.exercises.tensors import TIERS
from pagedlab.teaching.exercises.timing import slow_misconception, times_as_fast
from pagedlab.teaching.exercises.verdict import Outcome, Verdict
from pagedlab.teaching.exercises.wording import (
    load_problem,
    place_of,
    unfinished,
    verdict_of,
    verdict_with,
    words_for_the_end,
)

_MISTAKES = frozenset({"wrong", "raised", "mutates"})
"""Kinds that a misconception can explain."""

UNCONFINED = "This system could not keep the submission from: "
"""How a note begins that says so."""

_TIMES_ASKED_AGAIN = 12

_MAX_REASON = 1000
"""So long a reason of a test may be."""


def check(
    entry: Entry, submission: Submission, seed: int = 0, *, every_test: bool = False, hidden: Sequence[Path] = ()
) -> Verdict:
    """Judge a submission.

    Parameters
    ----------
    entry : Entry
    submission : Submission
    seed : int
        For the inputs beyond the cases: the same seed tries the same ones.
    every_test : bool
        Go on after the first test that fails, and tell what became of each in `Verdict.outcomes`.
    hidden : sequence of Path
        Folders and files, beside the exercises, that the submission must not see.

    Returns
    -------
    Verdict

    Raises
    ------
    ExerciseError
        If it cannot be checked here.
    """
    exercise = entry.exercise
    begin = time.perf_counter()
    with Sandbox(exercise, hidden=(*entry.secrets, *hidden)) as sandbox:
        # Its process starts while this one imports torch.
        if exercise.form == "triton" and not backend().has_triton:
            raise ExerciseError(
                f"{exercise.name} cannot be checked here: {backend().reason}. "
                f"Do the same in NumPy: pagedlab start {exercise.instead}"
            )
        verdict = _judge(entry, submission, sandbox, seed, every_test=every_test)
        notes = (*verdict.notes, *about_the_process(sandbox))
        printed = sandbox.printed
    return replace(verdict, notes=notes, printed=printed, seconds=time.perf_counter() - begin)


def _judge(entry: Entry, submission: Submission, sandbox: Sandbox, seed: int, *, every_test: bool) -> Verdict:
    exercise = entry.exercise
    try:
        problem = load_problem(exercise, submission, sandbox.load(submission))
    except SubmissionEndedError as ended:
        message = words_for_the_end(ended, f"Loading {submission.filename}")
        problem = verdict_with(exercise, ended.why, message, place=place_of(submission, ended.line))
    restart = functools.partial(sandbox.restart, submission) if every_test else None
    examiner = Examiner(exercise, sandbox, restart)
    verdict = problem or _examined(entry, submission, sandbox, examiner, seed)
    return replace(verdict, outcomes=_outcomes(submission, examiner, verdict)) if every_test else verdict


def _examined(entry: Entry, submission: Submission, sandbox: Sandbox, examiner: Examiner, seed: int) -> Verdict:
    exercise = entry.exercise
    finding = examiner.examine(seed)
    warned = tuple(f"Python warned: {text}." for text in examiner.warnings)
    common: dict[str, Any] = {"notes": warned, "num_inputs": examiner.num_inputs}
    if finding is None:
        return _right(entry, sandbox, common)
    if finding.unfinished:
        return unfinished(exercise, finding)
    finding = _confirmed(exercise, submission, sandbox, finding)
    verdict = verdict_of(exercise, submission, finding)
    topic = misconception(entry, sandbox, finding.inputs, seed) if verdict.kind in _MISTAKES else GENERAL
    played = _recorded(exercise, submission, sandbox, finding)
    return replace(verdict, hint=_first_hint(entry, topic), played=played, **common)


def _first_hint(entry: Entry, topic: str) -> Hint:
    return Hint(topic, 1, entry.hints[topic][0])


def _right(entry: Entry, sandbox: Sandbox, common: dict[str, Any]) -> Verdict:
    """Judge a submission that is right: it passes, unless it is to be fast and is not."""
    exercise = entry.exercise
    message = f"`{exercise.function}` did the right thing each time."
    if exercise.speed is None:
        return verdict_with(exercise, "passed", message, **common)
    wanted = exercise.speed.times
    try:
        times = times_as_fast(exercise, sandbox)
    except SubmissionEndedError as ended:
        message = words_for_the_end(ended, f"On a large input, `{exercise.function}`")
        return verdict_with(exercise, ended.why, message, hint=_first_hint(entry, GENERAL), **common)
    measured = f"It is {times:.1f} times as fast as the reference; {wanted:g} are asked."
    if times >= wanted:
        return verdict_with(exercise, "passed", f"{message} {measured}", **common)
    topic = slow_misconception(entry, times)
    return verdict_with(exercise, "slow", f"{message} {measured}", hint=_first_hint(entry, topic), **common)


def _outcomes(submission: Submission, examiner: Examiner, verdict: Verdict) -> tuple[Outcome, ...]:
    """Say what became of each test; one that was not asked for has failed for the reason of the whole."""
    exercise = examiner.exercise
    outcomes = []
    for test in exercise.tests:
        if test == SPEED:
            reason = "" if verdict.passed else verdict.message
        elif test not in examiner.findings:
            reason = verdict.message
        elif (finding := examiner.findings[test]) is None:
            reason = ""
        else:
            reason = verdict_of(exercise, submission, finding).message
        outcomes.append(Outcome(test, reason[:_MAX_REASON]))
    return tuple(outcomes)


def _confirmed(exercise: Exercise, submission: Submission, sandbox: Sandbox, finding: Finding) -> Finding:
    """Load the submission anew and ask again: an answer that changes says more than what is wrong with it."""
    if finding.actual is None or finding.kind == "random":
        return finding
    try:
        sandbox.load(submission)
        again = [sandbox.answer(finding.inputs) for _ in range(_TIMES_ASKED_AGAIN)]
    except SubmissionEndedError as ended:
        if ended.why == "overtime":
            return finding
        return replace(finding, kind="random", text="asked again with the same input, it ended its process")
    if all(same_answer(exercise, finding.actual, answer) for answer in again):
        return finding
    source = "what lies beyond its arrays" if exercise.form == "triton" else "what it kept from earlier calls"
    text = f"asked again with the same input, it gave another answer: by chance, or by {source}"
    return replace(finding, kind="random", text=text)


def _recorded(exercise: Exercise, submission: Submission, sandbox: Sandbox, finding: Finding) -> Played | None:
    """Record both on the failing input, if there is something to watch and the process is alive."""
    if not exercise.watched or finding.kind not in ("wrong", "raised"):
        return None
    try:
        yours = sandbox.record(finding.inputs)
    except SubmissionEndedError:
        return None
    if len(yours) < 2:
        return None
    raised = finding.actual.raised if finding.actual is not None else None
    ending = raised.type_name if raised is not None else ""
    reference = reference_steps(exercise, finding.inputs)
    return Played(exercise, submission, finding.inputs, yours, reference, ending)


def about_the_process(sandbox: Sandbox) -> Iterator[str]:
    """Say what ran the submission, and what the system could not keep it from."""
    if sandbox.tier in TIERS:
        yield TIERS[sandbox.tier]
    if not sandbox.printed_all:
        yield "Of what it printed, the middle is left out."
    confinement = sandbox.confinement
    on_gpu = sandbox.tier == "cuda"  # its compiler is a program, its driver needs much memory: both are as they must be
    open_to = {
        "the network": confinement.network,
        "starting processes": confinement.processes or on_gpu,
        "your files": confinement.files,
        "the solutions": confinement.solutions,
        "taking all the memory": confinement.memory or on_gpu,
    }
    if missing := [what for what, confined in open_to.items() if not confined]:
        yield f"{UNCONFINED}{', '.join(missing)}. Run only code that you trust."
