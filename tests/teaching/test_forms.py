"""Triton exercises say what ran the kernel; speed exercises measure against the reference; classes are driven."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedlab.errors import ExerciseError
from pagedlab.kernels import Backend, backend
from pagedlab.teaching.exercises import Entry, Submission, check, checking, find_exercise
from pagedlab.teaching.exercises.kills import kills_of

HINTS = "## general\n1. a\n2. b\n3. c\n"


def exercise_folder(tmp_path: Path, name: str, exercise: str, mutants: str, hints: str) -> Entry:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "exercise.py").write_text(exercise, encoding="utf-8")
    (folder / "mutants.py").write_text(mutants, encoding="utf-8")
    (folder / "starter.py").write_text("", encoding="utf-8")
    (folder / "hints.md").write_text(HINTS + hints, encoding="utf-8")
    return find_exercise(name, tmp_path)


# --- Triton -------------------------------------------------------------------------------------------------------

ADD_ONE = """
import numpy as np
from hypothesis import strategies as st
from pagedlab.teaching.exercises import Case, Exercise

def add_one(values, result):
    result[: len(values)] = values + 1

def some(count):
    return {"values": np.arange(count, dtype=np.int32), "result": np.full(count + 3, -7, dtype=np.int32)}

EXERCISE = Exercise(
    name="add_one", lesson="04-slot-mapping", title="Add one", task="Add one.", reference=add_one,
    cases=(Case("three numbers", **some(3)), Case("more than one tile", **some(9))),
    strategy=st.builds(some, st.integers(1, 20)), changes=("result",), form="triton", instead="slot_mapping",
)
"""

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def _{name}_kernel(values_ptr, result_ptr, count, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = {live}
    tl.store(result_ptr + at, tl.load(values_ptr + at, mask=at < count, other=0) + 1, mask=live)

def {name}(values, result):
    '''The last tile is full.'''
    count = values.numel()
    _{name}_kernel[(triton.cdiv(count, 4),)](values, result, count, TILE=4)
"""


@pytest.fixture
def add_one(tmp_path: Path) -> Entry:
    mutants = KERNEL.format(name="forgets_the_mask", live="at < count + TILE")
    return exercise_folder(tmp_path, "add_one", ADD_ONE, mutants, "## forgets_the_mask\n1. d\n2. e\n3. f\n")


@pytest.mark.skipif(not backend().has_triton, reason=backend().reason)
def test_a_triton_kernel_is_run_and_the_verdict_says_where(add_one: Entry) -> None:
    verdict = check(add_one, Submission(KERNEL.format(name="add_one", live="at < count"), "my.py"))
    assert verdict.passed, verdict.text
    where = {"interpreter": "in Triton's interpreter, on the CPU", "cuda": "on the GPU"}[backend().name]
    assert where in verdict.notes[0]


@pytest.mark.skipif(not backend().has_triton, reason=backend().reason)
def test_a_wrong_triton_kernel_is_explained_by_the_mutant_that_does_the_same(add_one: Entry) -> None:
    verdict = check(add_one, Submission(KERNEL.format(name="add_one", live="at < count + 8"), "my.py"))
    assert verdict.kind == "wrong"
    assert verdict.hint is not None
    assert verdict.hint.topic == "forgets_the_mask"
    assert {kill.topics for kill in kills_of(add_one)} == {("forgets_the_mask",) * 3}


def test_without_triton_the_numpy_form_is_offered(add_one: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "backend", lambda: Backend("numpy", "Triton is not installed"))
    with pytest.raises(ExerciseError, match=r"not installed\. Do the same in NumPy: pagedlab start slot_mapping"):
        check(add_one, Submission(""))


# --- speed --------------------------------------------------------------------------------------------------------

SUM = """
import numpy as np
from hypothesis import strategies as st
from pagedlab.teaching.exercises import Case, Exercise, Speed

def total(values):
    result = 0
    for value in values:
        result += int(str(value))  # slower than anything that a submission may be
    return result

EXERCISE = Exercise(
    name="total", lesson="13-gpu-kernel", title="A fast sum", task="Sum.", reference=total,
    cases=(Case("one", values=np.array([4])), Case("two", values=np.array([4, 5]))),
    strategy=st.builds(lambda count: {"values": np.arange(count)}, st.integers(1, 20)),
    form="speed", speed=Speed([Case("many", values=np.arange(100_000))], times=10),
)
"""

SUM_MUTANTS = """
def loops(values):
    "A loop is as fast as anything."
    return sum(values.tolist()) if len(values) < 50 else [result := 0, *(result := result + int(v) for v in values)][-1]

def forgets_the_last(values):
    "The end is not included."
    return int(values[:-1].sum())
"""


@pytest.fixture
def total(tmp_path: Path) -> Entry:
    hints = "## loops\n1. d\n2. e\n3. f\n## forgets_the_last\n1. g\n2. h\n3. i\n"
    return exercise_folder(tmp_path, "total", SUM, SUM_MUTANTS, hints)


def test_a_fast_submission_passes_and_is_told_how_fast_it_is(total: Entry) -> None:
    verdict = check(total, Submission("def total(values):\n    return int(values.sum())\n"))
    assert verdict.passed, verdict.text
    assert "times as fast as the reference; 10 are asked." in verdict.message


def test_a_right_submission_that_is_slow_fails_and_gets_the_hint_of_the_slow_mutant(total: Entry) -> None:
    verdict = check(total, Submission("def total(values):\n    return sum(int(value) for value in values)\n"))
    assert verdict.kind == "slow"
    assert verdict.hint is not None
    assert verdict.hint.topic == "loops"


def test_a_submission_cannot_change_the_clock(total: Entry) -> None:
    cheat = (
        "import time\ntime.perf_counter = lambda: 0.0\n"
        "def total(values):\n    time.sleep(len(values) / 1e6)\n    return int(values.sum())\n"
    )
    verdict = check(total, Submission(cheat))
    assert verdict.kind == "slow", verdict.text


def test_mutants_of_a_speed_exercise_die_of_being_wrong_or_slow(total: Entry) -> None:
    kills = list(kills_of(total))
    assert {kill.mutant: set(kill.kinds) for kill in kills} == {
        "loops": {"slow"},
        "forgets_the_last": {"wrong"},
    }
    assert all(set(kill.topics) == {kill.mutant} for kill in kills)


# --- a class, driven ----------------------------------------------------------------------------------------------

STACK = """
from hypothesis import strategies as st
from pagedlab.teaching.exercises import Case, Exercise

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

def operate(stack_class, operations):
    stack, seen = stack_class(), []
    for operation in operations:
        seen.append(stack.push(operation) if operation else stack.pop())
    return seen

EXERCISE = Exercise(
    name="stack", lesson="03-block-table", title="A stack", task="Push, pop.", reference=Stack, drive=operate,
    cases=(Case("push, pop", operations=[1, 0]), Case("two, then one", operations=[1, 2, 0])),
    strategy=st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda x: {"operations": [*x, 0]}),
)
"""

QUEUE = """
class {name}:
    "Who comes first leaves first."
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop({end})
"""


def test_a_class_is_driven_through_operations(tmp_path: Path) -> None:
    mutants = QUEUE.format(name="IsAQueue", end=0)
    entry = exercise_folder(tmp_path, "stack", STACK, mutants, "## IsAQueue\n1. d\n2. e\n3. f\n")
    assert check(entry, Submission(QUEUE.format(name="Stack", end=-1))).passed
    verdict = check(entry, Submission(QUEUE.format(name="Stack", end=0)))
    assert verdict.kind == "wrong"
    assert verdict.inputs == {"operations": [1, 2, 0]}
    assert verdict.message == "`Stack`: returned[2] is 1; it should be 2."
    assert verdict.hint is not None
    assert verdict.hint.topic == "IsAQueue"
