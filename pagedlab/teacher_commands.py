"""The commands of `pagedlab` for teachers: give out a student's copy, grade what comes back, hand it to nbgrader.

    pagedlab release --to DIR                       # the course without its solutions
    pagedlab grade submissions --out grades.csv     # a folder for each student; goes on where it stopped
    pagedlab export-nbgrader DIR                    # a course for nbgrader

vLLM has no counterpart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pagedlab.arguments import whole

EXIT_FAILED = 1


def add_teacher_commands(commands: Any) -> None:
    """Add the commands to the parser's."""
    release = commands.add_parser(
        "release",
        help="write a copy of the course for students",
        description="Write a copy of the course for students: solutions, references and wrong versions stay here; "
        "the copy checks with recorded answers.",
    )
    release.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder that is empty or not there")
    release.set_defaults(command=run_release)

    grade = commands.add_parser(
        "grade",
        help="grade what a class has handed in",
        description="Grade a folder that holds a folder for each student: files named like an exercise, or notebooks "
        "with @exercise in them. What has a mark is not graded again: a run that was stopped goes on.",
    )
    grade.add_argument("submissions", type=Path, metavar="SUBMISSIONS")
    grade.add_argument("--out", type=Path, required=True, metavar="FILE", help="grades.csv: a line for each test")
    grade.add_argument("--exercise", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    grade.add_argument(
        "--jobs", type=whole(1), default=0, metavar="N", help="so many at once (default: one for each core)"
    )
    grade.add_argument("--seed", type=int, metavar="N", help="another seed tries other inputs")
    grade.add_argument(
        "--cluster",
        nargs="?",
        const="default",
        default="",
        metavar="PROFILE",
        help="grade on the IPython cluster of this profile (default: 'default'), which ipcluster has started",
    )
    grade.set_defaults(command=run_grade)

    export = commands.add_parser(
        "export-nbgrader",
        help="write a course for nbgrader",
        description="Write a course folder for nbgrader: an assignment for each exercise, which nbgrader releases "
        "without the solution and grades test by test.",
    )
    export.add_argument("directory", type=Path, metavar="DIR", help="a folder that is empty or not there")
    export.set_defaults(command=run_export)


def run_release(arguments: argparse.Namespace) -> int:
    """Write a student's copy."""
    from pagedlab.teaching.classroom.releasing import release

    written = release(arguments.to)
    print(f"Wrote {len(written)} files to {arguments.to}. In there: make lab")
    return 0


def run_grade(arguments: argparse.Namespace) -> int:
    """Grade a class."""
    from pagedlab.printing import harmless
    from pagedlab.scenes.words import counted
    from pagedlab.teaching.classroom.run import SEED, grade

    grading = grade(
        arguments.submissions,
        arguments.out,
        exercises=arguments.exercise,
        num_processes=arguments.jobs,
        cluster=arguments.cluster,
        seed=SEED if arguments.seed is None else arguments.seed,
    )
    print(
        f"{counted(len(grading.found.students), 'student')}, {counted(len(grading.exercises), 'exercise')}: "
        f"{grading.num_passed} of {len(grading.marks)} passed; {grading.num_graded} graded now."
    )
    for item in grading.found.ignored:
        print(harmless(f"Ignored, since it is no student's folder: {item}"), file=sys.stderr)
    for warning in grading.warnings:
        print(warning, file=sys.stderr)
    for mark in grading.not_graded:
        print(harmless(f"Not graded: {mark['student']}, {mark['exercise']}: {mark['reason']}"), file=sys.stderr)
    print(f"Wrote {' and '.join(map(str, grading.tables))}.")
    return EXIT_FAILED if grading.not_graded else 0


def run_export(arguments: argparse.Namespace) -> int:
    """Write a course for nbgrader."""
    from pagedlab.teaching.classroom.nbgrader_course import export

    names = export(arguments.directory)
    print(f"Wrote {len(names)} assignments to {arguments.directory}. In there: nbgrader generate_assignment {names[0]}")
    return 0
