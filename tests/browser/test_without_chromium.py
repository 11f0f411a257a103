from __future__ import annotations

import os
import subprocess
import sys

import pytest
from lab_pages import REPOSITORY


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "code", "word"), [("", 0, "skipped"), ("1", 1, "error")])
def test_without_chromium_its_tests_are_skipped_but_fail_in_ci(ci: str, code: int, word: str) -> None:
    environment = {**os.environ, "CHROMIUM": "/no/such/chromium", "CI": ci}
    files = ["tests/charts/test_showing.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "browser", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "no Chromium" in done.stdout
    assert word in done.stdout.splitlines()[-1]
    assert "passed" not in done.stdout.splitlines()[-1]
