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
import re
from collections.abc import Iterator

from pagedlab.teaching.exercises.sandbox import Submission
from pagedlab.teaching.exercises.sources import DECORATOR, used_names

_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)

MAX_CHARACTERS = 100_000
"""The longest cell that is read: Python's parser takes a thousand times the memory of its text."""

_MENTION = re.compile(rf"^\s*@(?:\w+\.)*{DECORATOR}\(\s*(?:name\s*=\s*)?[\"'](\w+)[\"']", re.MULTILINE)


def code_cells(text: str) -> list[str]:
    """Return the code cells of a notebook as Python, without what only IPython knows; line numbers stay.

    Raises
    ------
    ValueError
        If the text is no notebook, or a cell is too long.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is not a notebook") from None
    if (longest := max(map(len, sources), default=0)) > MAX_CHARACTERS:
        raise ValueError(f"a cell has {longest:,} characters; {MAX_CHARACTERS:,} are read")
    return [_python_of(source) for source in sources]


def _python_of(source: str) -> str:
    """Empty the statements that only IPython knows, such as ``%time`` and ``files = !ls``."""
    from IPython.core.inputtransformer2 import TransformerManager

    lines = source.split("\n")
    if lines[0].startswith("%%"):
        lines[0] = ""  # what stands below may be Python, as after %%time
    plain = "\n".join(lines) + "\n"
    try:
        changed = TransformerManager().transform_cell(plain)
        statements = ast.parse(changed).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return plain  # its check says what is wrong with it
    if changed == plain:
        return plain
    lines = changed.split("\n")
    for statement in statements:
        if isinstance(statement, _DEFINITIONS):
            continue
        if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(statement)):
            for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[number] = ""
    return "\n".join(lines)


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
        By exercise. As in a notebook, a check sees the cell, and what it uses of earlier cells' imports.
    """
    found: dict[str, Submission] = {}
    imports: dict[str, str] = {}
    defined: set[str] = set()
    for number, source in enumerate(cells, 1):
        place = f"{filename}, code cell {number}"
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # Its check says what is wrong with it.
            found |= {name: Submission(source, place) for name in _MENTION.findall(source)}
            continue
        mine = {node.name for node in tree.body if isinstance(node, _DEFINITIONS)}
        for name in _checked_in(tree):
            used = used_names(source)
            prelude = "\n".join(line for word, line in imports.items() if word in used or line.endswith("*"))
            found[name] = Submission(source, place, prelude, True, frozenset(defined - mine))
        imports |= _imports_in(tree)
        defined |= mine
    return found


def _imports_in(tree: ast.Module) -> dict[str, str]:
    """Return the statement for each name that a cell imports."""
    imports = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                one = (
                    ast.Import([alias])
                    if isinstance(node, ast.Import)
                    else ast.ImportFrom(node.module, [alias], node.level)
                )
                text = ast.unparse(one)
                imports[text if alias.name == "*" else alias.asname or alias.name.partition(".")[0]] = text
    return imports


def _checked_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the exercises whose decorator stands in a cell."""
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            for mark in node.decorator_list:
                yield from _MENTION.findall(f"@{ast.unparse(mark)}")
