"""The grades as tables: one line for each test of each student, and one for each student.

    grades.csv               student, exercise, test, passed, reason, misconception, file, notes
    grades-by-student.csv    student, then for each exercise the part of its tests that passed, and the exercises passed

A spreadsheet runs what looks like a formula; such a cell gets an apostrophe in front.

vLLM has no counterpart.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from pagedlab.errors import ExerciseError
from pagedlab.files import replace_file
from pagedlab.printing import harmless
from pagedlab.teaching.classroom.grading import Mark

COLUMNS = ("student", "exercise", "test", "passed", "reason", "misconception", "file", "notes")

_FORMULA = ("=", "+", "-", "@")


def by_student_path(out: Path) -> Path:
    """Return where the table of the students goes."""
    return out.with_name(f"{out.stem}-by-student{out.suffix}")


def rows_of_tests(marks: Iterable[Mark]) -> list[list[str]]:
    """Return a row for each test, after `COLUMNS`."""
    return [
        [
            mark["student"],
            mark["exercise"],
            test,
            "no" if reason else "yes",
            reason,
            mark["misconception"],
            mark["file"],
            " ".join(mark["notes"]),
        ]
        for mark in marks
        for test, reason in mark["tests"]
    ]


def student_rows(marks: Iterable[Mark], students: Sequence[str], exercises: Sequence[str]) -> list[list[str]]:
    """Return a row for each student: the part of the tests passed of each exercise, and how many exercises passed."""
    of = {(mark["student"], mark["exercise"]): mark for mark in marks}
    rows = []
    for student in students:
        mine = [of[student, exercise] for exercise in exercises]
        rows.append([student, *(f"{part_passed(mark):.2f}" for mark in mine), str(sum(m["passed"] for m in mine))])
    return rows


def part_passed(mark: Mark) -> float:
    """Return the part of the tests that passed."""
    tests = mark["tests"]
    return sum(not reason for _, reason in tests) / len(tests) if tests else 0.0


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file in one go: there is the old one or the new one, never a part.

    Raises
    ------
    ExerciseError
        If it cannot be written.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(header)
    table.writerows([plain_cell(cell) for cell in row] for row in rows)
    try:
        replace_file(path, text.getvalue().encode(errors="replace"))
    except OSError as error:
        raise ExerciseError(f"{path} cannot be written: {error.strerror or error}") from None


def plain_cell(text: str) -> str:
    """Return a cell that a spreadsheet shows and does not run.

    >>> plain_cell("=HYPERLINK(0)"), plain_cell("slots[1] is 7")
    ("'=HYPERLINK(0)", 'slots[1] is 7')
    """
    text = harmless(text.replace("\n", "\\n").replace("\t", " "))
    return f"'{text}" if unicodedata.normalize("NFKC", text).lstrip().startswith(_FORMULA) else text
