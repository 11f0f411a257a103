"""What a learner has done: exercises tried and passed, hints used, predictions right. A file on their machine.

>>> import tempfile
>>> book = ProgressBook(Path(tempfile.mkdtemp()) / "progress.json")
>>> book.count_try("condense", passed=False)
>>> book.count_try("condense", passed=True)
>>> book.read().exercises["condense"]
ExerciseProgress(tries=2, passed=True, hints=0, topic='', level=0)

Two notebooks may write at once: a lock lets them do so one after the other, and each writes a new file that replaces
the old one in one go, so a crash leaves the old. A file that cannot be read is kept beside the new one. Nothing is
sent anywhere.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.files import replace_file

FORMAT, VERSION = "pagedlab-progress", 1
PATH_VARIABLE = "PAGEDLAB_PROGRESS"
_LOCK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ExerciseProgress:
    """One exercise.

    Attributes
    ----------
    tries : int
        How often it was checked.
    passed : bool
        Whether it ever passed.
    hints : int
        How many hints were asked for.
    topic, level : str, int
        What the last hint was about, and its level; 0 before the first.
    """

    tries: int = 0
    passed: bool = False
    hints: int = 0
    topic: str = ""
    level: int = 0


@dataclass(frozen=True, slots=True)
class PredictionProgress:
    """One question of a scene: how often it was answered, and whether the first answer and the last were right."""

    tries: int = 0
    right_at_first: bool = False
    right: bool = False


@dataclass(frozen=True)
class Progress:
    """All of it."""

    exercises: dict[str, ExerciseProgress] = field(default_factory=dict)
    predictions: dict[str, PredictionProgress] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> Progress:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is something else.
        """
        try:
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(f"not {FORMAT} of version {VERSION}")
            exercises = {str(name): ExerciseProgress(**item) for name, item in data["exercises"].items()}
            predictions = {str(name): PredictionProgress(**item) for name, item in data["predictions"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not {FORMAT}: {error}") from None
        return cls(exercises, predictions)


def progress_path() -> Path:
    """Return where the file is: what ``PAGEDLAB_PROGRESS`` says, or in the user's data folder."""
    if given := os.environ.get(PATH_VARIABLE):
        return Path(given)
    if importlib.util.find_spec("platformdirs") is None:
        raise ExerciseError('progress is kept with platformdirs and filelock: pip install "pagedlab[lab]"')
    import platformdirs

    return Path(platformdirs.user_data_dir("pagedlab", appauthor=False)) / "progress.json"


class ProgressBook:
    """The file.

    Parameters
    ----------
    path : Path, optional
        By default the learner's own (`progress_path`).

    Attributes
    ----------
    kept_aside : Path or None
        Where a file that could not be read has been put.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or progress_path()
        self.kept_aside: Path | None = None

    def read(self) -> Progress:
        """Return what is in the file; nothing, if there is none."""
        with self._locked():
            return self._read()

    def count_try(self, name: str, *, passed: bool) -> None:
        """Count a check of an exercise. What once passed stays passed."""
        with self._changing() as progress:
            before = progress.exercises.get(name, ExerciseProgress())
            progress.exercises[name] = replace(before, tries=before.tries + 1, passed=before.passed or passed)

    def show_hint(self, name: str, topic: str, level: int, *, asked: bool) -> None:
        """Remember which hint was shown last, and count it if the learner asked for it."""
        with self._changing() as progress:
            before = progress.exercises.get(name, ExerciseProgress())
            if not asked and topic == before.topic:
                level = max(level, before.level)  # the same mistake again: go on where the hints were
            progress.exercises[name] = replace(before, topic=topic, level=level, hints=before.hints + asked)

    def count_prediction(self, question: str, *, right: bool) -> None:
        """Count an answer to a question of a scene."""
        with self._changing() as progress:
            before = progress.predictions.get(question, PredictionProgress())
            first = right if before.tries == 0 else before.right_at_first
            progress.predictions[question] = PredictionProgress(before.tries + 1, first, right)

    def reset(self) -> None:
        """Forget everything."""
        with self._locked():
            self.path.unlink(missing_ok=True)

    # --- the file -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Progress]:
        with self._locked():
            progress = self._read()
            yield progress
            self._write(progress)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if importlib.util.find_spec("filelock") is None:
            raise ExerciseError('progress is kept with filelock: pip install "pagedlab[lab]"')
        import filelock

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self.path}.lock", timeout=_LOCK_SECONDS):
                yield
        except filelock.Timeout:
            raise ExerciseError(f"{self.path} has been in use for {_LOCK_SECONDS} s: is a notebook stuck?") from None
        except OSError as error:
            raise ExerciseError(
                f"progress cannot be kept in {self.path}: {error.strerror or error}. "
                f"Set {PATH_VARIABLE} to a file that can be written"
            ) from None

    def _read(self) -> Progress:
        try:
            return Progress.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Progress()
        except ValueError:  # also: not UTF-8, not JSON
            self.kept_aside = self._free_name()
            self.path.replace(self.kept_aside)
            return Progress()

    def _free_name(self) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        return aside

    def _write(self, progress: Progress) -> None:
        text = json.dumps(progress.to_json(), indent=1, ensure_ascii=False)
        replace_file(self.path, text.encode(), private=True)
