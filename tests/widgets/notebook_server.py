"""A JupyterLab, or a Notebook 7, that serves a folder: for tests of what a learner finds there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import nbformat

from pagedlab import teaching


class Jupyter:
    """A server of one notebook, ``saved.ipynb``.

    Parameters
    ----------
    folder : Path
        What it serves.
    home : Path
        A home of its own: nobody's settings, nothing left behind.
    cells : list of str
        The notebook's cells.
    app : {"lab", "notebook"}
    windowing : str, optional
        The windowing mode of notebooks, if not the application's own choice.
    """

    def __init__(
        self, folder: Path, home: Path, cells: list[str], *, app: str = "lab", windowing: str | None = None
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.origin = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.app = app
        self.num_cells = len(cells)
        self.num_runs = 0
        self.notebook = folder / "saved.ipynb"
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        code = [nbformat.v4.new_code_cell(text.strip()) for text in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=code, metadata={"kernelspec": kernel}), self.notebook)
        if windowing is not None:
            settings = home / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
            settings.parent.mkdir(parents=True)
            settings.write_text(json.dumps({"windowingMode": windowing}))
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        environment["JUPYTER_CONFIG_PATH"] = str(Path(teaching.__file__).parent / "jupyter")  # as `pagedlab lab` has it
        environment |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "JUPYTERLAB_SETTINGS_DIR": f"{home}/settings"}
        command = [
            sys.executable, "-m", "jupyterlab" if app == "lab" else "notebook", "--no-browser", "--allow-root",
            str(folder), f"--ServerApp.port={self.origin.rpartition(':')[2]}", "--ServerApp.port_retries=0",
            "--IdentityProvider.token=here", "--LabApp.news_url=None", "--LabApp.check_for_updates_class="
            "jupyterlab.NeverCheckForUpdate",
        ]  # fmt: skip
        self.log = home / "server.log"
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

    def has_kernel(self) -> bool:
        """Whether a page is connected to a kernel that waits for work."""
        try:
            return any(one["execution_state"] == "idle" and one["connections"] for one in self.ask("kernels"))
        except OSError:  # of a kernel that is just starting it may not be able to tell
            return False

    def end_all_kernels(self) -> None:
        for session in self.ask("sessions"):
            self.ask(f"sessions/{session['id']}", "DELETE")
        self.num_runs = 0

    def stop(self) -> None:
        self.end_all_kernels()
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:  # it may wait for a kernel that is busy dying
            self.process.kill()
            self.process.wait(timeout=15)

    def open(self, browser: Any, name: str = "saved.ipynb") -> Any:
        """Open a notebook in a page of its own."""
        page = self.new_page(browser)
        self.visit(page, name)
        return page

    def new_page(self, browser: Any) -> Any:
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(20_000)
        return page

    def visit(self, page: Any, name: str = "saved.ipynb") -> None:
        where = f"lab/tree/{name}?reset&" if self.app == "lab" else f"notebooks/{name}?"
        page.goto(f"{self.origin}/{where}token=here")
        page.locator(".jp-Notebook").wait_for()

    def run_all(self, page: Any) -> None:
        """Run all cells; the kernel must be the one of earlier runs."""
        # What is chosen before the page has reached its kernel is lost.
        deadline = time.monotonic() + 30
        while not self.has_kernel():
            assert time.monotonic() < deadline, "the page has not reached its kernel"
            page.wait_for_timeout(200)
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(state="attached")  # hidden if narrow
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.num_runs += 1
        prompt = f"[{self.num_cells * self.num_runs}]:"
        page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt", has_text=prompt).wait_for(timeout=90_000)
