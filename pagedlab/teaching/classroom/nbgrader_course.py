"""A course for nbgrader: an assignment for each exercise, with the task, a cell to write in, and a cell for each test.

    pagedlab export-nbgrader course
    cd course && nbgrader generate_assignment condense

nbgrader takes the solution out of what students get, collects, and gives a point for each test that passes. It runs a
submission in the kernel that runs the tests, as it does for any course; `pagedlab grade` reads the notebooks that it
has collected, too, and runs none of them in its own process.

vLLM has no counterpart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.folders import new_folder
from pagedlab.teaching.exercises.registry import Entry, all_exercises
from pagedlab.teaching.exercises.sources import DECORATOR, with_decorator, without_docstring

POINTS = 1
"""For each test."""

_CONFIG = '''"""The settings of nbgrader for this course: https://nbgrader.readthedocs.io."""

import os
import tempfile

# What stands between the marks is the whole solution, below what a student starts from: nothing takes its place.
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "pagedlab"
c.ClearSolutions.code_stub = {"python": ""}
c.ExecutePreprocessor.timeout = 120

# Grading is nobody's progress.
os.environ["PAGEDLAB_PROGRESS"] = os.path.join(tempfile.gettempdir(), "pagedlab-nbgrader-progress.json")
'''

_README = """# The exercises of pagedlab for nbgrader

`source/` holds an assignment for each exercise. In this folder:

    nbgrader generate_assignment condense     # release/condense: what students get
    nbgrader autograde condense               # grades submitted/STUDENT/condense/condense.ipynb
    nbgrader generate_feedback condense
    nbgrader export                           # grades.csv

Students need pagedlab with its extra `lab`, graders with its extra `teacher`, in the environment that is active. A
point is given for each test. Instead of nbgrader's own grading, which runs a submission in the kernel of its tests,
`pagedlab grade submitted --out grades.csv` checks the same notebooks in processes that are confined.
"""


def export(directory: Path) -> list[str]:
    """Write the course.

    Parameters
    ----------
    directory : Path
        Empty, or not there.

    Returns
    -------
    list of str
        The names of the assignments.

    Raises
    ------
    ExerciseError
        If there is something in the folder, or this copy of the course has no solutions.
    """
    entries = all_exercises()
    if without := [entry.name for entry in entries if not entry.solution_files]:
        raise ExerciseError(f"this copy of the course has no solution of {without[0]}: export from the repository")
    with new_folder(directory) as folder:
        (folder / "nbgrader_config.py").write_text(_CONFIG, encoding="utf-8")
        (folder / "README.md").write_text(_README, encoding="utf-8")
        for entry in entries:
            path = folder / "source" / entry.name / f"{entry.name}.ipynb"
            path.parent.mkdir(parents=True)
            _write_notebook(path, assignment(entry))
    return [entry.name for entry in entries]


def assignment(entry: Entry) -> Any:
    """Return the notebook of an exercise: the teacher's, with the solution."""
    import nbformat

    exercise = entry.exercise
    solution = entry.solution_files[0].read_text(encoding="utf-8")
    decorated = with_decorator(entry.starter, entry.name, exercise.function)
    code = f"{decorated.rstrip()}\n\n\n### BEGIN SOLUTION\n{without_docstring(solution).strip()}\n### END SOLUTION"
    cells = [
        _cell("markdown", f"{entry.name}-task", f"# {exercise.title}\n\n{exercise.task.strip()}", locked=True),
        _cell("code", f"{entry.name}-imports", f"from pagedlab.teaching import {DECORATOR}, passes", locked=True),
        _cell("code", entry.name, code, solution=True),
        _cell("markdown", f"{entry.name}-tests", f"## Tests\n\n{POINTS} point for each.", locked=True),
    ]
    for number, test in enumerate(exercise.tests, 1):
        source = f"passes({json.dumps(entry.name)}, {json.dumps(test, ensure_ascii=False)})"
        cells.append(_cell("code", f"{entry.name}-test-{number}", source, locked=True, points=POINTS))
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _cell(kind: str, name: str, source: str, *, solution: bool = False, locked: bool = False, points: int = 0) -> Any:
    import nbformat

    make: Any = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    settings: dict[str, Any] = {
        "schema_version": 3,
        "grade_id": name,
        "cell_type": kind,
        "solution": solution,
        "grade": points > 0,
        "locked": locked,
        "task": False,
    }
    if points:
        settings["points"] = points
    return make(source, id=name[:64], metadata={"nbgrader": settings})


def _write_notebook(path: Path, notebook: Any) -> None:
    import nbformat

    nbformat.validate(notebook)
    nbformat.write(notebook, path)
