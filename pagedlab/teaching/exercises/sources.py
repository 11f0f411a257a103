"""Which parts of a source a check runs, and what a notebook's cell takes from the cells before it.

>>> import numpy as np
>>> helper = 3
>>> cell = '''
... @exercise("double")
... def double(number):
...     return np.add(number, helper)
... double(2)
... '''
>>> print(ast.unparse(prepared(ast.parse(cell), only_definitions=True)))
def double(number):
    return np.add(number, helper)
>>> imports_for(cell, {"np": np, "helper": helper})
'import numpy as np'

The rule for a notebook is short enough to remember: the check sees the cell, and what was imported before. A helper
from another cell is not there; `names_elsewhere` is how a verdict can say so.

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping
from typing import Any

DECORATOR = "exercise"
"""The decorator that checks a function. A submission's process takes it off."""

_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.If, ast.Try)
"""Of a cell; conditions and `try` often stand around imports."""


def prepared(tree: ast.Module, *, only_definitions: bool) -> ast.Module:
    """Return the part of a source to run, without the decorator. Line numbers stay.

    Parameters
    ----------
    tree : ast.Module
    only_definitions : bool
        Whether to keep nothing but imports, definitions and assignments, and conditions around them.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.decorator_list = [mark for mark in node.decorator_list if not _is_the_decorator(mark)]
    if only_definitions:
        tree.body = [node for node in tree.body if isinstance(node, _KEPT)]
    return tree


def _is_the_decorator(mark: ast.expr) -> bool:
    called = mark.func if isinstance(mark, ast.Call) else mark
    return DECORATOR in (getattr(called, "id", None), getattr(called, "attr", None))


def with_decorator(starter: str, exercise: str, function: str) -> str:
    r"""Return a starter with the decorator before its function, or class, and without the text at its top.

    >>> print(with_decorator("import math\ndef helper(): ...\ndef double(number): ...", "twice", "double"))
    import math
    def helper(): ...
    @exercise("twice")
    def double(number): ...
    """
    source = without_docstring(starter)
    definitions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    subject = next(node for node in definitions if node.name == function)
    first = min([subject.lineno, *(mark.lineno for mark in subject.decorator_list)])
    lines = source.splitlines(keepends=True)
    lines.insert(first - 1, f'@{DECORATOR}("{exercise}")\n')
    return "".join(lines).lstrip()


def without_docstring(source: str) -> str:
    """Return a source without the text at its top."""
    tree = ast.parse(source)
    begin = tree.body[1].lineno - 1 if ast.get_docstring(tree) is not None else 0
    return "".join(source.splitlines(keepends=True)[begin:])


def imports_for(source: str, names: Mapping[str, Any]) -> str:
    """Return import statements for what a source uses and what was imported elsewhere.

    Parameters
    ----------
    source : str
        A cell.
    names : mapping of str to object
        The notebook's names, with what they stand for.
    """
    lines = (_import_of(name, names[name]) for name in sorted(used_names(source)) if name in names)
    return "\n".join(filter(None, lines))


def names_elsewhere(source: str, names: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that a source uses, that the notebook has, and that cannot be imported."""
    return frozenset(name for name in used_names(source) if name in names and not _import_of(name, names[name]))


def used_names(source: str) -> set[str]:
    """Return the names that the part of a source which a check runs reads."""
    tree = prepared(ast.parse(source), only_definitions=True)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _import_of(name: str, value: Any) -> str:
    """Return the statement that imports ``value`` as ``name``, empty if it was not imported."""
    if isinstance(value, types.ModuleType):
        return "" if value.__name__ == "__main__" else _alias(f"import {value.__name__}", value.__name__, name)
    module, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(own_name, str) or module == "__main__":
        return ""
    if getattr(sys.modules.get(module), own_name, None) is not value:
        return ""
    return _alias(f"from {module} import {own_name}", own_name, name)


def _alias(statement: str, own_name: str, name: str) -> str:
    return statement if own_name == name else f"{statement} as {name}"
