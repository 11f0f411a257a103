"""Run code cells in plain Python: the process that `pagedlab.teaching.execution` starts when there is no Jupyter.

Cells arrive on stdin, one JSON object a line (``number``, ``source``); each is answered with one line: ``shown``
(what it printed), ``error`` (None, or its traceback) and ``line`` (where in the cell, if known). As in a notebook, all
cells share one namespace, and the value of a last expression is shown.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any, TextIO


def serve(cells: TextIO, answers: TextIO) -> None:
    """Answer every cell of ``cells`` until there are no more."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # so that what a cell defines can be pickled and inspected
    for line in cells:
        cell = json.loads(line)
        print(json.dumps(run_cell(cell["number"], cell["source"], main.__dict__)), file=answers, flush=True)


def run_cell(number: int, source: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run one cell in ``namespace`` and return its answer."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for inspect and tracebacks
    shown = io.StringIO()
    answer: dict[str, Any] = {"error": None, "line": None}
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            _execute(ast.parse(source, name), name, namespace)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a cell may raise anything, SystemExit too
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        answer["error"] = "".join(_format(error, name))
        if isinstance(error, SyntaxError) and error.filename == name:
            answer["line"] = error.lineno
        elif frames:
            answer["line"] = frames[-1].lineno
    return {"shown": shown.getvalue(), **answer}


def _execute(tree: ast.Module, name: str, namespace: dict[str, Any]) -> None:
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        if value is not None:
            print(repr(value))


def _format(error: BaseException, name: str) -> list[str]:
    """Format ``error`` from the cell's own frame on, without this module's frames."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename != name:
        start = start.tb_next
    return traceback.format_exception(type(error), error, start)


def main() -> None:
    """Serve on the real stdin and stdout. What a cell writes to stdout itself must not reach the parent's protocol."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    cells = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(KeyboardInterrupt):
        serve(cells, answers)


if __name__ == "__main__":
    main()
