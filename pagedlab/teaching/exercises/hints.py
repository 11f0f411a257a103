"""Hints: three for each misconception, from a nudge to nearly the answer.

>>> hints = parse_hints('''
... # Hints
... ## shifts_left
... 1. Count how many rows you move.
... 2. One row for each hole is enough.
... 3. Move the last row
...    into the lowest hole.
... ''')
>>> hints["shifts_left"][2]
'Move the last row into the lowest hole.'

vLLM has no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagedlab.errors import ExerciseError

LEVELS = 3

GENERAL = "general"
"""The hints for a mistake that no misconception explains."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint: which misconception it is for (`GENERAL`: none), its level from 1, and its text in Markdown."""

    topic: str
    level: int
    text: str


def parse_hints(markdown: str) -> Mapping[str, tuple[str, ...]]:
    """Return the hints under each heading ``## topic``.

    Raises
    ------
    ExerciseError
        If a topic has not exactly `LEVELS` numbered hints.
    """
    hints: dict[str, tuple[str, ...]] = {}
    for section in re.split(r"^## +", markdown, flags=re.MULTILINE)[1:]:
        topic, _, body = section.partition("\n")
        items = re.split(r"^\d+\. +", body, flags=re.MULTILINE)[1:]
        texts = tuple(re.sub(r"\n[ \t]+", " ", item.strip()) for item in items)
        if len(texts) != LEVELS:
            raise ExerciseError(
                f"hints.md has {len(texts)} hints under '## {topic.strip()}': give {LEVELS}, as 1. 2. 3."
            )
        hints[topic.strip()] = texts
    return hints
