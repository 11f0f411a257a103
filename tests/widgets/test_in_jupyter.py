"""Players in JupyterLab's windowing modes and in Notebook 7: linked, in view, and gone when a cell runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from notebook_server import Jupyter
from recorded import five_recorded_requests

from pagedlab import scenes

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

SCENES = """
import json
from pagedlab import widgets
from pagedlab.scenes import Scene

step, condense = (Scene.from_json(scene) for scene in json.load(open("scenes.json")))
widgets.play(step)
"""
TWICE = """
widgets.play(condense)
player = widgets.Player(condense)
display(player)
display(player)
"""
LIVE = ".jp-OutputArea [data-pagedlab-player]"
ALIVE = "document[Symbol.for('pagedlab.page')].players.length"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("lab", "contentVisibility", 20), marks=pytest.mark.thorough),
        ("lab", "full", 4),
        pytest.param(("lab", "defer", 4), marks=pytest.mark.thorough),
        ("notebook", None, 4),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def jupyter(request: Any, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jupyter, int]]:
    app, windowing, times = request.param
    folder = tmp_path_factory.mktemp("notebooks")
    trace = five_recorded_requests()
    shown = [scenes.step(trace, 3).to_json(), scenes.condense(trace).to_json()]
    (folder / "scenes.json").write_text(json.dumps(shown), encoding="utf-8")
    server = Jupyter(folder, tmp_path_factory.mktemp("home"), [SCENES, TWICE], app=app, windowing=windowing)
    yield server, times
    server.stop()


def frames(page: Any) -> dict[str, set[int]]:
    """At which frames the players of each scene are that are attached to the page now."""
    seen: dict[str, set[int]] = {}
    told = "players => players.map((player) => [player.dataset.pagedlabPlayer, Number(player.dataset.frame)])"
    for name, frame in page.locator(LIVE).evaluate_all(told):
        seen.setdefault(name, set()).add(frame)
    return seen


def scroll(page: Any, where: str) -> None:
    page.locator(".jp-WindowedPanel-outer").first.evaluate(f"panel => panel.scrollTop = {where}")
    page.wait_for_timeout(400)


def test_players_are_linked_in_view_and_none_is_left_of_earlier_runs(
    browser: Any, jupyter: tuple[Jupyter, int]
) -> None:
    server, times = jupyter
    page = server.open(browser)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_viewport_size({"width": 1000, "height": 800})
    server.run_all(page)
    page.locator(LIVE).first.wait_for(state="attached")
    page.wait_for_timeout(3500)  # longer than a frame waits for the live player

    # Stepping one needs no scrolling, and the others go with it: also those that are out of view, or detached.
    scroll(page, "panel.querySelector('[data-pagedlab-player=step]').getBoundingClientRect().top - 120")
    step = page.locator(f"{LIVE}[data-pagedlab-player=step]")
    foot = step.locator(".pl-foot").bounding_box()
    assert foot["y"] + foot["height"] <= 800
    before = page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => panel.scrollTop")
    step.locator("[data-action=last]").click()
    assert page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => panel.scrollTop") == before
    scroll(page, "panel.scrollHeight")
    page.locator(f"{LIVE}[data-pagedlab-player=condense]").first.wait_for()
    assert frames(page)["condense"] == {5}
    assert page.evaluate(ALIVE) == 4
    page.locator(f"{LIVE}[data-pagedlab-player=condense]").last.locator("[data-action=back]").click()
    scroll(page, "0")
    trace = five_recorded_requests()
    moment = scenes.condense(trace).frames[4].record
    assert frames(page)["step"] == {
        max(at for at, one in enumerate(scenes.step(trace, 3).frames) if one.record <= moment)
    }

    # Whatever is run again leaves nothing of what it showed before.
    for _ in range(1, times):
        server.run_all(page)
    page.wait_for_timeout(1500)
    cdp = page.context.new_cdp_session(page)
    for _ in range(3):
        cdp.send("HeapProfiler.collectGarbage")
    assert page.evaluate(ALIVE) == 4
    scroll(page, "panel.scrollHeight")
    assert 1 <= page.locator(LIVE).count() <= 4
    assert errors == []
    page.context.close()
