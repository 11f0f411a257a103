"""The lessons themselves: built from their text, without outputs, and running from top to bottom in time.

They run here in plain Python without Triton, as where neither is installed; in JupyterLab, with Triton's interpreter,
they run in ``tests/browser``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pagedlab.teaching import lessons_directory
from pagedlab.teaching.execution import CellRun, run_lesson

NOTEBOOKS = sorted(lessons_directory().glob("*.ipynb"))
SOURCE = lessons_directory() / "source"
SECONDS = 60
"""How long a lesson may take here."""

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def builder(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(SOURCE / "build.py")


def test_every_text_has_its_notebook_and_every_notebook_its_text() -> None:
    assert {path.stem for path in NOTEBOOKS} == {path.stem for path in SOURCE.glob("[0-9][0-9]-*.md")}


@each_notebook
def test_the_notebook_is_what_its_text_builds(notebook: Path, builder: ModuleType) -> None:
    text = SOURCE / f"{notebook.stem}.md"
    built = builder.build(text)
    assert built == builder.build(text)  # the same every time
    assert notebook.read_text(encoding="utf-8") == built, "run: make notebooks"


@each_notebook
def test_the_notebook_has_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


@each_notebook
def test_the_lesson_has_what_every_lesson_has(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    opening = prose.partition("\n## ")[0]
    assert "?" in opening, "it opens with a question"
    assert "After this lesson you can" in opening
    assert len(re.findall(r"^predict\(", code, flags=re.MULTILINE)) >= 2, "it asks before it tells"
    assert "play(" in code
    assert "show_source(" in code
    assert "knob(" in code
    assert "without(" in code, "it breaks a line of the real code"
    for heading in ("## Where this stops", "### In five lines", "### Where to read this in vLLM (0.25.1)"):
        assert heading in prose


HIDE_TRITON = """\
import sys


class WithoutTriton:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "triton" else self.finder.find_spec(name, path, target)


sys.meta_path[:] = map(WithoutTriton, sys.meta_path)
"""
"""A `sitecustomize`, for processes that are to find no Triton."""


@pytest.fixture
def no_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE_TRITON)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("no_triton")
def test_where_triton_is_hidden_the_numpy_tier_is_active() -> None:
    code = "from pagedlab.kernels import backend; print(backend().name)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "numpy\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_triton")
@each_notebook
def test_the_lesson_runs_from_top_to_bottom_in_time_without_triton_and_says_so(notebook: Path, tmp_path: Path) -> None:
    runs: list[CellRun] = []
    done = tmp_path / "done.ipynb"
    report = run_lesson(notebook, timeout=60, progress=runs.append, output=done, jupyter=False)
    assert report.failed is None, (report.failed.cell.source, report.failed.failure) if report.failed else ""
    assert report.seconds < SECONDS, [(run.cell.title, round(run.seconds, 1)) for run in runs]
    cells = [cell for cell in json.loads(done.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        shown = "".join(output["text"] for output in cell["outputs"])
        assert "Warning" not in shown
        assert "Triton" in shown or "has_triton" not in "".join(cell["source"]), "it says what it could not do"
