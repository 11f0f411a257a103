"""The course: which lessons there are, how they run, and what their cells use to talk to the learner.

>>> from pagedlab.teaching import COURSE
>>> COURSE[0].name
'00-one-step'

vLLM has no counterpart.
"""

from pagedlab.teaching.breaking import without
from pagedlab.teaching.charts import show_tokens
from pagedlab.teaching.lessons import COURSE, Lesson, course_map, find_lesson, lessons_directory
from pagedlab.teaching.telling import knob, play, predict, say, show_source

__all__ = [
    "COURSE",
    "Lesson",
    "course_map",
    "find_lesson",
    "knob",
    "lessons_directory",
    "play",
    "predict",
    "say",
    "show_source",
    "show_tokens",
    "without",
]
