"""Lessons 01 and on in JupyterLab: run all, one prediction wrong and one right, the exercise solved and failed."""

from __future__ import annotations

import ast
import json
import re
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import decompress

import pytest
from lab_pages import REPOSITORY, Lab, Watched
from playwright.sync_api import Locator, Page, expect
from test_lesson_in_jupyterlab import run_all, scroll_to, shut_down

from pagedlab.teaching.exercises.registry import Entry, find_exercise
from pagedlab.teaching.page_cells import payloads_in

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

SECONDS = 60
"""How long a lesson may take."""

SOON = 60_000
"""Milliseconds that an answer may take where other tests run, too."""


def exercises_of(lesson: Path) -> list[str]:
    """Return the exercises whose code is in a cell of a lesson."""
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    return re.findall(r'^@exercise\("(\w+)"\)', "\n".join("".join(cell["source"]) for cell in cells), re.MULTILINE)


LESSONS = [path for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")) if path.name != "00-one-step.ipynb"]


SOME = ("04",)
"""The lesson that is opened wherever tests run: the one with most kinds of cells."""


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, id=path.stem, marks=() if path.name[:2] in SOME else pytest.mark.thorough) for path in LESSONS],
)
def test_a_learner_runs_the_lesson_predicts_and_solves_its_exercise(
    notebook: Path, lab: Lab, open_page: Callable[..., Watched], screenshot: Callable[[Page, str], Path]
) -> None:
    shutil.copy(notebook, lab.folder)
    address = re.sub(r"/lab/tree/[^?]*", f"/lab/workspaces/{notebook.stem}/tree/{notebook.name}", lab.url)
    watched = open_page(address, lab.origin, device_scale_factor=1)  # drawn in half the time
    page = watched.page
    saved, seconds = run_all(page, lab, notebook.name)
    outputs = [output for cell in saved["cells"] for output in cell.get("outputs", ())]
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert seconds < SECONDS

    first, second = list(questions(outputs))[:2]
    wrong, reason = next(iter(first["reasons"].items()))
    answer(page, first, wrong, f"Not quite. {reason}")
    answer(page, second, second["answer"], f"Right. {second['explanation']}")

    (name,) = exercises_of(notebook)
    entry = find_exercise(name)
    cell = scroll_to(page, page.locator(".jp-CodeCell", has_text=f'@exercise("{name}")'))
    verdict = cell.locator(".pagedlab-verdict")
    expect(verdict).to_contain_text(
        f"{entry.exercise.title}: not yet.", timeout=SOON
    )  # what the lesson gives to start from
    run(page, cell, solution(entry))
    expect(verdict).to_contain_text(f"{entry.exercise.title}: passed.", timeout=SOON)
    mutant = next(iter(entry.mutants))
    run(page, cell, mistaken(entry, mutant))
    expect(verdict).to_contain_text(f"{entry.exercise.title}: not yet.", timeout=SOON)
    expect(verdict).to_contain_text(f"Hint 1 of 3. {words(entry.hints[mutant][0])}", timeout=SOON)
    verdict.scroll_into_view_if_needed()
    screenshot(page, f"lesson-{notebook.stem}-exercise")

    assert watched.errors == []
    shut_down(page, lab, notebook.name)


def questions(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the questions that a notebook asks."""
    for output in outputs:
        for payload in payloads_in(output.get("data", {}).get("text/html", "")):
            if "packed" in payload:
                payload = json.loads(decompress(b64decode(payload["packed"])))
            if "question" in payload:
                yield payload["question"]


def answer(page: Page, question: dict[str, Any], given: str, verdict: str) -> None:
    """Give an answer, and expect to be told so."""
    asked = scroll_to(page, page.locator("[data-pagedlab-question]", has_text=question["prompt"]))
    if question["kind"] == "choice":
        asked.get_by_role("radio").nth(question["choices"].index(given)).check()
    else:
        asked.get_by_test_id("number").fill(given)
    asked.get_by_role("button", name="Check").click()
    expect(asked.get_by_test_id("verdict")).to_contain_text(verdict, timeout=SOON)


def run(page: Page, cell: Locator, source: str) -> None:
    """Paste a source over that of a cell, and run it."""
    editor = cell.locator(".cm-content")
    editor.click()
    page.keyboard.press("Control+a")
    editor.evaluate(
        """(editor, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            editor.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        source,
    )
    page.keyboard.press("Control+Enter")


def solution(entry: Entry) -> str:
    """Return the cell of a learner who has solved the exercise."""
    source = (entry.folder / "solution.py").read_text(encoding="utf-8")
    return decorated(source, entry, entry.exercise.function)


def mistaken(entry: Entry, mutant: str) -> str:
    """Return the cell of a learner with a misconception."""
    source = (entry.folder / "mutants.py").read_text(encoding="utf-8")
    return decorated(source, entry, mutant)


def decorated(source: str, entry: Entry, subject: str) -> str:
    """Return ``source`` with its ``subject`` called as the exercise asks, to be checked; without its other ones."""
    lines = source.splitlines()
    tree = ast.parse(source)
    for node in reversed(tree.body):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if node.name != subject:
            del lines[node.lineno - 1 : node.end_lineno]
            continue
        place = node.lineno - 1
        lines[place] = lines[place].replace(f" {subject}", f" {entry.exercise.function}", 1)
        lines.insert(place, f'@exercise("{entry.name}")')
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip()


def words(markdown: str) -> str:
    """Return what a page shows of a hint."""
    return re.sub(r"[`*]", "", markdown)
