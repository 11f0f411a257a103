"""A learner's progress: kept on their machine, by several notebooks at once, through crashes and damage."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedlab.errors import ExerciseError
from pagedlab.scenes import Actor, Frame, Question, Scene
from pagedlab.teaching import telling
from pagedlab.teaching.exercises.progress import ExerciseProgress, ProgressBook, progress_path
from pagedlab.teaching.exercises.progress_view import as_html, as_text, summary
from pagedlab.widgets.player import Player


@pytest.fixture
def book(progress_file: Path) -> ProgressBook:
    return ProgressBook(progress_file)


def test_it_is_where_the_variable_says_or_in_the_users_data_folder(
    progress_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress_path() == progress_file
    monkeypatch.delenv("PAGEDLAB_PROGRESS")
    assert progress_path().parts[-2:] == ("pagedlab", "progress.json")


def test_what_once_passed_stays_passed(book: ProgressBook) -> None:
    for passed in (False, True, False):
        book.count_try("condense", passed=passed)
    assert book.read().exercises == {"condense": ExerciseProgress(tries=3, passed=True)}


def test_only_hints_that_were_asked_for_are_counted(book: ProgressBook) -> None:
    book.show_hint("condense", "shifts_everything_up", 1, asked=False)
    book.show_hint("condense", "shifts_everything_up", 2, asked=True)
    book.show_hint("condense", "shifts_everything_up", 1, asked=False)  # the same mistake, checked again
    assert book.read().exercises["condense"] == ExerciseProgress(hints=1, topic="shifts_everything_up", level=2)
    book.show_hint("condense", "fills_one_hole", 1, asked=False)
    assert book.read().exercises["condense"].level == 1


def test_of_a_prediction_the_first_answer_is_kept_and_the_last(book: ProgressBook) -> None:
    for right in (False, True):
        book.count_prediction("Which row?", right=right)
    book.count_prediction("How many tokens?", right=True)
    found = book.read().predictions
    assert (found["Which row?"].tries, found["Which row?"].right_at_first, found["Which row?"].right) == (
        2,
        False,
        True,
    )
    assert summary(book.read()).endswith("1 of 2 predictions right at the first go.")


def test_an_answer_in_the_live_player_is_counted(book: ProgressBook) -> None:
    frame = Frame("0", Actor("a", 0, 0), change="A waits.")
    question = Question("Who runs?", "choice", "A", ("A", "B"), {"B": "It waits."}, "A.", 0, 0)
    (asked,) = Scene("tiny", "Tiny", 9, 9, (frame,), asked=(question,)).questions
    player = Player(asked)
    player.on_answer(functools.partial(telling._count, asked))
    for message in ({"answered": False}, {"answered": "yes"}, {}, "odd", {"answered": True}):
        player._handle_custom_msg(message, [])
    ((key, counted),) = book.read().predictions.items()
    assert key == "Tiny: Who runs?"
    assert (counted.tries, counted.right_at_first, counted.right) == (2, False, True)


def test_reset_forgets_everything(book: ProgressBook) -> None:
    book.count_try("condense", passed=True)
    book.reset()
    book.reset()
    assert book.read().exercises == {}


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"format": "other", "version": 1}', b'{"format": "pagedlab-progress"}',
     b'{"format": "pagedlab-progress", "version": 1, "exercises": {"a": {"trys": 1}}, "predictions": {}}',
     b'{"format": "pagedlab-progress", "version": 1, "exercises": [1], "predictions": {}}'],
)  # fmt: skip
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(book: ProgressBook, damaged: bytes) -> None:
    book.path.parent.mkdir(parents=True)
    for number in (1, 2):
        book.path.write_bytes(damaged)
        book.count_try("condense", passed=True)
        assert book.kept_aside == book.path.with_name(f"progress.json.damaged-{number}")
        assert book.kept_aside.read_bytes() == damaged
    assert book.read().exercises["condense"].tries == 1


def test_two_notebooks_at_once_lose_nothing(book: ProgressBook) -> None:
    code = (
        "from pagedlab.teaching.exercises.progress import ProgressBook\n"
        "for _ in range(25):\n    ProgressBook().count_try('condense', passed=False)\n"
    )
    notebooks = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [notebook.wait(120) for notebook in notebooks] == [0, 0, 0]
    assert book.read().exercises["condense"].tries == 75


def test_a_crash_while_writing_leaves_what_was_there(book: ProgressBook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.count_try("condense", passed=True)
    code = (
        "import os, pagedlab.teaching.exercises.progress as progress\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "progress.ProgressBook().count_try('condense', passed=False)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert book.read().exercises["condense"].tries == 1
    assert book.kept_aside is None


def test_writing_leaves_no_parts_behind(book: ProgressBook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.count_try("condense", passed=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExerciseError, match=r"No space left on device.*Set PAGEDLAB_PROGRESS"):
        book.count_try("condense", passed=False)
    assert {path.name for path in book.path.parent.iterdir()} <= {"progress.json", "progress.json.lock"}
    monkeypatch.undo()
    assert json.loads(book.path.read_text(encoding="utf-8"))["exercises"]["condense"]["tries"] == 1


@pytest.mark.skipif(os.name != "posix", reason="a file in place of a folder is another error there")
def test_a_place_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExerciseError, match=r"progress cannot be kept in .*Set PAGEDLAB_PROGRESS to a file"):
        ProgressBook(tmp_path / "file" / "progress.json").read()


def test_the_table_lists_every_exercise_in_words_and_signs(book: ProgressBook) -> None:
    book.count_try("condense", passed=True)
    book.count_try("slot_mapping", passed=False)
    progress = book.read()
    lines = {line[2:].split()[0]: line for line in as_text(progress).splitlines() if line[2:].strip()}
    assert lines["condense"].startswith("\N{CHECK MARK}")
    assert lines["slot_mapping"].startswith("\N{HORIZONTAL ELLIPSIS}")
    assert "1 tried, 0 hints" in lines["slot_mapping"]
    page = as_html(progress)
    assert page.count('<tr data-state="passed"') == page.count('<tr data-state="tried"') == 1
