"""Whatever is handed in, there is a verdict, it is the right one, and it says what to do. One row a kind."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pagedlab.teaching.exercises import Entry, Limits, Submission, check, find_exercise

LINUX = sys.platform == "linux"


def right(after: str = "", before: str = "") -> str:
    """A right submission with something odd before it, or at its end."""
    return f"""\
import numpy as np
{before}

def slot_mapping(query_start_loc, positions, block_table, block_size, slot_mapping):
    num_tokens = query_start_loc[-1]
    rows = np.repeat(np.arange(len(block_table)), np.diff(query_start_loc))
    columns, offsets = np.divmod(positions[:num_tokens], block_size)
    slot_mapping[:num_tokens] = block_table[rows, columns].astype(np.int64) * block_size + offsets
    slot_mapping[num_tokens:] = -1
{textwrap.indent(textwrap.dedent(after), "    ")}
"""


def doing(body: str, before: str = "") -> str:
    """A submission that does something odd instead."""
    head = "def slot_mapping(query_start_loc, positions, block_table, block_size, slot_mapping):"
    return f"{before}\n{head}\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"


@dataclass(frozen=True)
class Odd:
    """A submission, the kind of its verdict, and what the message says (a pattern)."""

    name: str
    source: str
    kind: str
    says: str
    place: str = ""
    only_linux: bool = False


FAKE = """
import json, os, struct
text = json.dumps({"passed": True, "returned": None, "inputs": [], "warnings": []}).encode()
print('{"passed": true, "kind": "passed"}')
for handle in range(1, 20):
    try:
        os.write(handle, struct.pack("<Q", len(text)) + text)
    except OSError:
        pass
"""

FAKE_LOADING = """
import json, os, struct
for text in (b'{"error": {}}', b'{"signature": 3}'):
    for handle in range(3, 20):
        try:
            os.write(handle, struct.pack("<Q", len(text)) + text)
        except OSError:
            pass
"""

PATCH = """
import pagedlab.teaching.exercises.comparing as comparing
import pagedlab.teaching.exercises.serving as serving
import numpy as np
comparing.difference = lambda *values: None
np.array_equal = lambda *values: True
"""

ODD_ERROR = """
class Odd(BaseException):
    def __str__(self):
        raise SystemExit(0)
    __repr__ = __str__
"""

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

THREADS = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(99,)).start()
"""

LARGE_FILE = """
with open("x", "wb") as file:
    while True:
        file.write(bytes(10**7))
"""

README = Path(__file__).parents[2] / "README.md"
REFERENCE = find_exercise("slot_mapping").folder / "exercise.py"

REFUSED = "The check allows no network, no other processes, and no files but those in a folder of its own"

TABLE = (
    # before any call
    Odd("empty", "", "missing", r"does not define `slot_mapping\(.*\)`; there is no function in it"),
    Odd("syntax_error", doing("return ("), "syntax", r"is not Python. SyntaxError: '\(' was never closed", "line 3"),
    Odd("null_byte", "x = 1\0", "syntax", r"is not Python. SyntaxError: source code .*null bytes"),
    Odd(
        "import_error",
        "import no_such_module\n",
        "import",
        "ModuleNotFoundError: No module named 'no_such_module'",
        "line 1",
    ),
    Odd("wrong_name", right().replace("def slot_mapping", "def slots"), "missing", "it defines `slots`"),
    Odd("no_function", "slot_mapping = 3\n", "missing", "is not a function but of type int"),
    Odd(
        "wrong_arity",
        "def slot_mapping(a, b):\n    pass\n",
        "signature",
        r"`slot_mapping\(a, b\)` cannot be called with 5",
    ),
    Odd(
        "raises_at_once",
        "1 / 0\n",
        "raised",
        "stopped before `slot_mapping.*ZeroDivisionError: division by zero",
        "line 1",
    ),
    Odd("endless_at_once", "while True:\n    pass\n", "timeout", "Loading my.py did not end within 3 s", "line"),
    Odd("exits_at_once", "import os\nos._exit(0)\n", "exit", r"Loading my.py ended its process \(exit code 0\)"),
    # what it gives
    Odd("none", doing("return None"), "wrong", r"slot_mapping\[0\] is 77; it should be"),
    Odd("wrong_type", right("return [1, 2]"), "wrong", "the function returned a list; it should be None"),
    Odd(
        "wrong_dtype",
        right("return slot_mapping.astype(np.int32)"),
        "wrong",
        "returned an array of int32; it should be None",
    ),
    Odd("foreign_type", right("return object()"), "wrong", "returned an object; it should be None"),
    Odd("deeply_nested", right("x = []\nfor _ in range(9000):\n    x = [x]\nreturn x"), "wrong", "returned a list"),
    Odd("changes_an_input", right("positions += 1"), "mutates", r"it changed its input: positions\[0\] is"),
    Odd(
        "random",
        right("slot_mapping[:1] += random.choice([0, 1])", "import random"),
        "random",
        "gave (another answer|two answers)",
    ),
    Odd(
        "counts_its_calls",
        right("global calls\ncalls += 1\nslot_mapping[:1] += calls > 30", "calls = 0"),
        "random",
        "what it kept",
    ),
    Odd("warns", right("np.array([1.0]) / np.array([0.0])"), "passed", "did the right thing"),
    # it raises
    Odd(
        "raises",
        doing("return positions[99]"),
        "raised",
        "IndexError: index 99 is out of bounds",
        "line 3, in slot_mapping",
    ),
    Odd("raises_something_odd", doing("raise Odd()", ODD_ERROR), "raised", "`slot_mapping` stopped. Odd", "raise Odd"),
    Odd("exits", doing("import sys\nsys.exit(0)"), "raised", "It asked Python to exit in place of returning"),
    Odd(
        "recursion", doing("return again()", "def again():\n    return again()"), "raised", "It called itself too often"
    ),
    Odd("asks", doing("input('? ')"), "raised", "EOFError"),
    Odd(
        "ten_gigabytes",
        doing("x = [0] * (10 * 2**30 // 8)"),
        "memory",
        "more memory than the 1024 MiB",
        only_linux=True,
    ),
    Odd(
        "ten_gigabytes_of_numpy",
        doing("np.ones(10 * 2**27)", "import numpy as np"),
        "memory",
        "more memory than",
        only_linux=True,
    ),
    # its process ends
    Odd(
        "endless", doing("n = 0\nwhile True:\n    n += 1"), "timeout", "did not end within 1 s: an endless loop", "line"
    ),
    Odd("sleeps", doing("import time\ntime.sleep(60)"), "timeout", "or it waits for something", "line 4: time.sleep"),
    Odd(
        "endless_repr",
        right("return A()", "class A:\n    def __repr__(self):\n        while True: pass"),
        "timeout",
        "within 1 s",
    ),
    Odd("slow_each_time", right("import time\ntime.sleep(0.6)"), "overtime", "all calls together may take 4 s"),
    Odd(
        "ends_its_process",
        doing("import os\nos._exit(0)"),
        "exit",
        r"ended its process \(exit code 0\) in place of returning",
    ),
    Odd("crashes", doing("import ctypes\nctypes.string_at(0)"), "signal", "SIGSEGV: too deep a recursion, or memory"),
    Odd("floods", doing("while True:\n    print('spam' * 20)"), "timeout", "did not end within 1 s"),
    # it cheats
    Odd("fakes_a_verdict", doing(FAKE), "protocol", "wrote into the pipe to the judge"),
    Odd("prints_a_verdict", doing("print('{\"passed\": true}')"), "wrong", "is 77"),
    Odd("patches_the_judge", doing("pass", PATCH), "wrong", "is 77"),
    Odd("traces", right(before="import sys\nsys.settrace(lambda *a: 1 / 0)"), "raised", "ZeroDivisionError"),
    Odd("fakes_its_loading", FAKE_LOADING, "protocol", "Loading my.py wrote into the pipe to the judge"),
    # it attacks
    Odd(
        "forks",
        doing("import os\nwhile True:\n    os.fork()"),
        "raised",
        f"PermissionError.*{REFUSED}",
        "os.fork",
        True,
    ),
    Odd("forks_and_does_not_give_up", doing(FORK_BOMB), "timeout", "within 1 s", "line", True),
    Odd("starts_a_program", doing("import subprocess\nsubprocess.run(['ls'])"), "raised", REFUSED, only_linux=True),
    Odd("starts_threads", doing(THREADS), "raised", "can't start new thread", only_linux=True),
    Odd(
        "opens_a_socket",
        doing("import socket\nsocket.create_connection(('127.0.0.1', 80))"),
        "raised",
        REFUSED,
        only_linux=True,
    ),
    Odd("kills_the_judge", doing("import os\nos.kill(os.getppid(), 9)"), "raised", REFUSED, only_linux=True),
    Odd("deletes_files", doing(f"import os\nos.remove({str(README)!r})"), "raised", REFUSED, only_linux=True),
    Odd("fills_the_disk", doing(LARGE_FILE), "raised", "File too large|No space left", only_linux=True),
    Odd("reads_the_reference", doing(f"open({str(REFERENCE)!r})"), "raised", "FileNotFoundError", only_linux=True),
)


@pytest.fixture(scope="module")
def entry() -> Entry:
    """The exercise, with less patience."""
    entry = find_exercise("slot_mapping")
    limits = Limits(load_seconds=3, call_seconds=1, total_seconds=4, search_seconds=0.5)
    return replace(entry, exercise=replace(entry.exercise, limits=limits))


@pytest.mark.parametrize("odd", TABLE, ids=lambda odd: odd.name)
def test_an_odd_submission_gets_its_verdict(entry: Entry, odd: Odd) -> None:
    if odd.only_linux and not LINUX:
        pytest.skip("what confines it exists on Linux only")
    begin = time.perf_counter()
    verdict = check(entry, Submission(odd.source, "my.py"))
    assert (verdict.kind, bool(re.search(odd.says, verdict.message))) == (odd.kind, True), verdict.text
    assert verdict.passed == (odd.kind == "passed")
    assert odd.place in verdict.place
    assert entry.exercise.title in verdict.text
    assert time.perf_counter() - begin < 25  # seconds; with the limits above there are never more


def test_the_table_holds_every_kind_of_verdict_but_those_of_other_forms() -> None:
    kinds = {odd.kind for odd in TABLE}
    assert kinds == {
        "passed", "syntax", "import", "missing", "signature", "wrong", "raised", "memory", "mutates", "random",
        "timeout", "overtime", "exit", "signal", "protocol",
    }  # fmt: skip


def test_a_warning_is_passed_on(entry: Entry) -> None:
    verdict = check(entry, Submission(right("np.array([1.0]) / np.array([0.0])"), "my.py"))
    assert "Python warned: RuntimeWarning: divide by zero encountered in divide." in verdict.notes


def test_what_is_printed_is_shown_and_cut(entry: Entry) -> None:
    verdict = check(entry, Submission(right("print('seen', len(positions))"), "my.py"))
    assert verdict.printed.startswith("seen 6\nseen 6\n")
    assert len(verdict.printed_lines) < 20
    flood = check(entry, Submission(doing("for _ in range(1000):\n    print('spam' * 20)"), "my.py"))
    assert len(flood.printed) < 10_000
    assert "Of what it printed, the middle is left out." in flood.notes


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_nothing_is_left_of_a_submission(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check(entry, Submission(doing("open('left', 'w').close()\nwhile True:\n    pass"), "my.py"))
    assert list(tmp_path.iterdir()) == []
    assert [path for path in Path("/proc").iterdir() if path.name.isdecimal() and str(tmp_path) in _folder(path)] == []


def _folder(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:  # it has ended, or is somebody else's
        return ""
