"""The table of the seeds' statements names places and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "seeds-000-004.md"
ROWS = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "::" in line and line[0] == "|"]


def names(path: Path) -> set[str]:
    """Return the classes, functions, methods and assigned names of a module, methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_the_table_has_a_place_and_a_test_for_each_statement() -> None:
    assert len(ROWS) > 40
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize(
    "reference", sorted({ref for row in ROWS for ref in re.findall(r"`([\w/]+\.py::[\w.]+)`", "".join(row))})
)
def test_what_the_table_names_exists(reference: str) -> None:
    path, name = reference.split("::")
    assert name in names(ROOT / path)
