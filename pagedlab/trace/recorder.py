"""`record(engine)`: watch a running engine and keep what it did.

    recorder = record(engine)
    engine.step()
    trace = recorder.stop()

The engine calls its observer with an event; the recorder adds the step, the beat and the source line. The
source line is that of the *caller* of the method that emitted the event: the statement that asked for it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Protocol

from pagedlab.events import BeatStarted, Event, Observer, RequestAdded, StepFinished, StepStarted, TokenSampled
from pagedlab.trace.store import Record, SourceFunction, SourceLine, Trace

_PACKAGE = Path(__file__).resolve().parents[1]


_source_lines = functools.lru_cache(maxsize=1024)(inspect.getsourcelines)
"""Reading a function from its file takes longer than recording a step; engines come and go, and run the same code."""


class Observable(Protocol):
    """What `record` needs of an engine."""

    observer: Observer | None

    def describe(self) -> Mapping[str, Any]:
        """Return the settings that go into `Trace.settings`."""

    def token_text(self, token_id: int) -> str | None:
        """Return the text of a token, or None if there is no tokenizer."""


@functools.cache
def _is_of_the_engine(file: str) -> bool:
    path = Path(file).resolve()
    return path.is_relative_to(_PACKAGE) and path != Path(__file__).resolve()


class Recorder:
    """An observer that keeps every event. Also a context manager that stops at the end of its block."""

    def __init__(self, engine: Observable) -> None:
        self._engine = engine
        self._previous = engine.observer
        self._records: list[Record] = []
        self._sources: dict[str, SourceFunction] = {}
        self._keys: dict[CodeType, str | None] = {}
        self._step = -1
        self._beat: str | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self._step, self._beat = event.index, None
        elif isinstance(event, BeatStarted):
            self._beat = event.beat
        elif isinstance(event, StepFinished):
            self._beat = None
        self._records.append(Record(self._step, self._beat, event, self._source_line()))
        if self._previous is not None:
            self._previous(event)

    def _source_line(self) -> SourceLine | None:
        # Up the stack: recorders and whatever wraps them, the method that emitted, the statement that asked for it.
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not _is_of_the_engine(frame.f_code.co_filename):
            frame = frame.f_back
        frame = frame.f_back if frame is not None else None
        key = self._key(frame.f_code) if frame is not None else None
        return None if frame is None or key is None else SourceLine(key, frame.f_lineno)

    def _key(self, code: CodeType) -> str | None:
        """Return the name under which ``code``'s text is kept; None if it is not the library's own."""
        if code not in self._keys:
            self._keys[code] = self._remember(code)
        return self._keys[code]

    def _remember(self, code: CodeType) -> str | None:
        path = Path(code.co_filename)
        try:
            relative = path.resolve().relative_to(_PACKAGE)
            lines, first_line = _source_lines(code)
        except (ValueError, OSError, TypeError):
            return None  # a notebook cell, or a function whose text is not on disk
        file = f"pagedlab/{relative.as_posix()}"
        key = f"{file}:{code.co_qualname if sys.version_info >= (3, 11) else code.co_name}"
        text = textwrap.dedent("".join(lines)).splitlines()
        self._sources[key] = SourceFunction(file, key.rpartition(":")[2], first_line, tuple(text))
        return key

    @property
    def trace(self) -> Trace:
        """What has been recorded so far. Recording goes on."""
        token_ids = sorted(set(self._token_ids()))
        texts = {token: self._engine.token_text(token) for token in token_ids}
        return Trace(
            tuple(self._records),
            dict(self._sources),
            {token: text for token, text in texts.items() if text is not None},
            dict(self._engine.describe()),
        )

    def _token_ids(self) -> Iterator[int]:
        for record in self._records:
            match record.event:
                case RequestAdded(prompt_token_ids=prompt):
                    yield from prompt
                case TokenSampled(token_id=token):
                    yield token

    def stop(self) -> Trace:
        """Detach from the engine, leave it to who observed it before, and return the trace."""
        if self._engine.observer is self:
            self._engine.observer = self._previous
        return self.trace

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def record(engine: Observable) -> Recorder:
    """Attach a recorder to ``engine`` and return it. Who observes the engine already goes on to see every event.

    Parameters
    ----------
    engine : LLMEngine
        Any engine; what it did before is not in the trace.

    Returns
    -------
    Recorder
        Call `Recorder.stop` (or leave its ``with`` block) for the trace.
    """
    recorder = Recorder(engine)
    engine.observer = recorder
    return recorder
