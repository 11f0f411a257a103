"""What an exercise is: a task, a slow and obvious reference, inputs worth trying, and what counts in the result.

    EXERCISE = Exercise(
        name="double",
        lesson="00-one-step",
        title="Double a number",
        task="Return twice `number`.",
        reference=double,
        cases=(Case("nothing to double", number=0), Case("a negative number", number=-3)),
        strategy=st.fixed_dictionaries({"number": st.integers(-100, 100)}),
    )

An exercise is a folder in ``exercises/``; its ``exercise.py`` defines ``EXERCISE``. ``exercises/README.md`` is the
contract in full, with an example.

vLLM has no counterpart.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pagedlab.errors import ExerciseError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pagedlab.teaching.exercises.recorded import RecordedAnswers

Inputs = Mapping[str, Any]
"""The arguments of one call, by name, in the order in which they are passed."""

Values = Mapping[str, Any]
"""What a call came to: the arguments that it may change, as they are afterwards, and ``returned``."""

RETURNED = "returned"

OTHER_INPUTS, SPEED = "other inputs", "speed"
"""What the tests are called that are no cases."""


class Case:
    """Inputs picked by hand.

    Parameters
    ----------
    why : str
        What is special about them, as the learner is told: "a hole at the very end".
    **inputs : object
        The arguments, named like the function's parameters and in their order.
    """

    __slots__ = ("inputs", "why")

    def __init__(self, why: str, /, **inputs: Any) -> None:
        self.why = why
        self.inputs: Inputs = inputs

    def __repr__(self) -> str:
        return f"<Case {self.why!r}>"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a submission may use.

    Attributes
    ----------
    load_seconds : float
        Until the source is loaded, by the clock on the wall; imports take time.
    call_seconds : float
        For one call.
    total_seconds : float
        For all calls together.
    search_seconds : float
        For the search for a failing input, after the cases.
    memory_bytes : int
        For the process, beyond what Python and NumPy take; 0 is no limit.
    cpu_seconds : int
        For the process, all calls together.
    """

    load_seconds: float = 8.0
    call_seconds: float = 2.0
    total_seconds: float = 15.0
    search_seconds: float = 1.2
    memory_bytes: int = 1 << 30
    cpu_seconds: int = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a right submission must also be.

    Attributes
    ----------
    cases : sequence of Case
        Large inputs, of about one size.
    times : float
        So many times faster than the reference, on the same inputs and the same machine.
    """

    cases: Sequence[Case]
    times: float


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes
    ----------
    name : str
        The name of its folder, in snake case.
    lesson : str
        The lesson that it belongs to: ``"05-persistent-batch"``.
    title : str
    task : str
        What to write, in Markdown.
    reference : callable
        Slow, obvious and right. Its name and its parameters are the ones that a submission must have. A function, or a
        class if there is a `drive`.
    cases : sequence of Case
        Edge cases, the ones that teach most first.
    strategy : hypothesis strategy of dict
        Further inputs; each a dict like `Case.inputs`. Small ones shrink to small counterexamples.
    changes : tuple of str
        The arguments that the function changes in place. It must leave the others as they are.
    view : callable, optional
        Makes of the values of a call (`Values`) the dict of what counts: drop what is stale, say. By default all does.
    drive : callable, optional
        ``drive(subject, *inputs)`` calls the submission and returns what is compared, where a plain call is not it: a
        list of operations on a class, say. It is sent to the submission's process as source, so it uses nothing but
        builtins and ``np``.
    form : {"function", "triton", "speed"}
        A Triton exercise gets tensors in place of arrays, and runs in Triton's interpreter or on a GPU.
    speed : Speed, optional
        For ``"speed"``.
    instead : str
        For ``"triton"``: the exercise in NumPy, to offer where there is no Triton.
    limits : Limits
    recorded : RecordedAnswers, optional
        In a student's copy: what the reference answers, which then only has a name and parameters.
    """

    name: str
    lesson: str
    title: str
    task: str
    reference: Callable[..., Any]
    cases: Sequence[Case]
    strategy: SearchStrategy[dict[str, Any]]
    changes: tuple[str, ...] = ()
    view: Callable[[Values], Mapping[str, Any]] | None = None
    drive: Callable[..., Any] | None = None
    form: Literal["function", "triton", "speed"] = "function"
    speed: Speed | None = None
    instead: str = ""
    limits: Limits = field(default_factory=Limits)
    recorded: RecordedAnswers | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ExerciseError(f"exercise {self.name!r}: {problem}")

    def _problems(self) -> Iterator[str]:
        """Say what is wrong with the definition."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            yield "its name must be in snake case, like its folder"
        if not self.cases:
            yield "it has no cases: pick at least one by hand"
        if self.form not in ("function", "triton", "speed"):
            yield f"its form is {self.form!r}: 'function', 'triton' or 'speed'"
        if (self.form == "speed") != (self.speed is not None):
            yield "a speed exercise, and no other, says how fast in `speed`"
        if self.form == "triton" and not self.instead:
            yield "a Triton exercise names the NumPy form to do where there is no Triton, in `instead`"
        if len(set(self.tests)) < len(self.tests):
            yield "two of its cases are special for the same reason"
        for case in (*self.cases, *(self.speed.cases if self.speed else ())):
            if tuple(case.inputs) != self.parameters:
                yield f"{case} has the inputs {tuple(case.inputs)}, the reference takes {self.parameters}"
        if unknown := set(self.changes) - set(self.parameters):
            yield f"it changes {sorted(unknown)}, which the reference does not take"

    @property
    def function(self) -> str:
        """The name that a submission must define."""
        return self.reference.__name__

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        called = inspect.signature(self.drive or self.reference).parameters
        return tuple(called)[1 if self.drive else 0 :]

    @property
    def signature(self) -> str:
        """How the function is called, as text."""
        return f"{self.function}({', '.join(inspect.signature(self.reference).parameters)})"

    @property
    def tests(self) -> tuple[str, ...]:
        """What is tested: the cases, by what is special about them; other inputs; the speed, if it counts."""
        return (*(case.why for case in self.cases), OTHER_INPUTS, *([SPEED] if self.speed else []))

    @property
    def watched(self) -> tuple[str, ...]:
        """What is recorded step by step; nothing where a `drive` calls the submission."""
        return () if self.drive else self.changes

    def seen(self, *values: Values) -> tuple[Mapping[str, Any], ...]:
        """Return what counts of the values of calls; all, if `view` cannot make sense of one of them."""
        if self.view is None:
            return values
        try:
            return tuple(map(self.view, values))
        except Exception:  # such as a submission that has left a list shorter than another
            return values
