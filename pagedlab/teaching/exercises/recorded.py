"""The reference's answers, recorded: what a student's copy checks with, where there is no reference and no mutant.

    exercise, hints = exercise_from(read_recording(path))

The file has inputs, and for each what the reference answered and, of each mutant, a fingerprint of its answer. So a
check in a student's copy finds the smallest of those inputs that fails, plays the reference beside the submission,
and shows the hint of the mutant that does the same; and nobody can read a solution out of it. What a copy cannot do
is ask for an input that is not among them; a teacher's check tries others, beside the same cases.
`pagedlab.teaching.classroom.recording` writes it.

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import linecache
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.answers import Answer, Raised
from pagedlab.teaching.exercises.comparing import canonical
from pagedlab.teaching.exercises.encoding import decode, encode
from pagedlab.teaching.exercises.exercise import Case, Exercise, Inputs, Limits, Speed
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.recording import Step

FORMAT, VERSION = "pagedlab-answers", 1


def read_recording(path: Path) -> dict[str, Any]:
    """Read what `write_recording` wrote.

    Raises
    ------
    ExerciseError
        If it is something else.
    """
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"not {FORMAT} of version {VERSION}")
    except (OSError, EOFError, ValueError, LookupError, TypeError, zlib.error) as error:
        raise ExerciseError(f"{path} cannot be read ({error}): copy the course anew") from None
    return dict(data)


def exercise_from(data: Mapping[str, Any]) -> tuple[Exercise, Mapping[str, tuple[str, ...]]]:
    """Return an exercise that checks with recorded answers, and its hints."""
    from hypothesis import strategies as st

    recorded = RecordedAnswers(data)
    code = _run(data["code"], f"<{data['name']}: what counts>")
    speed = data["speed"]
    exercise = Exercise(
        name=data["name"],
        lesson=data["lesson"],
        title=data["title"],
        task=data["task"],
        reference=_stub(data["function"], data["signature"], data["called"]),
        cases=tuple(Case(item["why"], **_decoded(item["inputs"])) for item in data["answers"] if item["why"]),
        # Sorted by size: what Hypothesis shrinks to is the first of them that fails.
        strategy=st.sampled_from(sorted(data["answers"], key=lambda item: size_of(item["inputs"]))).map(
            lambda item: _decoded(item["inputs"])
        ),
        changes=tuple(data["changes"]),
        view=code[data["view"]] if data["view"] else None,
        drive=code[data["drive"]] if data["drive"] else None,
        form=data["form"],
        speed=speed
        and Speed([Case(case["why"], **_decoded(case["inputs"])) for case in speed["cases"]], speed["times"]),
        instead=data["instead"],
        limits=Limits(**data["limits"]),
        recorded=recorded,
    )
    return exercise, {topic: tuple(texts) for topic, texts in data["hints"].items()}


class RecordedAnswers:
    """What the reference and the mutants answered to some inputs: a `Subject`, and one that can be timed.

    Parameters
    ----------
    data : mapping
        What `recording_of` returns.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._items = {item["key"]: item for item in data["answers"]}

    def answer(self, inputs: Inputs) -> Answer:
        """Return what the reference answered.

        Raises
        ------
        ExerciseError
            If it was never asked that.
        """
        data = self._item(inputs)["answer"]
        if "raised" in data:
            return Answer(None, inputs, Raised(data["raised"], ""))
        return Answer(decode(data["returned"]), {**inputs, **_decoded(data["changed"])})

    def steps(self, inputs: Inputs) -> tuple[Step, ...]:
        """Return what the reference did, step by step; nothing if that was not recorded for this input."""
        return tuple(Step(None, state) for state in self._item(inputs)["steps"])

    @property
    def suspects(self) -> dict[str, Callable[[Inputs], str]]:
        """For each misconception what it comes to on an input, as a fingerprint."""
        topics = [topic for topic in self._data["hints"] if topic != GENERAL]
        return {topic: functools.partial(self._print, topic) for topic in topics}

    @property
    def reference_units(self) -> float:
        """How long the reference takes for all speed cases, in units of the yardstick."""
        return float(self._data["speed"]["units"])

    @property
    def speed_of_suspects(self) -> dict[str, float]:
        """How many times as fast as the reference each misconception is that gives right answers."""
        return dict(self._data["speed"]["mutants"])

    def _print(self, topic: str, inputs: Inputs) -> str:
        return str(self._item(inputs)["prints"][topic])

    def _item(self, inputs: Inputs) -> dict[str, Any]:
        item = self._items.get(key_of(inputs))
        if item is None:
            raise ExerciseError(f"{self._data['name']}: this copy has no answer to an input that was asked")
        return dict(item)


def _stub(name: str, signature: str, called: str) -> Callable[..., Any]:
    """Return a function that only has a name and parameters."""
    parameters = signature or f"({called.partition('(')[2]}"
    source = f"from __future__ import annotations\ndef {name}{parameters}: raise NotImplementedError\n"
    found: Callable[..., Any] = _run(source, f"<{name}>")[name]
    return found


def _run(source: str, filename: str) -> dict[str, Any]:
    """Run definitions of ours; `inspect` finds their source."""
    names: dict[str, Any] = {"__name__": filename, "np": np}
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)
    return names


# --- inputs and answers as data -----------------------------------------------------------------------------------


def encoded_inputs(inputs: Inputs) -> list[list[Any]]:
    """Return inputs as JSON-ready pairs of name and value."""
    return [[name, encode(value, strict=True)] for name, value in inputs.items()]


def _decoded(pairs: Iterable[Iterable[Any]]) -> dict[str, Any]:
    return {name: decode(value) for name, value in pairs}


def key_of(inputs: Inputs) -> str:
    """Return what tells inputs from others; in whatever order their sets and dicts are."""
    return hashlib.sha256(json.dumps(canonical(dict(inputs))).encode()).hexdigest()[:16]


def size_of(pairs: Any) -> int:
    """Return how large encoded inputs are, as text."""
    return len(json.dumps(pairs))
