"""Exercises: the learner writes the real function, the judge finds the smallest input on which it is wrong.

    from pagedlab.teaching.exercises import Submission, check, find_exercise

    verdict = check(find_exercise("condense"), Submission(source))
    print(verdict.text)

``exercises/README.md`` says how one is made. The submission runs in a process of its own and never meets the reference.

vLLM has no counterpart.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab.teaching.exercises.checking import check
    from pagedlab.teaching.exercises.exercise import Case, Exercise, Inputs, Limits, Speed, Values
    from pagedlab.teaching.exercises.playing import Played
    from pagedlab.teaching.exercises.registry import Entry, all_exercises, exercise_names, find_exercise
    from pagedlab.teaching.exercises.sandbox import Submission
    from pagedlab.teaching.exercises.verdict import Verdict

_HOMES = {
    "Case": "exercise",
    "Entry": "registry",
    "Exercise": "exercise",
    "Inputs": "exercise",
    "Limits": "exercise",
    "Played": "playing",
    "Speed": "exercise",
    "Submission": "sandbox",
    "Values": "exercise",
    "Verdict": "verdict",
    "all_exercises": "registry",
    "check": "checking",
    "exercise_names": "registry",
    "find_exercise": "registry",
}

__all__ = [
    "Case",
    "Entry",
    "Exercise",
    "Inputs",
    "Limits",
    "Played",
    "Speed",
    "Submission",
    "Values",
    "Verdict",
    "all_exercises",
    "check",
    "exercise_names",
    "find_exercise",
]


def __getattr__(name: str) -> Any:  # the process of a submission imports this package too, and needs little of it
    if name not in _HOMES:
        raise AttributeError(f"module 'pagedlab.teaching.exercises' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pagedlab.teaching.exercises.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
