"""A grading run: find what was handed in, grade what has no mark yet, write the tables.

vLLM has no counterpart.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.bars import with_bar
from pagedlab.teaching.classroom.grades import COLUMNS, by_student_path, rows_of_tests, student_rows, write_table
from pagedlab.teaching.classroom.grading import NOT_GRADED, WHOLE, Job, Mark, job_for, unmarked, usable_cores
from pagedlab.teaching.classroom.journal import Journal
from pagedlab.teaching.classroom.pools import on_a_cluster, on_this_machine
from pagedlab.teaching.classroom.submissions import Found, find_submissions
from pagedlab.teaching.exercises.checking import UNCONFINED
from pagedlab.teaching.exercises.registry import exercise_names, exercises_directory

SEED = 2026
"""For the inputs that are tried here. A student's copy has recorded answers to those of other seeds."""

HANDED_IN_NOTHING = "nothing was handed in under this name"


@dataclass(frozen=True)
class Grading:
    """What a run came to.

    Attributes
    ----------
    found : Found
    exercises : tuple of str
    marks : tuple of Mark
        One for each student and exercise.
    num_graded : int
        How many were graded in this run; the others had a mark already, or there was nothing to grade.
    tables : tuple of Path
    """

    found: Found
    exercises: tuple[str, ...]
    marks: tuple[Mark, ...]
    num_graded: int
    tables: tuple[Path, ...]

    @property
    def num_passed(self) -> int:
        return sum(mark["passed"] for mark in self.marks)

    @property
    def not_graded(self) -> list[Mark]:
        """The marks that say nothing of a student: the judge failed."""
        return [mark for mark in self.marks if mark["kind"] == NOT_GRADED]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the system could not keep submissions from, as their notes say."""
        notes = (note for mark in self.marks for note in mark["notes"] if note.startswith(UNCONFINED))
        return tuple(dict.fromkeys(notes))


def journal_path(out: Path) -> Path:
    """Return where the journal of a table is."""
    return out.with_name(f"{out.name}.journal")


def grade(
    directory: Path,
    out: Path,
    *,
    exercises: Sequence[str] = (),
    num_processes: int = 0,
    cluster: str = "",
    seed: int = SEED,
    show_progress: bool = True,
) -> Grading:
    """Grade a class.

    Parameters
    ----------
    directory : Path
        A folder for each student (`pagedlab.teaching.classroom.submissions`).
    out : Path
        The table to write; the journal lies beside it.
    exercises : sequence of str
        By default all that anybody has handed in.
    num_processes : int
        By default one for each core.
    cluster : str
        The profile of an IPython cluster to grade on, in place of this machine.
    seed : int
        For the inputs beyond the cases: by default none that a student's copy has answers to.
    show_progress : bool
        Whether to show a bar, on a terminal.

    Raises
    ------
    ExerciseError
        If there is nothing to grade, or the table cannot be written. Marks that were given stay in the journal.
    """
    known = exercise_names()
    if unknown := sorted(set(exercises) - set(known)):
        raise ExerciseError(f"no exercise {unknown[0]!r}; there is: {', '.join(known)}")
    _see_that_it_is_ours(out)
    _see_that_it_can_be_hidden(directory)
    found = find_submissions(directory, known)
    found_here = {item.exercise for item in found.handed_in} | {item.exercise for item in found.unreadable}
    wanted = tuple(name for name in known if name in (exercises or found_here))
    if not wanted:
        raise ExerciseError(f"nobody in {directory} has handed in an exercise: NAME.py, or a notebook with @exercise")
    # Grades of other runs lie there, too.
    grades = {*_files_of(out), *out.parent.glob("*.csv"), *out.parent.glob("*.journal")}
    hidden = [str(path.resolve()) for path in (directory, *sorted(grades))]
    jobs = [job_for(item, seed, hidden) for item in found.handed_in if item.exercise in wanted]
    with Journal(journal_path(out)) as journal:
        before = {_who(mark): mark for mark in journal.marks if mark["kind"] != NOT_GRADED}
        done: dict[tuple[str, str], Mark] = {
            _who(job): {**before[_who(job)], "file": job["file"]}
            for job in jobs
            if before.get(_who(job), {}).get("key") == job["key"]
        }
        todo = [job for job in jobs if _who(job) not in done]
        try:
            marks_now = _marks(todo, num_processes, cluster)
            for mark in with_bar(marks_now, len(jobs), len(done), unit="solution", show=show_progress):
                journal.add(mark)
                done[_who(mark)] = mark
        finally:
            marks = tuple(_all_marks(found, wanted, done))
            tables = out, by_student_path(out)
            if done or not todo:  # interrupted too: what there is, is in the tables
                write_table(out, COLUMNS, rows_of_tests(marks))
                write_table(tables[1], ("student", *wanted, "passed"), student_rows(marks, found.students, wanted))
    return Grading(found, wanted, marks, len(todo), tables)


def _marks(jobs: list[Job], num_processes: int, cluster: str) -> Iterator[Mark]:
    if not jobs:
        return iter(())
    if cluster:
        return on_a_cluster(jobs, cluster)
    return on_this_machine(jobs, num_processes or len(usable_cores()))


def _all_marks(found: Found, exercises: Sequence[str], done: dict[tuple[str, str], Mark]) -> Iterator[Mark]:
    """Yield a mark for each student and exercise, in order."""
    unreadable = {(item.student, item.exercise): item for item in found.unreadable}
    notebooks = {item.student: item for item in found.unreadable if not item.exercise}
    handed_in = {(item.student, item.exercise) for item in found.handed_in}
    for student in found.students:
        for exercise in exercises:
            who = student, exercise
            if who in done:
                yield done[who]
                continue
            about = {"key": "", "student": student, "exercise": exercise, "file": ""}
            if who in handed_in:
                yield {**about, **unmarked([WHOLE], "not graded yet: the run was interrupted")}
            elif (item := unreadable.get(who) or notebooks.get(student)) is not None:
                yield {**about, **unmarked([WHOLE], f"{item.file}: {item.reason}", "unreadable"), "file": item.file}
            else:
                yield {**about, **unmarked([WHOLE], HANDED_IN_NOTHING, "missing")}


def _who(item: Job | Mark) -> tuple[str, str]:
    return item["student"], item["exercise"]


def _files_of(out: Path) -> list[Path]:
    """Return the files that a run writes: the tables, and the journal."""
    return [out, by_student_path(out), journal_path(out)]


def _see_that_it_can_be_hidden(directory: Path) -> None:
    """Refuse a folder that submissions cannot do without, since they must not see each other.

    Raises
    ------
    ExerciseError
        If it holds Python, this library or the system's folder for temporary files.
    """
    for needed in (sys.prefix, sys.base_prefix, Path(__file__).parent, exercises_directory(), tempfile.gettempdir()):
        if Path(needed).resolve().is_relative_to(directory.resolve()):
            raise ExerciseError(f"{directory} holds {needed}: put the students' folders into a folder of their own")


def _see_that_it_is_ours(out: Path) -> None:
    """Refuse to write over a file that a run has not made.

    Raises
    ------
    ExerciseError
        If there is one.
    """
    if not out.name or out.is_dir():
        raise ExerciseError(f"--out {out} is a folder: name the file to write, such as grades.csv")
    if not out.parent.is_dir():
        raise ExerciseError(f"{out.parent} is no folder: make it, or give another --out")
    *tables, journal = _files_of(out)
    for path in tables:
        if path.exists() and not journal.exists():
            raise ExerciseError(f"{path} exists and was not written by a run that can go on: give another --out")
