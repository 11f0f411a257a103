"""How many times as fast as the reference a submission is: for the exercises that ask for speed.

The judge's clock is the only one. It measures a call as the judge sees it, and takes off what the same message takes
when nothing is called.

vLLM has no counterpart.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pagedlab.teaching.exercises.answers import TrustedSubject
from pagedlab.teaching.exercises.exercise import Exercise, Inputs
from pagedlab.teaching.exercises.hints import GENERAL

_REPEATS = 4
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
    assert exercise.speed is not None
    reference = TimedFunction(exercise, exercise.reference)
    mine = theirs = 0.0
    for case in exercise.speed.cases:
        theirs += reference.seconds(case.inputs, 2)
        mine += max(_SHORTEST, subject.seconds(case.inputs, _REPEATS))
    return theirs / mine


def slow_misconception(exercise: Exercise, mutants: Mapping[str, Callable[..., Any]], times: float) -> str:
    """Return the mutant that is right and about as fast as a submission; `GENERAL` if none is right."""
    cases = [case.inputs for case in exercise.cases]
    reference = TrustedSubject(exercise, exercise.reference)
    distance = {
        name: abs(math.log(times_as_fast(exercise, TimedFunction(exercise, mutant)) / times))
        for name, mutant in mutants.items()
        if all(TrustedSubject(exercise, mutant).agrees(reference, inputs) for inputs in cases)
    }
    return min(distance, key=lambda name: distance[name], default=GENERAL)
