"""Which mutant is killed, by what, and which hint is shown: how we know that the exercises can tell right from wrong.

`make kill-matrix` writes it to ``docs/exercise-kill-matrix.md``; tests hold it.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagedlab.teaching.exercises.exercise import Exercise
from pagedlab.teaching.exercises.matching import misconception
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.searching import Examiner, subject_of
from pagedlab.teaching.exercises.timing import TimedFunction, slow_misconception, times_as_fast

SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Kill:
    """What becomes of one mutant.

    Attributes
    ----------
    mutant : str
    belief : str
        What its author believed: its docstring.
    case : str
        The first case, picked by hand, that kills it; empty if none does.
    kinds : tuple of str
        For each of `SEEDS` the kind of the verdict; empty where it survives.
    topics : tuple of str
        For each of `SEEDS` the misconception whose hint is shown.
    """

    mutant: str
    belief: str
    case: str
    kinds: tuple[str, ...]
    topics: tuple[str, ...]


def kill_of(entry: Entry, name: str) -> Kill:
    """Check one mutant of an exercise, in this process."""
    exercise, mutant = entry.exercise, entry.mutants[name]
    subject = subject_of(exercise, mutant)
    case = Examiner(exercise, subject).try_cases()
    kinds, topics = [], []
    for seed in SEEDS:
        finding = Examiner(exercise, subject).examine(seed)
        if finding is not None:
            kinds.append(finding.kind)
            topics.append(misconception(entry, subject, finding.inputs, seed))
        else:
            times = _too_slow(exercise, TimedFunction(exercise, mutant))
            kinds.append("slow" if times else "")
            topics.append(slow_misconception(exercise, entry.mutants, times) if times else "")
    belief = " ".join((mutant.__doc__ or "").split())
    return Kill(name, belief, case.why if case is not None else "", tuple(kinds), tuple(topics))


def kills_of(entry: Entry) -> Iterator[Kill]:
    """Check every mutant of an exercise."""
    return (kill_of(entry, name) for name in entry.mutants)


def _too_slow(exercise: Exercise, subject: TimedFunction) -> float:
    """Return how many times as fast as the reference a right mutant is, if that is not enough; else 0."""
    if exercise.speed is None:
        return 0.0
    times = times_as_fast(exercise, subject)
    return times if times < exercise.speed.times else 0.0
