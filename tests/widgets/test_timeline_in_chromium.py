"""The scene `timeline` in a real browser: what is drawn is what the trace says, forwards and backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traces import make_trace

from pagedlab import scenes, widgets
from pagedlab.scenes import Scene

pytestmark = pytest.mark.browser

NAMES = ["A", "<img src=x onerror=alert(1)>", "שלום", "", "x" * 2000]


@pytest.fixture(scope="module")
def scene() -> Scene:
    lengths = [19, 7, 12, 11, 9]
    prompts = {name: "x" * length for name, length in zip(NAMES, lengths, strict=True)}
    few, many = (make_trace(prompts, [6, 3, 7, 4, 5], budget=24, seats=seats) for seats in (2, 4))
    return scenes.timeline(few, many)


@pytest.fixture
def page(browser: Any, scene: Scene, tmp_path: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, offline=True, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(widgets.export_html(scene, tmp_path / "timeline.html").as_uri())
    page.wait_for_selector("[data-pagedlab-player]")
    yield page
    context.close()
    assert errors == []


def drawn(page: Any) -> dict[str, str]:
    """What is drawn: each actor's key and all of it."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('.pl-actor:not(.pl-leave)')].map(n => [n.dataset.key, n.outerHTML])"
        )
    )


def test_the_page_shows_each_frame_of_the_scene_and_back_restores_it(page: Any, scene: Scene) -> None:
    page.locator("[data-pagedlab-player]").focus()
    seen = []
    for frame in scene.frames:
        said = re.sub(r"\s+", " ", page.get_by_test_id("caption").inner_text()).strip()
        assert said == re.sub(r"\s+", " ", frame.caption)
        now = drawn(page)
        assert set(now) == set(frame.stage)
        seen.append(now)
        page.keyboard.press("ArrowRight")
    for expected in reversed(seen[:-1]):
        page.keyboard.press("ArrowLeft")
        assert drawn(page) == expected


def test_a_named_step_shows_what_the_trace_granted(page: Any, scene: Scene) -> None:
    page.locator("[data-action=last]").click()
    for lane, run in enumerate(scene.runs):
        cells = page.evaluate(
            f"""() => [...document.querySelectorAll('[data-key^="cell:{lane}:"]')]
                .map(n => [n.dataset.step, n.dataset.request, n.dataset.tokens].join(' / '))"""
        )
        granted = [f"{c.step} / {g.request_id} / {g.num_tokens}" for c in run.columns for g in c.grants]
        assert sorted(cells) == sorted(granted)


def test_nothing_drawn_leaves_the_stage(page: Any) -> None:
    page.locator("[data-action=last]").click()
    outside = page.evaluate(
        """() => {
            const stage = document.querySelector('.pl-stage').getBoundingClientRect();
            return [...document.querySelectorAll('.pl-actor text, .pl-actor rect')].filter(node => {
                const box = node.getBoundingClientRect();
                return box.left < stage.left - 1 || box.right > stage.right + 1
                    || box.top < stage.top - 1 || box.bottom > stage.bottom + 1;
            }).map(node => node.outerHTML.slice(0, 120));
        }"""
    )
    assert outside == []
