"""Which misconception explains a wrong submission: the mutant that does the same.

A mutant is a wrong version of the solution, named for what its author believed. It explains a submission if it gives
the submission's answer on the failing input, and, over some more, differs from the reference where the submission does.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagedlab.teaching.exercises.answers import Answer, Subject, TrustedSubject, same_answer
from pagedlab.teaching.exercises.exercise import Exercise, Inputs
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.sandbox import SubmissionEndedError
from pagedlab.teaching.exercises.searching import example_inputs, subject_of

_MORE_INPUTS = 20
_ALIKE_ENOUGH = 0.5


def misconception(entry: Entry, subject: Subject, failing: Inputs, seed: int) -> str:
    """Return the name of the mutant that does what the submission does; `GENERAL` if none does.

    Parameters
    ----------
    entry : Entry
    subject : Subject
        The submission.
    failing : mapping
        Inputs on which it is wrong.
    seed : int
        For the choice of further inputs.
    """
    exercise = entry.exercise
    suspects = _who_does_the_same(entry, subject, failing)
    if len(suspects) <= 1:  # nothing more to tell apart: a mutant that fails alike explains it well enough
        more = [case.inputs for case in exercise.cases]
    else:
        more = [*(case.inputs for case in exercise.cases), *example_inputs(exercise, seed, _MORE_INPUTS)]
    try:
        answers = _answers_of(subject, more)
    except SubmissionEndedError:
        return GENERAL
    right = _answers_of(TrustedSubject(exercise, exercise.reference), more)
    scores = {name: _likeness(exercise, right, answers, _answers_of(mutant, more)) for name, mutant in suspects.items()}
    best = max(scores, key=lambda name: scores[name], default=GENERAL)
    return best if scores.get(best, 0.0) >= _ALIKE_ENOUGH else GENERAL


def _who_does_the_same(entry: Entry, subject: Subject, failing: Inputs) -> dict[str, TrustedSubject]:
    """Return the mutants that give the submission's answer on the failing input."""
    try:
        submitted = subject.answer(failing)
    except SubmissionEndedError:
        return {}
    mutants = {name: subject_of(entry.exercise, mutant) for name, mutant in entry.mutants.items()}
    return {
        name: mutant
        for name, mutant in mutants.items()
        if same_answer(entry.exercise, submitted, mutant.answer(failing))
    }


def _answers_of(subject: Subject, inputs: Sequence[Inputs]) -> list[Answer]:
    return [subject.answer(item) for item in inputs]


def _likeness(
    exercise: Exercise, right: Sequence[Answer], submitted: Sequence[Answer], mutated: Sequence[Answer]
) -> float:
    """Of the inputs on which either is wrong, return the part on which both do the same; 1 if there are none."""
    alike = wrong = 0
    for reference, submission, mutant in zip(right, submitted, mutated, strict=True):
        if same_answer(exercise, reference, submission) and same_answer(exercise, reference, mutant):
            continue
        wrong += 1
        alike += same_answer(exercise, submission, mutant)
    return alike / wrong if wrong else 1.0
