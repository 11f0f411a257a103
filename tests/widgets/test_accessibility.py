"""The player's panels by axe, in both themes; and every scene with names that want to break it.

What axe says of every scene is asked in the real JupyterLab: `test_every_scene_in_jupyter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from recorded import five_recorded_requests

from pagedlab import scenes
from pagedlab.scenes import Scene
from pagedlab.trace import Trace

pytestmark = pytest.mark.browser

Window = Any
"""That of `conftest`."""
MakeScene = Callable[[Trace], Scene]


def violations(page: Any) -> list[str]:
    """What axe finds serious or critical."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_panels_of_a_player(
    window: Window, eventful_trace: Trace, scheme: str
) -> None:
    page = window.open(scenes.step(eventful_trace), color_scheme=scheme)
    page.locator("[data-action=next]").click()
    page.locator("[data-action=loop-from]").click()
    page.locator("[data-action=look]").click()
    page.locator("[data-action=save]").click()
    assert page.get_by_test_id("object").is_visible()
    assert violations(page) == []
    page.set_viewport_size({"width": 480, "height": 800})
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_prediction(window: Window, scheme: str) -> None:
    asked = scenes.step(five_recorded_requests(), 3).questions
    for question in {question.kind: question for question in asked}.values():
        page = window.open(question, color_scheme=scheme)
        assert violations(page) == []
        page.locator("[data-action=reveal]").click()
        assert violations(page) == []


def test_axe_would_find_something(window: Window) -> None:
    page = window.open(scenes.condense(five_recorded_requests()))
    page.evaluate("document.querySelector('[data-action=next]').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('[data-action=next]').removeAttribute('title')")
    page.evaluate("document.querySelector('.pl-subtitle').style.color = '#ccc'")
    assert {found.split(":")[0] for found in violations(page)} == {"button-name", "color-contrast"}


# Of each frame: its caption, and the texts that leave the stage.
WALK = """() => {
    const stage = document.querySelector('.pl-stage').getBoundingClientRect();
    const outside = () => [...document.querySelectorAll('.pl-actor text')].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.width > 0 && (box.left < stage.left - 2 || box.right > stage.right + 2);
    }).map((node) => `${node.closest('.pl-actor').dataset.key.slice(0, 60)}: ${node.textContent.slice(0, 80)}`);
    const seen = [], next = document.querySelector('[data-action=next]');
    const last = Number(document.querySelector('[data-action=scrub]').max);
    for (let at = 0; at <= last; at += 1) {
        seen.push([document.querySelector('[data-testid=caption]').textContent, outside()]);
        next.click();
    }
    return seen;
}"""


@pytest.mark.thorough
def test_hostile_names_show_as_text_and_break_nothing(
    window: Window, make_scene: MakeScene, hostile_trace: Trace, hostile_names: list[str]
) -> None:
    scene = make_scene(hostile_trace)
    assert set(scene.requests) == set(hostile_names)
    page = window.open(scene)
    for shown, (caption, outside) in zip(scene.frames, page.evaluate(WALK), strict=True):
        assert (caption.split(), outside) == (shown.caption.split(), [])
    page.locator("[data-pagedlab-player]").focus()
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
