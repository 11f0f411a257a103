"""Lessons as pages, in Chromium, from disk, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]


EARLIER = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>03</title></head><body>
<h1>03 · The block table</h1><a href="04-slot-mapping.html">04 Slot mapping →</a><a href="index.html">All lessons</a>
</body></html>"""


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a lesson, made by the command, beside one that was there before.

    The browser comes first: without one, nothing need run.
    """
    folder, progress = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("progress") / "progress.json"
    (folder / "made").mkdir()
    (folder / "made" / "03-block-table.html").write_text(EARLIER, encoding="utf-8")
    command = [sys.executable, "-m", "pagedlab.cli", "pages", "--to", str(folder / "made"), "04"]
    environment = {**os.environ, "PAGEDLAB_PROGRESS": str(progress)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Wrote 3 files." in done.stdout
    assert not progress.exists(), "whoever makes pages has tried no exercise"
    return folder / "made"


@pytest.fixture
def open_file(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open files; a page that asks the network for something, or errs, fails the test."""
    requests: list[str] = []
    errors: list[str] = []
    contexts = []

    def open_one(path: Path) -> Page:
        size = {"width": 1280, "height": 900}
        context = browser.new_context(viewport=size, offline=True, color_scheme="light", reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []


def test_links_lead_from_the_index_through_the_lessons_and_back(
    pages: Path, open_file: Callable[..., Page], screenshot: Callable[[Page, str], Path]
) -> None:
    page = open_file(pages / "index.html")
    expect(page.get_by_role("listitem")).to_have_text(
        [
            "03 · The block tablehow a row of numbers finds a request's memory",
            "04 · Slot mappingthe kernel that gives each token its place",
        ]
    )
    screenshot(page, "pages-index")
    ways = (
        ("The block table", "03 · The block table"),
        ("04 Slot mapping →", "04 · Slot mapping"),
        ("All lessons", "How vLLM keeps a GPU busy"),
        ("Slot mapping", "04 · Slot mapping"),
        ("← 03 The block table", "03 · The block table"),
    )
    for link, heading in ways:
        page.get_by_role("link", name=link).last.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        paths: list[str] = page.evaluate("[...document.links].map((link) => link.pathname)")
        assert {Path(path) for path in paths} <= set(pages.iterdir())


def test_players_step_and_judge_and_charts_are_drawn(pages: Path, open_file: Callable[..., Page]) -> None:
    page = open_file(pages / "04-slot-mapping.html")
    players = page.locator("[data-pagedlab-player]")
    expect(players).to_have_count(page.locator("[data-pagedlab-plays]").count())
    view = page.locator("[data-pagedlab-player]:not(:has([data-pagedlab-question]))").first
    caption, count = view.get_by_test_id("caption"), view.get_by_test_id("count")
    opening = caption.inner_text()
    view.get_by_role("button", name="Next frame").click()
    expect(count).to_contain_text("frame 2 /")
    expect(caption).not_to_have_text(opening)
    view.focus()
    page.keyboard.press("ArrowLeft")
    expect(count).to_contain_text("frame 1 /")
    expect(caption).to_have_text(opening, use_inner_text=True)

    question = page.locator("[data-pagedlab-question]").first
    question.get_by_role("button", name="Show me").click()
    expect(question.get_by_test_id("verdict")).to_contain_text("It is ")

    figures = page.locator("[data-pagedlab-draws]")
    assert figures.count() >= 1
    for figure in figures.all():
        expect(figure.locator(".gtitle").first).to_have_text(figure.get_attribute("aria-label") or "")
        assert (figure.locator(".main-svg").first.bounding_box() or {"height": 0})["height"] > 200


def test_what_needs_the_kernel_is_told(pages: Path, open_file: Callable[..., Page]) -> None:
    page = open_file(pages / "04-slot-mapping.html")
    expect(page.get_by_text("Here the notebook has knobs:").locator("xpath=..")).to_have_text(
        "Here the notebook has knobs: block_size (1, 2, 4, 8 or 16) and budget (4, 8, 16, 32 or 128). They need a "
        "running kernel: pagedlab lab 04. This is what there is to see at block_size = 4 and budget = 16:"
    )
    expect(page.get_by_text("pagedlab check slot_mapping slot_mapping.py")).to_be_visible()
    for left_out in ("No knobs here?", "not yet.", "model not found"):
        expect(page.get_by_text(left_out)).to_have_count(0)


@pytest.mark.thorough
def test_axe_finds_nothing_serious_in_light_and_dark(
    pages: Path, open_file: Callable[..., Page], screenshot: Callable[[Page, str], Path]
) -> None:
    for name in ("index", "04-slot-mapping"):
        page = open_file(pages / f"{name}.html")
        expect(page.locator("[data-pagedlab-player]")).to_have_count(page.locator("[data-pagedlab-plays]").count())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off at the side"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            screenshot(page, f"pages-{name}-{scheme}")
            found = Axe().run(page).response["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            assert [(one["id"], node["html"][:200]) for one in serious for node in one["nodes"]] == []
