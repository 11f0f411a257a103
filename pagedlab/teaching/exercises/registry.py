"""Which exercises there are, and what lies in their folders.

    entry = find_exercise("condense")
    entry.exercise, entry.starter, entry.hints, entry.mutants

A folder of ``exercises/`` with an ``exercise.py`` is an exercise; nothing else has to be touched to add one. Its files
are imported as the modules of a package of their own, so ``from .exercise import helper`` works among them. In a
student's copy of the course a folder has the recorded answers in place of all that would give the solution away.

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.exercise import Exercise
from pagedlab.teaching.exercises.hints import GENERAL, parse_hints
from pagedlab.teaching.exercises.tensors import tensors_for
from pagedlab.teaching.lessons import data_directory

_PACKAGE = "pagedlab_exercise_"
RECORDED = "answers.json.gz"
"""What a folder has in a student's copy."""

_NEEDED = ("exercise.py", "starter.py", "mutants.py", "hints.md")


@functools.cache
def _secrets(exercises: Path) -> tuple[Path, ...]:
    """Return what no submission must see: the exercises, and where else in a checkout a solution may lie."""
    root = exercises.parent
    beside = (".git", "build", "docs", "tests") if (root / "pyproject.toml").is_file() else ()
    return (exercises, *(root / name for name in beside if (root / name).exists()))


@dataclass(frozen=True)
class Entry:
    """An exercise and its folder.

    Attributes
    ----------
    folder : Path
    exercise : Exercise
    starter : str
        The source that a learner starts from.
    hints : mapping of str to tuple of str
        By misconception.
    """

    folder: Path
    exercise: Exercise
    starter: str
    hints: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.exercise.name

    @property
    def secrets(self) -> tuple[Path, ...]:
        """Folders that no submission must see."""
        return _secrets(self.folder.parent)

    @functools.cached_property
    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """A wrong version for each misconception, by its name.

        Raises
        ------
        ExerciseError
            If a mutant has no hints, or hints have no mutant; if it is a Triton exercise and there is no Triton.
        """
        tensors_for(self.exercise)  # before a file imports Triton: it is to be the interpreter where there is no GPU
        mutants = _subjects(_module(self.folder, "mutants"), self.exercise)
        if unexplained := [topic for topic in mutants if topic not in self.hints]:
            raise ExerciseError(f"exercise {self.name!r}: hints.md has no '## {unexplained[0]}'")
        if unused := set(self.hints) - {*mutants, GENERAL}:
            raise ExerciseError(f"exercise {self.name!r}: hints.md explains {sorted(unused)}, which mutants.py lacks")
        return mutants

    @property
    def solution_files(self) -> list[Path]:
        """The right versions, ``solution.py`` first; none where only the learner's part is installed."""
        return [
            path for path in (self.folder / "solution.py", *sorted(self.folder.glob("solution_*.py"))) if path.is_file()
        ]

    def solution(self, path: Path) -> Callable[..., Any]:
        """Import one of `solution_files` and return its function."""
        tensors_for(self.exercise)
        function: Callable[..., Any] = getattr(_module(self.folder, path.stem), self.exercise.function)
        return function


def exercises_directory() -> Path:
    """Return the folder that holds the exercises."""
    return data_directory("exercises")


def exercise_names(directory: Path | None = None) -> list[str]:
    """Return the names of all exercises, without loading them."""
    directory = directory or exercises_directory()
    return sorted({path.parent.name for file in ("exercise.py", RECORDED) for path in directory.glob(f"*/{file}")})


def find_exercise(name: str, directory: Path | None = None) -> Entry:
    """Return the exercise of this name.

    Raises
    ------
    ExerciseError
        If there is none (the message lists what there is), or its folder is not as it must be.
    """
    directory = directory or exercises_directory()
    names = exercise_names(directory)
    if name not in names:
        raise ExerciseError(f"no exercise {name!r}; there is: {', '.join(names) or 'none'}")
    return _load(directory / name)


def all_exercises(directory: Path | None = None, *, broken: list[ExerciseError] | None = None) -> list[Entry]:
    """Return all exercises, in the order of the lessons.

    Parameters
    ----------
    directory : Path, optional
        The folder that holds them.
    broken : list of ExerciseError, optional
        Collects what is wrong with folders that are no exercises, to go on with the others.

    Raises
    ------
    ExerciseError
        If a folder is not as it must be, and nobody collects that.
    """
    entries = []
    for name in exercise_names(directory):
        try:
            entries.append(find_exercise(name, directory))
        except ExerciseError as error:
            if broken is None:
                raise
            broken.append(error)
    return sorted(entries, key=lambda entry: (entry.exercise.lesson, entry.name))


@functools.cache
def _load(folder: Path) -> Entry:
    if importlib.util.find_spec("hypothesis") is None:
        raise ExerciseError('exercises are checked with Hypothesis: pip install "pagedlab[lab]"')
    if not (folder / "exercise.py").is_file():
        return _load_recorded(folder)
    if missing := [name for name in _NEEDED if not (folder / name).is_file()]:
        raise ExerciseError(f"exercise {folder.name!r} lacks {', '.join(missing)} in {folder}")
    exercise = getattr(_module(folder, "exercise"), "EXERCISE", None)
    if not isinstance(exercise, Exercise):
        raise ExerciseError(f"exercise {folder.name!r}: exercise.py must define EXERCISE = Exercise(...)")
    if exercise.name != folder.name:
        raise ExerciseError(f"exercise {folder.name!r}: exercise.py calls it {exercise.name!r}")
    try:
        hints = parse_hints((folder / "hints.md").read_text(encoding="utf-8"))
    except ExerciseError as error:
        raise ExerciseError(f"exercise {folder.name!r}: {error}") from None
    if GENERAL not in hints:
        raise ExerciseError(f"exercise {folder.name!r}: hints.md has no '## {GENERAL}'")
    return Entry(folder, exercise, (folder / "starter.py").read_text(encoding="utf-8"), hints)


def _load_recorded(folder: Path) -> Entry:
    from pagedlab.teaching.exercises.recorded import exercise_from, read_recording

    starter = folder / "starter.py"
    if not starter.is_file():
        raise ExerciseError(f"exercise {folder.name!r} lacks starter.py in {folder}")
    exercise, hints = exercise_from(read_recording(folder / RECORDED))
    return Entry(folder, exercise, starter.read_text(encoding="utf-8"), hints)


def _subjects(module: types.ModuleType, exercise: Exercise) -> dict[str, Callable[..., Any]]:
    """Return the functions, or the classes if the reference is one, that a module defines, in their order."""
    wanted = inspect.isclass if inspect.isclass(exercise.reference) else inspect.isfunction
    found = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and wanted(value) and value.__module__ == module.__name__
    }
    return dict(sorted(found.items(), key=lambda item: inspect.getsourcelines(item[1])[1]))


def _module(folder: Path, name: str) -> types.ModuleType:
    """Import a file of an exercise's folder.

    Raises
    ------
    ExerciseError
        If it does not import; the message names the file.
    """
    package_name = f"{_PACKAGE}{folder.name}_{abs(hash(folder)):x}"
    if package_name not in sys.modules:
        package = types.ModuleType(package_name)
        package.__path__ = [str(folder)]
        sys.modules[package_name] = package
    try:
        return importlib.import_module(f"{package_name}.{name}")
    except Exception as error:
        message = f"exercise {folder.name!r}: {name}.py does not import: {type(error).__name__}: {error}"
        raise ExerciseError(message) from error
