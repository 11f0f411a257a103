"""A chart in the real JupyterLab: it follows the theme while the page is open, and stays as large as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from lab_pages import Lab, Watched, choose_theme
from playwright.sync_api import Page, expect

from pagedlab.charts.template import DARK, LIGHT, Theme

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

CELLS = (
    "from pagedlab import LLMEngine, SamplingParams, charts, record\n"
    "engine = LLMEngine('quill')\n"
    "with record(engine) as recorder:\n"
    "    engine.generate(['To be, or not ', 'Farewell, '], SamplingParams(max_tokens=6, temperature=0))\n"
    "trace = recorder.stop()",
    "charts.show(charts.budget(trace, by='request'))",
    "charts.memory(trace)",  # shown by plotly alone: it stands on its own ground
)


@pytest.fixture
def page(lab: Lab, open_page: Callable[..., Watched]) -> Page:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, lab.folder / "charts.ipynb")
    page: Page = open_page(lab.url.replace("00-one-step.ipynb", "charts.ipynb"), lab.origin).page
    wait_for_the_kernel(page, lab)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.locator(".jp-OutputArea-output .gtitle")).to_have_count(2, timeout=60_000)
    return page


def wait_for_the_kernel(page: Page, lab: Lab) -> None:
    """What is chosen before the page has reached its kernel is lost."""
    kernels = f"{lab.origin}/api/kernels?{lab.url.partition('?')[2]}"
    for _ in range(60):
        if any(
            kernel["execution_state"] == "idle" and kernel["connections"] for kernel in page.request.get(kernels).json()
        ):
            break
        page.wait_for_timeout(1000)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()


def test_the_charts_follow_the_theme_that_the_learner_chooses(
    page: Page, screenshot: Callable[[Page, str], Path]
) -> None:
    ours, plain = (page.locator(".jp-RenderedPlotly").nth(at) for at in (0, 1))
    words = page.locator("[data-pagedlab-chart]")
    expect(words).to_contain_text("tokens")
    heights = [figure.bounding_box()["height"] for figure in (ours, plain)]  # type: ignore[index]
    assert min(heights) > 250
    themes: tuple[tuple[str, Theme], ...] = (("JupyterLab Dark", DARK), ("JupyterLab Light", LIGHT))
    for name, theme in themes:
        choose_theme(page, name)
        expect(ours.locator(".gtitle")).to_have_css("fill", rgb(theme.ink))
        expect(ours.locator(".xtick text").first).to_have_css("fill", rgb(theme.muted))
        expect(ours.locator(".main-svg").first).to_have_css("background-color", "rgba(0, 0, 0, 0)")
        expect(words).to_have_css("color", rgb(theme.muted))
        expect(plain.locator(".gtitle")).to_have_css("fill", rgb(LIGHT.ink))
        expect(plain.locator(".main-svg").first).to_have_css("background-color", rgb(LIGHT.ground))
        page.wait_for_timeout(1000)  # JupyterLab draws its outputs anew for a new theme
        assert [figure.bounding_box()["height"] for figure in (ours, plain)] == heights  # type: ignore[index]
        screenshot(page, f"charts-{theme.name}")


def rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"
