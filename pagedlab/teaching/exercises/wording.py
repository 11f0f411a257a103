"""What a verdict says: each thing that can be wrong with a submission, in words.

vLLM has no counterpart.
"""

from __future__ import annotations

import signal
from typing import Any

from pagedlab.teaching.exercises.answers import Raised
from pagedlab.teaching.exercises.exercise import Exercise
from pagedlab.teaching.exercises.sandbox import Loaded, Submission, SubmissionEndedError
from pagedlab.teaching.exercises.searching import Finding
from pagedlab.teaching.exercises.verdict import Verdict

_REFUSED = "The check allows no network, no other processes, and no files but those in a folder of its own."


def verdict_with(exercise: Exercise, kind: str, message: str, **more: Any) -> Verdict:
    """Return a verdict on an exercise."""
    return Verdict(exercise.name, exercise.title, kind, message, **more)


# --- it does not load ---------------------------------------------------------------------------------------------


def load_problem(exercise: Exercise, submission: Submission, loaded: Loaded) -> Verdict | None:
    """Say why a submission cannot be called; None if it can."""
    wanted = f"`{exercise.signature}`"
    if loaded.raised is not None:
        return _load_error(exercise, submission, loaded.problem, loaded.raised)
    match loaded.problem:
        case "missing":
            defined = ", ".join(f"`{name}`" for name in loaded.found[:5])
            found = f"it defines {defined}" if defined else "there is no function in it"
            return verdict_with(exercise, "missing", f"{submission.filename} does not define {wanted}; {found}.")
        case "not_callable":
            message = f"`{exercise.function}` is not a function but of type {loaded.found[0]}; define {wanted}."
            return verdict_with(exercise, "missing", message)
        case "signature":
            count = len(exercise.parameters)
            message = f"`{loaded.found[0]}` cannot be called with {count} arguments; define {wanted}."
            return verdict_with(exercise, "signature", message)
    return None


def _load_error(exercise: Exercise, submission: Submission, problem: str, raised: Raised) -> Verdict:
    place = place_of(submission, *(raised.frames[-1] if raised.frames else (None,)))
    said = f"{raised.type_name}: {raised.text}"
    match problem:
        case "syntax":
            message = f"{submission.filename} is not Python. {said}"
        case "import":
            message = f"{submission.filename} cannot be imported. {said}"
        case _:
            stopped = f"{submission.filename} stopped before `{exercise.signature}` could be called."
            message = f"{stopped} {_words_for(exercise, submission, raised)}"
    return verdict_with(exercise, problem, message, place=place)


# --- it is wrong --------------------------------------------------------------------------------------------------


def verdict_of(exercise: Exercise, submission: Submission, finding: Finding) -> Verdict:
    """Put a finding into words."""
    common: dict[str, Any] = {"inputs": finding.inputs, "why": finding.why, "also": finding.also}
    if finding.ended is not None:
        message = words_for_the_end(finding.ended, f"`{exercise.function}`")
        return verdict_with(exercise, finding.kind, message, place=place_of(submission, finding.ended.line), **common)
    assert finding.actual is not None
    raised = finding.actual.raised
    if raised is not None and finding.kind == "raised":
        place = place_of(submission, *(raised.frames[-1] if raised.frames else (None,)))
        kind = "memory" if raised.type_name.endswith("MemoryError") else "raised"
        message = f"`{exercise.function}` stopped. {_words_for(exercise, submission, raised)}"
        if finding.expected.raised is not None:
            message = f"`{exercise.function}`: {finding.text}. It said: {raised.text}"
        return verdict_with(exercise, kind, message, place=place, **common)
    message = f"`{exercise.function}`: {finding.text}."
    if finding.kind != "wrong" or finding.expected.raised is not None:
        return verdict_with(exercise, finding.kind, message, **common)
    expected, actual = exercise.seen(finding.expected.values(exercise), finding.actual.values(exercise))
    return verdict_with(exercise, "wrong", message, expected=expected, actual=actual, **common)


def _words_for(exercise: Exercise, submission: Submission, raised: Raised) -> str:
    said = f"{raised.type_name}: {raised.text}".removesuffix(": ")
    for name in submission.elsewhere:
        if raised.type_name == "NameError" and f"'{name}'" in raised.text:
            return f"{said}. The check sees this cell, and what earlier cells have imported: define `{name}` in here"
    if raised.type_name.endswith("MemoryError"):
        return f"It asked for more memory than the {exercise.limits.memory_bytes >> 20} MiB it may have. ({said})"
    if raised.type_name == "RecursionError":
        return f"It called itself too often. ({said})"
    if raised.type_name == "SystemExit":
        return "It asked Python to exit in place of returning."
    if raised.type_name == "PermissionError" or "Read-only file system" in raised.text:
        return f"{said}. {_REFUSED}"
    return said


def words_for_the_end(ended: SubmissionEndedError, who: str) -> str:
    """Say how the process of a submission has ended."""
    match ended.why:
        case "timeout":
            return f"{who} did not end within {ended.seconds:g} s: an endless loop, or it waits for something."
        case "overtime":
            return (
                f"{who} needs too long: all calls together may take {ended.seconds:g} s, and there were more to come."
            )
        case "exit":
            return f"{who} ended its process (exit code {ended.code}) in place of returning."
        case "signal":
            name = signal.Signals(ended.code).name if ended.code in signal.valid_signals() else str(ended.code)
            what = {
                "SIGSEGV": "too deep a recursion, or memory that is not its own",
                "SIGKILL": "out of memory or of computing time",
                "SIGXCPU": "out of computing time",
            }.get(name, "a crash")
            return f"{who} ended its process by {name}: {what}."
    return f"{who} wrote into the pipe to the judge, or closed it."


def place_of(submission: Submission, line: int | None, function: str = "") -> str:
    """Name a line of a submission, and show it."""
    lines = submission.source.splitlines()
    if line is None or not 1 <= line <= len(lines):
        return ""
    inside = f", in {function}" if function and function != "<module>" else ""
    return f"{submission.filename}, line {line}{inside}: {lines[line - 1].strip()}"


def unfinished(exercise: Exercise, finding: Finding) -> Verdict:
    """Say that a function is not written yet."""
    assert finding.actual is not None
    assert finding.actual.raised is not None
    message = f"`{exercise.signature}` is not written yet. {finding.actual.raised.text}".strip()
    return verdict_with(exercise, "unfinished", message)
