"""Build notebooks/*.ipynb from the MyST texts beside this file. The same text always gives the same bytes.

    python notebooks/source/build.py            # or: make notebooks

A notebook's cell ids come from its cells' content, and no outputs are kept, so that a difference in git is a
difference in the lesson.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import jupytext
import nbformat

SOURCE = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def build(source: Path) -> str:
    """Return the notebook of one MyST text, as JSON text."""
    notebook = jupytext.read(source, fmt="md:myst")
    seen: set[str] = set()
    for cell in notebook.cells:
        content, repeat = f"{cell.cell_type}\n{cell.source}", 0
        while (name := hashlib.sha256(f"{content}\n{repeat}".encode()).hexdigest()[:12]) in seen:
            repeat += 1
        seen.add(name)
        cell.id = name
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> int:
    """Build every lesson and say which changed."""
    for source in sorted(SOURCE.glob("[0-9][0-9]-*.md")):
        target = SOURCE.parent / f"{source.stem}.ipynb"
        text = build(source)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8", newline="\n")
            print(f"built {target.relative_to(SOURCE.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
