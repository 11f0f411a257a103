"""The commands of `pagedlab` for exercises: start one, check it, ask for a hint, see how far you are.

    pagedlab exercises                    # which there are
    pagedlab start condense               # writes condense.py
    pagedlab check condense condense.py   # exit code 0: right, 1: not yet, 2: there is no such exercise
    pagedlab hint condense                # the next of three
    pagedlab progress

vLLM has no counterpart.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError

EXIT_FAILED = 1
_WIDTH = 100


def add_exercise_commands(commands: Any) -> None:
    """Add the commands to the parser's."""
    exercises = commands.add_parser("exercises", help="list the exercises")
    exercises.set_defaults(command=run_exercises)

    start = commands.add_parser("start", help="write the file that an exercise starts from")
    start.add_argument("name", metavar="EXERCISE")
    start.add_argument(
        "--to", type=Path, metavar="FILE", help="default: EXERCISE.py; a file that exists stays as it is"
    )
    start.set_defaults(command=run_start)

    check = commands.add_parser(
        "check",
        help="check a solution",
        description="Check a solution in a process of its own. Exit code 0 if it is right, 1 if not, 2 if there is no "
        "such exercise.",
    )
    check.add_argument("name", metavar="EXERCISE")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--json", action="store_true", help="for programs")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="another seed tries other inputs (default: 0)")
    check.set_defaults(command=run_check)

    hint = commands.add_parser("hint", help="show the next hint for an exercise")
    hint.add_argument("name", metavar="EXERCISE")
    hint.set_defaults(command=run_hint)

    progress = commands.add_parser("progress", help="show how far you are; it is kept on this machine only")
    progress.add_argument("--json", action="store_true", help="for programs")
    progress.add_argument("--reset", action="store_true", help="forget everything")
    progress.set_defaults(command=run_progress)


def run_exercises(arguments: argparse.Namespace) -> int:
    """List the exercises in the order of the lessons."""
    from pagedlab.teaching.exercises.registry import all_exercises

    broken: list[ExerciseError] = []
    for entry in all_exercises(broken=broken):
        exercise = entry.exercise
        print(f"{exercise.name:<24}{exercise.title:<44}lesson {exercise.lesson}")
    for error in broken:
        print(f"pagedlab: {error}", file=sys.stderr)
    return EXIT_FAILED if broken else 0


def run_start(arguments: argparse.Namespace) -> int:
    """Write a starter."""
    from pagedlab.teaching.exercises.learner import write_starter
    from pagedlab.teaching.exercises.registry import find_exercise

    entry = find_exercise(arguments.name)
    path = write_starter(entry, arguments.to or Path(f"{entry.name}.py"))
    print(f"{entry.exercise.title}\n\n{entry.exercise.task.strip()}\n")
    print(f"Wrote {path}. Open it, write the function, then: pagedlab check {entry.name} {path}")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Check a file."""
    from pagedlab.printing import harmless
    from pagedlab.teaching.exercises.learner import check_and_remember
    from pagedlab.teaching.exercises.registry import find_exercise
    from pagedlab.teaching.exercises.sandbox import Submission

    entry = find_exercise(arguments.name)
    verdict = check_and_remember(entry, Submission(_source(arguments.file), arguments.file.name), arguments.seed)
    # A terminal would obey some of the characters that a submission may print.
    print(json.dumps(verdict.to_json(), indent=1) if arguments.json else harmless(verdict.text))
    return 0 if verdict.passed else EXIT_FAILED


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExerciseError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ExerciseError(f"{path} is not UTF-8 text: save it as UTF-8") from None


def run_hint(arguments: argparse.Namespace) -> int:
    """Show the next hint."""
    from pagedlab.teaching.exercises.hints import LEVELS
    from pagedlab.teaching.exercises.learner import next_hint
    from pagedlab.teaching.exercises.registry import find_exercise

    hint = next_hint(find_exercise(arguments.name))
    print(textwrap.fill(f"Hint {hint.level} of {LEVELS}: {hint.text}", _WIDTH))
    return 0


def run_progress(arguments: argparse.Namespace) -> int:
    """Show the learner's progress, or forget it."""
    from pagedlab.teaching.exercises.progress import ProgressBook
    from pagedlab.teaching.exercises.progress_view import as_text

    book = ProgressBook()
    if arguments.reset:
        book.reset()
    progress = book.read()
    if book.kept_aside is not None:
        print(f"{book.path} could not be read and begins anew; what was there is in {book.kept_aside}", file=sys.stderr)
    print(json.dumps(progress.to_json(), indent=1) if arguments.json else as_text(progress))
    return 0
