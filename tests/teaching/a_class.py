"""Write a class: many students who hand in all exercises, rightly, wrongly and oddly; the same class each time.

python tests/teaching/a_class.py build/class --students 200
pagedlab grade build/class --out build/grades.csv
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from pagedlab.teaching.exercises import all_exercises
from pagedlab.teaching.exercises.registry import Entry

RIGHT, WRONG, STARTED, ODD = 60, 30, 6, 4
"""Of a hundred solutions."""

_ODD = (
    "while True:\n    pass\n",
    "def {name}(*_):\n    while True:\n        pass\n",
    "import os\nos._exit(0)\n",
    "def {name}(*_):\n    raise SystemExit\n",
    "def {name}(*_):\n    return bytearray(10 << 30)\n",
    "import os\nwhile True:\n    os.fork()\n",
    "print('passed' * 10_000_000)\n",
    "this is not Python\n",
    "",
)


def write_class(directory: Path, num_students: int, seed: int = 0) -> int:
    """Write the folders; return how many solutions there are."""
    entries = all_exercises()
    chance = random.Random(seed)
    for number in range(num_students):
        folder = directory / f"student-{number:03d}"
        folder.mkdir(parents=True)
        for entry in entries:
            (folder / f"{entry.name}.py").write_text(_solution(entry, chance), encoding="utf-8")
    return num_students * len(entries)


def _solution(entry: Entry, chance: random.Random) -> str:
    (kind,) = chance.choices(("right", "wrong", "started", "odd"), (RIGHT, WRONG, STARTED, ODD))
    if kind == "right":
        return chance.choice(entry.solution_files).read_text(encoding="utf-8")
    if kind == "wrong":
        mutants = (entry.folder / "mutants.py").read_text(encoding="utf-8")
        return f"{mutants}\n\n{entry.exercise.function} = {chance.choice(list(entry.mutants))}\n"
    if kind == "started":
        return entry.starter
    return chance.choice(_ODD).format(name=entry.exercise.function)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Write a class of students to grade.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--students", type=int, default=200)
    arguments = parser.parse_args(argv)
    print(f"{write_class(arguments.directory, arguments.students)} solutions in {arguments.directory}")


if __name__ == "__main__":
    main()
