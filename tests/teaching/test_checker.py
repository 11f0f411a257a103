"""The parts of the judge: values on the pipe, differences in words, the sandbox, the search, the match, the play."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pagedlab.errors import ExerciseError
from pagedlab.scenes import Scene
from pagedlab.teaching.exercises import Case, Exercise, Submission, check, find_exercise, showing
from pagedlab.teaching.exercises.answers import Answer, TrustedSubject, difference_seen
from pagedlab.teaching.exercises.checking import about_the_process
from pagedlab.teaching.exercises.comparing import difference
from pagedlab.teaching.exercises.encoding import (
    MAX_BYTES,
    Foreign,
    decode,
    encode,
    read_message,
    write_message,
)
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.matching import misconception
from pagedlab.teaching.exercises.sandbox import Sandbox, SubmissionEndedError
from pagedlab.teaching.exercises.searching import Examiner, example_inputs
from pagedlab.widgets import to_html

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="what confines it exists on Linux only")

# --- values on the pipe -------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.integers() | st.text() | st.booleans() | st.tuples(st.integers(), st.text())
ARRAYS = npst.arrays(
    npst.boolean_dtypes() | npst.integer_dtypes() | npst.floating_dtypes() | npst.complex_number_dtypes(),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
VALUES = st.recursive(
    SCALARS | ARRAYS | ARRAYS.filter(lambda array: array.size == 1).map(lambda array: array.reshape(-1)[0]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner).map(lambda fields: SimpleNamespace(**fields))
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_a_value_that_crosses_the_pipe_is_the_same_and_of_the_same_type(value: Any) -> None:
    pipe = io.BytesIO()
    write_message(pipe, {"value": encode(value, strict=True)})
    pipe.seek(0)
    message = read_message(pipe)
    assert message is not None
    assert difference(value, decode(message["value"])) is None
    assert read_message(pipe) is None


@pytest.mark.parametrize("value", [object(), [lambda: 0], np.array([None]), range(3), 1j, np.datetime64("2026-01-01")])
def test_a_value_that_cannot_cross_is_refused_going_down_and_named_coming_up(value: Any) -> None:
    with pytest.raises(ExerciseError, match="cannot be sent to a submission"):
        encode(value, strict=True)
    found = decode(encode(value))
    assert isinstance(found[0] if isinstance(value, list) else found, Foreign)


@pytest.mark.parametrize(
    "data",
    [
        {"array": ["|O", [1], "AAAAAAAAAAA="]},
        {"array": ["<i4", [3], "AAAA"]},
        {"array": ["<i4", [-1, 0], ""]},
        {"array": ["<i4", [1]]},
        {"unknown": 1},
        {},
        {"list": [], "more": []},
        {"dict": [[[], 1]]},
        {"bytes": "?"},
        {"record": [[1, 2]]},
        {"scalar": ["<i4", ""]},
    ],
)
def test_what_is_no_encoded_value_is_a_named_error(data: Any) -> None:
    with pytest.raises(ExerciseError):
        decode(data)


@pytest.mark.parametrize("sent", [b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x03" + bytes(7) + b"{x}"])
def test_what_is_no_message_is_a_named_error(sent: bytes) -> None:
    with pytest.raises(ExerciseError):
        read_message(io.BytesIO(sent))


def test_a_message_that_is_too_long_is_not_written() -> None:
    pipe = io.BytesIO()
    with pytest.raises(ExerciseError, match=f"{MAX_BYTES:,} are allowed"):
        write_message(pipe, {"text": "x" * MAX_BYTES})
    assert pipe.getvalue() == b""


# --- differences in words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        ([1, 2, 3], [1, 5, 3], "row[1] is 5; it should be 2"),
        ([1, 2], [1], "row has 1 entry; it should have 2"),
        ([1, [2]], [1, [2, 3]], "row[1] has 2 entries; it should have 1"),
        ((1,), [1], "row is a list; it should be a tuple"),
        (1, 1.0, "row is 1.0, a float; it should be 1, an int"),
        (1, True, "row is True; it should be 1, an int"),
        (None, 0, "row is 0, an int; it should be None"),
        ("a", None, "row is None; it should be 'a'"),
        ({"a": 1}, {}, "row['a'] is missing; it should be 1"),
        ({}, {"a": 1}, "row['a'] is 1; it should not be there"),
        (SimpleNamespace(a=1), SimpleNamespace(a=2), "row.a is 2; it should be 1"),
        (np.zeros(2, np.int64), np.zeros(2, np.int32), "row is an array of int32; it should be of int64"),
        (np.zeros(2), np.zeros((2, 1)), "row is an array of shape (2, 1); it should be of (2,)"),
        (np.zeros((2, 2), int), np.eye(2, dtype=int), "row[0, 0] is 1; it should be 0 (2 of 4 entries differ)"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "row[1] is 2.0; it should be nan"),
        (np.int64(3), 3, "row is 3, an int; it should be 3, an int64"),
        ([1], Foreign("generator", "<generator>"), "row is a generator; it should be a list"),
    ],
)
def test_a_difference_is_said_with_its_place(expected: Any, actual: Any, words: str) -> None:
    assert difference(expected, actual, "row") == words


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert difference(value, decode(encode(value))) is None


def test_a_numpy_number_passes_for_a_python_one() -> None:
    assert difference([3, 0.5, math.nan], [np.int32(3), np.float64(0.5), np.float32("nan")]) is None


# --- the sandbox --------------------------------------------------------------------------------------------------

Ask = Callable[..., Any]


def test_the_process_of_a_submission_knows_nothing_of_the_judge(asked: Ask) -> None:
    names = asked("import sys\nreturn sorted(name for name in sys.modules if 'pagedlab' in name)")
    assert "pagedlab.teaching.exercises.serving" in names
    assert [name for name in names if name.rpartition(".")[2] in ("exercise", "registry", "checking", "verdict")] == []
    assert not any(name.startswith("pagedlab_exercise_") for name in names)


def test_it_has_none_of_the_learners_environment(asked: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "sesame")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    names = asked("import os\nreturn sorted(os.environ)")
    assert {"SECRET_TOKEN", "PYTHONPATH", "PAGEDLAB_PROGRESS"} & set(names) == set()


@only_linux
def test_it_sees_the_exercises_folder_empty(asked: Ask, tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("secret", encoding="utf-8")
    assert asked(f"import os\nreturn os.listdir({str(tmp_path)!r})", hidden=(tmp_path,)) == []
    assert (tmp_path / "solution.py").read_text(encoding="utf-8") == "secret"


@only_linux
def test_it_writes_into_its_own_folder_and_nowhere_else(asked: Ask, tmp_path: Path) -> None:
    assert asked("open('here', 'w').write('x')\nimport os\nreturn os.listdir()") == ["here"]
    tried = f"try:\n    open({str(tmp_path / 'there')!r}, 'w')\nexcept OSError as error:\n    return error.strerror"
    assert asked(tried) == "Read-only file system"


@only_linux
@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "socket.socket()",
        "socket.socketpair()",
        "os.kill(1 if os.getpid() != 1 else 2, 9)",
        "os.kill(-1, 9)",
        "os.setsid()",
        "ctypes.CDLL(None, use_errno=True).unshare(0x10000000) and raise_()",
        "ctypes.CDLL(None, use_errno=True).umount2(b'/', 0) and raise_()",
        "ctypes.CDLL(None, use_errno=True).prctl(1, 0) and raise_()",
    ],
)
def test_a_system_call_that_no_exercise_needs_is_refused(asked: Ask, attempt: str) -> None:
    body = f"""\
import ctypes, os, socket
def raise_():
    raise OSError(ctypes.get_errno(), "refused")
try:
    {attempt}
except OSError as error:
    return error.errno
return 0"""
    assert asked(body) == 1  # EPERM


@only_linux
def test_it_cannot_raise_its_limits_but_may_read_them(asked: Ask) -> None:
    body = """\
import resource
before = resource.getrlimit(resource.RLIMIT_AS)
try:
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
except (OSError, ValueError):
    pass
return before[1], resource.getrlimit(resource.RLIMIT_AS)[1]"""
    before, after = asked(body)
    assert before == after < 1 << 34


@only_linux
def test_it_sees_no_other_process_and_cannot_change_the_system(asked: Ask) -> None:
    body = """\
import os
others = [name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
try:
    open("/proc/sys/kernel/printk_ratelimit", "w")
except OSError as error:
    return others, error.strerror"""
    assert asked(body) == ([], "Read-only file system")


@only_linux
def test_threads_stay_allowed(asked: Ask) -> None:
    body = "import threading\nseen = []\nthread = threading.Thread(target=seen.append, args=(1,))\n"
    assert asked(body + "thread.start()\nthread.join()\nreturn seen") == [1]


def test_a_process_that_was_ended_says_so_to_whoever_asks_again(doubling: Exercise) -> None:
    with Sandbox(doubling) as sandbox:
        sandbox.load(Submission("import os\ndef double(number):\n    os._exit(7)\n"))
        for _ in range(2):
            with pytest.raises(SubmissionEndedError) as ended:
                sandbox.answer({"number": 1})
            assert (ended.value.why, ended.value.code) == ("exit", 7)


def test_a_system_that_confines_little_says_so(doubling: Exercise, tmp_path: Path) -> None:
    entry = replace(find_exercise("condense"), exercise=doubling)
    with Sandbox(doubling) as sandbox:
        sandbox.confinement.network = sandbox.confinement.files = False
        (note,) = about_the_process(sandbox)
    assert note == (
        "This system could not keep the submission from: the network, your files. Run only code that you trust."
    )
    verdict = check(entry, Submission("def double(number):\n    return 2 * number\n"))
    if sys.platform == "linux":
        assert verdict.notes == ()


@only_linux
def test_without_namespaces_what_is_left_open_is_said_and_the_rest_holds(tmp_path: Path) -> None:
    source = tmp_path / "my.py"
    source.write_text("import os\ndef condense(*arguments):\n    os.fork()\n", encoding="utf-8")
    command = f"{sys.executable} -m pagedlab.cli check condense {source} --json"
    none_allowed = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*none_allowed, "true"], check=False).returncode != 0:
        pytest.skip("no namespaces here to forbid namespaces in")
    script = f"echo 0 >/proc/sys/user/max_user_namespaces && {command}"
    done = subprocess.run([*none_allowed, script], capture_output=True, text=True, check=False)
    verdict = json.loads(done.stdout)
    assert "PermissionError" in verdict["message"]
    assert verdict["notes"] == [
        "This system could not keep the submission from: your files, the solutions. Run only code that you trust."
    ]


# --- the search ---------------------------------------------------------------------------------------------------


def test_a_failing_input_is_made_as_small_as_it_gets(doubling: Exercise) -> None:
    finding = Examiner(doubling, TrustedSubject(doubling, lambda number: 2 * min(number, 41))).examine(seed=0)
    assert finding is not None
    assert finding.inputs == {"number": 42}
    assert finding.text == "the function returned 82; it should be 84"


def test_the_cases_come_first_and_say_what_is_special_about_them(doubling: Exercise) -> None:
    finding = Examiner(
        doubling, TrustedSubject(doubling, lambda number: 2 * number if number >= 0 else -number)
    ).try_cases()
    assert finding is not None
    assert (finding.inputs, finding.why) == ({"number": -3}, "a negative number")


def test_a_smaller_input_than_the_case_is_shown_and_the_case_is_named(doubling: Exercise) -> None:
    finding = Examiner(doubling, TrustedSubject(doubling, abs)).examine(seed=0)
    assert finding is not None
    assert finding.inputs == {"number": 1}
    assert (finding.why, finding.also) == ("", "a negative number")


def test_the_same_seed_tries_the_same_inputs(doubling: Exercise) -> None:
    first, again, other = (list(example_inputs(doubling, seed, 20)) for seed in (5, 5, 6))
    assert first == again != other


def test_a_check_leaves_no_files_where_it_runs(
    doubling: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Examiner(doubling, TrustedSubject(doubling, abs)).examine(seed=0)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_where_the_reference_raises_a_submission_raises_the_same() -> None:
    def first(items: list[int]) -> int:
        return items[0]

    exercise = Exercise(
        name="first",
        lesson="00-one-step",
        title="The first",
        task="",
        reference=first,
        cases=(Case("nothing", items=[]), Case("one", items=[4])),
        strategy=st.fixed_dictionaries({"items": st.lists(st.integers(), max_size=2)}),
    )

    def finding(function: Callable[..., Any]) -> str | None:
        found = Examiner(exercise, TrustedSubject(exercise, function)).try_cases()
        return found and found.text

    assert finding(lambda items: next(iter(items[0:1])) if items else items[0]) is None
    assert finding(lambda items: items[0] if items else 0) == "it should raise IndexError; it raised nothing"
    assert finding(lambda items: next(iter(items))) == "it should raise IndexError; it raised StopIteration"


# --- the match ----------------------------------------------------------------------------------------------------


def test_a_mistake_that_no_misconception_explains_gets_the_general_hints() -> None:
    entry = find_exercise("slot_mapping")

    def seven(*arguments: Any) -> None:
        arguments[-1][:] = 7

    subject = TrustedSubject(entry.exercise, seven)
    assert misconception(entry, subject, entry.exercise.cases[0].inputs, seed=0) == GENERAL


def test_a_learners_own_version_of_a_misconception_is_recognised() -> None:
    entry = find_exercise("slot_mapping")
    source = """
def slot_mapping(query_start_loc, positions, block_table, block_size, slot_mapping):
    slot_mapping.fill(-1)
    for row in range(len(query_start_loc) - 1):
        for i in range(query_start_loc[row], query_start_loc[row + 1]):
            slot_mapping[i] = int(block_table[row][positions[i] // block_size]) + positions[i] % block_size
"""
    verdict = check(entry, Submission(source))
    assert verdict.hint is not None
    assert verdict.hint.topic == "a_block_id_is_a_slot"


# --- the play -----------------------------------------------------------------------------------------------------

SHIFTING = """
def condense(req_ids, req_id_to_index, num_tokens, spec_token_ids, token_ids):
    free = 0
    for row, name in enumerate(list(req_ids)):
        if name is None:
            continue
        if row != free:
            token_ids[free] = token_ids[row]
            num_tokens[free] = num_tokens[row]
            spec_token_ids[free] = spec_token_ids[row]
            req_ids[free], req_ids[row] = name, None
            req_id_to_index[name] = free
        free += 1
    del req_ids[free:], spec_token_ids[free:]
"""


@pytest.fixture(scope="module")
def scene() -> Scene:
    verdict = check(find_exercise("condense"), Submission(SHIFTING, "my.py"))
    assert verdict.played is not None
    return verdict.played.scene()


def test_the_play_begins_where_both_are_still_the_same(scene: Scene) -> None:
    sides = [
        {
            key.partition(":")[2]: actor.data["entries"]
            for key, actor in scene.frames[0].stage.items()
            if key.startswith(side)
        }
        for side in ("yours", "reference")
    ]
    assert sides[0]["req_ids:"] == sides[1]["req_ids:"]
    assert "same" in scene.frames[0].change


def test_each_frame_shows_the_line_of_the_learner_that_made_the_change(scene: Scene) -> None:
    lines = SHIFTING.splitlines()
    moves = [frame for frame in scene.frames if frame.change.endswith("changes req_ids.")]
    assert moves
    for frame in moves[:-1]:
        assert frame.source is not None
        assert lines[frame.source[1] - 1].strip() == "req_ids[free], req_ids[row] = name, None"
        assert "yours:req_ids:" in frame.focus


def test_the_play_ends_with_both_results(scene: Scene) -> None:
    stage = scene.frames[-1].stage
    assert stage["yours:req_ids:"].data["entries"] == "B, C"
    assert stage["reference:req_ids:"].data["entries"] == "C, B"
    differing = [part for part in stage["yours:req_ids:"].parts if "leaves" in part.style]
    assert [part.text for part in differing] == ["B", "C"]


def test_the_play_is_an_offline_page(scene: Scene) -> None:
    assert Scene.from_json(scene.to_json()) == scene
    assert "my.py" in to_html(scene)


def test_a_submission_that_raises_is_played_up_to_the_exception() -> None:
    source = SHIFTING.replace("req_id_to_index[name] = free", "raise KeyError")
    verdict = check(find_exercise("condense"), Submission(source, "my.py"))
    assert verdict.played is not None
    ends = [frame.change for frame in verdict.played.scene().frames]
    assert "Yours has stopped: KeyError." in ends


def test_a_name_from_a_submission_never_becomes_markup() -> None:
    source = "def slot_mapping(a, b, c, d, e):\n    raise ValueError('</script><b>bold</b>')\n"
    verdict = check(find_exercise("slot_mapping"), Submission(source, "<i>my.py"))
    page = showing.to_html(verdict)
    assert "<b>bold" not in page
    assert "<i>my.py" not in page
    assert "&lt;b&gt;bold" in page


def test_an_answer_is_compared_by_what_counts() -> None:
    exercise = find_exercise("condense").exercise
    inputs = exercise.cases[0].inputs
    answer = TrustedSubject(exercise, exercise.reference).answer(inputs)
    stale = Answer(None, {**answer.inputs, "token_ids": answer.inputs["token_ids"].copy()})
    stale.inputs["token_ids"][2] = 99  # a row that is not live any more
    assert difference_seen(exercise, answer, stale) is None
    longer = Answer(None, {**answer.inputs, "req_ids": [*answer.inputs["req_ids"], "Z"]})  # the view finds no drafts
    assert difference_seen(exercise, answer, longer) == "req_ids has 3 entries; it should have 2"
