"""A class is graded: what was handed in is found, each test has an outcome, nobody disturbs others, nothing is lost."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedlab.cli import main
from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.grades import by_student_path
from pagedlab.teaching.classroom.grading import NOT_GRADED, grade_one, job_for
from pagedlab.teaching.classroom.pools import on_a_cluster, on_this_machine
from pagedlab.teaching.classroom.run import HANDED_IN_NOTHING, Grading, grade, journal_path
from pagedlab.teaching.classroom.submissions import MAX_BYTES, find_submissions
from pagedlab.teaching.exercises.registry import exercise_names, exercises_directory, find_exercise

EXERCISE = "refill_seats"
RIGHT = (exercises_directory() / EXERCISE / "solution.py").read_text(encoding="utf-8")
HEAD = f"def {EXERCISE}(running, waiting, finished, max_num_seqs):\n"
WRONG = f"{HEAD}    running.clear()\n"


def marks_in(journal: Path) -> list[dict[str, Any]]:
    header, *marks = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert header["format"] == "pagedlab-grades"
    return marks


def notebook(*cells: str) -> str:
    return json.dumps(
        {
            "cells": [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


def hand_in(directory: Path, student: str, file: str, text: str) -> Path:
    path = directory / student / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def submissions(tmp_path: Path) -> Path:
    return tmp_path / "submissions"


@pytest.fixture
def graded(tmp_path: Path, submissions: Path) -> Callable[..., Grading]:
    def run(**options: Any) -> Grading:
        return grade(submissions, tmp_path / "grades.csv", **{"num_processes": 1, **options})

    return run


# --- what was handed in -------------------------------------------------------------------------------------------


def test_files_and_notebooks_are_found_at_any_depth(submissions: Path) -> None:
    hand_in(submissions, "ada", f"week 1/{EXERCISE}.py", RIGHT)
    hand_in(
        submissions,
        "ben",
        "lesson.ipynb",
        notebook("import numpy as np, os", f'@exercise("{EXERCISE}")\n{HEAD}    np.sum'),
    )
    hand_in(submissions, "eva", "notes.py", "this is no Python, and nobody asked for it")
    (submissions / "readme.txt").write_text("not a student")
    found = find_submissions(submissions, exercise_names())
    assert found.students == ("ada", "ben", "eva")
    assert [(item.student, item.exercise, item.file) for item in found.handed_in] == [
        ("ada", EXERCISE, f"week 1/{EXERCISE}.py"),
        ("ben", EXERCISE, "lesson.ipynb"),
    ]
    assert found.handed_in[1].submission.prelude == "import numpy as np"
    assert found.ignored == ("readme.txt",)
    assert not found.unreadable


def test_a_notebook_is_read_as_it_is_with_magics_and_broken_cells(submissions: Path) -> None:
    cells = (
        "%matplotlib inline\nimport json",
        "!pip install everything",
        "%%bash\nrm -rf /",
        "this is not Python",
        "def helper():\n    return 1",
        f'@exercise("{EXERCISE}")\ndef first(): ...',
        f'%time 1\nfiles = !ls\n@teaching.exercise(name="{EXERCISE}")\ndef last(a, b):\n    return (helper()\n% a)',
    )
    hand_in(submissions, "ada", "lesson.ipynb", notebook(*cells))
    (item,) = find_submissions(submissions, exercise_names()).handed_in
    kept = f'@teaching.exercise(name="{EXERCISE}")\ndef last(a, b):\n    return (helper()\n% a)\n'
    assert item.submission.source == f"\n\n{kept}"
    assert item.submission.prelude == "", "json is not used, and may be missing where it is graded"
    assert item.submission.elsewhere == {"helper", "first"}
    assert item.submission.filename == "lesson.ipynb, code cell 7"


def test_a_solution_that_is_not_python_is_still_graded(submissions: Path, graded: Callable[..., Grading]) -> None:
    hand_in(submissions, "ada", "lesson.ipynb", notebook(f'@exercise("{EXERCISE}")\ndef {EXERCISE}(:'))
    (mark,) = graded().marks
    assert mark["kind"] == "syntax"


def test_a_file_comes_before_a_notebook_and_the_others_are_named(submissions: Path) -> None:
    for file in ("a.ipynb", "b.ipynb"):
        hand_in(submissions, "ada", file, notebook(f'@exercise("{EXERCISE}")\n{WRONG}'))
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    (item,) = find_submissions(submissions, exercise_names()).handed_in
    assert (item.file, item.notes) == (f"{EXERCISE}.py", ("Also found in a.ipynb, b.ipynb.",))


def test_what_cannot_be_read_has_a_reason_and_no_link_is_followed(submissions: Path, tmp_path: Path) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    hand_in(submissions, "ben", "x", "").with_name(f"{EXERCISE}.py").symlink_to(submissions / "ada" / f"{EXERCISE}.py")
    (submissions / "cem").symlink_to(submissions / "ada")
    hand_in(submissions, "dee", f"{EXERCISE}.py", "").write_bytes(b"\xff\xfe\x00")
    hand_in(submissions, "eva", f"{EXERCISE}.py", "#" * (MAX_BYTES + 1))
    os.mkfifo(hand_in(submissions, "fay", "x", "").with_name(f"{EXERCISE}.py"))
    hand_in(submissions, "gil", "lesson.ipynb", '{"cells": [')
    found = find_submissions(submissions, exercise_names())
    assert [item.student for item in found.handed_in] == ["ada"]
    assert {item.student: item.reason for item in found.unreadable} == {
        "dee": "it is not UTF-8 text",
        "eva": "it has 10 MiB; 10 are read",
        "fay": "it is not a file",
        "gil": "it is not a notebook",
    }
    assert found.ignored == ("cem",)


def test_a_folder_without_students_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ExerciseError, match="make one for each student"):
        find_submissions(tmp_path, exercise_names())
    with pytest.raises(ExerciseError, match="is no folder"):
        find_submissions(tmp_path / "nowhere", exercise_names())


# --- outcomes -----------------------------------------------------------------------------------------------------


def test_every_student_has_a_line_for_every_test(submissions: Path, graded: Callable[..., Grading]) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    hand_in(submissions, "ben", f"{EXERCISE}.py", WRONG)
    hand_in(submissions, "eva", "condense.py", "def condense(): ...")
    grading = graded()
    rows = table(grading.tables[0])
    tests = find_exercise(EXERCISE).exercise.tests
    ada = [row for row in rows if (row["student"], row["exercise"]) == ("ada", EXERCISE)]
    assert [row["test"] for row in ada] == list(tests)
    assert {row["passed"] for row in ada} == {"yes"}
    ben = {row["test"]: row for row in rows if (row["student"], row["exercise"]) == ("ben", EXERCISE)}
    assert {row["passed"] for row in ben.values()} == {"yes", "no"}, "an empty batch is right by chance"
    assert all(("should" in row["reason"]) == (row["passed"] == "no") for row in ben.values())
    eva = {row["exercise"]: row["reason"] for row in rows if row["student"] == "eva"}
    assert eva[EXERCISE] == HANDED_IN_NOTHING
    assert "cannot be called with 5 arguments" in eva["condense"]
    by_student = {row["student"]: row for row in table(by_student_path(grading.tables[0]))}
    assert (by_student["ada"][EXERCISE], by_student["ada"]["passed"]) == ("1.00", "1")
    passed = sum(row["passed"] == "yes" for row in ben.values()) / len(ben)
    assert (by_student["ben"][EXERCISE], by_student["ben"]["passed"]) == (f"{passed:.2f}", "0")


def test_a_test_that_never_ends_does_not_fail_the_others(submissions: Path, graded: Callable[..., Grading]) -> None:
    body = "    while not running:\n        pass\n    right(running, waiting, finished, max_num_seqs)\n"
    hand_in(submissions, "ada", f"{EXERCISE}.py", f"{RIGHT}\n\nright = {EXERCISE}\n\n\n{HEAD}{body}")
    (mark,) = graded().marks
    cases = {case.why: case.inputs["running"] for case in find_exercise(EXERCISE).exercise.cases}
    for test, reason in mark["tests"]:
        if test in cases:
            assert reason.partition(" within")[0] == ("" if cases[test] else f"`{EXERCISE}` did not end"), test
    assert {bool(running) for running in cases.values()} == {True, False}


def test_a_cell_that_a_spreadsheet_would_run_is_text(submissions: Path, graded: Callable[..., Grading]) -> None:
    text = f"{HEAD}    raise ValueError('\\x1b[2J\\n=HYPERLINK(0)')"
    hand_in(submissions, "=1+1", f"{EXERCISE}.py", text)
    rows = table(graded().tables[0])
    assert {row["student"] for row in rows} == {"'=1+1"}
    assert not any("\x1b" in row["reason"] or "\n" in row["reason"] for row in rows)


# --- nobody disturbs anybody --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="files are hidden on Linux")
def test_no_submission_sees_another_or_the_grades(
    submissions: Path, graded: Callable[..., Grading], tmp_path: Path
) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    solution = exercises_directory() / EXERCISE / "solution.py"
    last_week = tmp_path / "last-week.csv"
    last_week.write_text("ada,0.3")
    others = [
        submissions / "ada" / f"{EXERCISE}.py",
        journal_path(tmp_path / "grades.csv"),
        last_week,
        solution,
        Path(__file__),
        *(path for path in [exercises_directory().parent / ".git" / "HEAD"] if path.exists()),
    ]
    assert all(path.read_text(encoding="utf-8") for path in others if path != others[1])
    spy = f"""
import os
for path in {[str(path) for path in others]!r}:
    for mode in ("r", "w"):
        try:
            with open(path, mode) as file:
                seen = file.read() if mode == "r" else file.write("mine") and ""
        except OSError:
            seen = ""
        assert not seen, seen
"""
    hand_in(submissions, "spy", f"{EXERCISE}.py", spy + RIGHT)
    assert graded(num_processes=1).num_passed == 2
    assert others[0].read_text(encoding="utf-8") == RIGHT
    assert len(marks_in(others[1])) == 2


def test_the_folder_must_not_hold_what_submissions_need(tmp_path: Path) -> None:
    with pytest.raises(ExerciseError, match="folder of their own"):
        grade(Path(sys.prefix).parent, tmp_path / "grades.csv")


def test_a_reason_is_short_whatever_a_submission_says(submissions: Path, graded: Callable[..., Grading]) -> None:
    text = f"{HEAD}    raise type('E' * 300_000, (Exception,), {{}})('B' * 500_000)"
    hand_in(submissions, "ada", f"{EXERCISE}.py", text)
    (mark,) = graded().marks
    assert max(len(reason) for _, reason in mark["tests"]) <= 1000
    assert len(json.dumps(mark)) < 30_000


def test_one_students_folder_cannot_stop_the_run(submissions: Path, graded: Callable[..., Grading]) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    hand_in(submissions, "bomb", "lesson.ipynb", notebook("a;" * 1_000_000))
    deep = submissions / "deep"
    for _ in range(200):
        deep = deep / "aaa"
    deep.mkdir(parents=True)
    hand_in(submissions, "env", "venv/pyvenv.cfg", "")
    hand_in(submissions, "env", f"venv/lib/{EXERCISE}.py", WRONG)
    hand_in(submissions, "env", f"{EXERCISE}.py", RIGHT)
    grading = graded()
    assert {mark["student"]: mark["passed"] for mark in grading.marks} == {
        "ada": True, "bomb": False, "deep": False, "env": True,
    }  # fmt: skip
    assert {mark["student"]: mark["reason"] for mark in grading.marks}["bomb"].startswith("lesson.ipynb: a cell")


# --- nothing is lost ----------------------------------------------------------------------------------------------


def test_what_has_a_mark_is_not_graded_again_unless_it_changed(
    submissions: Path, graded: Callable[..., Grading]
) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    hand_in(submissions, "ben", f"{EXERCISE}.py", WRONG)
    assert graded().num_graded == 2
    assert graded().num_graded == 0
    hand_in(submissions, "ben", f"{EXERCISE}.py", RIGHT)
    grading = graded()
    assert (grading.num_graded, grading.num_passed) == (1, 2)
    assert graded(seed=1).num_graded == 2, "another seed tries other inputs"


def test_a_run_that_was_killed_goes_on_where_it_was(submissions: Path, tmp_path: Path) -> None:
    for number in range(8):
        hand_in(submissions, f"student {number}", f"{EXERCISE}.py", RIGHT)
    out = tmp_path / "grades.csv"
    command = [sys.executable, "-m", "pagedlab.cli", "grade", str(submissions), "--out", str(out), "--jobs", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        deadline = time.monotonic() + 120
        while not (journal_path(out).exists() and journal_path(out).read_bytes().count(b"\n") >= 3):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
    with journal_path(out).open("ab") as file:
        file.write(b'{"key": "the line that was being writ')
    before = journal_path(out).read_bytes().count(b"\n") - 1  # the first line says what it is
    assert 2 <= before < 8
    grading = grade(submissions, out)
    assert (grading.num_graded, grading.num_passed) == (8 - before, 8)
    assert [mark["passed"] for mark in marks_in(journal_path(out))] == [True] * 8


def test_a_table_of_somebody_else_stays(submissions: Path, graded: Callable[..., Grading], tmp_path: Path) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    (tmp_path / "grades.csv").write_text("mine")
    with pytest.raises(ExerciseError, match="give another --out"):
        graded()
    assert (tmp_path / "grades.csv").read_text() == "mine"


@pytest.mark.parametrize("text", ["my diary, no newline", '{"key": 1}\n', "\n"])
def test_a_journal_of_somebody_else_stays(
    submissions: Path, graded: Callable[..., Grading], tmp_path: Path, text: str
) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    journal = journal_path(tmp_path / "grades.csv")
    journal.write_text(text)
    with pytest.raises(ExerciseError, match="is no journal"):
        graded()
    assert journal.read_text() == text


def test_a_line_of_the_journal_that_is_damaged_costs_one_mark(
    submissions: Path, graded: Callable[..., Grading], tmp_path: Path
) -> None:
    for student in ("ada", "ben", "caf\udce9"):
        hand_in(submissions, student, f"{EXERCISE}.py", RIGHT)
    graded()
    assert graded().num_graded == 0, "a name that is no UTF-8 is a name"
    journal = journal_path(tmp_path / "grades.csv")
    header, first, *others = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([header, first[: len(first) // 2], "\n", *others]))
    assert graded().num_graded == 1


def test_an_interrupted_run_ends_at_once_and_says_what_there_is(submissions: Path, tmp_path: Path) -> None:
    for number in range(3):
        hand_in(submissions, f"{number}", f"{EXERCISE}.py", f"{HEAD}    while True:\n        pass\n")
    out = tmp_path / "grades.csv"
    # Whoever runs the tests may have interrupts turned off, and a process inherits that.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from pagedlab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "grade", str(submissions), "--out", str(out), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as running:
        deadline = time.monotonic() + 120
        while not (journal_path(out).exists() and journal_path(out).read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 130, said
    assert "not graded yet" in out.read_text(encoding="utf-8")


def test_two_runs_at_once_are_refused(submissions: Path, graded: Callable[..., Grading], tmp_path: Path) -> None:
    from pagedlab.teaching.classroom.journal import Journal

    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    with Journal(journal_path(tmp_path / "grades.csv")), pytest.raises(ExerciseError, match="another run is grading"):
        graded()


def test_a_judge_that_dies_takes_nothing_with_it(submissions: Path) -> None:
    for number in range(4):
        hand_in(submissions, f"student {number}", f"{EXERCISE}.py", RIGHT)
    jobs = [job_for(item, 0, []) for item in find_submissions(submissions, [EXERCISE]).handed_in]
    marks = []
    for mark in on_this_machine(jobs, 2):
        if not marks:
            multiprocessing.active_children()[0].kill()
        marks.append(mark)
    assert sorted(mark["student"] for mark in marks) == [f"student {number}" for number in range(4)]
    assert all(mark["passed"] for mark in marks)


def test_a_failure_of_ours_is_nobodys_mistake(submissions: Path) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    (item,) = find_submissions(submissions, [EXERCISE]).handed_in
    mark = grade_one({**job_for(item, 0, []), "exercise": "no_such_exercise"})
    assert (mark["kind"], mark["passed"]) == (NOT_GRADED, False)
    assert "no exercise 'no_such_exercise'" in mark["reason"]


def test_a_cluster_gives_the_marks_of_this_machine(
    submissions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ipyparallel

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    hand_in(submissions, "ben", f"{EXERCISE}.py", WRONG)
    jobs = [job_for(item, 0, []) for item in find_submissions(submissions, [EXERCISE]).handed_in]
    monkeypatch.setattr("pagedlab.teaching.classroom.pools.CLUSTER_SECONDS", 0.2)
    with pytest.raises(ExerciseError, match="ipcluster start"):
        list(on_a_cluster(jobs, "default"))
    monkeypatch.undo()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with ipyparallel.Cluster(n=2, cluster_id="", log_level=40):  # as ipcluster starts one
        marks = {mark["student"]: mark for mark in on_a_cluster(jobs, "default")}
    for job in jobs:
        here, there = grade_one(job), marks[job["student"]]
        assert {**here, "seconds": 0} == {**there, "seconds": 0}


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_did(submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hand_in(submissions, "ada", f"{EXERCISE}.py", RIGHT)
    (submissions / "stray.txt").write_text("")
    command = ["grade", str(submissions), "--out", str(tmp_path / "grades.csv")]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "1 student, 1 exercise: 1 of 1 passed; 1 graded now." in said.out
    assert "stray.txt" in said.err
    shutil.rmtree(submissions / "ada")
    assert main(command) == 2
    assert "make one for each student" in capsys.readouterr().err
