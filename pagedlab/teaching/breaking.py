"""Take a line out of the real code, for a while, to see what it is there for.

>>> from pagedlab import config
>>> with without(config.require_int, "if value < minimum"):
...     config.require_int("seats", -1, 1)  # a nonsense value passes
>>> config.require_int("seats", -1, 1)
Traceback (most recent call last):
pagedlab.errors.ConfigError: seats is -1: give a whole number of at least 1
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from pagedlab.errors import LessonError


@contextlib.contextmanager
def without(function: Callable[..., Any], statement: str, instead: str = "pass") -> Iterator[str]:
    """Inside the block, ``function`` runs without one of its statements; afterwards it is as it was.

    Parameters
    ----------
    function : function or method
        Reached as a module's or a class's attribute, such as ``InputBatch.condense``.
    statement : str
        How the statement starts, as it is written in the source. It must fit exactly one; what is nested in it goes
        with it.
    instead : str
        What runs in its place.

    Yields
    ------
    str
        The source that runs, with ``instead`` where the statement was.

    Raises
    ------
    LessonError
        If not exactly one statement starts so: the code has changed, and so must the lesson.
    """
    owner, name = _owner(function)
    source = _replace(function, statement, instead)
    setattr(owner, name, _compile(function, source))
    try:
        yield source
    finally:
        setattr(owner, name, function)


def _owner(function: Callable[..., Any]) -> tuple[Any, str]:
    """Return the module or class whose attribute ``function`` is, and the attribute's name."""
    called = getattr(function, "__qualname__", repr(function))
    *path, name = called.split(".")
    try:
        owner = functools.reduce(getattr, path, sys.modules[function.__module__])
        reached = inspect.getattr_static(owner, name)
    except (AttributeError, KeyError):
        reached = None  # such as a function inside a function: `outer.<locals>.inner`
    if not inspect.isfunction(function) or reached is not function:
        raise LessonError(
            f"{called} is not a plain function of a module or method of a class: only those can be broken"
        )
    return owner, name


def _replace(function: Callable[..., Any], statement: str, instead: str) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    lines = source.splitlines()
    wanted = statement.strip()
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and lines[node.lineno - 1][node.col_offset :].startswith(wanted)
    ]
    if len(found) != 1:
        many = "no statement that starts" if not found else f"{len(found)} statements that start"
        raise LessonError(f"{function.__qualname__} has {many} with {wanted!r}")
    (node,) = found
    assert node.end_lineno is not None
    indent = " " * node.col_offset
    taken_out = [line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno]]
    put_in = [*(f"# taken out: {line}" for line in taken_out), *instead.strip().splitlines()]
    return "\n".join([*lines[: node.lineno - 1], *(indent + line for line in put_in), *lines[node.end_lineno :]]) + "\n"


def _compile(function: Callable[..., Any], source: str) -> Callable[..., Any]:
    if function.__closure__:
        raise LessonError(f"{function.__qualname__} uses variables of a function around it: it cannot be broken alone")
    name = f"<{function.__qualname__}, one statement less>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    flags = function.__code__.co_flags & annotations.compiler_flag
    exec(compile(source, name, "exec", flags=flags, dont_inherit=True), function.__globals__, namespace)
    broken: Callable[..., Any] = functools.wraps(function)(namespace[function.__name__])
    del broken.__wrapped__  # type: ignore[attr-defined]  # inspect is to show what runs, not what it replaced
    return broken
