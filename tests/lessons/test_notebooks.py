"""The lessons themselves: built from their text, without outputs, and running from top to bottom in time."""

from __future__ import annotations

import importlib.util
import json
import re
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
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_notebooks", SOURCE / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


@pytest.mark.slow
@pytest.mark.parametrize("jupyter", [True, False], ids=["jupyter", "plain"])
@each_notebook
def test_the_lesson_runs_from_top_to_bottom_in_time(notebook: Path, jupyter: bool) -> None:
    runs: list[CellRun] = []
    report = run_lesson(notebook, timeout=60, progress=runs.append, jupyter=jupyter)
    assert report.failed is None, (report.failed.cell.source, report.failed.failure) if report.failed else ""
    assert report.seconds < SECONDS, [(run.cell.title, round(run.seconds, 1)) for run in runs]
