"""Every scene by axe, in both themes; and with names that want to break it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from recorded import five_recorded_requests

from pagedlab import scenes, widgets
from pagedlab.scenes import Question, Scene
from pagedlab.trace import Trace

pytestmark = pytest.mark.browser

MakeScene = Callable[[Trace], Scene]


def open_page(browser: Any, shown: Scene | Question, folder: Path, **options: Any) -> Any:
    settings = {"viewport": {"width": 1200, "height": 900}, "offline": True, "reduced_motion": "reduce"}
    page = browser.new_context(**settings, **options).new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.goto(widgets.export_html(shown, folder / "page.html").as_uri())
    page.wait_for_selector("[data-pagedlab-player]")
    return page


def violations(page: Any) -> list[str]:
    """What axe finds serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_scene(
    browser: Any, make_scene: MakeScene, eventful_trace: Trace, tmp_path: Path, scheme: str
) -> None:
    page = open_page(browser, make_scene(eventful_trace), tmp_path, color_scheme=scheme)
    assert violations(page) == []
    page.locator("[data-action=next]").click()
    page.locator("[data-action=loop-from]").click()
    page.locator("[data-action=look]").click()
    page.locator("[data-action=save]").click()
    assert page.get_by_test_id("object").is_visible()
    assert violations(page) == []
    page.set_viewport_size({"width": 480, "height": 800})
    assert violations(page) == []
    assert page.errors == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_prediction(browser: Any, tmp_path: Path, scheme: str) -> None:
    asked = scenes.step(five_recorded_requests(), 3).questions
    for question in {question.kind: question for question in asked}.values():
        page = open_page(browser, question, tmp_path, color_scheme=scheme)
        assert violations(page) == []
        page.locator("[data-action=reveal]").click()
        assert violations(page) == []
        page.context.close()


def test_axe_would_find_something(browser: Any, tmp_path: Path) -> None:
    page = open_page(browser, scenes.condense(five_recorded_requests()), tmp_path)
    page.evaluate("document.querySelector('[data-action=next]').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('[data-action=next]').removeAttribute('title')")
    page.evaluate("document.querySelector('.pl-subtitle').style.color = '#ccc'")
    assert {found.split(":")[0] for found in violations(page)} == {"button-name", "color-contrast"}
    page.context.close()


OUTSIDE = """() => {
    const stage = document.querySelector('.pl-stage').getBoundingClientRect();
    return [...document.querySelectorAll('.pl-actor text')].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.width > 0 && (box.left < stage.left - 2 || box.right > stage.right + 2);
    }).map((node) => `${node.closest('.pl-actor').dataset.key.slice(0, 60)}: ${node.textContent.slice(0, 80)}`);
}"""


def test_hostile_names_show_as_text_and_break_nothing(
    browser: Any, make_scene: MakeScene, hostile_trace: Trace, hostile_names: list[str], tmp_path: Path
) -> None:
    scene = make_scene(hostile_trace)
    assert set(scene.requests) == set(hostile_names)
    page = open_page(browser, scene, tmp_path)
    page.locator("[data-pagedlab-player]").focus()
    for shown in scene.frames:
        assert page.get_by_test_id("caption").inner_text().split() == shown.caption.split()
        assert page.evaluate(OUTSIDE) == []
        page.keyboard.press("ArrowRight")
    page.set_viewport_size({"width": 480, "height": 900})
    page.keyboard.press("o")
    chooser = page.get_by_test_id("object").locator("select")
    keys = chooser.locator("option").evaluate_all("options => options.map(option => option.value)")
    for key in {key.split(":")[0]: key for key in sorted(keys, key=len)}.values():  # of each kind the longest
        chooser.select_option(key)
        assert page.evaluate("document.documentElement.scrollWidth") <= 480
        assert len(page.get_by_test_id("said").inner_text()) < 400
    assert page.locator("img, b:not(.pl-fact b)").count() == 0
    assert "broken" not in page.title()
    assert page.errors == []
    page.context.close()
