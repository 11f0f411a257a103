"""Do we do what vLLM did? Replays golden traces and compares every field.

    >>> report = compare(read_cases("tests/golden/engine.jsonl.gz"))  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP
    218 cases, 8037 steps: all equal

A golden case holds a workload and what vLLM 0.25.1's own classes did with it, step by step
(``tests/golden/FORMAT.md``). We run the same workload on our scheduler and runner, with the model replaced by the
case's rule for the next token, and stop at the first value that differs.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pagedlab.conformance.engine_cases import engine_pairs, next_token, smallest_model
from pagedlab.conformance.input_batch_cases import input_batch_pairs
from pagedlab.conformance.report import Case, Difference, Pair, Report
from pagedlab.conformance.slot_mapping_cases import rank_slots, slot_mapping_pairs
from pagedlab.errors import TraceError

__all__ = [
    "Case",
    "Difference",
    "Report",
    "compare",
    "next_token",
    "rank_slots",
    "read_cases",
    "smallest_model",
]

_KINDS = {"engine": engine_pairs, "slot_mapping": slot_mapping_pairs, "input_batch": input_batch_pairs}


def read_cases(path: str | Path) -> Iterator[Case]:
    """Yield the cases of a golden file, ``.jsonl`` or ``.jsonl.gz``.

    Raises
    ------
    TraceError
        If the file cannot be read or a line is not a case; the message names the line.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _parse(path, number, line)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read ({error}): give a golden .jsonl or .jsonl.gz file") from error


def _parse(path: Path, number: int, line: str) -> Case:
    try:
        case = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {number} is not JSON: {error.msg}") from None
    if not isinstance(case, dict) or not isinstance(case.get("kind"), str):
        raise TraceError(f"{path}, line {number} is not a golden case: see tests/golden/FORMAT.md")
    return case


def compare(cases: Iterable[Case], *, poison: bool = False) -> Report:
    """Replay cases until one differs.

    Parameters
    ----------
    cases : iterable of Case
    poison : bool
        Overwrite everything stale in the batch before each step: nothing may change by it.

    Raises
    ------
    TraceError
        If a case lacks what a replay needs.
    """
    report = Report()
    for case in cases:
        if case["kind"] not in _KINDS:
            report.not_compared[case["kind"]] += 1
            continue
        _compare_case(case, report, poison)
        if report.difference is not None:
            return report
        report.num_cases += 1
    return report


def _compare_case(case: Case, report: Report, poison: bool) -> None:
    for step, (ours, theirs) in enumerate(_replay(case, poison)):
        for name in sorted(ours.keys() | theirs.keys()):
            report.fields[name] += 1
            if not _equal(ours.get(name, _ABSENT), theirs.get(name, _ABSENT)):
                report.difference = Difference(
                    case["name"], step, name, ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
                )
                return
        report.num_steps += 1


_ABSENT = "(absent)"


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two JSON values are the same, by type too: 1 is neither 1.0 nor true."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_equal(value, theirs[key]) for key, value in ours.items())
    return bool(ours == theirs)


def _replay(case: Case, poison: bool) -> Iterator[Pair]:
    """Yield ours and theirs, step by step; `TraceError` if the case is not whole."""
    try:
        return _KINDS[case["kind"]](case, poison)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise TraceError(f"case {case.get('name')!r} is damaged ({type(error).__name__}: {error})") from error
