"""The player's own tests, with Vitest (`package.json`): `make` installs it, with a Node that comes from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_javascript_passes_its_own_tests() -> None:
    node = shutil.which("node", path=str(Path(sys.executable).parent))
    vitest = _ROOT / "node_modules" / "vitest" / "vitest.mjs"
    if node is None or not vitest.exists():
        message = "the JavaScript test runner is not installed: make node_modules/.installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    done = subprocess.run(
        [node, vitest, "run", "--dir", "tests/js"], capture_output=True, text=True, cwd=_ROOT, timeout=120
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "tests/js/dom.test.mjs" in done.stdout
