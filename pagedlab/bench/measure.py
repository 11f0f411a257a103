"""How a figure is measured, kept and shown."""

from __future__ import annotations

import datetime as dt
import gc
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPEATS = 3

VLLM_MEASURED = (
    "vLLM 0.25.1's own classes, measured on another machine, of two cores, on 2026-11-29; "
    "where there were two readings, the better one"
)
"""Where the figures of vLLM come from: not from this machine, so a ratio of the two says no more than its order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes
    ----------
    name : str
    what : str
        In words.
    rate : float
        In ``unit``.
    unit : str
        What it counts: ``"steps/s"``, ``"blocks/s"`` ... or ``"percent"``.
    vllm : float or None
        The same of vLLM 0.25.1, as `VLLM_MEASURED` says, where that was measured.
    """

    name: str
    what: str
    rate: float
    unit: str
    vllm: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it: the rate under its unit."""
        key = self.unit.replace(" ", "_").replace("/", "_per_")
        row: dict[str, Any] = {"name": self.name, "what": self.what, key: round(self.rate, 2)}
        if self.vllm is not None:
            row[f"vllm_{key}"] = self.vllm
        return row

    def __str__(self) -> str:
        beside = "" if self.vllm is None else f"{self.rate / self.vllm:8.1f} x vLLM 0.25.1 on its machine"
        return f"{self.name:28} {_figure(self.rate):>12} {self.unit:16}{beside}".rstrip()


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if abs(rate) >= 10 else f"{rate:.2f}"


def machine() -> str:
    """Return the processor and the Python of this machine."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, Python {platform.python_version()}"


def report(rows: list[Row], seconds: float) -> dict[str, Any]:
    """Return what is committed as data: the machine, the date, how it was measured, the rows."""
    return {
        "machine": machine(),
        "date": dt.date.today().isoformat(),
        "seconds": seconds,
        "repeats": REPEATS,
        "vllm_measured": VLLM_MEASURED,
        "rows": [row.to_dict() for row in rows],
    }


def to_markdown(data: dict[str, Any]) -> str:
    """Return a page for ``docs/`` that says what `report` says.

    >>> row = {"name": "a", "what": "w", "steps_per_s": 20.0}
    >>> how = {"machine": "M", "date": "D", "seconds": 0.5, "repeats": 3, "vllm_measured": "V"}
    >>> to_markdown({**how, "rows": [row]}).splitlines()[-1]
    '| `a` | w | 20 steps/s | - | - |'
    """
    lines = [
        "# Speed of the host side",
        "",
        "The work between two forward passes, without the model: one thread, the best of "
        f"{data['repeats']} runs of {data['seconds']:g} s each, unless a row says otherwise.",
        f"{data['machine']}, {data['date']}. `make bench` measures it again and writes this page.",
        "",
        f'The column of vLLM: {data["vllm_measured"]}. So "times" compares two machines as well.',
        "",
        "| row | what | pagedlab | vLLM 0.25.1, on its machine | times |",
        "|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        unit = next(key for key in row if key not in ("name", "what"))
        rate, vllm = row[unit], row.get(f"vllm_{unit}")
        beside = f"{vllm:,.0f} | {rate / vllm:.1f}" if vllm else "- | -"
        rate_in_words = f"{_figure(rate)} {unit.replace('_per_', '/').replace('_', ' ')}"
        lines.append(f"| `{row['name']}` | {row['what']} | {rate_in_words} | {beside} |")
    return "\n".join(lines) + "\n"


def best_rate(prepare: Callable[[], Callable[[], int]], seconds: float, most_units: int | None = None) -> float:
    """Return units per second, the best of three runs.

    Parameters
    ----------
    prepare : callable
        Makes a fresh subject, untimed, and returns what is timed: a callable that returns how many units it did.
    seconds : float
        Length of a run.
    most_units : int, optional
        A run ends earlier when it has done so many.
    """
    best = 0.0
    for _ in range(REPEATS):
        run = prepare()
        gc.collect()
        units, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds and (most_units is None or units < most_units):
            units += run()
        best = max(best, units / elapsed)
    return best
