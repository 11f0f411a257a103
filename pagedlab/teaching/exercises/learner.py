"""What a learner does with an exercise, whether in a notebook or in a terminal: check it, ask for a hint, start.

Each of these keeps the learner's progress; where that cannot be kept, the rest still works, and says so.

vLLM has no counterpart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.checking import check
from pagedlab.teaching.exercises.hints import GENERAL, LEVELS, Hint
from pagedlab.teaching.exercises.progress import ExerciseProgress, ProgressBook
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.sandbox import Submission
from pagedlab.teaching.exercises.verdict import Verdict


def check_and_remember(entry: Entry, submission: Submission, seed: int = 0) -> Verdict:
    """Check a submission and count the try."""
    verdict = check(entry, submission, seed)
    try:
        book = ProgressBook()
        book.count_try(entry.name, passed=verdict.passed)
        if verdict.hint is not None:
            book.show_hint(entry.name, verdict.hint.topic, verdict.hint.level, asked=False)
    except ExerciseError as error:
        return replace(verdict, notes=(*verdict.notes, f"Not counted: {error}."))
    if book.kept_aside is not None:
        note = f"Your progress could not be read and begins anew; what was there is in {book.kept_aside}."
        return replace(verdict, notes=(*verdict.notes, note))
    return verdict


def next_hint(entry: Entry) -> Hint:
    """Return the next hint for the last mistake, and count it; the last hint again if there is no other.

    Raises
    ------
    ExerciseError
        If progress cannot be kept: without it nobody knows which hint is next.
    """
    book = ProgressBook()
    last = book.read().exercises.get(entry.name, ExerciseProgress())
    topic = last.topic if last.topic in entry.hints else GENERAL
    level = min(last.level + 1, LEVELS) if topic == last.topic else 1
    book.show_hint(entry.name, topic, level, asked=(topic, level) != (last.topic, last.level))
    return Hint(topic, level, entry.hints[topic][level - 1])


def write_starter(entry: Entry, path: Path) -> Path:
    """Write the starter of an exercise to a file that does not exist yet.

    Raises
    ------
    ExerciseError
        If it exists; it is as it was.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(entry.starter.replace("THIS_FILE", path.name))
    except FileExistsError:
        raise ExerciseError(f"{path} exists and stays as it is: give another name with --to") from None
    except OSError as error:
        raise ExerciseError(f"{path} cannot be written: {error.strerror}") from None
    return path
