"""Call a submission, or a trusted function, and see what it did: one `Answer` a call, whoever ran it.

vLLM has no counterpart.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pagedlab.teaching.exercises.comparing import canonical, difference
from pagedlab.teaching.exercises.exercise import RETURNED, Exercise, Inputs

if TYPE_CHECKING:
    from pagedlab.teaching.exercises.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a submission: type, text, and the lines that led to it, as (line, function)."""

    type_name: str
    text: str
    frames: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call did.

    Attributes
    ----------
    returned : object
    inputs : mapping of str to object
        The arguments as they are afterwards.
    raised : Raised or None
    warnings : tuple of str
    """

    returned: Any
    inputs: Inputs
    raised: Raised | None = None
    warnings: tuple[str, ...] = ()

    def values(self, exercise: Exercise) -> Mapping[str, Any]:
        """What the exercise compares: the arguments that may change, and what was returned."""
        return {**{name: self.inputs[name] for name in exercise.changes}, RETURNED: self.returned}


class Subject(Protocol):
    """Whatever can be asked."""

    def answer(self, inputs: Inputs) -> Answer:
        """Call it once, on copies of the inputs."""


class TrustedSubject:
    """A function of ours, called in this process.

    Parameters
    ----------
    exercise : Exercise
    function : callable
    tensors : Tensors, optional
        If it takes tensors: a mutant or a solution of a Triton exercise, not the reference.
    """

    def __init__(self, exercise: Exercise, function: Callable[..., Any], tensors: Tensors | None = None) -> None:
        self._exercise, self._function, self._tensors = exercise, function, tensors

    def answer(self, inputs: Inputs) -> Answer:
        """Call it once, on copies of the inputs."""
        copies = copy.deepcopy(dict(inputs))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # mutants do what deserves one
                return self._answer(copies)
        except Exception as error:
            return Answer(None, copies, Raised(type(error).__name__, str(error)))

    def _answer(self, inputs: Inputs) -> Answer:
        if self._tensors is None:
            return Answer(self.call(inputs), inputs)
        tensors = {name: self._tensors.wrap(value) for name, value in inputs.items()}
        returned = self._tensors.unwrap(self.call(tensors))
        return Answer(returned, {name: self._tensors.unwrap(value) for name, value in tensors.items()})

    def call(self, inputs: Inputs) -> Any:
        """Call it on these very inputs and return what it returns."""
        drive = self._exercise.drive
        return drive(self._function, *inputs.values()) if drive else self._function(*inputs.values())

    def agrees(self, other: Subject, inputs: Inputs) -> bool:
        """Whether it does the same as another on an input."""
        return same_answer(self._exercise, self.answer(inputs), other.answer(inputs))


def difference_seen(exercise: Exercise, expected: Answer, actual: Answer) -> str | None:
    """Say how two answers differ in what counts; None if they do not."""
    wanted, given = exercise.seen(expected.values(exercise), actual.values(exercise))
    return difference(wanted, given)


def reference_of(exercise: Exercise) -> Subject:
    """Return the reference as something to ask; where it is not there, its recorded answers."""
    return exercise.recorded or TrustedSubject(exercise, exercise.reference)


def fingerprint_of(exercise: Exercise, answer: Answer) -> str:
    """Return what all answers have in common that cannot be told apart (`same_answer`), and nothing else has."""
    if answer.raised is not None:
        seen: Any = answer.raised.type_name
    else:
        untouched = [answer.inputs[name] for name in exercise.parameters if name not in exercise.changes]
        seen = [dict(exercise.seen(answer.values(exercise))[0]), untouched]
    return hashlib.sha256(json.dumps(canonical(seen)).encode()).hexdigest()[:16]


def same_answer(exercise: Exercise, one: Answer, other: Answer) -> bool:
    """Whether two answers cannot be told apart: the same in all that counts, or the same kind of exception."""
    if one.raised or other.raised:
        return bool(one.raised and other.raised and one.raised.type_name == other.raised.type_name)
    untouched = [name for name in exercise.parameters if name not in exercise.changes]
    return (
        difference_seen(exercise, one, other) is None
        and difference([one.inputs[name] for name in untouched], [other.inputs[name] for name in untouched]) is None
    )
