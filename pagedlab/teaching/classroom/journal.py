"""The journal of a grading run: a line for each mark, written as soon as there is one, so that nothing is graded twice.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "grades.csv.journal"
>>> with Journal(path) as journal:
...     journal.add({"key": "1f", "student": "ada", "exercise": "condense", "passed": True})
>>> with path.open("a") as file:
...     _ = file.write('{"key": "2e", "stu')  # the machine went down here
>>> with Journal(path) as journal:
...     [mark["student"] for mark in journal.marks]
['ada']

vLLM has no counterpart.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.grading import Mark


class Journal:
    """A file of JSON lines. Use it in a ``with`` statement.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    marks : list of Mark
        What was there at the start, and what has been added.

    Raises
    ------
    ExerciseError
        If another run has it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: list[Mark] = []
        self._lock = filelock.FileLock(f"{path}.lock", timeout=0)

    def __enter__(self) -> Journal:
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise ExerciseError(
                f"another run is grading into {self.path}: wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise ExerciseError(f"{self.path} cannot be written: {error.strerror or error}") from None
        try:
            whole = self._read()
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.truncate(whole)
            self._file.seek(whole)
        except OSError as error:
            self._lock.release()
            raise ExerciseError(f"{self.path} cannot be written: {error.strerror or error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def add(self, mark: Mark) -> None:
        """Write a mark; it is on the disk when this returns."""
        self.marks.append(mark)
        self._file.write(json.dumps(mark, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the marks; return how many bytes are whole lines: a last one that was cut off is not."""
        if not self.path.exists():
            return 0
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        self.marks += filter(None, map(_mark_in, data[:whole].split(b"\n")))
        return whole


def _mark_in(line: bytes) -> dict[str, Any] | None:
    try:
        mark = json.loads(line)
    except ValueError:
        return None
    return mark if isinstance(mark, dict) and "key" in mark else None
