"""Look for an input on which a submission is wrong: the cases, then Hypothesis, then smaller and smaller ones.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pagedlab.teaching.exercises.answers import (
    Answer,
    Subject,
    TrustedSubject,
    difference_seen,
    reference_of,
    same_answer,
)
from pagedlab.teaching.exercises.comparing import difference
from pagedlab.teaching.exercises.encoding import encode
from pagedlab.teaching.exercises.exercise import OTHER_INPUTS, Exercise, Inputs
from pagedlab.teaching.exercises.sandbox import SubmissionEndedError
from pagedlab.teaching.exercises.tensors import tensors_for

NUM_EXAMPLES = 100
_LEAST_EXAMPLES = 20
"""So many are tried on a slow machine too."""

_SHRINK_SECONDS = 1.5

_MAX_ENDS = 2
"""A process that has ended is started again for the next case, unless so many cases in a row have ended it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input on which a submission is wrong.

    Attributes
    ----------
    kind : str
        ``"wrong"``, ``"raised"``, ``"mutates"`` or ``"random"``; or how its process has ended
        (`SubmissionEndedError.why`).
    text : str
        What is wrong, in words.
    inputs : mapping
    why : str
        What is special about the inputs, if they were picked by hand.
    also : str
        What is special about a case, picked by hand, that fails too and is larger.
    expected : Answer
        The reference's.
    actual : Answer or None
        The submission's; None if there is none.
    ended : SubmissionEndedError or None
    """

    kind: str
    text: str
    inputs: Inputs
    why: str
    expected: Answer
    actual: Answer | None = None
    ended: SubmissionEndedError | None = None
    also: str = ""

    @property
    def unfinished(self) -> bool:
        """Whether the function says that it is not written yet."""
        raised = self.actual.raised if self.actual is not None else None
        return raised is not None and raised.type_name == "NotImplementedError"

    @property
    def size(self) -> int:
        """How large the inputs are, as text."""
        return len(json.dumps(encode(dict(self.inputs))))


def subject_of(exercise: Exercise, function: Callable[..., Any]) -> TrustedSubject:
    """Return a mutant or a solution of an exercise as something to ask in this process."""
    return TrustedSubject(exercise, function, tensors_for(exercise))


class Examiner:
    """Asks a submission and compares with the reference.

    Parameters
    ----------
    exercise : Exercise
    subject : Subject
    restart : callable, optional
        Brings a subject back whose process has ended. With it every case is tried, whatever became of those before.

    Attributes
    ----------
    findings : dict of str to Finding or None
        By case: what is wrong, None if nothing is.
    is_alive : bool
        Whether the subject can be asked further.
    """

    def __init__(self, exercise: Exercise, subject: Subject, restart: Callable[[], None] | None = None) -> None:
        self.exercise, self.subject, self.restart = exercise, subject, restart
        self.findings: dict[str, Finding | None] = {}
        self.is_alive = True
        self.reference = reference_of(exercise)
        self.num_inputs = 0
        self.warnings: dict[str, None] = {}

    def examine(self, seed: int) -> Finding | None:
        """Return the smallest failing input that was found; None if there is none."""
        return self.smallest(self.try_cases(), seed)

    def smallest(self, finding: Finding | None, seed: int) -> Finding | None:
        """Return a smaller failing input than that of the cases, if there is one; else that one."""
        if finding is not None and (finding.unfinished or not self.is_alive):
            return finding
        smaller = self.findings[OTHER_INPUTS] = self._search(seed)
        if finding is None:
            return smaller
        if finding.ended or smaller is None or smaller.ended or smaller.size >= finding.size:
            return finding
        return replace(smaller, also=finding.why)

    def try_inputs(self, inputs: Inputs, why: str = "", *, twice: bool = False) -> Finding | None:
        """Ask for one input; say what is wrong, if anything is.

        Parameters
        ----------
        inputs : mapping
        why : str
            What is special about it.
        twice : bool
            Whether to ask again, to see that the answer is the same.
        """
        self.num_inputs += 1
        expected = self.reference.answer(inputs)
        try:
            actual = self.subject.answer(inputs)
            again = self.subject.answer(inputs) if twice else actual
        except SubmissionEndedError as ended:
            return Finding(ended.why, "", inputs, why, expected, None, ended)
        self.warnings.update(dict.fromkeys(actual.warnings))
        if not same_answer(self.exercise, actual, again):
            text = "called twice with the same input, it gave two answers"
            return Finding("random", text, inputs, why, expected, actual)
        found = fault(self.exercise, expected, actual, inputs)
        return Finding(found[0], found[1], inputs, why, expected, actual) if found else None

    def try_cases(self) -> Finding | None:
        """Ask for the cases picked by hand, each twice; return the first that fails. Only `restart` lets it go on."""
        first: Finding | None = None
        ends = 0  # in a row
        self.is_alive = True
        for case in self.exercise.cases:
            finding = self.findings[case.why] = self.try_inputs(case.inputs, case.why, twice=True)
            ends = ends + 1 if finding is not None and finding.ended is not None else 0
            if finding is None:
                continue
            first = first or finding
            self.is_alive = finding.ended is None or self._restarted(ends)
            if self.restart is None or finding.unfinished or not self.is_alive:
                break
        return first

    def _restarted(self, ends: int) -> bool:
        """Bring the subject back, if that may be; say whether it is back."""
        if self.restart is None or ends == _MAX_ENDS:
            return False
        try:
            self.restart()
        except SubmissionEndedError:  # it does not load any more
            return False
        return True

    def _search(self, seed: int) -> Finding | None:
        found: list[Finding] = []
        until = time.perf_counter() + self.exercise.limits.search_seconds
        enough = self.num_inputs + _LEAST_EXAMPLES

        def test(inputs: dict[str, Any]) -> None:
            nonlocal until
            if time.perf_counter() > until and (found or self.num_inputs >= enough):
                raise _Enough
            if (finding := self.try_inputs(inputs)) is not None:
                if not found:
                    until = time.perf_counter() + _SHRINK_SECONDS
                found.append(finding)  # while it shrinks, each failing input is smaller than the one before
                if finding.ended is not None:
                    raise _Enough
                raise _WrongError

        run_examples(self.exercise, test, seed, NUM_EXAMPLES)
        return found[-1] if found else None


def fault(exercise: Exercise, expected: Answer, actual: Answer, inputs: Inputs) -> tuple[str, str] | None:
    """Say what kind of thing is wrong with an answer, and what; None if nothing is.

    Parameters
    ----------
    exercise : Exercise
    expected, actual : Answer
        The reference's and the submission's.
    inputs : mapping
        What both were given.
    """
    if expected.raised is not None:
        if actual.raised is None:
            return "wrong", f"it should raise {expected.raised.type_name}; it raised nothing"
        if actual.raised.type_name != expected.raised.type_name:
            return "raised", f"it should raise {expected.raised.type_name}; it raised {actual.raised.type_name}"
        return None
    if actual.raised is not None:
        return "raised", ": ".join(filter(None, (actual.raised.type_name, actual.raised.text)))
    for name in exercise.parameters:
        if name not in exercise.changes and (found := difference(inputs[name], actual.inputs[name], name)):
            return "mutates", f"it changed its input: {found}"
    differs = difference_seen(exercise, expected, actual)
    return ("wrong", differs) if differs else None


# --- Hypothesis ---------------------------------------------------------------------------------------------------


class _WrongError(Exception):
    """Tells Hypothesis that an input fails."""


class _Enough(BaseException):
    """Ends a search; no `Exception`, so that Hypothesis does not take it for a failure."""


def run_examples(exercise: Exercise, test: Callable[[dict[str, Any]], None], seed: int, num_examples: int) -> None:
    """Call ``test`` with inputs from the exercise's strategy, the same ones for the same seed, until it has failed."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed
    from hypothesis.errors import Flaky

    quiet = settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )

    def run(inputs: dict[str, Any]) -> None:
        test(inputs)

    with contextlib.suppress(_WrongError, _Enough, Flaky):  # whoever called has kept what failed
        with_seed(seed)(quiet(given(exercise.strategy)(run)))()


def example_inputs(exercise: Exercise, seed: int, count: int) -> Iterator[Inputs]:
    """Yield some inputs from the exercise's strategy."""
    inputs: list[Inputs] = []
    run_examples(exercise, inputs.append, seed, count)
    yield from inputs
