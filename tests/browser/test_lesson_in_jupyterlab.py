"""A learner's first half hour, done by a robot: open lesson 00 in JupyterLab, run it, use the player."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab_pages import REPOSITORY, Lab, Watched
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]


def run_all(page: Page, lab: Lab, name: str = "00-one-step.ipynb") -> tuple[dict[str, Any], float]:
    """Choose Run > Run All Cells, and wait until the saved notebook says that every cell has run, and none failed.

    Returns
    -------
    (dict, float)
        The notebook, and the seconds that its cells took.
    """
    page.locator(".jp-Notebook").wait_for()
    # What is chosen before the page has reached its kernel is lost.
    wait_until(
        page, 60, lambda: any(k["execution_state"] == "idle" and k["connections"] for k in kernels(page, lab, name))
    )
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    begin = time.monotonic()
    found: dict[str, Any] = {}

    def saved() -> bool:
        # From disk: a server that is asked for a file while it writes it takes it for broken, and puts it aside.
        try:
            found.update(nbformat.reads((lab.folder / name).read_text(encoding="utf-8"), as_version=4))
        except ValueError:  # half of it is written
            return False
        cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
        errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
        assert errors == []
        return all(cell["execution_count"] for cell in cells)

    def all_have_run() -> bool:
        if any(kernel["execution_state"] != "idle" for kernel in kernels(page, lab, name)):
            return False
        found["seconds"] = time.monotonic() - begin
        page.keyboard.press("Control+s")
        for _ in range(40):  # to save once more while it saves is an error
            page.wait_for_timeout(250)
            if saved():
                return True
        return False

    page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]").wait_for()
    wait_until(page, 120, all_have_run)
    return found, found["seconds"]


def wait_until(page: Page, seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        page.wait_for_timeout(250)


def get(page: Page, lab: Lab, what: str) -> Any:
    """Ask the server's API."""
    answer = page.request.get(f"{lab.origin}/api/{what}?{lab.url.partition('?')[2]}")
    assert answer.ok, answer.text()
    return answer.json()


def kernels(page: Page, lab: Lab, name: str) -> list[Any]:
    """Return the kernels of a notebook: one, or none yet."""
    return [session["kernel"] for session in get(page, lab, "sessions") if session["path"] == name]


def shut_down(page: Page, lab: Lab, name: str) -> None:
    """End the notebook's kernel: the next one has the machine for itself."""
    for session in get(page, lab, "sessions"):
        if session["path"] == name:
            page.request.delete(f"{lab.origin}/api/sessions/{session['id']}?{lab.url.partition('?')[2]}")


def scroll_to(page: Page, target: Locator) -> Locator:
    """Scroll the notebook from its top until ``target`` is there: JupyterLab draws only what is in view."""
    outer = page.locator(".jp-WindowedPanel-outer").first
    outer.evaluate("panel => panel.scrollTop = 0")
    for _ in range(120):
        if target.count() and target.first.is_visible():
            target.first.scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            return target.first
        outer.evaluate("panel => panel.scrollTop += 350")
        page.wait_for_timeout(100)
    raise AssertionError(f"not in the notebook: {target}")


def player(page: Page, scene: str) -> Locator:
    """Return the player of a scene that waits for no prediction."""
    return page.locator(f"[data-pagedlab-player={scene}]:not(:has([data-pagedlab-question]))")


def places_of_rows(view: Locator) -> dict[str, float]:
    """Return how far down the stage each row's card lies, by its key."""
    places: dict[str, float] = view.evaluate(
        """view => Object.fromEntries([...view.querySelectorAll('[data-key^="row:"]')]
            .map(row => [row.dataset.key, new DOMMatrix(getComputedStyle(row).transform).f]))"""
    )
    return places


def test_a_learner_runs_lesson_00_steps_through_a_scene_predicts_and_turns_a_knob(
    lab: Lab,
    open_page: Callable[..., Watched],
    screenshot: Callable[[Page, str], Path],
    pytestconfig: pytest.Config,
) -> None:
    watched = open_page(lab.url, lab.origin)
    run_all(watched.page, lab)
    predict(watched.page, screenshot)
    step(watched.page, screenshot, update_images=pytestconfig.getoption("--update-images", default=False))
    turn_a_knob(watched.page)
    assert watched.errors == []


def step(page: Page, screenshot: Callable[[Page, str], Path], *, update_images: bool) -> None:
    view = scroll_to(page, player(page, "condense"))
    caption = view.get_by_test_id("caption")
    count = view.get_by_test_id("count")
    num_frames = int(view.get_attribute("data-frames") or 0)
    assert num_frames > 3

    # Next and Back are exact opposites.
    opening = caption.inner_text()
    view.get_by_role("button", name="Next frame").click()
    expect(count).to_have_text(f"frame 2 / {num_frames}")
    expect(caption).not_to_have_text(opening)
    view.get_by_role("button", name="Back one frame").click()
    expect(count).to_have_text(f"frame 1 / {num_frames}")
    expect(caption).to_have_text(opening, use_inner_text=True)

    # From first to last, a row has moved, and the words say so.
    before = places_of_rows(view)
    view.get_by_role("button", name="Next move").click()
    expect(caption).to_contain_text("moves from row")
    page.wait_for_timeout(500)  # the way takes 350 ms
    after = places_of_rows(view)
    moved = [key for key in before.keys() & after.keys() if abs(before[key] - after[key]) > 5]
    assert moved, (before, after)
    screenshot(page, "lesson-00-condense")
    if update_images:
        folder = REPOSITORY / "docs" / "images"
        folder.mkdir(exist_ok=True)
        page.keyboard.press("Control+b")  # no file browser beside it
        page.wait_for_timeout(1000)
        view.screenshot(path=folder / "player.png")

    # The keyboard does the same, and JupyterLab does not take the keys for itself.
    view.get_by_role("button", name="Last frame").click()
    expect(count).to_have_text(f"frame {num_frames} / {num_frames}")
    view.focus()
    page.keyboard.press("ArrowLeft")
    expect(count).to_have_text(f"frame {num_frames - 1} / {num_frames}")
    page.keyboard.press("ArrowRight")
    expect(count).to_have_text(f"frame {num_frames} / {num_frames}")
    page.keyboard.press("Home")
    expect(count).to_have_text(f"frame 1 / {num_frames}")
    assert places_of_rows(view) == before


def predict(page: Page, screenshot: Callable[[Page, str], Path]) -> None:
    asked = scroll_to(page, page.locator("[data-pagedlab-question=number]"))
    answer = asked.get_by_test_id("number")
    verdict = asked.get_by_test_id("verdict")
    answer.fill("10")
    asked.get_by_role("button", name="Check").click()
    expect(verdict).to_contain_text("Not quite. B holds 10 tokens, but only 2 tokens of the budget are left")
    answer.fill("2")
    asked.get_by_role("button", name="Check").click()
    expect(verdict).to_contain_text("Right.")
    screenshot(page, "lesson-00-prediction")


def turn_a_knob(page: Page) -> None:
    menu = scroll_to(page, page.locator(".widget-dropdown select"))
    cell = page.locator(".jp-Cell", has=page.locator(".widget-dropdown"))
    expect(cell).to_contain_text("blocks of 4 tokens were handed out")
    menu.select_option("16")
    expect(cell).to_contain_text("blocks of 16 tokens were handed out", timeout=30_000)
    expect(cell).not_to_contain_text("blocks of 4 tokens were handed out")
