"""What a learner finds in the real JupyterLab: one player while the kernel lives, and one in the saved notebook."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

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


class Lab:
    """A JupyterLab that serves one notebook."""

    def __init__(self, folder: Path, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.origin = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.notebook = folder / "saved.ipynb"
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        environment |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", str(folder),
            f"--ServerApp.port={self.origin.rpartition(':')[2]}", "--ServerApp.port_retries=0",
            "--IdentityProvider.token=here", "--LabApp.news_url=None", "--LabApp.check_for_updates_class="
            "jupyterlab.NeverCheckForUpdate",
        ]  # fmt: skip
        self.log = home / "lab.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            self.ask("status")
        except OSError:
            return False
        return True

    def ask(self, what: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.origin}/api/{what}?token=here", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or "null")

    def end_all_kernels(self) -> None:
        for session in self.ask("sessions"):
            self.ask(f"sessions/{session['id']}", "DELETE")

    def open(self, browser: Any, name: str = "saved.ipynb") -> Any:
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(20_000)
        page.goto(f"{self.origin}/lab/tree/{name}?token=here&reset")
        page.locator(".jp-Notebook").wait_for()
        return page


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("notebooks")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in (SCENE, COUNT)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "saved.ipynb")
    server = Lab(folder, tmp_path_factory.mktemp("home"))
    yield server
    server.end_all_kernels()
    server.process.terminate()
    try:
        server.process.wait(timeout=15)
    except subprocess.TimeoutExpired:  # it may wait for a kernel that is busy dying
        server.process.kill()
        server.process.wait(timeout=15)


def run_all(page: Any, lab: Lab, nth: int) -> None:
    """Run all cells, for the ``nth`` time."""
    # What is chosen before the page has reached its kernel is lost.
    deadline = time.monotonic() + 30
    while not any(one["execution_state"] == "idle" and one["connections"] for one in lab.ask("kernels")):
        assert time.monotonic() < deadline, "the page has not reached its kernel"
        page.wait_for_timeout(200)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt", has_text=f"[{2 * nth}]:").wait_for()


@pytest.fixture(scope="module")
def seen_live(browser: Any, lab: Lab) -> dict[str, Any]:
    """What is seen when the notebook has run three times; then it is saved and its kernel ends."""
    page = lab.open(browser)
    for nth in (1, 2, 3):
        run_all(page, lab, nth)
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


def test_a_saved_notebook_plays_without_its_kernel(browser: Any, lab: Lab, seen_live: dict[str, Any]) -> None:
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


def test_a_notebook_that_is_not_trusted_says_so(browser: Any, lab: Lab, seen_live: dict[str, Any]) -> None:
    text = lab.notebook.read_text(encoding="utf-8")
    stranger = re.sub(r"This is moment 4", "This is the end", text)
    lab.notebook.with_name("stranger.ipynb").write_text(stranger, encoding="utf-8")
    page = lab.open(browser, "stranger.ipynb")
    page.get_by_text("Here is the scene “Tiny”, 5 frames. This notebook is not trusted yet").wait_for()
    assert page.locator("[data-pagedlab-static] iframe, [data-pagedlab-player]").count() == 0
    page.context.close()
