"""How two values differ, in words: the first place where they do, what is there, what should be.

>>> import numpy as np
>>> print(difference({"slots": np.array([8, 9])}, {"slots": np.array([8, 7])}))
slots[1] is 7; it should be 9
>>> print(difference({"returned": [1, 2]}, {"returned": (1, 2)}))
the function returned a tuple; it should be a list

Exact: a list is not a tuple, and an array of int32 is not one of int64. A NumPy number passes for a Python one.

vLLM has no counterpart.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from pagedlab.teaching.exercises.encoding import Foreign

_RETURNED = "returned"
_SHORT = 60


def difference(expected: Any, actual: Any, place: str = "") -> str | None:
    """Say how ``actual`` differs from ``expected``; None if it does not.

    Parameters
    ----------
    expected, actual : object
        Numbers, texts, lists, tuples, sets, dicts, records and arrays, nested in any way.
    place : str
        What they are called. The keys of an outermost dict name themselves.
    """
    if _is_number(expected) and _is_number(actual):
        return _number_difference(expected, actual, place)
    if type(expected) is not type(actual):
        return f"{_named(place)} {_verb(place)}{_a_type(actual)}; it should be {_a_type(expected)}"
    if isinstance(expected, np.ndarray):
        return _array_difference(expected, actual, place)
    if isinstance(expected, dict):
        return _dict_difference(expected, actual, place)
    if isinstance(expected, SimpleNamespace):
        return _dict_difference(vars(expected), vars(actual), place, record=True)
    if isinstance(expected, list | tuple):
        return _sequence_difference(expected, actual, place)
    if isinstance(expected, Foreign):
        return None if expected.type_name == actual.type_name else _is_not(place, actual, expected)
    if expected != actual:
        return _is_not(place, actual, expected)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | np.number) and not isinstance(value, bool)


def _number_difference(expected: Any, actual: Any, place: str) -> str | None:
    whole = isinstance(expected, int | np.integer), isinstance(actual, int | np.integer)
    if isinstance(expected, np.generic) and type(expected) is not type(actual):
        return f"{_named(place)} {_verb(place)}{_a_type(actual)}; it should be {_a_type(expected)}"
    if whole[0] != whole[1]:
        return f"{_named(place)} {_verb(place)}{_a_type(actual)}; it should be {_a_type(expected)}"
    both_nan = expected != expected and actual != actual
    return None if expected == actual or both_nan else _is_not(place, actual, expected)


def _array_difference(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], place: str) -> str | None:
    if expected.dtype != actual.dtype:
        return f"{_named(place)} {_verb(place)}an array of {actual.dtype}; it should be of {expected.dtype}"
    if expected.shape != actual.shape:
        return f"{_named(place)} {_verb(place)}an array of shape {actual.shape}; it should be of {expected.shape}"
    unequal = expected != actual
    if expected.dtype.kind in "fc":
        unequal &= ~(np.isnan(expected) & np.isnan(actual))
    if not unequal.any():
        return None
    index = tuple(int(axis[0]) for axis in np.nonzero(unequal))
    where = ", ".join(map(str, index))
    count = int(unequal.sum())
    more = f" ({count} of {unequal.size} entries differ)" if count > 1 else ""
    inner = f"{place or 'the array'}[{where}]" if index else place
    return f"{_is_not(inner, actual[index].item(), expected[index].item())}{more}"


def _dict_difference(
    expected: dict[Any, Any], actual: dict[Any, Any], place: str, *, record: bool = False
) -> str | None:
    for key in expected:
        inner = _entry(place, key, record=record)
        if key not in actual:
            return f"{inner} is missing; it should be {_short(expected[key])}"
        if (found := difference(expected[key], actual[key], inner)) is not None:
            return found
    for key in actual:
        if key not in expected:
            return f"{_entry(place, key, record=record)} is {_short(actual[key])}; it should not be there"
    return None


def _sequence_difference(expected: Any, actual: Any, place: str) -> str | None:
    for index, (wanted, given) in enumerate(zip(expected, actual, strict=False)):
        if (found := difference(wanted, given, f"{place or 'the list'}[{index}]")) is not None:
            return found
    if len(expected) != len(actual):
        many = f"{len(actual)} {'entry' if len(actual) == 1 else 'entries'}"
        return f"{_named(place)} {_verb(place, 'has', 'something with ')}{many}; it should have {len(expected)}"
    return None


def canonical(value: Any) -> Any:
    """Return JSON-ready data that is the same for values without a `difference`, and for no others.

    >>> canonical({"b": 2, "a": np.int64(1)}) == canonical({"a": 1, "b": 2})
    True
    >>> canonical([1, 2]) == canonical((1, 2))
    False
    """
    if value is None or isinstance(value, bool | str):
        return value
    if _is_number(value):
        if isinstance(value, int | np.integer):
            return int(value)
        return {"number": repr(complex(value) + 0)}  # no negative zero
    if isinstance(value, np.ndarray):
        return {"array": [value.dtype.str, list(value.shape), [canonical(item) for item in value.ravel().tolist()]]}
    if isinstance(value, SimpleNamespace):
        return {"record": canonical(vars(value))}
    if isinstance(value, dict):
        return {"dict": sorted(([canonical(key), canonical(item)] for key, item in value.items()), key=json.dumps)}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [canonical(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted((canonical(item) for item in value), key=json.dumps)}
    if isinstance(value, Foreign):
        return {"foreign": value.type_name}
    return {type(value).__name__: repr(value)}


# --- words --------------------------------------------------------------------------------------------------------


def _entry(place: str, key: Any, *, record: bool) -> str:
    if not place:
        return str(key)
    return f"{place}.{key}" if record else f"{place}[{key!r}]"


def _named(place: str) -> str:
    return "the function" if place == _RETURNED else place or "it"


def _verb(place: str, otherwise: str = "is", before: str = "") -> str:
    return f"returned {before}" if place == _RETURNED else f"{otherwise} "


def _is_not(place: str, actual: Any, expected: Any) -> str:
    return f"{_named(place)} {_verb(place)}{_short(actual)}; it should be {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def _a_type(value: Any) -> str:
    """Name what is of the wrong type: ``None``, ``'C'``, ``a list``, ``an array of int64``, ``1.0, a float``."""
    if value is None or isinstance(value, bool | str):
        return _short(value)
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    name = value.type_name if isinstance(value, Foreign) else type(value).__name__
    name = "record" if name == "SimpleNamespace" else name
    article = "an" if name[0] in "aeiou" else "a"
    return f"{_short(value)}, {article} {name}" if _is_number(value) else f"{article} {name}"
