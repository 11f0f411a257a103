"""An exercise in JupyterLab: the verdict, the next hint, yours beside the reference, and a prediction that counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from lab_pages import Lab, Watched
from playwright.sync_api import Page, expect
from test_lesson_in_jupyterlab import get, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

SETUP = """\
import os
os.environ["PAGEDLAB_PROGRESS"] = {progress!r}
from pagedlab.teaching import exercise, predict, progress
"""

SHIFTS = '''\
@exercise("condense")
def condense(req_ids, req_id_to_index, num_tokens, spec_token_ids, token_ids):
    """<b id="markup">Move everybody up.</b>"""
    free = 0
    for row, name in enumerate(list(req_ids)):
        if name is not None:
            token_ids[free], num_tokens[free] = token_ids[row], num_tokens[row]
            spec_token_ids[free], req_id_to_index[name] = spec_token_ids[row], free
            if row != free:
                req_ids[free], req_ids[row] = name, None
            free += 1
    del req_ids[free:], spec_token_ids[free:]
    print("<b id='markup'>moved</b>")
'''

PREDICT = """\
from pagedlab import LLMEngine, record, scenes
engine = LLMEngine("quill")
recorder = record(engine)
engine.generate(["To be"])
predict(scenes.step(recorder.stop(), step=0).questions[0])
"""


@pytest.fixture
def notebook(lab: Lab, open_page: Callable[..., Watched], tmp_path: Path) -> Page:
    """A notebook with an exercise, run."""
    sources = (SETUP.format(progress=str(tmp_path / "progress.json")), SHIFTS, "progress()", PREDICT)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}  # else JupyterLab asks for one
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    written = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(written, lab.folder / "exercise.ipynb")
    page = open_page(re.sub(r"/lab/tree/[^?]*", "/lab/tree/exercise.ipynb", lab.url), lab.origin).page
    # What is chosen before the page has reached its kernel is lost.
    wait_until(page, 60, lambda: any(kernel["connections"] for kernel in get(page, lab, "kernels")))
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".pagedlab-verdict").first.wait_for(timeout=90_000)
    return page


def test_a_learner_is_told_shown_and_counted(
    notebook: Page, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    verdict = notebook.locator(".pagedlab-verdict").first
    expect(verdict).to_contain_text("Condense the batch: not yet.")
    expect(verdict).to_contain_text("Hint 1 of 3. Your rows are in their old order")
    expect(verdict).to_contain_text("<b id='markup'>moved</b>")
    expect(notebook.locator("#markup")).to_have_count(0)

    notebook.get_by_role("button", name="Next hint").click()
    expect(notebook.get_by_text("Hint 2 of 3.")).to_be_visible(timeout=60_000)  # the last cell may still run
    screenshot(notebook, "exercise-verdict")

    notebook.get_by_role("button", name="Play yours beside the reference").click()
    player = notebook.locator("[data-pagedlab-player=condense]").first
    player.wait_for(timeout=30_000)
    player.scroll_into_view_if_needed()
    player.get_by_role("button", name="Next frame").click()
    expect(player.get_by_test_id("source")).to_contain_text("req_ids[free], req_ids[row] = name, None")
    screenshot(notebook, "exercise-play")

    table = notebook.locator(".pagedlab-progress")
    table.scroll_into_view_if_needed()
    notebook.get_by_role("button", name="Bring up to date").click()
    expect(notebook.get_by_text("0 exercises passed, 1 tried, 1 hint used")).to_be_visible()
    screenshot(notebook, "exercise-progress")

    question = notebook.locator("[data-pagedlab-question]").first
    question.scroll_into_view_if_needed(timeout=60_000)
    question.get_by_role("button", name="Show me").click()
    for _ in range(20):
        predictions = json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))["predictions"]
        if predictions:
            break
        notebook.wait_for_timeout(250)
    assert [item["right"] for item in predictions.values()] == [False]
