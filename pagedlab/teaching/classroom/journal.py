"""The journal of a grading run: a line for each mark, written as soon as there is one, so that nothing is graded twice.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "grades.csv.journal"
>>> with Journal(path) as journal:
...     journal.add({**dict.fromkeys(FIELDS), "student": "ada"})
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
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.grading import FIELDS, Mark

_HEADER = {"format": "pagedlab-grades", "version": 1}


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
            if whole == 0:
                self._write(_HEADER)
        except ExerciseError:
            self._lock.release()
            raise
        except OSError as error:
            self._lock.release()
            raise ExerciseError(f"{self.path} cannot be written: {error.strerror or error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._lock.release()  # its file stays: whoever waits for it must not be left with another one

    def add(self, mark: Mark) -> None:
        """Write a mark; it is on the disk when this returns."""
        self.marks.append(mark)
        self._write(mark)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the marks; return how many bytes are whole lines: a last one that was cut off is not.

        Raises
        ------
        ExerciseError
            If it is not a journal.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        if not data:
            return 0
        whole = data.rfind(b"\n") + 1
        first, *lines = data[:whole].split(b"\n")
        if _read_line(first) != _HEADER:
            raise ExerciseError(f"{self.path} is no journal of this version of pagedlab: give another --out")
        self.marks += [mark for mark in map(_read_line, lines) if mark.keys() >= FIELDS]
        return whole


def _read_line(line: bytes) -> dict[str, Any]:
    """Return what a line says; nothing if it is damaged."""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
