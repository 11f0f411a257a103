"""A student's copy checks like the original and says nothing of what is right; nbgrader takes the exercises."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.nbgrader_course import export
from pagedlab.teaching.classroom.recording import opaque
from pagedlab.teaching.classroom.releasing import release
from pagedlab.teaching.exercises import Submission, check, exercise_names, find_exercise
from pagedlab.teaching.exercises.kills import slowness
from pagedlab.teaching.exercises.matching import misconception
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.searching import Examiner, subject_of
from pagedlab.teaching.exercises.timing import TimedFunction

_LONG = 32
"""A line of so many characters is nobody else's by chance."""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release") / "course"
    release(directory, thorough=False)
    return directory


@pytest.fixture(scope="module")
def texts(course: Path) -> dict[str, str]:
    """All files of the copy, by path."""
    found = {}
    for path in course.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            found[path.relative_to(course).as_posix()] = data.decode(errors="replace")
    return found


def released(course: Path, name: str) -> Entry:
    return find_exercise(name, course / "exercises")


def strings_in(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from strings_in(item)


def code_lines(path: Path, *, only: str = "") -> Iterator[str]:
    """Yield the long lines of code of a file, or of one of its definitions."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and only in ("", node.name):
            lines = (line.strip() for line in ast.unparse(node).splitlines())
            yield from (line for line in lines if len(line) >= _LONG and not line.startswith(("def ", '"""')))


# --- what is not in it --------------------------------------------------------------------------------------------


def test_there_is_no_solution_no_reference_and_no_mutant(course: Path, texts: dict[str, str]) -> None:
    assert sorted({Path(path).name for path in texts if path.startswith("exercises/")}) == [
        "answers.json.gz",
        "starter.py",
    ]
    # A third hint nearly says what to write: that is its purpose.
    recorded = [json.loads(text) | {"hints": {}} for path, text in texts.items() if path.endswith(".json.gz")]
    of_exercises = "\n".join(string for data in recorded for string in strings_in(data))
    for name in exercise_names():
        entry = find_exercise(name)
        lines = [*code_lines(entry.folder / "exercise.py", only=entry.exercise.function)]
        for path in (*entry.solution_files, entry.folder / "mutants.py"):
            lines += code_lines(path)
        assert lines
        given = f"{entry.starter} {entry.exercise.signature}"
        assert [line for line in lines if line in of_exercises and line not in given] == []
        # The library does what the exercises ask for, in its own lines; nothing else may.
        for path, text in texts.items():
            if not path.startswith(("pagedlab/", "kernels/", "exercises/")):
                assert len([line for line in set(lines) if line in text and line not in given]) < 3, path


def test_no_misconception_is_named_anywhere(texts: dict[str, str]) -> None:
    names = [mutant for name in exercise_names() for mutant in find_exercise(name).mutants]
    assert len(names) >= 70
    pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")
    assert {path: found[0] for path, text in texts.items() if (found := pattern.search(text))} == {}


def test_the_answers_for_teachers_and_the_tests_stay_behind(texts: dict[str, str]) -> None:
    assert not [path for path in texts if path.startswith(("tests/", "docs/teachers", "docs/exercise-kill"))]
    assert {"README.md", "Makefile", "lab.mk", "pyproject.toml", "notebooks/00-one-step.ipynb"} <= texts.keys()


def test_what_its_readme_links_to_is_in_it(texts: dict[str, str]) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", texts["README.md"])
    assert links
    assert set(links) <= texts.keys()


# --- what it does -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", exercise_names())
def test_its_recorded_answers_tell_right_from_wrong_as_the_reference_does(course: Path, name: str) -> None:
    original, copy = find_exercise(name), released(course, name)
    assert copy.starter == original.starter
    assert [case.why for case in copy.exercise.cases] == [case.why for case in original.exercise.cases]
    assert (copy.exercise.signature, copy.exercise.tests) == (original.exercise.signature, original.exercise.tests)
    for path in original.solution_files:
        right = subject_of(copy.exercise, original.solution(path))
        assert Examiner(copy.exercise, right).examine(seed=0) is None, path.name
    for mutant, function in original.mutants.items():
        subject = subject_of(copy.exercise, function)
        examiner = Examiner(copy.exercise, subject)
        finding = examiner.try_cases() or examiner.examine(seed=0)
        if finding is None:
            kind, topic = slowness(copy, TimedFunction(copy.exercise, function))
            assert (kind, topic in copy.hints) == ("slow", True)  # which of two is hard to tell on a busy machine
        else:
            assert misconception(copy, subject, finding.inputs, seed=0) == opaque(mutant)
            assert copy.hints[opaque(mutant)] == original.hints[mutant]


def test_a_wrong_submission_is_shown_and_played(course: Path) -> None:
    original, copy = find_exercise("condense"), released(course, "condense")
    source = original.solution_files[0].read_text(encoding="utf-8")
    wrong = source.replace("spec_token_ids[hole] = spec_token_ids[last]", "pass")
    assert wrong != source
    here, there = (check(entry, Submission(wrong)) for entry in (original, copy))
    assert (there.kind, there.passed) == (here.kind, False)
    assert there.hint is not None
    assert here.hint is not None
    assert there.hint.text == here.hint.text
    assert there.played is not None
    assert len(there.played.scene().frames) > 1
    assert check(copy, Submission(source)).passed


def test_an_input_without_an_answer_is_our_mistake_not_the_learners(course: Path) -> None:
    copy = released(course, "refill_seats")
    examiner = Examiner(copy.exercise, subject_of(copy.exercise, find_exercise("refill_seats").exercise.reference))
    with pytest.raises(ExerciseError, match="no answer to an input"):
        examiner.try_inputs({"running": ["nobody"], "waiting": [], "finished": set(), "max_num_seqs": 977})


def test_a_damaged_file_is_named(course: Path, tmp_path: Path) -> None:
    folder = tmp_path / "refill_seats"
    folder.mkdir()
    (folder / "starter.py").write_text("")
    (folder / "answers.json.gz").write_bytes((course / "exercises/refill_seats/answers.json.gz").read_bytes()[:-9])
    with pytest.raises(ExerciseError, match=r"answers\.json\.gz cannot be read"):
        find_exercise("refill_seats", tmp_path)


def test_it_is_a_package_of_its_own_that_checks(course: Path, tmp_path: Path) -> None:
    build = ["-c", "import setuptools; setuptools.setup()", "-q", "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run([sys.executable, *build], cwd=course, check=True, capture_output=True)
    installed = {path.name for path in (tmp_path / "lib/pagedlab/exercises/condense").iterdir()}
    assert installed == {"answers.json.gz", "starter.py"}
    solution = find_exercise("condense").solution_files[0]
    done = subprocess.run(
        [sys.executable, "-m", "pagedlab.cli", "check", "condense", str(solution)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("Condense the batch: passed."), done.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "pagedlab.cli", "release", "--to", str(tmp_path / "again")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "made from the repository" in refused.stderr


def test_its_makefile_installs_what_a_learner_needs(course: Path) -> None:
    done = subprocess.run(["make", "-n", "lab"], cwd=course, capture_output=True, text=True, check=True)
    assert '--editable ".[lab]"' in done.stdout
    assert "pagedlab lab 00" in done.stdout


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    writers: list[Callable[[Path], Any]] = [release, export]
    for write in writers:
        with pytest.raises(ExerciseError, match="is not empty"):
            write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# --- nbgrader -----------------------------------------------------------------------------------------------------

_NAME = "refill_seats"


@pytest.mark.timeout(300)
def test_nbgrader_releases_and_grades_it(tmp_path: Path) -> None:
    course = tmp_path / "course"
    assert export(course) == [entry for entry in export_order() if entry in exercise_names()]
    nbgrader(course, "generate_assignment", _NAME)
    given = nbformat.read(course / "release" / _NAME / f"{_NAME}.ipynb", 4)
    tests = find_exercise(_NAME).exercise.tests
    assert sum(cell.metadata.nbgrader.get("points", 0) for cell in given.cells) == len(tests)
    written = "\n".join(cell.source for cell in given.cells)
    assert [line for line in code_lines(find_exercise(_NAME).solution_files[0]) if line in written] == []
    solution = find_exercise(_NAME).solution_files[0].read_text(encoding="utf-8")
    wrong = f"def {_NAME}(running, waiting, finished, max_num_seqs):\n    running.clear()\n"
    for student, answer in {"ada": solution, "ben": wrong}.items():
        hand_in(course, student, given, answer)
    nbgrader(course, "autograde", _NAME)
    nbgrader(course, "export")
    with (course / "grades.csv").open(encoding="utf-8") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    expected = check(find_exercise(_NAME), Submission(wrong), every_test=True).outcomes
    assert scores == {"ada": len(tests), "ben": sum(outcome.passed for outcome in expected)}
    assert 0 < scores["ben"] < len(tests)


def export_order() -> list[str]:
    from pagedlab.teaching.exercises import all_exercises

    return [entry.name for entry in all_exercises()]


def hand_in(course: Path, student: str, given: Any, answer: str) -> None:
    notebook = nbformat.from_dict(given)
    for cell in notebook.cells:
        if cell.metadata.nbgrader.grade_id == _NAME:
            before = cell.source
            cell.source = f"{before}\n\n{answer}"
            path = course / "submitted" / student / _NAME / f"{_NAME}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(notebook, path)
            cell.source = before


def nbgrader(course: Path, *arguments: str) -> None:
    # It starts alembic by its name, as it is found where an environment is active.
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments], cwd=course, env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
