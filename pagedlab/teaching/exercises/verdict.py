"""A verdict: whether a submission passed, and if not, what is wrong, in words, with the input that shows it.

`Verdict.text` is for a terminal, `Verdict.to_json` for programs; `pagedlab.teaching.exercises.showing` shows one in a
notebook.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedlab.teaching.exercises.comparing import difference
from pagedlab.teaching.exercises.encoding import encode
from pagedlab.teaching.exercises.exercise import Inputs
from pagedlab.teaching.exercises.hints import LEVELS, Hint

if TYPE_CHECKING:
    from pagedlab.teaching.exercises.playing import Played

_NOTHING = "(nothing)"
_WIDTH = 58
_MAX_PRINTED = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test of an exercise.

    Attributes
    ----------
    test : str
        What is special about its input, if that was picked by hand; else as in `Exercise.tests`.
    reason : str
        What is wrong; empty if it passed.
    """

    test: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Verdict:
    """What the judge found.

    Attributes
    ----------
    exercise, title : str
    kind : str
        ``"passed"``, or why not. Before any call: ``"syntax"``, ``"import"``, ``"missing"``, ``"signature"``,
        ``"unfinished"``. In one: ``"wrong"``, ``"raised"``, ``"memory"``, ``"mutates"``, ``"random"``, ``"slow"``. At
        the end of the process: ``"timeout"``, ``"overtime"``, ``"exit"``, ``"signal"``, ``"protocol"``.
    message : str
        What is wrong, in words.
    place : str
        The line of the submission that it comes from, if there is one.
    inputs : mapping or None
        The smallest input that shows it.
    why : str
        What is special about the input, if it was picked by hand.
    also : str
        What is special about a larger input, picked by hand, that it is wrong on too.
    expected, actual : mapping or None
        What counts of the reference's values and of the submission's, by name.
    hint : Hint or None
    printed : str
        What the submission printed.
    notes : tuple of str
        What else there is to say: where a Triton kernel ran, what could not be confined.
    num_inputs : int
        On how many inputs the submission was called.
    seconds : float
    played : Played or None
        Both recordings, to play.
    outcomes : tuple of Outcome
        Test by test, where that was asked for: a check that a learner waits for ends at the first that fails.
    """

    exercise: str
    title: str
    kind: str
    message: str
    place: str = ""
    inputs: Inputs | None = None
    why: str = ""
    also: str = ""
    expected: Mapping[str, Any] | None = None
    actual: Mapping[str, Any] | None = None
    hint: Hint | None = None
    printed: str = ""
    notes: tuple[str, ...] = ()
    num_inputs: int = 0
    seconds: float = 0.0
    played: Played | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> bool:
        return self.kind == "passed"

    @property
    def headline(self) -> str:
        """The title, and whether it passed."""
        return f"{self.title}: {'passed.' if self.passed else 'not yet.'}"

    @property
    def input_lines(self) -> list[tuple[str, str]]:
        """The input, as (name, value)."""
        return [(name, written(value)) for name, value in (self.inputs or {}).items()]

    @property
    def beside(self) -> list[tuple[str, str, str, bool]]:
        """Both results, from the first that differs: (name, yours, the reference's, whether they differ)."""
        if self.expected is None or self.actual is None:
            return []
        names = list(dict.fromkeys((*self.expected, *self.actual)))
        rows = []
        for name in names:
            sides = [written(side[name]) if name in side else _NOTHING for side in (self.actual, self.expected)]
            both = name in self.expected and name in self.actual
            differs = not both or difference(self.expected[name], self.actual[name]) is not None
            rows.append((name, *sides, differs))
        first = next((at for at, row in enumerate(rows) if row[3]), 0)
        return rows[first:]  # type: ignore[return-value]

    @property
    def printed_lines(self) -> list[str]:
        """The first lines of what the submission printed."""
        lines = self.printed.rstrip().splitlines()
        return lines if len(lines) <= _MAX_PRINTED else [*lines[:_MAX_PRINTED], "..."]

    @property
    def text(self) -> str:
        """The verdict for a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.headline
        yield self.message
        if self.place:
            yield f"  {self.place}"
        if self.inputs is not None:
            yield from ("", f"With this input{f' ({self.why})' if self.why else ''}:")
            yield from (f"  {name} = {value}" for name, value in self.input_lines)
        if self.also:
            yield f"It is wrong, too, on {self.also}."
        if rows := self.beside:
            width = max(len(name) for name, *_ in rows)
            yield ""
            for name, yours, expected, differs in rows:
                mark = ">" if differs else " "
                yield f"{mark} {name:<{width}}  yours          {yours}"
                yield f"{mark} {'':<{width}}  the reference  {expected}"
        if self.printed:
            yield from ("", "It printed:", *(f"  {line}" for line in self.printed_lines))
        if self.hint is not None:
            yield from ("", f"Hint {self.hint.level} of {LEVELS}: {self.hint.text}")
            if self.hint.level < LEVELS:
                yield f"The next one: pagedlab hint {self.exercise}"
        yield ""
        yield from self.notes
        yield f"{self.num_inputs} inputs tried in {self.seconds:.1f} s."

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready data."""
        return {
            "exercise": self.exercise,
            "passed": self.passed,
            "kind": self.kind,
            "message": self.message,
            "place": self.place,
            "inputs": None if self.inputs is None else {name: encode(value) for name, value in self.inputs.items()},
            "why": self.why,
            "also": self.also,
            "expected": None if self.expected is None else {str(k): encode(v) for k, v in self.expected.items()},
            "actual": None if self.actual is None else {str(k): encode(v) for k, v in self.actual.items()},
            "hint": self.hint and {"topic": self.hint.topic, "level": self.hint.level, "text": self.hint.text},
            "printed": self.printed,
            "notes": list(self.notes),
            "num_inputs": self.num_inputs,
            "seconds": round(self.seconds, 3),
            "outcomes": [{"test": one.test, "passed": one.passed, "reason": one.reason} for one in self.outcomes],
        }


def written(value: Any) -> str:
    """Write a value on one line, cut if it is long."""
    import numpy as np

    if isinstance(value, np.ndarray):
        text = f"{value.tolist()} ({value.dtype})"
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 4 * _WIDTH else f"{text[: 4 * _WIDTH - 3]}..."
