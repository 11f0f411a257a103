"""How many times as fast as the reference a submission is: for the exercises that ask for speed.

The judge's clock is the only one. It measures a call as the judge sees it, and takes off what the same message takes
when nothing is called.

vLLM has no counterpart.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pagedlab.teaching.exercises.answers import TrustedSubject, reference_of
from pagedlab.teaching.exercises.exercise import Case, Exercise, Inputs
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.registry import Entry

_REPEATS = 4
_YARD = 20_000
"""Entries of the loop that stands for the reference where that is not there."""

_SHORTEST = 1e-6
"""What a call takes at least: below that the clock's noise would be measured."""


class TimedSubject(Protocol):
    """Whatever can be timed."""

    def seconds(self, inputs: Inputs, repeats: int) -> float:
        """Call it so often; return how long a call takes at least."""


class TimedFunction:
    """A function of ours."""

    def __init__(self, exercise: Exercise, function: Callable[..., Any]) -> None:
        self._subject = TrustedSubject(exercise, function)

    def seconds(self, inputs: Inputs, repeats: int) -> float:
        """Call it so often; return how long a call takes at least."""
        return min(self._once(copy.deepcopy(dict(inputs))) for _ in range(repeats))

    def _once(self, inputs: Inputs) -> float:
        begin = time.perf_counter()
        self._subject.call(inputs)
        return time.perf_counter() - begin


def times_as_fast(exercise: Exercise, subject: TimedSubject) -> float:
    """Return the time of the reference over that of a submission, on all speed cases together."""
    return _seconds_of_reference(exercise) / _seconds_of(exercise, subject)


def slow_misconception(entry: Entry, times: float) -> str:
    """Return the mutant that is right and about as fast as a submission; `GENERAL` if none is right."""
    recorded = entry.exercise.recorded
    speeds = speeds_of(entry) if recorded is None else recorded.speed_of_suspects
    return min(speeds, key=lambda name: abs(math.log(speeds[name] / times)), default=GENERAL)


def speeds_of(entry: Entry) -> dict[str, float]:
    """Return how many times as fast as the reference each mutant is that gives right answers."""
    exercise = entry.exercise
    cases = [case.inputs for case in exercise.cases]
    reference = reference_of(exercise)
    seconds = _seconds_of_reference(exercise)
    return {
        name: seconds / _seconds_of(exercise, TimedFunction(exercise, mutant))
        for name, mutant in entry.mutants.items()
        if all(TrustedSubject(exercise, mutant).agrees(reference, inputs) for inputs in cases)
    }


def units_of_reference(exercise: Exercise) -> float:
    """Return how long the reference takes for all speed cases, in units of the yardstick."""
    return _seconds_of_reference(exercise) / _yardstick()


def _seconds_of_reference(exercise: Exercise) -> float:
    if exercise.recorded is not None:
        return exercise.recorded.reference_units * _yardstick()
    reference = TimedFunction(exercise, exercise.reference)
    return sum(reference.seconds(case.inputs, 2) for case in _speed_cases(exercise))


def _yardstick() -> float:
    """Return how long a plain loop over an array takes on this machine: seconds."""

    def loop() -> float:
        entries = np.arange(_YARD, dtype=np.int64)
        begin = time.perf_counter()
        for at in range(_YARD):
            column, offset = divmod(int(entries[at]), 16)
            entries[at] = column * 16 + offset
        return time.perf_counter() - begin

    return min(loop() for _ in range(_REPEATS))


def _seconds_of(exercise: Exercise, subject: TimedSubject) -> float:
    return sum(max(_SHORTEST, subject.seconds(case.inputs, _REPEATS)) for case in _speed_cases(exercise))


def _speed_cases(exercise: Exercise) -> Sequence[Case]:
    assert exercise.speed is not None
    return exercise.speed.cases
