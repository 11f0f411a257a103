"""What a function did, step by step: the values it was to change, each time one of its lines changed them.

>>> import numpy as np
>>> def fill(slots):
...     for at in range(len(slots)):
...         slots[at] = 9
>>> steps = record(fill, {"slots": np.zeros(2, dtype=int)}, ["slots"], fill.__code__.co_filename)
>>> [(step.line, decode(step.state["slots"]).tolist()) for step in steps]
[(None, [0, 0]), (3, [9, 0]), (3, [9, 9])]

The same recorder runs on the reference, in the judge, and on a submission, in its own process, so that both can be
played side by side.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pagedlab.teaching.exercises.encoding import decode, encode

MAX_STEPS = 200
_MAX_LINES = 20_000


@dataclass(frozen=True, slots=True)
class Step:
    """A change: the line of the source that made it (None at the start), and the watched values after it, encoded."""

    line: int | None
    state: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """The watched values."""
        return {name: decode(data) for name, data in self.state.items()}


class _Enough(BaseException):
    """The recording is long enough."""


def record(
    function: Callable[..., Any], inputs: Mapping[str, Any], watch: Sequence[str], filename: str
) -> tuple[Step, ...]:
    """Call ``function`` and return what it did to the watched values; up to an exception, if it raises one.

    Parameters
    ----------
    function : callable
        Called with the inputs in their order.
    inputs : mapping of str to object
        They are changed if the function changes them.
    watch : sequence of str
        Names of inputs.
    filename : str
        Only lines of this file are watched.
    """
    recorder = _Recorder({name: inputs[name] for name in watch}, filename)
    before = sys.gettrace()
    with contextlib.suppress(Exception, SystemExit, _Enough):
        sys.settrace(recorder.trace)
        try:
            function(*inputs.values())
        finally:
            sys.settrace(before)
    return tuple(recorder.steps)


class _Recorder:
    def __init__(self, watched: Mapping[str, Any], filename: str) -> None:
        self.watched, self.filename = watched, filename
        self.steps = [Step(None, self._state())]
        self.last_line: dict[FrameType, int] = {}
        self.num_lines = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != self.filename:
            return None
        frame.f_trace_lines = True
        return self.trace_lines

    def trace_lines(self, frame: FrameType, event: str, argument: object) -> Any:
        """Called before each line: what has changed was changed by the line before."""
        self.num_lines += 1
        state = self._state()
        if state != self.steps[-1].state:
            self.steps.append(Step(self.last_line.get(frame, frame.f_lineno), state))
        if self.num_lines > _MAX_LINES or len(self.steps) > MAX_STEPS:
            raise _Enough
        self.last_line[frame] = frame.f_lineno
        if event == "return":
            self.last_line.pop(frame, None)
        return self.trace_lines

    def _state(self) -> dict[str, Any]:
        return {name: encode(value) for name, value in self.watched.items()}
