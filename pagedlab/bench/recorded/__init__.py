"""Figures of a GPU, kept as data: what `pagedlab bench kernels` measured, for lessons and pages read without one.

>>> data = recorded_kernels()
>>> data["machine"].split(",")[0], data["rows"][0]["kernel"]
('NVIDIA H200', 'empty kernel')

vLLM has no counterpart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED_KERNELS = Path(__file__).with_name("kernels.json")
"""Where ``pagedlab bench kernels --json`` is kept; its machine and date are in it."""


def recorded_kernels() -> dict[str, Any]:
    """Return what ``pagedlab bench kernels --json`` wrote, on the machine and the day that it names."""
    data: dict[str, Any] = json.loads(RECORDED_KERNELS.read_text(encoding="utf-8"))
    return data
