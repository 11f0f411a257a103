"""Load a submission and answer calls of its function: what the worker does once it is confined.

Whatever a submission does, it ends as a reply, or as the end of the process. What is said about an exception is read
from it with care: its type, its text and its ``__str__`` may be the submission's own.

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import faulthandler
import inspect
import io
import linecache
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.confinement import Confinement
from pagedlab.teaching.exercises.encoding import decode, encode, read_message, write_message
from pagedlab.teaching.exercises.recording import record
from pagedlab.teaching.exercises.sources import prepared
from pagedlab.teaching.exercises.tensors import Tensors

_MAX_WARNINGS = 5
_MAX_FRAMES = 8


class Server:
    """Answers the judge's requests.

    Parameters
    ----------
    requests, replies : binary streams
    tensors : Tensors or None
        For the Triton exercises.
    confinement : Confinement
        What the judge is told first.
    """

    def __init__(
        self, requests: BinaryIO, replies: BinaryIO, tensors: Tensors | None, confinement: Confinement
    ) -> None:
        self._requests, self._replies, self._tensors = requests, replies, tensors
        self._subject: Any = None
        self._drive: Callable[..., Any] | None = None
        self._filename = ""
        tier = tensors.tier if tensors else "numpy"
        write_message(replies, {"confinement": dataclasses.asdict(confinement), "tier": tier})

    def serve(self) -> None:
        """Answer until the judge closes the pipe."""
        operations = {"load": self._load, "call": self._call, "echo": self._echo, "record": self._record}
        while (request := read_message(self._requests)) is not None:
            faulthandler.dump_traceback_later(request["seconds"], file=2)
            try:
                reply = operations[request["do"]](request)
            except BaseException as error:  # a submission may raise anything
                reply = {"error": _describe(error, self._filename)}
            faulthandler.cancel_dump_traceback_later()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):
                    stream.flush()
            try:
                write_message(self._replies, reply)
            except ExerciseError as error:
                write_message(self._replies, {"error": {"type": "ResultTooLarge", "text": str(error), "frames": []}})

    # --- load -----------------------------------------------------------------------------------------------------

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        name, source, self._filename = request["name"], request["source"], request["filename"]
        _remember(self._filename, source)
        module = types.ModuleType("submission")
        module.__file__ = self._filename
        sys.modules["submission"] = module
        exec(request["prelude"], module.__dict__)
        tree = prepared(ast.parse(source, self._filename), only_definitions=request["only_definitions"])
        exec(compile(tree, self._filename, "exec", dont_inherit=True), module.__dict__)
        if name not in module.__dict__:
            return {"missing": _defined_in(module)}
        self._subject = module.__dict__[name]
        if not callable(self._subject):
            return {"not_callable": [type(self._subject).__name__]}
        if request["drive"]:
            namespace: dict[str, Any] = {"np": np}
            exec(request["drive"], namespace)
            self._drive = namespace[request["drive_name"]]
            return {}
        try:
            inspect.signature(self._subject).bind(*request["parameters"])
        except TypeError:
            return {"signature": [f"{name}{inspect.signature(self._subject)}"]}
        except ValueError:  # a callable without a signature
            pass
        return {}

    # --- call, record -----------------------------------------------------------------------------------------------

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(request["times"]):
                inputs = self._inputs(request)
                returned = self._run(*inputs.values())
            if self._tensors:
                self._tensors.wait()
        said = list(dict.fromkeys(f"{item.category.__name__}: {item.message}" for item in caught))
        return self._values(inputs, returned, said)

    def _echo(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do all that calls do, but call nothing."""
        for _ in range(request["times"]):
            inputs = self._inputs(request)
        return self._values(inputs, None, [])

    def _values(self, inputs: dict[str, Any], returned: Any, said: list[str]) -> dict[str, Any]:
        after = [encode(self._unwrap(value)) for value in inputs.values()]
        return {"returned": encode(self._unwrap(returned)), "inputs": after, "warnings": said[:_MAX_WARNINGS]}

    def _record(self, request: dict[str, Any]) -> dict[str, Any]:
        steps = record(self._subject, self._inputs(request), request["watch"], self._filename)
        return {"steps": [[step.line, step.state] for step in steps]}

    def _run(self, *inputs: Any) -> Any:
        return self._subject(*inputs) if self._drive is None else self._drive(self._subject, *inputs)

    def _inputs(self, request: dict[str, Any]) -> dict[str, Any]:
        values = {name: decode(data) for name, data in request["inputs"]}
        return {name: self._tensors.wrap(value) for name, value in values.items()} if self._tensors else values

    def _unwrap(self, value: Any) -> Any:
        return self._tensors.unwrap(value) if self._tensors else value


def _defined_in(module: types.ModuleType) -> list[str]:
    """Return the names of a submission's functions and classes."""
    return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]


def _remember(filename: str, source: str) -> None:
    """Make the source known to tracebacks and to `inspect`."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


# --- exceptions ---------------------------------------------------------------------------------------------------


def _describe(error: BaseException, filename: str) -> dict[str, Any]:
    """Say of an exception its type, its text, and the lines of the submission that led to it."""
    kind = type(error)
    frames = [[frame.lineno, frame.name] for frame in _frames(error) if frame.filename == filename]
    if isinstance(error, SyntaxError) and error.filename == filename and error.lineno is not None:
        frames = [[error.lineno, ""]]
    return {
        "type": _text_of(lambda: type.__getattribute__(kind, "__name__")) or "an exception without a name",
        "text": _text_of(lambda: error.msg if isinstance(error, SyntaxError) else error)[:2000],
        "frames": frames[-_MAX_FRAMES:],
        "syntax": isinstance(error, SyntaxError),
        "import": isinstance(error, ImportError),
    }


def _frames(error: BaseException) -> Iterator[traceback.FrameSummary]:
    with contextlib.suppress(BaseException):
        yield from traceback.extract_tb(error.__traceback__)


def _text_of(read: Callable[[], Any]) -> str:
    buffer = io.StringIO()
    with contextlib.suppress(BaseException):
        buffer.write(str(read()))
    return buffer.getvalue()
