"""What a learner finds in the real JupyterLab: one player while the kernel lives, and one in the saved notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from notebook_server import Jupyter

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(120)]

SCENE = """
from pagedlab import widgets
from pagedlab.scenes import Actor, Frame, Part, Scene

box = Part("box", 0, 0, 40, 20)
frames = tuple(Frame(str(at), Actor("a", 30 * at, 5, 40, 20, (box,)), f"This is moment {at}.") for at in range(5))
widgets.play(Scene("tiny", "Tiny", 300, 40, frames))
"""
COUNT = """
from ipywidgets.widgets import widget
print("players in the kernel:", sum(isinstance(one, widgets.Player) for one in widget._instances.values()))
"""
LIVE = ".jp-OutputArea [data-pagedlab-player]"
PAGE = "[data-pagedlab-static] iframe"
PLAYERS_IN_FRAMES = """() => [...document.querySelectorAll("[data-pagedlab-static] iframe")].map(
    (frame) => frame.contentDocument?.querySelectorAll("[data-pagedlab-player]").length ?? 0)"""


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    server = Jupyter(tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("home"), [SCENE, COUNT])
    yield server
    server.stop()


@pytest.fixture(scope="module")
def seen_live(browser: Any, lab: Jupyter) -> dict[str, Any]:
    """What is seen when the notebook has run three times; then it is saved and its kernel ends."""
    page = lab.open(browser)
    for _ in range(3):
        lab.run_all(page)
        page.locator(LIVE).wait_for()
    page.wait_for_timeout(3500)  # longer than a frame waits for the live player
    page.locator("[data-action=next]").click()
    seen = {
        "players": page.locator(LIVE).count(),
        "in frames": page.evaluate(PLAYERS_IN_FRAMES),
        "frame": page.locator(LIVE).get_attribute("data-frame"),
        "told": page.locator(".jp-CodeCell").last.locator(".jp-OutputArea").inner_text().strip(),
    }
    page.keyboard.press("Control+s")
    while "players in the kernel: 1" not in lab.notebook.read_text(encoding="utf-8"):
        page.wait_for_timeout(200)
    page.context.close()
    lab.end_all_kernels()
    return seen


def test_while_the_kernel_lives_there_is_one_player_however_often_the_cell_runs(seen_live: dict[str, Any]) -> None:
    assert seen_live == {"players": 1, "in frames": [0], "frame": "1", "told": "players in the kernel: 1"}


def test_a_saved_notebook_plays_without_its_kernel(browser: Any, lab: Jupyter, seen_live: dict[str, Any]) -> None:
    page = lab.open(browser)
    inside = page.frame_locator(PAGE)
    inside.locator("[data-pagedlab-player]").wait_for()
    assert page.locator(LIVE).count() == 0
    assert not page.get_by_text("Error displaying widget").is_visible()
    assert not page.get_by_text("Loading widget").is_visible()
    for action, moment in (("next", 1), ("next", 2), ("back", 1), ("last", 4)):
        inside.locator(f"[data-action={action}]").click()
        assert inside.get_by_test_id("caption").inner_text().strip() == f"This is moment {moment}."
    height = page.locator(PAGE).evaluate("frame => frame.offsetHeight")
    assert height == pytest.approx(inside.locator("[data-pagedlab-player]").evaluate("it => it.offsetHeight"), abs=4)
    page.context.close()


def test_a_notebook_that_is_not_trusted_says_so(browser: Any, lab: Jupyter, seen_live: dict[str, Any]) -> None:
    text = lab.notebook.read_text(encoding="utf-8")
    stranger = re.sub(r"This is moment 4", "This is the end", text)
    lab.notebook.with_name("stranger.ipynb").write_text(stranger, encoding="utf-8")
    page = lab.open(browser, "stranger.ipynb")
    page.get_by_text("Here is the scene “Tiny”, 5 frames. This notebook is not trusted yet").wait_for()
    assert page.locator("[data-pagedlab-static] iframe, [data-pagedlab-player]").count() == 0
    page.context.close()
