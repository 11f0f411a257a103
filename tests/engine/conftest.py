"""Lets tests import `reference_sampler`, the slow sampler beside those of the runner."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runner"))
