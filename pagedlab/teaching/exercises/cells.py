r"""The solutions in a notebook's cells, found without running any.

>>> cells = ["import numpy as np", '@exercise("double")\ndef double(number):\n    return np.add(number, number)']
>>> solution = solutions_in(cells, "mine.ipynb")["double"]
>>> solution.filename, solution.prelude
('mine.ipynb, code cell 2', 'import numpy as np')

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from pagedlab.teaching.exercises.sandbox import Submission
from pagedlab.teaching.exercises.sources import DECORATOR

_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def code_cells(text: str) -> list[str]:
    """Return the code cells of a notebook as plain Python, without magics; one that is no Python is left out.

    Raises
    ------
    ValueError
        If the text is no notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is not a notebook") from None
    return [_python_of(source) for source in sources]


def _python_of(source: str) -> str:
    """Empty the lines that only IPython knows, such as ``%time`` and ``!pip``; the others keep their numbers."""
    if source.lstrip().startswith("%%"):
        return ""
    lines = ["" if line.lstrip().startswith(("%", "!", "?")) else line for line in source.splitlines()]
    return "\n".join(lines) + "\n"


def solutions_in(cells: list[str], filename: str) -> dict[str, Submission]:
    """Return the solution of each exercise that a notebook's cells hold: the last cell with its decorator.

    Parameters
    ----------
    cells : list of str
        The code cells, from `code_cells`.
    filename : str

    Returns
    -------
    dict of str to Submission
        By exercise. As in a notebook, a check sees the cell, and what earlier cells have imported.
    """
    found: dict[str, Submission] = {}
    imports: list[str] = []
    defined: set[str] = set()
    for number, source in enumerate(cells, 1):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            for name in _mentioned(source):  # its check says what is wrong with it
                found[name] = Submission(source, f"{filename}, code cell {number}")
            continue
        for name in _checked_in(tree):
            prelude = "\n".join(imports)
            elsewhere = frozenset(defined - {item.name for item in tree.body if isinstance(item, _DEFINITIONS)})
            found[name] = Submission(source, f"{filename}, code cell {number}", prelude, True, elsewhere)
        imports += [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        defined |= {node.name for node in tree.body if isinstance(node, _DEFINITIONS)}
    return found


def _checked_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the exercises whose decorator stands in a cell."""
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            yield from filter(None, map(_name_in, node.decorator_list))


def _name_in(mark: ast.expr) -> str:
    match mark:
        case ast.Call(
            func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
        ) if called == DECORATOR:
            return name
    return ""


def _mentioned(source: str) -> Iterator[str]:
    """Yield the names of the exercises in a cell that is not Python, by its lines."""
    for line in source.splitlines():
        if line.startswith(f"@{DECORATOR}("):
            yield line.partition("(")[2].strip().strip("\"')")
