from __future__ import annotations

from pathlib import Path

import pytest

from pagedlab.errors import LessonError
from pagedlab.teaching import COURSE, course_map, find_lesson, lessons_directory
from pagedlab.teaching.lessons import copy_lessons


def test_the_course_has_fourteen_lessons_numbered_in_order() -> None:
    assert [lesson.number for lesson in COURSE] == list(range(14))
    assert len({lesson.slug for lesson in COURSE}) == 14


@pytest.mark.parametrize("name", ["00", "0", "00-one-step", "one-step", "00-one-step.ipynb"])
def test_a_lesson_is_found_by_number_or_name(name: str) -> None:
    assert find_lesson(name) == lessons_directory() / "00-one-step.ipynb"


def test_any_notebook_is_found_by_its_path(tmp_path: Path) -> None:
    notebook = tmp_path / "mine.ipynb"
    notebook.write_text("{}")
    assert find_lesson(str(notebook)) == notebook


@pytest.mark.parametrize("name", ["99", "", "nonsense", "/no/such/file.ipynb", "²"])
def test_an_unknown_lesson_is_an_error_that_lists_what_there_is(name: str) -> None:
    with pytest.raises(LessonError, match="00-one-step"):
        find_lesson(name)


def test_a_lesson_to_come_says_so() -> None:
    missing = next((lesson for lesson in COURSE if not lesson.exists), None)
    if missing is None:
        pytest.skip("all lessons are written")
    with pytest.raises(LessonError, match=f"{missing.name} is not written yet"):
        find_lesson(str(missing.number))


def test_the_map_links_exactly_the_lessons_that_exist() -> None:
    for line, lesson in zip(course_map().splitlines()[2:], COURSE, strict=True):
        assert (f"]({lesson.name}.ipynb)" in line) == lesson.exists
        assert lesson.title in line


def test_every_notebook_belongs_to_the_course() -> None:
    assert {path.stem for path in lessons_directory().glob("*.ipynb")} <= {lesson.name for lesson in COURSE}


def test_copies_never_overwrite_what_the_learner_did(tmp_path: Path) -> None:
    folder = tmp_path / "lessons"
    first = copy_lessons(folder)
    assert folder / "00-one-step.ipynb" in first
    (folder / "00-one-step.ipynb").write_text("my work")
    assert copy_lessons(folder) == []
    assert (folder / "00-one-step.ipynb").read_text() == "my work"
