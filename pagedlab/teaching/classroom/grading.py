"""Grade one solution: plain data in, plain data out, so that it runs in a process of a pool or on a cluster.

    mark = grade_one(job_for(handed_in, seed=0, hidden=[]))
    mark["passed"], mark["tests"]

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pagedlab import __version__
from pagedlab.errors import ExerciseError
from pagedlab.teaching import exercises
from pagedlab.teaching.classroom.submissions import HandedIn
from pagedlab.teaching.exercises.checking import check
from pagedlab.teaching.exercises.registry import find_exercise
from pagedlab.teaching.exercises.sandbox import Submission

Job = Mapping[str, Any]
FIELDS = frozenset(
    ("key", "student", "exercise", "file", "passed", "kind", "reason", "misconception", "seconds", "notes", "tests")
)
Mark = Mapping[str, Any]
"""What became of a job, by `FIELDS`; ``tests`` is a list of (test, reason), empty where it passed."""

WHOLE = "the exercise"
"""What stands for its tests where none was run."""

NOT_GRADED = "not graded"
"""The kind of a mark when the judge failed, not the student."""


def job_for(handed_in: HandedIn, seed: int, hidden: Sequence[str]) -> Job:
    """Return what `grade_one` needs.

    Parameters
    ----------
    handed_in : HandedIn
    seed : int
    hidden : sequence of str
        Folders and files that no submission must see: those of the other students, and the grades.
    """
    submission = asdict(handed_in.submission)
    submission["elsewhere"] = sorted(submission["elsewhere"])
    what = {"submission": submission, "exercise": _digest_of(handed_in.exercise), "seed": seed, "version": __version__}
    return {
        # The same only as long as the submission, the exercise and the judge are: else it is graded anew.
        "key": hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24],
        "student": handed_in.student,
        "exercise": handed_in.exercise,
        "file": handed_in.file,
        "submission": submission,
        "seed": seed,
        "hidden": list(hidden),
        "notes": list(handed_in.notes),
    }


def grade_one(job: Job) -> Mark:
    """Check a submission, test by test; whatever happens, there is a mark."""
    about = {name: job[name] for name in ("key", "student", "exercise", "file")}
    source = Submission(**{**job["submission"], "elsewhere": frozenset(job["submission"]["elsewhere"])})
    try:
        entry = find_exercise(job["exercise"])
        verdict = check(entry, source, job["seed"], every_test=True, hidden=[Path(path) for path in job["hidden"]])
    except Exception as error:  # of ours: the others of the class are graded all the same
        said = str(error) if isinstance(error, ExerciseError) else f"{type(error).__name__}: {error}"
        return {**about, **unmarked([WHOLE], said), "notes": job["notes"]}
    return {
        **about,
        "passed": verdict.passed,
        "kind": verdict.kind,
        "reason": "" if verdict.passed else " ".join(filter(None, (verdict.message, verdict.place))),
        "misconception": verdict.hint.topic if verdict.hint is not None else "",
        "seconds": round(verdict.seconds, 3),
        "notes": [*job["notes"], *verdict.notes],
        "tests": [[outcome.test, outcome.reason] for outcome in verdict.outcomes],
    }


def unmarked(tests: Iterable[str], reason: str, kind: str = NOT_GRADED) -> dict[str, Any]:
    """Return what a mark says where there was no check: each test has failed for the same reason."""
    return {
        "passed": False,
        "kind": kind,
        "reason": reason,
        "misconception": "",
        "seconds": 0.0,
        "notes": [],
        "tests": [[test, reason] for test in tests],
    }


def prepare_process(cores: Any) -> None:
    """Prepare a process of the pool: it keeps to one core, leaves interrupts to its parent, and ends with it.

    The submissions that it starts keep to its core too, so one with many threads slows nobody but itself.

    Parameters
    ----------
    cores : queue of int
        One for each process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    core = cores.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@functools.cache
def _digest_of(exercise: str) -> str:
    """Return what changes when an exercise does, or the judge."""
    digest = hashlib.sha256()
    for folder in (find_exercise(exercise).folder, Path(exercises.__file__).parent):
        for path in sorted(folder.iterdir()):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
