"""The scene `timeline` in a real browser: of two runs, what is drawn is what the traces say."""

from __future__ import annotations

from typing import Any

import pytest
from traces import make_trace

from pagedlab import scenes
from pagedlab.scenes import Scene

pytestmark = pytest.mark.browser

Window = Any
"""That of `conftest`."""

NAMES = ["A", "<img src=x onerror=alert(1)>", "שלום", "", "x" * 2000]


@pytest.fixture(scope="module")
def scene() -> Scene:
    lengths = [19, 7, 12, 11, 9]
    prompts = {name: "x" * length for name, length in zip(NAMES, lengths, strict=True)}
    few, many = (make_trace(prompts, [6, 3, 7, 4, 5], budget=24, seats=seats) for seats in (2, 4))
    return scenes.timeline(few, many)


@pytest.fixture
def page(window: Window, scene: Scene) -> Any:
    return window.open(scene, width=1000, height=800)


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
