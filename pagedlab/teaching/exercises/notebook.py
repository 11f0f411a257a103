"""Exercises in a notebook: a decorator that checks a function when its cell runs, hints, and progress.

    @exercise("condense")
    def condense(req_ids, req_id_to_index, num_tokens, spec_token_ids, token_ids):
        ...

The check sees the cell, and what was imported before it (`pagedlab.teaching.exercises.sources`); the function itself
stays as it is.

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.cells import solutions_in
from pagedlab.teaching.exercises.checking import check
from pagedlab.teaching.exercises.hints import LEVELS
from pagedlab.teaching.exercises.learner import check_and_remember, next_hint
from pagedlab.teaching.exercises.progress_view import show_progress
from pagedlab.teaching.exercises.registry import find_exercise
from pagedlab.teaching.exercises.sandbox import Submission
from pagedlab.teaching.exercises.showing import show
from pagedlab.teaching.exercises.sources import imports_for, names_elsewhere, with_decorator
from pagedlab.teaching.telling import say

Subject = TypeVar("Subject", bound=Callable[..., Any])


def exercise(name: str, *, seed: int = 0) -> Callable[[Subject], Subject]:
    """Check the function below, show the verdict, and return the function as it is.

    Parameters
    ----------
    name : str
        Of the exercise.
    seed : int
        Another one tries other inputs.

    Raises
    ------
    ExerciseError
        If there is no such exercise, or the function's source cannot be found.
    """
    entry = find_exercise(name)

    def check_it(subject: Subject) -> Subject:
        show(entry, check_and_remember(entry, submission_of(subject), seed))
        return subject

    return check_it


def submission_of(subject: Callable[..., Any]) -> Submission:
    """Return the cell, or the file, in which a function or class was defined.

    Raises
    ------
    ExerciseError
        If its source cannot be found.
    """
    candidates = vars(subject).values() if inspect.isclass(subject) else (subject,)
    function = next((item for item in candidates if inspect.isfunction(item)), None)
    path = function.__code__.co_filename if function is not None else ""
    lines = linecache.getlines(path)
    if function is None or not lines:
        what = getattr(subject, "__name__", repr(subject))
        raise ExerciseError(f"the source of {what} cannot be found: define it in a cell or in a file")
    source, names = "".join(lines), function.__globals__
    filename = Path(path).name if Path(path).is_file() else "this cell"
    return Submission(source, filename, imports_for(source, names), True, names_elsewhere(source, names))


def passes(name: str, test: str) -> None:
    """Pass one test with the solution in this notebook: the last cell that ran with ``@exercise(name)``. For nbgrader.

    Parameters
    ----------
    name : str
        Of the exercise.
    test : str
        One of `Exercise.tests`: what is special about a case, or ``"other inputs"``.

    Raises
    ------
    AssertionError
        If it fails, with the reason.
    ExerciseError
        If there is no such exercise or test, or no such cell has run.
    """
    entry = find_exercise(name)
    if test not in entry.exercise.tests:
        raise ExerciseError(f"{name} has no test {test!r}; it has: {', '.join(entry.exercise.tests)}")
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    found = solutions_in(shell.user_ns["In"] if shell is not None else [], "this notebook")
    if name not in found:
        raise ExerciseError(f'no cell with @exercise("{name}") has run: run the one with your solution first')
    reason = _reasons(name, found[name])[test]
    assert not reason, reason


@functools.lru_cache(maxsize=8)
def _reasons(name: str, submission: Submission) -> Mapping[str, str]:
    """Return why each test fails; empty if it does not. The tests of a notebook share one check."""
    verdict = check(find_exercise(name), submission, every_test=True)
    return {outcome.test: outcome.reason for outcome in verdict.outcomes}


def start(name: str, *, code: bool = True) -> None:
    """Show the task of an exercise, and the code to start from.

    Parameters
    ----------
    name : str
        Of the exercise.
    code : bool
        False: the task only, for a lesson whose next cell has the code.
    """
    entry = find_exercise(name)
    say(f"### {entry.exercise.title}\n\n{entry.exercise.task.strip()}")
    if not code:
        return
    code_to_copy = with_decorator(entry.starter, name, entry.exercise.function)
    say("Copy this into a cell, and write the function:")
    say(f"```python\nfrom pagedlab.teaching import exercise\n{code_to_copy}```")


def hint(name: str) -> None:
    """Show the next hint for an exercise."""
    found = next_hint(find_exercise(name))
    say(f"**Hint {found.level} of {LEVELS}.** {found.text}")


def progress() -> None:
    """Show how far you are."""
    show_progress()
