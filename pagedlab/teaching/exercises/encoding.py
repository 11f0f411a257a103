"""Plain data on a pipe: how the judge and the process that runs a submission talk.

>>> decode(encode({"rows": [1, None], "ids": np.array([7, 2], dtype=np.int32)}))
{'rows': [1, None], 'ids': array([7, 2], dtype=int32)}

A message is a length (8 bytes, little end first) and JSON. Values are numbers, texts, bytes, lists, tuples, sets,
dicts, records (`types.SimpleNamespace`), NumPy arrays and NumPy scalars, and keep their types. Nothing is ever
unpickled: what comes out of a submission's process cannot run anything here. A value of another type arrives as
`Foreign`, which nothing that is right equals.

vLLM counterpart: ``vllm/v1/serial_utils.py`` at 0.25.1. What differs: its processes trust each other, and may pickle.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np

from pagedlab.errors import ExerciseError

MAX_BYTES = 1 << 26
"""The longest message."""

_MAX_DEPTH = 60
_LENGTH = struct.Struct("<Q")
_ARRAY_KINDS = "biufc"
"""Truth values, integers, floats, complex numbers: what their bytes say completely."""


@dataclass(frozen=True, eq=False, slots=True)
class Foreign:
    """A value that could not be sent: its type, and how it prints."""

    type_name: str
    text: str

    def __repr__(self) -> str:
        return self.text


def encode(value: Any, *, strict: bool = False, depth: int = 0) -> Any:
    """Return ``value`` as JSON-ready data.

    Parameters
    ----------
    value : object
    strict : bool
        Refuse what `decode` would not give back, instead of sending its name.
    depth : int
        How deep in a value this one lies.

    Raises
    ------
    ExerciseError
        If strict, and a value is of another type or nested too deep.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth < _MAX_DEPTH:
        if kind is list:
            return [encode(item, strict=strict, depth=depth + 1) for item in value]
        if kind in (tuple, set, frozenset):
            return {kind.__name__: [encode(item, strict=strict, depth=depth + 1) for item in value]}
        if kind is dict:
            pairs = [[encode(part, strict=strict, depth=depth + 1) for part in pair] for pair in value.items()]
            return {"dict": pairs}
        if kind is SimpleNamespace:
            return {"record": encode(dict(vars(value)), strict=strict, depth=depth + 1)["dict"]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is np.ndarray and value.dtype.kind in _ARRAY_KINDS:
        return {"array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, np.generic) and value.dtype.kind in _ARRAY_KINDS:
        return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if strict:
        raise ExerciseError(f"a value of type {kind.__name__} cannot be sent to a submission: {_short_text(value)}")
    return {"foreign": [_name_of(kind), _short_text(value)]}


def decode(data: Any) -> Any:
    """Return the value that `encode` was given.

    Raises
    ------
    ExerciseError
        If the data is not what `encode` makes.
    """
    try:
        return _decode(data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ExerciseError(f"not an encoded value: {error}") from None


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    match kind:
        case "tuple":
            return tuple(map(_decode, content))
        case "set":
            return set(map(_decode, content))
        case "frozenset":
            return frozenset(map(_decode, content))
        case "dict":
            return {_decode(key): _decode(item) for key, item in content}
        case "record":
            return SimpleNamespace(**{_decode(key): _decode(item) for key, item in content})
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "array":
            dtype, shape, text = content
            flat = np.frombuffer(base64.b64decode(text, validate=True), dtype=_plain(dtype))
            return flat.reshape(shape).copy()
        case "scalar":
            dtype, text = content
            return np.frombuffer(base64.b64decode(text, validate=True), dtype=_plain(dtype))[0]
        case "foreign":
            type_name, text = content
            return Foreign(str(type_name), str(text))
    raise ValueError(f"unknown kind {kind!r}")


def _plain(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {dtype} are not sent")
    return dtype


def _name_of(kind: type) -> str:
    """Return a type's name; a submission's own type may refuse to tell."""
    try:
        return str(type.__getattribute__(kind, "__name__"))
    except BaseException:
        return "object"


def _short_text(value: Any) -> str:
    try:
        text = repr(value)
    except BaseException:  # whatever a submission's __repr__ does
        text = f"<{_name_of(type(value))}>"
    return text if len(text) <= 200 else f"{text[:197]}..."


# --- messages -----------------------------------------------------------------------------------------------------


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message.

    Raises
    ------
    ExerciseError
        If it is longer than `MAX_BYTES`; nothing has been written then.
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES:
        raise ExerciseError(f"a message of {len(text):,} bytes: {MAX_BYTES:,} are allowed")
    stream.write(_LENGTH.pack(len(text)) + text)
    stream.flush()


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one message; None at the end of the stream.

    Raises
    ------
    ExerciseError
        If what comes is not a message.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_BYTES:
        raise ExerciseError(f"a message of {length:,} bytes: {MAX_BYTES:,} are allowed")
    text = stream.read(length)
    if len(text) < length:
        return None
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExerciseError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise ExerciseError(f"not a message: a JSON {type(message).__name__}")
    return message
