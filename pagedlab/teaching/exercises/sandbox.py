"""The judge's end of a submission's process: start it, ask it, and end it when its time is up.

    with Sandbox(exercise) as sandbox:
        sandbox.load(Submission(source, "my.py"))
        sandbox.answer({"number": 2})         # an Answer

The process gets calls and gives values; it never holds the reference, what is expected or the verdict, so there is
nothing in it to fake. What confines it is in `pagedlab.teaching.exercises.confinement`.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.answers import Answer, Raised
from pagedlab.teaching.exercises.confinement import COMPILING, Confinement
from pagedlab.teaching.exercises.encoding import decode, encode, read_message, write_message
from pagedlab.teaching.exercises.exercise import Exercise, Inputs
from pagedlab.teaching.exercises.recording import Step

_START_SECONDS = 60
"""How long a process may take to be ready: torch is large, and a machine may be busy."""

_GRACE_SECONDS = 0.5
"""What a process gets after its time, to say where it is."""

_CALLS_TIMED = 5
"""So many calls are made for one message when they are timed."""

_RESOLUTION = 0.02
"""A call that takes less than this part of its message cannot be told from nothing."""

_MAX_NAME, _MAX_TEXT = 200, 2000
"""Of an exception so much of its type's name and of its text is kept."""

_KEPT_OUTPUT = 4000
"""Of what a submission prints, so many bytes of the beginning and of the end are kept."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A learner's source.

    Attributes
    ----------
    source : str
    filename : str
        What error messages call it.
    prelude : str
        Imports to run first.
    only_definitions : bool
        Whether to leave out what is neither import, definition nor assignment: the rest of a notebook's cell.
    elsewhere : frozenset of str
        Names that it uses and that other cells have defined.
    """

    source: str
    filename: str = "submission.py"
    prelude: str = ""
    only_definitions: bool = False
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of loading a submission.

    Attributes
    ----------
    problem : {"", "syntax", "import", "raised", "missing", "not_callable", "signature"}
        Why it cannot be called; empty if it can.
    raised : Raised or None
        The exception, if one stopped it.
    found : tuple of str
        What there is instead: the names that it defines, its type, how it would be called.
    """

    problem: str = ""
    raised: Raised | None = None
    found: tuple[str, ...] = ()

    @classmethod
    def from_reply(cls, reply: dict[str, Any]) -> Loaded:
        """Read what the process says."""
        if "error" in reply:
            raised = raised_of(reply["error"])
            problem = "syntax" if reply["error"]["syntax"] else "import" if reply["error"]["import"] else "raised"
            return cls(problem, raised)
        for problem in ("missing", "not_callable", "signature"):
            if problem in reply:
                found = tuple(str(item)[:200] for item in reply[problem])
                return cls(problem, None, found if problem == "missing" else (found[0],))
        return cls()


class SubmissionEndedError(Exception):
    """The process of a submission has ended, or had to be ended.

    Attributes
    ----------
    why : {"timeout", "overtime", "exit", "signal", "protocol"}
        Overtime is when all calls together took too long.
    code : int
        The exit code or the signal.
    line : int or None
        The line that ran when time was up.
    seconds : float
        How much time there was.
    """

    def __init__(self, why: str, code: int = 0, line: int | None = None, seconds: float = 0.0) -> None:
        super().__init__(why, code, line, seconds)
        self.why, self.code, self.line, self.seconds = why, code, line, seconds


class Sandbox:
    """A process for one submission. Use it in a ``with`` statement.

    Parameters
    ----------
    exercise : Exercise
    hidden : sequence of Path
        Folders and files that the submission must not see.
    """

    def __init__(self, exercise: Exercise, hidden: tuple[Path, ...] = ()) -> None:
        self._exercise, self._hidden = exercise, hidden
        self._filename = ""
        self._start()

    def _start(self) -> None:
        self._killed = self._garbled = False
        self._seconds = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="pagedlab-", ignore_cleanup_errors=True)
        limits = self._exercise.limits
        settings = {
            "form": self._exercise.form,
            "hidden": [str(path) for path in self._hidden],
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "pagedlab.teaching.exercises.worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,
            env=_environment(self._folder.name),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._requests: BinaryIO = self._process.stdin  # type: ignore[assignment]
        self._output = _Output(self._process.stderr)  # type: ignore[arg-type]
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._is_ready = False

    def ready(self) -> None:
        """Wait until the process has started; meanwhile its judge may have had something else to do.

        Raises
        ------
        ExerciseError
            If it does not start.
        """
        if self._is_ready:
            return
        try:
            hello = self._reply(_START_SECONDS)
        except SubmissionEndedError as ended:
            self.close()
            raise ExerciseError(
                f"the process for the submission did not start ({ended.why} {ended.code}): {self.printed.strip()}"
            ) from None
        self._seconds = 0.0  # what starting took does not count
        self._confinement, self._tier = Confinement(**hello["confinement"]), str(hello["tier"])
        self._is_ready = True

    @property
    def confinement(self) -> Confinement:
        """What the process is kept from."""
        self.ready()
        return self._confinement

    @property
    def tier(self) -> str:
        """What runs the submission's kernels: ``"interpreter"`` or ``"cuda"``; ``"numpy"`` if it has none."""
        self.ready()
        return self._tier

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def load(self, submission: Submission) -> Loaded:
        """Load a source, again if it was loaded.

        Raises
        ------
        SubmissionEndedError
            If the process did not survive it.
        """
        self.ready()
        exercise, self._filename = self._exercise, submission.filename
        reply = self._ask(
            exercise.limits.load_seconds,
            do="load",
            name=exercise.function,
            source=submission.source,
            filename=submission.filename,
            prelude=submission.prelude,
            only_definitions=submission.only_definitions,
            parameters=exercise.parameters,
            drive=textwrap.dedent(inspect.getsource(exercise.drive)) if exercise.drive else "",
            drive_name=exercise.drive.__name__ if exercise.drive else "",
        )
        try:
            return Loaded.from_reply(reply)
        except (LookupError, TypeError, ValueError):
            raise SubmissionEndedError("protocol") from None

    def restart(self, submission: Submission) -> None:
        """Begin anew, in another process, with a submission that loads.

        Raises
        ------
        SubmissionEndedError
            If it does not load this time.
        """
        self.close()
        self._start()
        self.load(submission)

    def answer(self, inputs: Inputs) -> Answer:
        """Call the submission once.

        Raises
        ------
        SubmissionEndedError
            If the process did not survive it.
        """
        reply = self._ask(do="call", inputs=self._encoded(inputs), times=1)
        try:
            if "error" in reply:
                return Answer(None, inputs, raised_of(reply["error"]))
            after = dict(zip(inputs, map(decode, reply["inputs"]), strict=True))
            return Answer(decode(reply["returned"]), after, None, tuple(map(str, reply["warnings"])))
        except (ExerciseError, LookupError, TypeError, ValueError):
            raise SubmissionEndedError("protocol") from None

    def seconds(self, inputs: Inputs, repeats: int) -> float:
        """Call the submission; return how long that takes at least, by our clock and without the messages.

        Raises
        ------
        SubmissionEndedError
            If the process did not survive it.
        """
        encoded = self._encoded(inputs)
        # The shortest of each: the difference of two that a busy machine has delayed could be anything.
        calls = min(self._timed("call", encoded) for _ in range(repeats))
        echoes = min(self._timed("echo", encoded) for _ in range(repeats))
        return max(calls - echoes, _RESOLUTION * echoes) / _CALLS_TIMED

    def _timed(self, do: str, encoded: list[Any]) -> float:
        begin = time.perf_counter()
        self._ask(do=do, inputs=encoded, times=_CALLS_TIMED)
        return time.perf_counter() - begin

    def record(self, inputs: Inputs) -> tuple[Step, ...]:
        """Call the submission once more and return every change to what the exercise watches.

        Raises
        ------
        SubmissionEndedError
            If the process did not survive it.
        """
        reply = self._ask(do="record", inputs=self._encoded(inputs), watch=self._exercise.watched)
        try:
            steps = tuple(Step(None if line is None else int(line), dict(state)) for line, state in reply["steps"])
            for step in steps:
                _ = step.values
        except (ExerciseError, LookupError, TypeError, ValueError):
            raise SubmissionEndedError("protocol") from None
        return steps

    @property
    def printed(self) -> str:
        """What the submission has printed, without what it said when its time was up."""
        return _PLACE.sub("", self._output.text())

    @property
    def printed_all(self) -> bool:
        """Whether that is all of it."""
        return self._output.whole

    def _line_at_the_end(self) -> int | None:
        """Read which line of the submission ran when time was up: the innermost is written first."""
        if (place := _PLACE.search(self._output.text())) is None:
            return None
        line = re.search(rf'File "{re.escape(self._filename)}", line (\d+) in', place[0])
        return int(line[1]) if line else None

    @staticmethod
    def _encoded(inputs: Inputs) -> list[Any]:
        return [[name, encode(value, strict=True)] for name, value in inputs.items()]

    def _ask(self, seconds: float = 0.0, **request: Any) -> dict[str, Any]:
        limits = self._exercise.limits
        patience = COMPILING if self.tier == "cuda" else 1
        seconds = seconds or patience * limits.call_seconds
        if self._seconds > (total := patience * limits.total_seconds):
            raise SubmissionEndedError("overtime", seconds=total)
        try:
            write_message(self._requests, {**request, "seconds": seconds})
        except (BrokenPipeError, OSError):
            raise self._ended() from None
        return self._reply(seconds + _GRACE_SECONDS)

    def _reply(self, seconds: float) -> dict[str, Any]:
        begin = time.perf_counter()
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            self._kill()
            self._output.join()
            line = self._line_at_the_end()
            raise SubmissionEndedError("timeout", line=line, seconds=seconds - _GRACE_SECONDS) from None
        if reply is None:
            raise self._ended()
        self._seconds += time.perf_counter() - begin
        return reply

    def _ended(self) -> SubmissionEndedError:
        """Say how the process has ended; one that has broken its pipe is ended."""
        if self._garbled:
            return SubmissionEndedError("protocol")
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._kill()
            return SubmissionEndedError("protocol")
        self._output.join()
        return SubmissionEndedError("signal", -code) if code < 0 else SubmissionEndedError("exit", code)

    # --- the process ------------------------------------------------------------------------------------------------

    def _read(self, stream: BinaryIO) -> None:
        try:
            while (message := read_message(stream)) is not None:
                self._replies.put(message)
        except (ExerciseError, OSError, ValueError):
            self._garbled = True
            self._kill()  # what it writes to our pipe is not ours to read
        self._replies.put(None)

    def _kill(self) -> None:
        """End the process and all that it has started."""
        if self._killed:
            return
        self._killed = True
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, and remove its folder."""
        self._kill()
        self._reader.join(1)
        self._output.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._folder.cleanup()


def raised_of(error: Any) -> Raised:
    """Read what a process says of an exception."""
    frames = tuple((int(line), str(name)[:_MAX_NAME]) for line, name in error["frames"])
    return Raised(str(error["type"])[:_MAX_NAME], str(error["text"])[:_MAX_TEXT], frames)


class _Output:
    """Reads what a process prints as long as it prints, and keeps the beginning and the end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._head = self._tail = b""
        self.whole = True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._stream.read1(1 << 16):  # type: ignore[attr-defined]
                room = _KEPT_OUTPUT - len(self._head)
                self._head += data[:room]
                rest = self._tail + data[room:]
                self._tail = rest[-_KEPT_OUTPUT:]
                self.whole = self.whole and len(rest) <= _KEPT_OUTPUT

    def text(self) -> str:
        gap = b"" if self.whole else b"\n[...]\n"
        return (self._head + gap + self._tail).decode(errors="replace")

    def join(self) -> None:
        self._thread.join(1)


_PLACE = re.compile(r"^Timeout \(.*\)!\n.*", flags=re.MULTILINE | re.DOTALL)
"""What faulthandler writes, at the end of all output."""


def _environment(folder: str) -> dict[str, str]:
    """Return the few variables that Python and its libraries need: nothing of the learner's own gets in."""
    kept = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
    own = {
        "HOME": folder,
        "TMPDIR": folder,
        "TRITON_CACHE_DIR": folder,
        "TRITON_HOME": folder,
        **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    return {name: os.environ[name] for name in kept if name in os.environ} | own
