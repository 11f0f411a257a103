"""What vLLM 0.25.1 did, step by step, against what we do: every field of every golden case.

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
KINDS = {kind: list(read_cases(GOLDEN / f"{kind}.jsonl.gz")) for kind in ("engine", "input_batch", "slot_mapping")}
ENGINE = KINDS["engine"]


def family(case: Case) -> str:
    return case["name"].rsplit("-", 1)[0]


# --- all is equal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({family(case) for case in ENGINE}))
def test_every_field_of_every_step_equals_vllm(name: str) -> None:
    cases = [case for case in ENGINE if family(case) == name]
    report = compare(cases)
    assert report.difference is None, str(report.difference)
    assert str(report) == f"{len(cases)} cases, {sum(len(case['steps']) for case in cases)} steps: all equal"
    assert report.passed


@pytest.mark.parametrize(("kind", "num_steps"), [("input_batch", 1140), ("slot_mapping", 200)])
def test_every_row_and_every_slot_equals_vllm(kind: str, num_steps: int) -> None:
    report = compare(KINDS[kind])
    assert report.difference is None, str(report.difference)
    assert str(report) == f"{len(KINDS[kind])} cases, {num_steps} steps: all equal"
    assert report.passed


def test_poison_in_stale_rows_changes_nothing_of_the_batch() -> None:
    report = compare(KINDS["input_batch"], poison=True)
    assert report.difference is None, str(report.difference)
    assert report.num_cases == 120


@pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
def test_the_triton_kernel_gives_the_same_slots_on_every_rank() -> None:
    for case in KINDS["slot_mapping"][:40]:
        for rank, slots in rank_slots(case, backend="triton"):
            assert slots.tolist() == case["slot_mapping"][rank], f"{case['name']} {rank}"


# --- nothing is left out ------------------------------------------------------------------------------------------


def test_all_cases_are_there() -> None:
    assert {kind: len(cases) for kind, cases in KINDS.items()} == {
        "engine": 218,
        "input_batch": 120,
        "slot_mapping": 200,
    }
    assert all(case["kind"] == kind for kind, cases in KINDS.items() for case in cases)
    assert sum(len(case["steps"]) for case in ENGINE) == 8037
    assert len({family(case) for case in ENGINE}) == 22


def fields_of(case: Case) -> set[str]:
    """Return the names under which a golden case's values are compared."""
    if case["kind"] == "slot_mapping":
        return set(case["slot_mapping"])
    if case["kind"] == "engine":
        return {name for step in case["steps"] for name in step}
    return {"batch_update"} | {f"state.{name}" for step in case["steps"] for name in step["state"]}


FIELDS = {kind: sorted(set().union(*map(fields_of, cases))) for kind, cases in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_a_case_holds_is_compared(kind: str) -> None:
    report = compare(KINDS[kind][:20])
    assert set(report.fields) == set().union(*map(fields_of, KINDS[kind][:20]))
    if kind == "input_batch":
        assert report.fields == dict.fromkeys(FIELDS[kind], report.num_steps)
    assert set(report.fields) <= set(FIELDS[kind])


def test_a_kind_that_cannot_be_replayed_is_named_and_does_not_pass() -> None:
    report = compare([{"kind": "spell", "name": "x"}, *ENGINE[:1], {"kind": "spell", "name": "y"}])
    assert str(report) == f"1 cases, {report.num_steps} steps: all equal\n2 cases of kind spell: not compared"
    assert not report.passed
    assert str(compare([{"kind": "spell"}])) == "nothing was compared\n1 cases of kind spell: not compared"


# --- one wrong value is found -------------------------------------------------------------------------------------


def corrupted(value: Any) -> Any:
    """Return a value of the same form that is wrong in one place."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        name = next(iter(value), "0")
        return value | {name: corrupted(value.get(name))}
    if isinstance(value, list) and value:
        return [*value[:-1], corrupted(value[-1])]
    return ["wrong"]


def holders(case: Case, field: str) -> list[tuple[int, dict[str, Any], str]]:
    """Return each place of a field: its step, the dict it is in, and its name there."""
    if case["kind"] == "slot_mapping":
        found = [(0, case["slot_mapping"], field)]
    elif field.startswith("state."):
        found = [(number, step["state"], field.removeprefix("state.")) for number, step in enumerate(case["steps"])]
    else:
        found = [(number, step, field) for number, step in enumerate(case["steps"])]
    return [(number, holder, name) for number, holder, name in found if name in holder]


def example(kind: str, field: str) -> Case:
    """Return a copy of the first case that holds more than nothing under a field."""
    for case in KINDS[kind]:
        if any(holder[name] for _, holder, name in holders(case, field)):
            return copy.deepcopy(case)
    raise AssertionError(f"no case has a value of {field}")


EVERY_FIELD = [(kind, field) for kind, fields in FIELDS.items() for field in fields]


@pytest.mark.parametrize(("kind", "field"), EVERY_FIELD)
def test_one_corrupted_value_of_any_field_is_reported_by_name(kind: str, field: str) -> None:
    case = example(kind, field)
    step, holder, name = next(place for place in holders(case, field) if place[1][place[2]])
    right = holder[name]
    holder[name] = corrupted(right)
    report = compare([case])
    assert report.difference is not None
    difference = report.difference
    assert (difference.case, difference.step, difference.field) == (case["name"], step, field)
    assert (difference.ours, difference.theirs) == (right, holder[name])
    assert str(report).startswith(f"case {case['name']}, step {step}, {field}:\n  ours   ")
    assert not report.passed


@pytest.mark.parametrize(("kind", "field"), [each for each in EVERY_FIELD if each != ("input_batch", "batch_update")])
def test_a_field_that_is_missing_is_reported_by_name(kind: str, field: str) -> None:
    case = example(kind, field)
    step, holder, name = holders(case, field)[0]
    del holder[name]
    report = compare([case])
    assert report.difference is not None
    assert (report.difference.step, report.difference.field) == (step, field)
    assert report.difference.theirs == "(absent)"


def test_a_value_of_another_type_is_a_difference() -> None:
    for field, convert in (("positions", float), ("discard", int)):
        case: Case = copy.deepcopy(ENGINE[0])
        step = next(step for step in case["steps"] if field in step)
        step[field][0] = convert(step[field][0])
        report = compare([case])
        assert report.difference is not None
        assert report.difference.field == field


def test_a_value_too_many_is_a_difference() -> None:
    case: Case = copy.deepcopy(KINDS["input_batch"][0])
    case["steps"][0]["state"]["colour"] = "blue"
    report = compare([case])
    assert report.difference is not None
    assert (report.difference.field, report.difference.ours) == ("state.colour", "(absent)")


# --- what is no case is refused -----------------------------------------------------------------------------------


def test_an_engine_case_that_is_cut_is_refused() -> None:
    for steps in ([], ENGINE[0]["steps"][:5]):
        with pytest.raises(TraceError, match="steps are missing at its end"):
            compare([{**ENGINE[0], "steps": steps}])


def damaged_op(op: dict[str, Any]) -> Case:
    case: Case = copy.deepcopy(KINDS["input_batch"][0])
    case["steps"][1]["ops"].append(op)
    return case


@pytest.mark.parametrize(
    ("op", "words"),
    [({"op": "jump"}, "'jump'"), ({}, "op"), ({"op": "add"}, "request"), ({"op": "swap"}, "rows")],
)
def test_an_operation_that_is_none_is_refused(op: dict[str, Any], words: str) -> None:
    case = damaged_op(op)
    with pytest.raises(TraceError, match=f"{case['name']!r} is damaged.*{words}"):
        compare([case])


@pytest.mark.parametrize("part", ["ops", "batch_update", "state"])
def test_a_step_of_the_batch_without_one_of_its_parts_is_refused(part: str) -> None:
    case: Case = copy.deepcopy(KINDS["input_batch"][0])
    del case["steps"][1][part]
    with pytest.raises(TraceError, match=f"is damaged.*{part}"):
        compare([case])


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_without_its_sizes_is_refused(kind: str) -> None:
    case = {name: value for name, value in KINDS[kind][0].items() if name != "config"}
    with pytest.raises(TraceError, match="is damaged"):
        compare([case])


def test_an_error_of_our_own_is_not_blamed_on_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("our own defect")

    monkeypatch.setattr(Scheduler, "update_from_output", broken)
    with pytest.raises(KeyError, match="our own defect"):
        compare(ENGINE[:1])


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
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(ENGINE[0]).encode())[:-20])
    with pytest.raises(TraceError, match="cannot be read"):
        compare(read_cases(tmp_path / "cut.jsonl.gz"))
    with pytest.raises(TraceError, match="cannot be read"):
        compare(read_cases(tmp_path / "none.jsonl"))
