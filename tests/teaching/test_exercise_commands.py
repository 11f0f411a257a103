"""`pagedlab check`, `start`, `hint`, `progress`, `exercises`: what they print, write and return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedlab.cli import main
from pagedlab.teaching.exercises import exercise_names, find_exercise

WRONG = """
def slot_mapping(query_start_loc, positions, block_table, block_size, slot_mapping):
    slot_mapping[:] = 0
"""


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "my.py"
    path.write_text(WRONG, encoding="utf-8")
    return str(path)


@pytest.fixture
def right() -> str:
    return str(find_exercise("slot_mapping").folder / "solution.py")


def test_check_returns_0_for_a_right_file(right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "slot_mapping", right]) == 0
    assert capsys.readouterr().out.startswith("Slot mapping in NumPy: passed.\n")


def test_check_returns_1_for_a_wrong_file_and_shows_why(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "slot_mapping", wrong]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Slot mapping in NumPy: not yet.\n`slot_mapping`: slot_mapping[0] is 0; it should be")
    assert "With this input:\n  query_start_loc = [0, 1] (int32)" in out
    assert "> slot_mapping  yours          [0] (int64)\n>               the reference  [2] (int64)" in out
    assert "Hint 1 of 3:" in out
    assert "The next one: pagedlab hint slot_mapping" in out


def test_nothing_that_a_submission_says_reaches_the_terminal_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.py"
    path.write_text("def slot_mapping(a, b, c, d, e):\n    raise ValueError('\\x1b[2J\\ud800')\n", encoding="utf-8")
    assert main(["check", "slot_mapping", str(path)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "ValueError: \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}" in out


def test_check_tells_programs_the_same_as_json(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "slot_mapping", wrong, "--json", "--seed", "3"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["exercise"], verdict["passed"], verdict["kind"]) == ("slot_mapping", False, "wrong")
    assert verdict["inputs"]["block_size"] == 2
    assert verdict["hint"]["level"] == 1
    assert verdict["actual"]["slot_mapping"]["array"][:2] == ["<i8", [1]]


@pytest.mark.parametrize("command", [["check", "slots", "x.py"], ["start", "slots"], ["hint", "slots"]])
def test_an_exercise_that_is_not_there_is_2(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert f"no exercise 'slots'; there is: {', '.join(exercise_names())}" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "slot_mapping", str(tmp_path / "nowhere.py")]) == 2
    assert "nowhere.py cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'")
    assert main(["check", "slot_mapping", str(tmp_path / "latin.py")]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err


def test_start_writes_the_starter_and_never_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["start", "condense"]) == 0
    out = capsys.readouterr().out
    assert "Close the holes" in out
    assert "pagedlab check condense condense.py" in out
    written = (tmp_path / "condense.py").read_text(encoding="utf-8")
    assert "Check it: pagedlab check condense condense.py." in written
    (tmp_path / "condense.py").write_text("mine", encoding="utf-8")
    assert main(["start", "condense"]) == 2
    assert "condense.py exists and stays as it is" in capsys.readouterr().err
    assert (tmp_path / "condense.py").read_text(encoding="utf-8") == "mine"
    assert main(["start", "condense", "--to", "again.py"]) == 0
    assert main(["start", "condense", "--to", "no/such/folder.py"]) == 2


def test_hints_come_one_at_a_time_for_the_mistake_that_was_made(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "slot_mapping", wrong])
    hints = find_exercise("slot_mapping").hints["general"]
    assert f"Hint 1 of 3: {hints[0]}" in capsys.readouterr().out
    for level in (2, 3, 3):
        assert main(["hint", "slot_mapping"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert shown == " ".join(f"Hint {level} of 3: {hints[level - 1]}".split())
    main(["progress", "--json"])
    assert json.loads(capsys.readouterr().out)["exercises"]["slot_mapping"]["hints"] == 2


def test_the_first_hint_without_a_check_is_a_general_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hint", "condense"]) == 0
    assert capsys.readouterr().out.startswith("Hint 1 of 3: Write down which rows are live")


def test_progress_counts_and_forgets(right: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "slot_mapping", right])
    capsys.readouterr()
    assert main(["progress"]) == 0
    assert "1 exercise passed, 1 tried, 0 hints used" in capsys.readouterr().out
    assert main(["progress", "--reset"]) == 0
    assert "0 exercises passed" in capsys.readouterr().out


def test_a_check_works_where_progress_cannot_be_kept(
    right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGEDLAB_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert main(["check", "slot_mapping", right]) == 0
    assert "Not counted: progress cannot be kept in" in capsys.readouterr().out


def test_a_damaged_progress_file_is_said(right: str, progress_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress_file.parent.mkdir()
    progress_file.write_text("{", encoding="utf-8")
    main(["check", "slot_mapping", right])
    assert "what was there is in" in capsys.readouterr().out
    progress_file.write_text("{", encoding="utf-8")
    assert main(["progress"]) == 0
    assert "could not be read and begins anew" in capsys.readouterr().err


def test_exercises_lists_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercises"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(names) == exercise_names()
