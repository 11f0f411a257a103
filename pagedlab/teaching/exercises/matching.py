"""Which misconception explains a wrong submission: the mutant that does the same.

A mutant is a wrong version of the solution, named for what its author believed. It explains a submission if it gives
the submission's answer on the failing input, and, over some more, differs from the reference where the submission does.
Answers are compared by their fingerprints: a student's copy has those of the mutants, and no mutants.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pagedlab.teaching.exercises.answers import Subject, fingerprint_of, reference_of
from pagedlab.teaching.exercises.exercise import Exercise, Inputs
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.sandbox import SubmissionEndedError
from pagedlab.teaching.exercises.searching import example_inputs, subject_of

_MORE_INPUTS = 20
_ALIKE_ENOUGH = 0.5

Printer = Callable[[Inputs], str]
"""Returns the fingerprint of somebody's answer to an input."""


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
    submitted = _printer(exercise, subject)
    try:
        mine = submitted(failing)
        suspects = {name: suspect for name, suspect in _suspects(entry).items() if suspect(failing) == mine}
        if not suspects:
            return GENERAL
        more = [case.inputs for case in exercise.cases]
        if len(suspects) > 1:  # one that is alone explains it well enough: there is nothing to tell apart
            more += example_inputs(exercise, seed, _MORE_INPUTS)
        answers = [submitted(inputs) for inputs in more]
    except SubmissionEndedError:
        return GENERAL
    reference = _printer(exercise, reference_of(exercise))
    right = [reference(inputs) for inputs in more]
    scores = {name: _likeness(right, answers, [suspect(item) for item in more]) for name, suspect in suspects.items()}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= _ALIKE_ENOUGH else GENERAL


def _suspects(entry: Entry) -> Mapping[str, Printer]:
    exercise = entry.exercise
    if exercise.recorded is not None:
        return exercise.recorded.suspects
    return {name: _printer(exercise, subject_of(exercise, mutant)) for name, mutant in entry.mutants.items()}


def _printer(exercise: Exercise, subject: Subject) -> Printer:
    return lambda inputs: fingerprint_of(exercise, subject.answer(inputs))


def _likeness(right: Sequence[str], submitted: Sequence[str], mutated: Sequence[str]) -> float:
    """Of the inputs on which either is wrong, return the part on which both do the same; 1 if there are none."""
    wrong = [
        mine == theirs
        for reference, mine, theirs in zip(right, submitted, mutated, strict=True)
        if not reference == mine == theirs
    ]
    return sum(wrong) / len(wrong) if wrong else 1.0
