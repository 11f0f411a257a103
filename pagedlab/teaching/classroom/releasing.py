"""Write a copy of the course for students: all but what gives a solution away.

    pagedlab release --to course

An exercise's folder has the starter and `answers.json.gz` there (`pagedlab.teaching.exercises.recorded`): no reference,
no solution, no mutant, no name of one. Tests, the answers to the teachers' questions and the kill matrix stay behind.
The copy is a checkout of its own: ``make lab`` runs in it, and the wheel that is built from it has no more than it.

vLLM has no counterpart.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from pagedlab.errors import ExerciseError
from pagedlab.kernels import backend
from pagedlab.teaching.classroom.bars import with_bar
from pagedlab.teaching.classroom.folders import new_folder
from pagedlab.teaching.classroom.grading import usable_cores
from pagedlab.teaching.classroom.recording import recording_of, write_recording
from pagedlab.teaching.exercises.registry import RECORDED, exercise_names, exercises_directory, find_exercise

_WHOLE = ("pagedlab", "kernels", "docs")
_FILES = ("pyproject.toml", "constraints.txt", "LICENSE", "lab.mk", "notebooks/*.ipynb", "notebooks/__init__.py")

_FOR_TEACHERS = (
    "docs/teachers",
    "docs/classroom.md",
    "docs/exercise-kill-matrix.md",
    "docs/seeds-*.md",
    "docs/build_*.py",
    "pagedlab/exercises",
    "pagedlab/notebooks",
)
"""What a student has no use for, or should not see."""

_MAKEFILE = """# `make lab` opens the first lesson. It needs only Python 3.11 to 3.13 and make.

include lab.mk
"""

_README = """# pagedlab, for students

    make lab

opens your copy of the first lesson in JupyterLab; the first time it makes an environment, which takes a few minutes. It
needs Python 3.11, 3.12 or 3.13, and make. On Windows, in a terminal in this folder:

    python -m venv .venv
    .venv\\Scripts\\activate
    pip install -e ".[lab]" -c constraints.txt
    pagedlab lab

Lessons come one after the other; each ends with an exercise that checks itself when its cell runs. Without Jupyter:

    .venv/bin/pagedlab exercises                    # which there are
    .venv/bin/pagedlab start condense               # the task and a file to write in
    .venv/bin/pagedlab check condense condense.py   # a verdict, the smallest input that fails, a hint
    .venv/bin/pagedlab hint condense                # the next of three hints
    .venv/bin/pagedlab progress                     # how far you are; it stays on this machine

Hand in `condense.py`, or the notebook with your cell in it. Your teacher's check tries inputs that this copy has no
answers to. Terms are in [docs/glossary.md](docs/glossary.md).
"""


def release(directory: Path, *, thorough: bool = True, show_progress: bool = True) -> list[Path]:
    """Write the copy.

    Parameters
    ----------
    directory : Path
        Empty, or not there.
    thorough : bool
        As in `recording_of`.
    show_progress : bool
        Whether to show a bar, on a terminal.

    Returns
    -------
    list of Path
        The files, from the folder.

    Raises
    ------
    ExerciseError
        If there is something in the folder, this is no checkout of the repository, or no Triton kernel can run here.
    """
    root = exercises_directory().parent
    names = exercise_names()
    if not (root / "pyproject.toml").is_file():
        raise ExerciseError("a copy for students is made from the repository: git clone it and run this there")
    if without := [name for name in names if not (root / "exercises" / name / "exercise.py").is_file()]:
        raise ExerciseError(f"this is a student's copy: the reference of {without[0]} is not in it")
    if not backend().has_triton:
        raise ExerciseError(f"the Triton exercises must run once for their answers: {backend().reason}")
    with new_folder(directory) as folder:
        for path in _kept_files(root):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, target)
        (folder / "Makefile").write_text(_MAKEFILE, encoding="utf-8")
        (folder / "README.md").write_text(_README, encoding="utf-8")
        _write_exercises(folder / "exercises", names, thorough=thorough, show_progress=show_progress)
        return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _write_exercises(directory: Path, names: list[str], *, thorough: bool, show_progress: bool) -> None:
    with ProcessPoolExecutor(len(usable_cores()), multiprocessing.get_context("spawn")) as pool:
        written = [pool.submit(_write_exercise, name, directory, thorough=thorough) for name in names]
        for future in with_bar(as_completed(written), len(names), unit="exercise", show=show_progress):
            future.result()


def _write_exercise(name: str, directory: Path, *, thorough: bool) -> None:
    entry = find_exercise(name)
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "starter.py").write_text(entry.starter, encoding="utf-8")
    write_recording(recording_of(entry, thorough=thorough), folder / RECORDED)


def _kept_files(root: Path) -> Iterator[Path]:
    """Yield what goes into the copy; of a checkout only what git knows: what else lies there is somebody's own."""
    tracked = _tracked_files(root)
    whole = (path for folder in _WHOLE for path in _files_below(root, root / folder))
    single = (path.relative_to(root) for pattern in _FILES for path in sorted(root.glob(pattern)))
    yield from (path for path in (*whole, *single) if tracked is None or path.as_posix() in tracked)


def _tracked_files(root: Path) -> frozenset[str] | None:
    """Return the files that git knows; None if this is no clone, or git is not there."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    return frozenset(listed.stdout.decode().split("\0")) if listed.returncode == 0 else None


def _files_below(root: Path, folder: Path) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        relative = path.relative_to(root)
        if path.name.startswith((".", "__pycache__")) or path.suffix == ".pyc":
            continue
        if any(relative.match(pattern) for pattern in _FOR_TEACHERS):
            continue
        if path.is_dir():
            yield from _files_below(root, path)
        else:
            yield relative
