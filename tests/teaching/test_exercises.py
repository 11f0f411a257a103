"""The exercises themselves are tested: starters fail, solutions pass, mutants are killed and recognised."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pagedlab.errors import ExerciseError
from pagedlab.kernels import backend
from pagedlab.teaching import COURSE
from pagedlab.teaching.exercises import (
    Entry,
    Submission,
    all_exercises,
    check,
    exercise_names,
    find_exercise,
    searching,
)
from pagedlab.teaching.exercises.hints import GENERAL, LEVELS
from pagedlab.teaching.exercises.kills import SEEDS, Kill, kill_of, kills_of
from pagedlab.teaching.exercises.registry import exercises_directory
from pagedlab.teaching.exercises.searching import Examiner, subject_of

DOCS = Path(__file__).parents[2] / "docs"
NAMES = exercise_names()


@pytest.fixture(scope="module", autouse=True)
def little_shrinking() -> Iterator[None]:
    """Which input is the smallest does not matter here: whether one fails does, and what explains it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "_SHRINK_SECONDS", 0.3)
        yield


def entry_of(name: str) -> Entry:
    entry = find_exercise(name)
    if entry.exercise.form == "triton" and not backend().has_triton:
        pytest.skip(backend().reason)
    return entry


def mutants() -> list[tuple[str, str]]:
    """Name all mutants without importing them: each has hints of its own, and each hint a mutant."""
    found = []
    for name in NAMES:
        try:
            found += [(name, topic) for topic in find_exercise(name).hints if topic != GENERAL]
        except ExerciseError:  # said by the test of the folder
            continue
    return found


@functools.cache
def kill(name: str, mutant: str) -> Kill:
    return kill_of(entry_of(name), mutant)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_holds_all_that_an_exercise_needs(name: str) -> None:
    entry = entry_of(name)
    assert entry.exercise.lesson in {lesson.name for lesson in COURSE}
    assert len(entry.mutants) >= 5
    assert len(entry.solution_files) >= 3, "a solution, and two in other styles"
    assert all(mutant.__doc__ for mutant in entry.mutants.values()), "a mutant says what its author believed"
    assert len({case.why for case in entry.exercise.cases}) == len(entry.exercise.cases) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_no_two_hints_are_the_same(name: str) -> None:
    hints = [text for texts in find_exercise(name).hints.values() for text in texts[: LEVELS - 1]]
    assert len(set(hints)) == len(hints)


@pytest.mark.parametrize("name", NAMES)
def test_the_starter_fails_and_names_the_task(name: str) -> None:
    entry = entry_of(name)
    verdict = check(entry, Submission(entry.starter, "starter.py"))
    assert (verdict.passed, verdict.kind) == (False, "unfinished")
    assert entry.exercise.title in verdict.text
    assert entry.exercise.function in verdict.message
    assert f"pagedlab check {name} THIS_FILE" in entry.starter


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes_in_a_process_of_its_own(name: str) -> None:
    entry = entry_of(name)
    path = entry.solution_files[0]
    verdict = check(entry, Submission(path.read_text(encoding="utf-8"), path.name), seed=1)
    assert verdict.passed, verdict.text
    assert verdict.num_inputs > len(entry.exercise.cases)


@pytest.mark.parametrize("name", NAMES)
def test_solutions_of_every_style_pass(name: str) -> None:
    entry = entry_of(name)
    for path in entry.solution_files:
        examiner = Examiner(entry.exercise, subject_of(entry.exercise, entry.solution(path)))
        assert examiner.examine(seed=2) is None, path.name


@pytest.mark.parametrize(("name", "mutant"), mutants())
def test_every_mutant_is_killed_on_three_seeds_and_its_own_hint_is_shown(name: str, mutant: str) -> None:
    found = kill(name, mutant)
    assert all(found.kinds), f"survives on some of the seeds {SEEDS}: {found.kinds}"
    assert set(found.topics) == {mutant}


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)  # alone it checks all mutants; otherwise the tests above have
def test_the_page_says_what_the_exercises_catch(script: Callable[[Path], ModuleType]) -> None:
    builder = script(DOCS / "build_kill_matrix.py")
    for name in NAMES:
        entry_of(name)  # skips where an exercise cannot run: the page holds all of them
    page = builder.page({name: [kill(name, mutant) for mutant in find_exercise(name).mutants] for name in NAMES})
    assert builder.PAGE.read_text(encoding="utf-8") == page, "run: make kill-matrix"


def test_the_example_of_the_readme_is_an_exercise(tmp_path: Path) -> None:
    text = (exercises_directory() / "README.md").read_text(encoding="utf-8")
    folder = tmp_path / "last_slot"
    folder.mkdir()
    for name, source in re.findall(
        r"^`(?:exercises/last_slot/)?(\w+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)^```$", text, re.M | re.S
    ):
        (folder / name).write_text(source, encoding="utf-8")
    entry = find_exercise("last_slot", tmp_path)
    assert check(entry, Submission(entry.starter, "starter.py")).kind == "unfinished"
    assert check(entry, Submission(entry.solution_files[0].read_text(encoding="utf-8"))).passed
    assert [set(kill.topics) for kill in kills_of(entry)] == [{"forgets_the_block"}]


# --- the registry -------------------------------------------------------------------------------------------------


def test_no_such_exercise_is_said_with_what_there_is() -> None:
    with pytest.raises(ExerciseError, match=r"no exercise 'condens'; there is: .*condense"):
        find_exercise("condens")


SMALL = {
    "exercise.py": """
from hypothesis import strategies as st
from pagedlab.teaching.exercises import Case, Exercise

def last(items):
    return items[-1]

EXERCISE = Exercise(
    name="last", lesson="00-one-step", title="The last", task="Return the last.", reference=last,
    cases=(Case("one", items=[1]),), strategy=st.fixed_dictionaries({"items": st.lists(st.integers(), min_size=1)}),
)
""",
    "starter.py": "def last(items):\n    raise NotImplementedError('last: return it')\n",
    "mutants.py": "def first(items):\n    '''The first is the last.'''\n    return items[0]\n",
    "hints.md": "## general\n1. a\n2. b\n3. c\n## first\n1. d\n2. e\n3. f\n",
}


def folder_with(tmp_path: Path, **changed: str) -> Path:
    folder = tmp_path / "last"
    folder.mkdir()
    for name, text in (SMALL | {key.replace("__", "."): text for key, text in changed.items()}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_new_folder_is_an_exercise_and_nothing_else_is_touched(tmp_path: Path) -> None:
    entry = find_exercise("last", folder_with(tmp_path))
    wrong = check(entry, Submission("def last(items):\n    return items[0]\n"))
    assert wrong.inputs == {"items": [0, 1]}
    assert wrong.hint is not None
    assert (wrong.hint.topic, wrong.hint.text) == ("first", "d")
    assert check(entry, Submission("def last(items):\n    return items.copy().pop()\n")).passed


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("exercise.py", "import nowhere_at_all", "exercise.py does not import: ModuleNotFoundError"),
        ("exercise.py", "EXERCISE = 3", "must define EXERCISE"),
        ("exercise.py", SMALL["exercise.py"].replace('name="last"', 'name="lost"'), "calls it 'lost'"),
        ("exercise.py", SMALL["exercise.py"].replace("items=[1]", "item=[1]"), r"has the inputs \('item',\)"),
        ("exercise.py", SMALL["exercise.py"].replace('task="', 'changes=("it",), task="'), "changes .*'it'"),
        ("exercise.py", SMALL["exercise.py"].replace('task="', 'form="speed", task="'), "says how fast"),
        ("exercise.py", SMALL["exercise.py"].replace('task="', 'form="triton", task="'), "in `instead`"),
        ("hints.md", "## first\n1. d\n2. e\n3. f\n", "has no '## general'"),
        ("hints.md", "## general\n1. a\n2. b\n", "2 hints under '## general': give 3"),
        ("hints.md", "## general\n1. a\n2. b\n3. c\n", "has no '## first'"),
        ("hints.md", SMALL["hints.md"] + "## third\n1. g\n2. h\n3. i\n", "explains .*'third'.*mutants.py lacks"),
        ("mutants.py", "1 / 0", "mutants.py does not import: ZeroDivisionError"),
    ],
)
def test_a_broken_folder_is_named_with_what_is_wrong(tmp_path: Path, file: str, text: str, says: str) -> None:
    directory = folder_with(tmp_path, **{file.replace(".", "__"): text})
    with pytest.raises(ExerciseError, match=rf"exercise 'l[ao]st'.*{says}"):
        _ = find_exercise("last", directory).mutants


def test_a_broken_folder_stands_in_nobodys_way(tmp_path: Path) -> None:
    directory = folder_with(tmp_path)
    (directory / "broken").mkdir()
    (directory / "broken" / "exercise.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(ExerciseError, match="exercise 'broken'"):
        all_exercises(directory)
    broken: list[ExerciseError] = []
    assert [entry.name for entry in all_exercises(directory, broken=broken)] == ["last"]
    assert len(broken) == 1


def test_a_folder_that_lacks_a_file_says_which(tmp_path: Path) -> None:
    directory = folder_with(tmp_path)
    (directory / "last" / "hints.md").unlink()
    with pytest.raises(ExerciseError, match=r"lacks hints\.md"):
        find_exercise("last", directory)
