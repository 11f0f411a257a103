"""Make docs/exercise-kill-matrix.md (`make kill-matrix`): which wrong version of each exercise is caught, and by what.

Every mutant of every exercise is checked on three seeds, as a learner's submission would be, but in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pagedlab.kernels import backend
from pagedlab.teaching.exercises import Entry, all_exercises
from pagedlab.teaching.exercises.kills import SEEDS, Kill, kills_of

PAGE = Path(__file__).parent / "exercise-kill-matrix.md"


def page(matrix: Mapping[str, Sequence[Kill]]) -> str:
    """Return the page as Markdown.

    Parameters
    ----------
    matrix : mapping of str to sequence of Kill
        By name of the exercise.
    """
    entries = [entry for entry in all_exercises() if entry.name in matrix]
    total = sum(map(len, matrix.values()))
    seeds = ", ".join(map(str, SEEDS))
    lines = [
        "# What the exercises catch",
        "",
        f"{len(entries)} exercises, {total} wrong versions (mutants), each named for a misconception and checked on",
        f"the seeds {seeds}. *Caught by* is the first case picked by hand on which it is wrong; *search* means that",
        "only Hypothesis finds an input, *speed* that it is right and too slow. *Hint* says whether the hint shown was",
        "its own on every seed. `make kill-matrix` makes this page, and",
        "[exercises/README.md](../exercises/README.md) says how exercises work.",
        "",
    ]
    for entry in entries:
        lines += section(entry, matrix[entry.name])
    return "\n".join(lines).rstrip() + "\n"


def section(entry: Entry, kills: Sequence[Kill]) -> list[str]:
    """Return the part of one exercise."""
    exercise = entry.exercise
    head = ["misconception", "what its author believed", "caught by", "hint"]
    body = [[f"`{kill.mutant}`", cell(kill.belief), caught_by(kill), hint(kill)] for kill in kills]
    rows = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
    return [f"## {exercise.title} (`{entry.name}`)", "", f"Lesson {exercise.lesson}.", "", *rows, ""]


def caught_by(kill: Kill) -> str:
    """Say what catches a mutant."""
    if "" in kill.kinds:
        return "**nothing**"
    return f"case: {cell(kill.case)}" if kill.case else "speed" if set(kill.kinds) == {"slow"} else "search"


def hint(kill: Kill) -> str:
    """Say whether the hint shown was the mutant's own."""
    others = [topic for topic in dict.fromkeys(kill.topics) if topic != kill.mutant]
    return f"**{', '.join(others)}**" if others else "its own"


def cell(text: str) -> str:
    """Return text that cannot end a table's cell."""
    return text.replace("|", "\\|")


def build() -> str:
    """Check all mutants and return the page."""
    if not backend().has_triton:
        raise SystemExit(f"the page holds Triton exercises too, and there is no Triton here: {backend().reason}")
    return page({entry.name: list(kills_of(entry)) for entry in all_exercises()})


if __name__ == "__main__":
    PAGE.write_text(build(), encoding="utf-8")
