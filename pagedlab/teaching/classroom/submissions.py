"""Find what a class has handed in: files named like an exercise, and notebooks with ``@exercise("...")`` in them.

    submissions/
        ada/condense.py
        ben/05-persistent-batch.ipynb
        eva/week 3/05-persistent-batch.ipynb      # any depth: as nbgrader collects them, too

A folder in the folder is a student. Nothing that was handed in is run here, no link is followed, and what cannot be
read is an `Unreadable` with a reason.

vLLM has no counterpart.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.cells import code_cells, solutions_in
from pagedlab.teaching.exercises.sandbox import Submission

MAX_BYTES = 10 << 20
"""The largest file that is read: a notebook with its pictures may be large."""

_SKIPPED = ("__pycache__", "node_modules", "site-packages")
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class HandedIn:
    """A student's solution of one exercise.

    Attributes
    ----------
    student, exercise : str
    file : str
        Where it was found, from the student's folder.
    submission : Submission
    notes : tuple of str
    """

    student: str
    exercise: str
    file: str
    submission: Submission
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that may hold a solution, and cannot be read: an exercise's, or a notebook (exercise is empty then)."""

    student: str
    exercise: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """All that lies in the folder.

    Attributes
    ----------
    students : tuple of str
    handed_in : tuple of HandedIn
        By student, then by exercise; one each.
    unreadable : tuple of Unreadable
    ignored : tuple of str
        What lies beside the students' folders.
    """

    students: tuple[str, ...]
    handed_in: tuple[HandedIn, ...]
    unreadable: tuple[Unreadable, ...]
    ignored: tuple[str, ...]


def find_submissions(directory: Path, exercises: list[str]) -> Found:
    """Look through a folder.

    Parameters
    ----------
    directory : Path
    exercises : list of str
        The names to look for.

    Raises
    ------
    ExerciseError
        If it is no folder, or there is no student in it.
    """
    if not directory.is_dir():
        raise ExerciseError(f"{directory} is no folder: give the one that holds a folder for each student")
    entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    students = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    if not students:
        raise ExerciseError(f"{directory} holds no folders: make one for each student, with their files in it")
    handed_in: list[HandedIn] = []
    unreadable: list[Unreadable] = []
    for student in students:
        for item in _of_student(student, exercises):
            (unreadable if isinstance(item, Unreadable) else handed_in).append(item)  # type: ignore[arg-type]
    ignored = [entry.name for entry in entries if entry not in students]
    names = tuple(student.name for student in students)
    return Found(names, tuple(handed_in), tuple(unreadable), tuple(ignored))


def _of_student(folder: Path, exercises: list[str]) -> Iterator[HandedIn | Unreadable]:
    """Yield one solution an exercise: what can be read first, then a file of its name before a notebook.

    Of several, the one nearest to the student's folder; of several of those, the last by name.
    """
    candidates: dict[str, list[HandedIn | Unreadable]] = {}
    for path in _files(folder):
        file = path.relative_to(folder).as_posix()
        if path.suffix == ".py" and path.stem not in exercises:
            continue
        for item in _of_file(path, folder.name, file, exercises):
            candidates.setdefault(item.exercise, []).append(item)
    yield from candidates.pop("", [])
    for _, items in sorted(candidates.items()):
        *others, best = sorted(items, key=_rank)
        if others and isinstance(best, HandedIn):
            also = ", ".join(item.file for item in others)
            best = HandedIn(best.student, best.exercise, best.file, best.submission, (f"Also found in {also}.",))
        yield best


def _rank(item: HandedIn | Unreadable) -> tuple[bool, bool, int, str]:
    return isinstance(item, HandedIn), item.file.endswith(".py"), -item.file.count("/"), item.file


def _files(folder: Path) -> Iterator[Path]:
    """Yield Python files and notebooks; no link is followed, no environment and no folder that cannot be read."""
    folders = [(folder, 0)]
    while folders:
        inside, depth = folders.pop()
        try:
            entries = sorted(inside.iterdir())
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _SKIPPED or entry.is_symlink():
                continue
            if entry.suffix in (".py", ".ipynb") and not entry.is_dir():
                yield entry
            elif entry.is_dir() and depth < _MAX_DEPTH:
                folders.append((entry, depth + 1))


def _of_file(path: Path, student: str, file: str, exercises: list[str]) -> Iterator[HandedIn | Unreadable]:
    exercise = path.stem if path.suffix == ".py" else ""
    try:
        text = _text_of(path)
        if exercise:
            yield HandedIn(student, exercise, file, Submission(text, path.name))
            return
        cells = code_cells(text)
    except ValueError as error:
        yield Unreadable(student, exercise, file, str(error))
        return
    for name, submission in solutions_in(cells, path.name).items():
        if name in exercises:
            yield HandedIn(student, name, file, submission)


def _text_of(path: Path) -> str:
    """Read a file.

    Raises
    ------
    ValueError
        If it cannot be read, with the reason.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"it has {found.st_size >> 20} MiB; {MAX_BYTES >> 20} are read")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from None
