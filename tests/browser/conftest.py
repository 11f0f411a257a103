"""A real JupyterLab, and pages that can reach nothing else."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_pages import REPOSITORY, Lab, Watched
from playwright.sync_api import Browser, BrowserContext, Page, Route

OUTPUT = REPOSITORY / "tests" / "output"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-images", action="store_true", help="retake docs/images")


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`pagedlab lab` on a copy of the first lesson, with a home of its own: nobody's settings, nothing left behind.

    The browser comes first: without one, no server need start.
    """
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("lessons")
    lesson = Path(shutil.copy(REPOSITORY / "notebooks" / "00-one-step.ipynb", folder))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
    environment |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "pagedlab.cli", "lab", str(lesson), "--no-browser", "--port", str(_free_port())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    said: list[str] = []
    try:
        yield Lab(_address(process, said), folder)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _address(process: subprocess.Popen[str], said: list[str]) -> str:
    """Read the server's log up to the address with its token; go on reading so that it never blocks."""
    assert process.stdout is not None
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+/lab/\S*token=\w+", line):
            watchdog.cancel()
            threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True).start()
            return found.group()
    pytest.fail("JupyterLab gave no address:\n" + "".join(said))


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Open pages whose network ends at one origin; whoever asks for more fails the test."""
    contexts: list[BrowserContext] = []
    opened: list[Watched] = []

    def open_one(url: str, origin: str, **options: Any) -> Watched:
        settings = {"viewport": {"width": 1400, "height": 1000}, "device_scale_factor": 2}
        context = browser.new_context(**settings | options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        watched = Watched(context.new_page())
        opened.append(watched)

        def guard(route: Route) -> None:
            if route.request.url.startswith((f"{origin}/", "data:", "blob:")):
                route.continue_()
            else:
                watched.stray.append(route.request.url)
                route.abort()

        context.route("**/*", guard)
        watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
        watched.page.goto(url)
        return watched

    yield open_one
    for context in contexts:
        context.close()
    for watched in opened:
        assert watched.stray == [], "the page asked for something that is not on its server"


@pytest.fixture
def screenshot() -> Callable[[Page, str], Path]:
    """Save what a page shows to tests/output, for a person to look at."""

    def save(page: Page, name: str) -> Path:
        OUTPUT.mkdir(exist_ok=True)
        path = OUTPUT / f"{name}.png"
        page.screenshot(path=path)
        return path

    return save
