"""Which mutant is killed, by what, and which hint is shown: how we know that the exercises can tell right from wrong.

`make kill-matrix` writes it to ``docs/exercise-kill-matrix.md``; tests hold it.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    examiner = Examiner(exercise, subject)
    of_cases = examiner.try_cases()  # the same with every seed
    findings = [examiner.smallest(of_cases, seed) for seed in SEEDS]
    # What is right is timed once: no seed makes it faster.
    slow = slowness(entry, TimedFunction(exercise, mutant)) if None in findings else ("", "")
    results = [
        slow if finding is None else (finding.kind, misconception(entry, subject, finding.inputs, seed))
        for finding, seed in zip(findings, SEEDS, strict=True)
    ]
    belief = " ".join((mutant.__doc__ or "").split())
    case = of_cases.why if of_cases is not None else ""
    return Kill(name, belief, case, tuple(kind for kind, _ in results), tuple(topic for _, topic in results))


def kills_of(entry: Entry) -> Iterator[Kill]:
    """Check every mutant of an exercise."""
    return (kill_of(entry, name) for name in entry.mutants)


def slowness(entry: Entry, subject: TimedFunction) -> tuple[str, str]:
    """Return the kind and the topic of a right mutant: that it is too slow, and why; both empty if it is not."""
    exercise = entry.exercise
    if exercise.speed is None or (times := times_as_fast(exercise, subject)) >= exercise.speed.times:
        return "", ""
    return "slow", slow_misconception(entry, times)
