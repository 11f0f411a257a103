"""The pages for teachers name sections that the lessons have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagedlab.teaching import COURSE, lessons_directory

DOCS = Path(__file__).parents[2] / "docs"
TABLE = (DOCS / "seeds-in-lessons.md").read_text(encoding="utf-8")
WRITTEN = [lesson.name for lesson in COURSE if lesson.exists and lesson.number > 0]


def headings(lesson: str) -> set[str]:
    text = (lessons_directory() / "source" / f"{lesson}.md").read_text(encoding="utf-8")
    return set(re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("lesson", WRITTEN)
def test_each_statement_of_the_seeds_names_a_section_that_exists(lesson: str) -> None:
    section = TABLE.partition(f"## {lesson}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 5
    for statement, seed, place in rows:
        assert seed in ("000", "003", "004"), statement
        assert place in headings(lesson), (statement, place)


@pytest.mark.parametrize("lesson", WRITTEN)
def test_there_are_ten_questions_for_teachers_and_each_says_where_its_answer_is(lesson: str) -> None:
    text = (DOCS / "teachers" / f"{lesson}.md").read_text(encoding="utf-8")
    questions = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(questions) == 10
    for question in questions:
        assert re.match(r"\*\*.+?\?\*\*", question, flags=re.DOTALL), question
        (places,) = re.findall(r"\[([^\]]+)\]\s*$", question.strip(), flags=re.DOTALL)
        known = headings(lesson)
        sections = re.sub(r"\s+", " ", places)
        assert sections in known or all(section in known for section in sections.split(", ")), places
