"""The course: which lessons there are, how they run, and what their cells use to talk to the learner.

>>> from pagedlab.teaching import COURSE
>>> COURSE[0].name
'00-one-step'

Each name is imported when it is first used: the process of a submission imports this package too, and needs none.

vLLM has no counterpart.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab.teaching.breaking import without
    from pagedlab.teaching.charts import show_tokens
    from pagedlab.teaching.exercises.notebook import exercise, hint, passes, progress, start
    from pagedlab.teaching.lessons import COURSE, Lesson, course_map, find_lesson, lessons_directory
    from pagedlab.teaching.people import PEOPLE, crowd, say_changed, serve
    from pagedlab.teaching.telling import knob, play, predict, say, show_source

_HOMES = {
    "COURSE": "lessons",
    "Lesson": "lessons",
    "PEOPLE": "people",
    "course_map": "lessons",
    "crowd": "people",
    "exercise": "exercises.notebook",
    "find_lesson": "lessons",
    "hint": "exercises.notebook",
    "knob": "telling",
    "lessons_directory": "lessons",
    "passes": "exercises.notebook",
    "play": "telling",
    "predict": "telling",
    "progress": "exercises.notebook",
    "say": "telling",
    "say_changed": "people",
    "serve": "people",
    "show_source": "telling",
    "show_tokens": "charts",
    "start": "exercises.notebook",
    "without": "breaking",
}

__all__ = [
    "COURSE",
    "PEOPLE",
    "Lesson",
    "course_map",
    "crowd",
    "exercise",
    "find_lesson",
    "hint",
    "knob",
    "lessons_directory",
    "passes",
    "play",
    "predict",
    "progress",
    "say",
    "say_changed",
    "serve",
    "show_source",
    "show_tokens",
    "start",
    "without",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pagedlab.teaching' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pagedlab.teaching.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
