"""What this machine can do for the course, and how to get further: the checks behind `pagedlab doctor`.

>>> check = Check("GPU", "none", "info", "everything runs on the CPU")
>>> check.as_dict()["status"]
'info'

Nothing here changes anything or reaches the network.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagedlab import __version__
from pagedlab.teaching.lessons import COURSE, in_checkout

SUPPORTED_PYTHONS = ((3, 11), (3, 14))
"""The first that works, and the first that is not supported."""

LAB_PACKAGES = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly", "nbclient")

_BROWSERS = ("chromium", "google-chrome", "firefox", "microsoft-edge", "safari")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``status``: ``"ok"``; ``"info"``, fine but there is more to have; ``"problem"``, must be mended."""

    name: str
    found: str
    status: str = "ok"
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the check as JSON-ready fields."""
        return asdict(self)


def diagnose() -> Iterator[Check]:
    """Make all checks, one after the other; each is yielded as soon as it is known."""
    checks: tuple[Callable[[], Check], ...] = (
        check_python,
        check_package,
        check_torch,
        check_kernels,
        check_gpu,
        check_jupyter,
        check_browser,
        check_lessons,
        check_model,
    )
    for check in checks:
        try:
            yield check()
        except Exception as error:  # a check that breaks is itself the finding
            name = check.__name__.removeprefix("check_")
            yield Check(
                name, f"{type(error).__name__}: {error}", "problem", "see the README: 'When something is wrong'"
            )


def check_python() -> Check:
    """Say whether this Python is one that pagedlab supports."""
    lowest, limit = SUPPORTED_PYTHONS
    found = f"{platform.python_version()} ({sys.executable})"
    if lowest <= sys.version_info[:2] < limit:
        return Check("Python", found)
    return Check("Python", found, "problem", "use Python 3.11, 3.12 or 3.13: make lab PYTHON=python3.12")


def check_package() -> Check:
    """Say which pagedlab this is and where it runs from."""
    root = Path(__file__).resolve().parents[1]
    place = f"checkout {root}" if in_checkout() else f"installed in {root}"
    if __version__.endswith("unknown"):
        advice = "it runs, but is not installed: pip install -e ."
        return Check("pagedlab", f"version unknown, {place}", "info", advice)
    return Check("pagedlab", f"{__version__}, {place}")


def check_torch() -> Check:
    """Say which torch computes, and with how many threads."""
    import torch

    return Check("torch", f"{torch.__version__}, {torch.get_num_threads()} CPU threads")


def check_kernels() -> Check:
    """Say which tier the Triton kernels run on, and why; and what the engine uses where that is another."""
    from pagedlab.kernels import backend

    active = backend()
    advice = {
        "cuda": "",
        "interpreter": "on a CPU the engine maps slots with NumPy; the Triton kernel runs in the interpreter only "
        "where it is asked for: right, but slow. A CUDA device would compile it",
        "numpy": "the engine maps slots with NumPy, and the course works; Triton exists for Linux only",
    }[active.name]
    return Check("kernels", f"{active.name}: {active.reason}", "info" if advice else "ok", advice)


def check_gpu() -> Check:
    """Say which CUDA devices torch can use."""
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Check("GPU", ", ".join(f"{d.name}, {d.total_memory / 2**30:.0f} GiB" for d in devices))
    if Path("/proc/driver/nvidia").exists() and torch.version.cuda is None:
        advice = "there is an NVIDIA driver, but this torch is built without CUDA: install a CUDA build of torch"
        return Check("GPU", "not usable", "info", advice)
    return Check("GPU", "none that torch can use", "info", "not needed: every lesson runs on the CPU")


def check_jupyter() -> Check:
    """Say which parts of the ``lab`` extra are installed."""
    found, missing = [], []
    for package in LAB_PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if not missing:
        return Check("Jupyter", ", ".join(found))
    what = 'pip install -e ".[lab]"' if in_checkout() else 'pip install "pagedlab[lab]"'
    advice = f"missing: {', '.join(missing)}. To see the lessons: {what}; `pagedlab run` works without"
    return Check("Jupyter", ", ".join(found) or "not installed", "info", advice)


def check_browser() -> Check:
    """Say which browser `pagedlab lab` would open."""
    if sys.platform in ("win32", "darwin"):
        return Check("browser", "the system's")
    found = [name for name in _BROWSERS if shutil.which(name)]
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if display:
        try:
            return Check("browser", getattr(webbrowser.get(), "name", found[0] if found else "the desktop's"))
        except webbrowser.Error:
            return Check("browser", "none", "info", "open the address that `pagedlab lab` prints in any browser")
    advice = "no screen here: open the address that `pagedlab lab` prints in a browser that reaches this machine"
    return Check("browser", f"{found[0]}, no screen" if found else "none", "info", advice)


def check_lessons() -> Check:
    """Say which lessons are here."""
    names = [lesson.name for lesson in COURSE if lesson.exists]
    if names:
        return Check("lessons", ", ".join(names))
    how = "make notebooks" if in_checkout() else "install pagedlab again"
    return Check("lessons", "none", "problem", how)


def check_model() -> Check:
    """Load the shipped model and let it write a few characters."""
    from pagedlab import LLMEngine, SamplingParams

    engine = LLMEngine("quill")
    (output,) = engine.generate(["To be, or not to be"], SamplingParams(max_tokens=12, temperature=0.0))
    return Check("model", f"quill writes {output.text!r} after 'To be, or not to be'")
