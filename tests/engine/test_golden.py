"""What vLLM 0.25.1 did, step by step, against what we do: every field of every golden engine case.

The cases and their format are in ``tests/golden``.
"""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pagedlab.conformance import Case, compare, rank_slots, read_cases
from pagedlab.errors import TraceError
from pagedlab.kernels import backend
from pagedlab.scheduling import Scheduler

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = list(read_cases(GOLDEN / "engine.jsonl.gz"))


@pytest.mark.parametrize("family", sorted({case["name"].rsplit("-", 1)[0] for case in CASES}))
def test_every_field_equals_vllm(family: str) -> None:
    report = compare(case for case in CASES if case["name"].rsplit("-", 1)[0] == family)
    assert report.difference is None, str(report.difference)
    assert report.num_cases > 0


def test_all_cases_are_there_and_every_field_of_the_format_is_compared() -> None:
    assert len(CASES) == 218
    assert sum(len(case["steps"]) for case in CASES) == 8037
    fields = {name for case in CASES for step in case["steps"] for name in step}
    report = compare(CASES[:20])
    assert fields == set(report.fields)
    assert str(report) == f"20 cases, {report.num_steps} steps: all equal"


def corrupted(value: Any) -> Any:
    """Return a value of the same form that is wrong in one place."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        name = next(iter(value))
        return value | {name: corrupted(value[name])}
    if isinstance(value, list) and value:
        return [*value[:-1], corrupted(value[-1])]
    return ["wrong"]


@pytest.mark.parametrize("field", sorted(CASES[0]["steps"][3]))
def test_one_corrupted_value_of_any_field_is_reported(field: str) -> None:
    case: Case = copy.deepcopy(CASES[0])
    step = case["steps"][3]
    step[field] = corrupted(step[field])
    report = compare([case])
    assert report.difference is not None
    assert (report.difference.case, report.difference.field) == (case["name"], field)
    assert "ours" in str(report)


def test_a_field_that_is_gone_or_of_another_type_is_reported() -> None:
    for change in ("delete", "float", "bool"):
        case: Case = copy.deepcopy(CASES[0])
        step = next(step for step in case["steps"] if "batch_update" in step and step["batch_update"] is None)
        if change == "delete":
            del step["batch_update"]
        elif change == "float":
            step["positions"][0] = float(step["positions"][0])
        else:
            step["discard"][0] = int(step["discard"][0])
        assert compare([case]).difference is not None, change


def test_a_case_that_is_cut_is_refused() -> None:
    for steps in ([], CASES[0]["steps"][:5]):
        with pytest.raises(TraceError, match="steps are missing at its end"):
            compare([{**CASES[0], "steps": steps}])


def test_an_error_of_our_own_is_not_blamed_on_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("our own defect")

    monkeypatch.setattr(Scheduler, "update_from_output", broken)
    with pytest.raises(KeyError, match="our own defect"):
        compare(CASES[:1])


def test_kinds_that_cannot_be_replayed_are_named() -> None:
    report = compare(read_cases(GOLDEN / "input_batch.jsonl.gz"))
    assert str(report) == "nothing was compared\n120 cases of kind input_batch: not compared"
    assert not report.passed


def test_every_slot_equals_vllm_on_every_rank() -> None:
    report = compare(read_cases(GOLDEN / "slot_mapping.jsonl.gz"))
    assert report.difference is None, str(report.difference)
    assert str(report) == "200 cases, 200 steps: all equal"


@pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
def test_the_triton_kernel_gives_the_same_slots_on_every_rank() -> None:
    for case in list(read_cases(GOLDEN / "slot_mapping.jsonl.gz"))[:40]:
        for rank, slots in rank_slots(case, backend="triton"):
            assert slots.tolist() == case["slot_mapping"][rank], f"{case['name']} {rank}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nonsense", "line 1 is not JSON"),
        (b'{"a": 1}', "line 1 is not a golden case"),
        (b"\xff\xfe\n", "cannot be read"),
        (b'{"kind": "engine", "name": "x", "steps": [{}]}', "'x' is damaged"),
    ],
)
def test_files_that_are_no_golden_traces_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    for name, data in (("a.jsonl", content), ("a.jsonl.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TraceError, match=words):
            compare(read_cases(tmp_path / name))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(CASES[0]).encode())[:-20])
    with pytest.raises(TraceError, match="cannot be read"):
        compare(read_cases(tmp_path / "cut.jsonl.gz"))
    with pytest.raises(TraceError, match="cannot be read"):
        compare(read_cases(tmp_path / "none.jsonl"))
