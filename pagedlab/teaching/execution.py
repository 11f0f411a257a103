"""Run a lesson headless, cell by cell: in a Jupyter kernel where there is one, else in plain Python.

    report = run_lesson(find_lesson("00"), progress=print)
    report.failure        # None, or the cell that failed, the line, the error

Both runners start a separate process, tell of every cell as it ends, and stop at the first that fails. The plain
one needs nothing but Python; it is what `pip install pagedlab` without the ``lab`` extra can do.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pagedlab.errors import LessonError
from pagedlab.teaching.lessons import lessons_directory

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ERROR_LINES = 12
"""How many lines of an error are worth showing: the last ones."""


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell: ``number`` counts the code cells from 1, ``section`` is the heading it stands under."""

    index: int
    number: int
    source: str
    section: str

    @property
    def title(self) -> str:
        """The first line of code, without comments: what a progress line shows."""
        lines = [line.strip() for line in self.source.splitlines()]
        return next((line for line in lines if line and not line.startswith("#")), "(empty)")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a cell failed. ``line`` is the line of its source (from 1), if known; ``error`` ends with the message."""

    line: int | None
    error: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellRun:
    """One cell that ran."""

    cell: CodeCell
    num_cells: int
    seconds: float
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a lesson's run came to. ``runner`` is ``"jupyter"`` or ``"plain"``."""

    runner: str
    runs: tuple[CellRun, ...]
    seconds: float

    @property
    def failed(self) -> CellRun | None:
        """The run that failed, always the last, or None."""
        return self.runs[-1] if self.runs and self.runs[-1].failure else None


def jupyter_is_installed() -> bool:
    """Whether a lesson can run in a Jupyter kernel here."""
    return all(find_spec(module) is not None for module in ("nbclient", "nbformat", "ipykernel"))


def read_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook's JSON.

    Raises
    ------
    LessonError
        If the file is not a notebook of format 4.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LessonError(f"{path} is not a notebook: {error}") from None
    except OSError as error:
        raise LessonError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise LessonError(f"{path} is not a notebook of format 4: open it in JupyterLab and save it again")
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[CodeCell]:
    """Return the code cells in order."""
    cells: list[CodeCell] = []
    section = ""
    for index, cell in enumerate(notebook["cells"]):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+\s+(.+)$", source, flags=re.MULTILINE)
            section = headings[-1] if headings else section
        elif cell["cell_type"] == "code" and source.strip():
            cells.append(CodeCell(index, len(cells) + 1, source, section))
    return cells


def run_lesson(
    path: Path,
    *,
    timeout: float,
    progress: Callable[[CellRun], None],
    started: Callable[[CodeCell, int], None] = lambda cell, num_cells: None,
    output: Path | None = None,
    jupyter: bool | None = None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Run every code cell of a notebook until one fails.

    Parameters
    ----------
    path : Path
        The notebook; it is not changed.
    timeout : float
        Seconds that one cell may take.
    progress : callable
        Called with each `CellRun` when it ends.
    started : callable
        Called with a cell and the number of cells when it begins.
    output : Path, optional
        Where to save the notebook with what its cells showed.
    jupyter : bool, optional
        Which runner; by default a Jupyter kernel if it is installed.
    environment : mapping of str to str, optional
        Variables that the process gets besides those of this one.

    Raises
    ------
    LessonError
        If the file is not a notebook, or ``output`` cannot be written.
    """
    notebook = read_notebook(path)
    if output is not None and not output.parent.is_dir():
        raise LessonError(f"the folder of {output} does not exist: make it first")
    cells = code_cells(notebook)
    jupyter = jupyter_is_installed() if jupyter is None else jupyter
    runner = _kernel if jupyter else _plain_python
    begin = time.perf_counter()
    runs: list[CellRun] = []

    # A learner's notebook may use files beside it; a shipped lesson runs where its user is.
    folder = Path.cwd() if path.parent.resolve() == lessons_directory() else path.parent
    try:
        with runner(notebook, folder, timeout, {**os.environ, **(environment or {})}) as execute:
            for cell in cells:
                started(cell, len(cells))
                cell_begin = time.perf_counter()
                failure = execute(cell)
                runs.append(CellRun(cell, len(cells), time.perf_counter() - cell_begin, failure))
                progress(runs[-1])
                if failure is not None:
                    break
    finally:
        if output is not None:
            output.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Report("jupyter" if jupyter else "plain", tuple(runs), time.perf_counter() - begin)


Execute = Callable[[CodeCell], Failure | None]
"""Runs one cell; says why it failed, if it did. A runner is a context that gives one and keeps what cells show."""


# --- in a Jupyter kernel ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _kernel(
    notebook: dict[str, Any], folder: Path, timeout: float, environment: Mapping[str, str]
) -> Iterator[Execute]:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    node = nbformat.reads(json.dumps(notebook), as_version=4)  # joins sources that are lists of lines
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(node, timeout=max(1, round(timeout)), kernel_name="python3", resources=resources)
    with tempfile.TemporaryFile() as stderr, client.setup_kernel(stderr=stderr, env=dict(environment)):

        def execute(cell: CodeCell) -> Failure | None:
            try:
                client.execute_cell(node.cells[cell.index], cell.index)
            except CellExecutionError:
                return _failure_of_kernel(node.cells[cell.index])
            except CellTimeoutError:
                return _timed_out(timeout)
            except DeadKernelError:
                stderr.seek(0)
                said = _last_lines(stderr.read().decode(errors="replace"))
                return Failure(None, (*said, "the kernel died: out of memory, or a crash in native code"))
            return None

        yield execute
        client.set_widgets_metadata()
    notebook.update(json.loads(nbformat.writes(node)))


def _failure_of_kernel(cell: Any) -> Failure:
    error = next(output for output in cell.outputs if output.output_type == "error")
    text = _ANSI.sub("", "\n".join(error.traceback))
    places = re.findall(r"Cell In\[(\d+)\], line (\d+)", text)
    lines = [int(line) for count, line in places if int(count) == cell.execution_count]
    return Failure(lines[-1] if lines else None, _last_lines(text))


def _last_lines(text: str) -> tuple[str, ...]:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return tuple(lines[-_ERROR_LINES:])


def _timed_out(timeout: float) -> Failure:
    return Failure(None, (f"the cell ran longer than {timeout:g} s: give it more with --timeout",))


# --- in plain Python ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _plain_python(
    notebook: dict[str, Any], folder: Path, timeout: float, environment: Mapping[str, str]
) -> Iterator[Execute]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedlab.teaching.plain"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        encoding="utf-8",
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        process.kill()

    def execute(cell: CodeCell) -> Failure | None:
        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            stdin.write(json.dumps({"number": cell.number, "source": cell.source}) + "\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            died = Failure(None, (f"Python ended with exit code {process.wait()}",))
            return _timed_out(timeout) if expired.is_set() else died
        reply = json.loads(answer)
        notebook["cells"][cell.index]["outputs"] = list(_outputs(reply))
        return None if reply["error"] is None else Failure(reply["line"], _last_lines(reply["error"]))

    try:
        yield execute
    finally:
        process.kill()
        process.communicate()


def _outputs(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if reply["shown"]:
        yield {"output_type": "stream", "name": "stdout", "text": reply["shown"]}
    if reply["error"] is not None:
        lines = reply["error"].splitlines()
        yield {"output_type": "error", "ename": lines[-1].partition(":")[0], "evalue": "", "traceback": lines}
