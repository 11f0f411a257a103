"""Running a notebook headless: both runners must say the same of the same cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagedlab.errors import LessonError
from pagedlab.teaching.execution import CellRun, Report, run_lesson

RUNNERS = pytest.mark.parametrize("jupyter", [True, False], ids=["jupyter", "plain"])


def notebook(path: Path, *cells: str | tuple[str, str]) -> Path:
    """Write a notebook; a plain string is a code cell, a pair its type and source."""
    body: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        kind, source = ("code", cell) if isinstance(cell, str) else cell
        more = {"outputs": [], "execution_count": None} if kind == "code" else {}
        body.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **more})
    path.write_text(json.dumps({"cells": body, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def run(path: Path, jupyter: bool, timeout: float = 60, **options: Any) -> Report:
    seen: list[CellRun] = []
    report = run_lesson(path, timeout=timeout, progress=seen.append, jupyter=jupyter, **options)
    assert tuple(seen) == report.runs
    return report


@RUNNERS
def test_cells_run_in_order_in_one_namespace(tmp_path: Path, jupyter: bool) -> None:
    path = notebook(tmp_path / "n.ipynb", "x = 1", ("markdown", "# Title"), "", "y = x + 1", "assert y == 2\ny")
    report = run(path, jupyter)
    assert report.failed is None
    assert [run.cell.number for run in report.runs] == [1, 2, 3]
    assert report.runs[-1].cell.section == "Title"


@RUNNERS
def test_the_notebook_itself_is_not_changed(tmp_path: Path, jupyter: bool) -> None:
    path = notebook(tmp_path / "n.ipynb", "print('hello')")
    before = path.read_bytes()
    run(path, jupyter)
    assert path.read_bytes() == before


@RUNNERS
def test_a_failing_cell_names_its_line_and_stops_the_run(tmp_path: Path, jupyter: bool) -> None:
    path = notebook(tmp_path / "n.ipynb", "a = 1", "b = 2\nc = a / 0\nd = 3", "print('never')")
    failed = run(path, jupyter).failed
    assert failed is not None
    assert failed.failure is not None
    assert (failed.cell.number, failed.num_cells, failed.failure.line) == (2, 3, 2)
    assert failed.failure.error[-1] == "ZeroDivisionError: division by zero"


@RUNNERS
def test_the_line_is_the_cells_own_when_a_library_raises(tmp_path: Path, jupyter: bool) -> None:
    path = notebook(tmp_path / "n.ipynb", "import json\n\njson.loads('{')")
    failed = run(path, jupyter).failed
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.line == 3
    assert failed.failure.error[-1].startswith("JSONDecodeError") or "JSONDecodeError" in failed.failure.error[-1]


@RUNNERS
def test_a_syntax_error_names_its_line(tmp_path: Path, jupyter: bool) -> None:
    failed = run(notebook(tmp_path / "n.ipynb", "x = 1\ny = = 2"), jupyter).failed
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.line == 2
    assert "SyntaxError" in failed.failure.error[-1]


@RUNNERS
def test_an_endless_cell_is_stopped(tmp_path: Path, jupyter: bool) -> None:
    failed = run(notebook(tmp_path / "n.ipynb", "while True:\n    pass"), jupyter, timeout=2).failed
    assert failed is not None
    assert failed.failure is not None
    assert "longer than 2 s" in failed.failure.error[-1]


@RUNNERS
def test_a_process_that_dies_is_reported(tmp_path: Path, jupyter: bool) -> None:
    failed = run(notebook(tmp_path / "n.ipynb", "import os\nos._exit(3)"), jupyter).failed
    assert failed is not None
    assert failed.failure is not None
    assert "died" in failed.failure.error[-1] or "exit code 3" in failed.failure.error[-1]


@RUNNERS
def test_the_output_file_holds_what_the_cells_showed(tmp_path: Path, jupyter: bool) -> None:
    output = tmp_path / "out.ipynb"
    run(notebook(tmp_path / "n.ipynb", "print('héllo')", "1 / 0"), jupyter, output=output)
    first, second = json.loads(output.read_text(encoding="utf-8"))["cells"]
    assert "".join(first["outputs"][0]["text"]) == "héllo\n"
    assert second["outputs"][-1]["output_type"] == "error"


def test_a_knobs_first_result_is_ordinary_output_that_a_saved_notebook_shows(tmp_path: Path) -> None:
    output = tmp_path / "out.ipynb"
    code = (
        "from pagedlab.teaching import knob, say\n"
        "def f(n=2):\n    print('loud')\n    say(f'twice is {2 * n}')\n"
        "knob(f, n=(1, 5))"
    )
    assert run(notebook(tmp_path / "n.ipynb", code), jupyter=True, output=output).failed is None
    (cell,) = json.loads(output.read_text(encoding="utf-8"))["cells"]
    controls, *others = [shown["data"] for shown in cell["outputs"]]
    assert "application/vnd.jupyter.widget-view+json" in controls
    explanation, printed, said = others
    assert "run this cell" in "".join(explanation["text/markdown"])
    assert "".join(printed["text/plain"]) == "loud\n"
    assert "".join(said["text/markdown"]) == "twice is 4"


@RUNNERS
def test_a_cell_sees_the_notebooks_folder(tmp_path: Path, jupyter: bool) -> None:
    (tmp_path / "data.txt").write_text("beside it")
    assert run(notebook(tmp_path / "n.ipynb", "assert open('data.txt').read() == 'beside it'"), jupyter).failed is None


def test_plain_python_keeps_what_cells_write_to_the_process_out_of_the_protocol(tmp_path: Path) -> None:
    path = notebook(tmp_path / "n.ipynb", "import os\nos.system('echo loud')\nos.write(1, b'{}\\n')", "input")
    assert run(path, jupyter=False).failed is None


def test_plain_python_lets_a_cell_inspect_its_own_functions(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "n.ipynb", "def f():\n    return 1", "import inspect\nassert 'return 1' in inspect.getsource(f)"
    )
    assert run(path, jupyter=False).failed is None


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"nbformat": 3, "worksheets": []}', b"\xff\xfe\x00"])
def test_what_is_not_a_notebook_is_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "n.ipynb"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(LessonError, match="not a notebook"):
        run(path, jupyter=False)


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = notebook(tmp_path / "n.ipynb", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(LessonError, match="does not exist"):
        run(path, jupyter=False, output=tmp_path / "no" / "out.ipynb")
    assert not (tmp_path / "ran").exists()


@RUNNERS
def test_a_notebook_as_jupyterlab_saves_it_runs_too(tmp_path: Path, jupyter: bool) -> None:
    """Sources are lists of lines there, and cells hold what an earlier run showed."""
    path = notebook(tmp_path / "n.ipynb", "x = 1\nprint(x)", "assert x == 1")
    saved = json.loads(path.read_text())
    for cell in saved["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        cell["execution_count"] = 7
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["old\n", "lines\n"]}]
    path.write_text(json.dumps(saved))
    report = run(path, jupyter, output=tmp_path / "done.ipynb")
    assert report.failed is None
    assert len(report.runs) == 2
    assert "old" not in (tmp_path / "done.ipynb").read_text()
