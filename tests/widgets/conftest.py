"""Lets tests import `traces`, the scenes' stand-in for the engine."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scenes"))
