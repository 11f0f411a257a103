"""A trace and its file format (JSON Lines: one header, then one record a line).

>>> from pagedlab.events import StepStarted
>>> line = SourceLine(function="engine.py:LLMEngine.step", line=12)
>>> trace = Trace.from_records([Record(0, None, StepStarted(0), line)])
>>> Trace.loads(trace.dumps()) == trace
True

A trace is self-contained: it carries the text of every function that emitted an event, so that a scene made
from a file shows the source as it was when the trace was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pagedlab.errors import TraceError
from pagedlab.events import BEATS, Event, StepStarted, event_from_dict, event_to_dict
from pagedlab.files import replace_file

FORMAT = "pagedlab-trace"
VERSION = 3

E = TypeVar("E", bound=Event)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the library: ``function`` is a key of `Trace.sources`, ``line`` counts from 1 in the file."""

    function: str
    line: int


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """The text of one function as it was when the trace was recorded.

    ``file`` is relative to the repository, ``first_line`` counts from 1, ``lines`` have their common
    indentation removed.
    """

    file: str
    name: str
    first_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One event, when it happened and which line asked for it.

    ``step`` is -1 before the first step; ``beat`` is None between beats.
    """

    step: int
    beat: str | None
    event: Event
    source: SourceLine | None


@dataclass(frozen=True)
class Trace:
    """An immutable recording.

    Attributes
    ----------
    records : tuple of Record
        In the order in which things happened.
    sources : mapping of str to SourceFunction
        The functions that `SourceLine.function` names.
    vocabulary : mapping of int to str
        The text of every token id that appears, where the engine had a tokenizer.
    settings : mapping of str to JSON value
        The engine's settings: ``block_size``, ``num_blocks``, ``max_num_seqs``, ``max_num_batched_tokens``,
        ``max_model_len``, ``model``, the model's shape, ``kv_cache_groups`` (`LLMEngine.describe`).
    """

    records: tuple[Record, ...]
    sources: Mapping[str, SourceFunction] = field(default_factory=dict)
    vocabulary: Mapping[int, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_records(cls, records: Iterable[Record], **parts: Any) -> Trace:
        return cls(tuple(records), **parts)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def num_steps(self) -> int:
        """How many steps the recording saw begin."""
        return sum(isinstance(record.event, StepStarted) for record in self.records)

    def of_step(self, step: int) -> tuple[Record, ...]:
        """Return the records of one step.

        Raises
        ------
        TraceError
            If the trace has no such step.
        """
        records = tuple(record for record in self.records if record.step == step)
        if not records:
            steps = sorted({record.step for record in self.records})
            known = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it is empty"
            raise TraceError(f"the trace has no step {step}: {known}")
        return records

    def events(self, kind: type[E]) -> list[E]:
        """Return all events of one class, in order."""
        return [record.event for record in self.records if isinstance(record.event, kind)]

    def in_step(self, step: int, kind: type[E]) -> Iterator[tuple[int, Record, E]]:
        """Give the events of one class in one step, each behind its record and that record's index.

        Raises
        ------
        TraceError
            If the trace has no such step.
        """
        has_begun = False
        for index, record in enumerate(self.records):
            if record.step == step:
                has_begun = True
                if isinstance(record.event, kind):
                    yield index, record, record.event
        if not has_begun:
            self.of_step(step)  # says which steps there are

    def by_step(self, kind: type[E]) -> dict[int, E]:
        """Return the event of one class in each step that has one, the last if there are several."""
        return {record.step: record.event for record in self.records if isinstance(record.event, kind)}

    # --- file format ------------------------------------------------------------------------------------

    def dumps(self) -> str:
        """Return the trace as JSON Lines text."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "num_records": len(self.records),
            "settings": dict(self.settings),
            "vocabulary": {str(token): text for token, text in self.vocabulary.items()},
            "sources": {
                key: {"file": f.file, "name": f.name, "first_line": f.first_line, "lines": list(f.lines)}
                for key, f in self.sources.items()
            },
        }
        lines = [header, *(_record_to_dict(record) for record in self.records)]
        # ASCII only: whatever is in an id, a lone surrogate too, can be written and read again.
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    @classmethod
    def loads(cls, text: str) -> Trace:
        """Read what `dumps` wrote.

        Raises
        ------
        TraceError
            If the text is not such a trace; the message names the line.
        """
        lines = text.splitlines()
        try:
            header = json.loads(lines[0] if lines else "")
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"line 1 is not JSON ({error}): is this a pagedlab trace?") from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise TraceError(f'line 1 is not the header of a trace: expected "format": "{FORMAT}"')
        if header.get("version") != VERSION:
            raise TraceError(f"trace version {header.get('version')!r} is not supported: this reads version {VERSION}")
        records = []
        try:
            num_records = _typed(header["num_records"], int)
            sources = {
                key: SourceFunction(
                    _typed(f["file"], str),
                    _typed(f["name"], str),
                    _typed(f["first_line"], int),
                    tuple(_typed(line, str) for line in f["lines"]),
                )
                for key, f in header["sources"].items()
            }
            vocabulary = {int(token): _typed(text, str) for token, text in header["vocabulary"].items()}
            settings = _typed(header["settings"], dict)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"line 1: the header is damaged ({type(error).__name__}: {error})") from None
        for number, line in enumerate(lines[1:], start=2):
            try:
                records.append(_record_from_dict(json.loads(line)))
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise TraceError(f"line {number} is damaged ({type(error).__name__}: {error})") from None
        if len(records) != num_records:
            raise TraceError(f"the trace is cut: it should have {num_records} records and has {len(records)}")
        return cls(tuple(records), sources, vocabulary, settings)

    def save(self, path: str | Path) -> Path:
        """Write the trace to ``path`` and return it. A file that is there is replaced only when all is written."""
        path = Path(path)
        replace_file(path, self.dumps().encode("ascii"))
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace from ``path``.

        Raises
        ------
        TraceError
            If the file is not a trace. ``OSError`` if it cannot be read.
        """
        try:
            return cls.loads(Path(path).read_text(encoding="utf-8"))
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        except UnicodeDecodeError:
            raise TraceError(f"{path}: not a UTF-8 text file, so not a trace") from None


def _record_to_dict(record: Record) -> dict[str, Any]:
    source = record.source
    return {
        "step": record.step,
        "beat": record.beat,
        "source": None if source is None else [source.function, source.line],
        "event": event_to_dict(record.event),
    }


def _record_from_dict(data: Mapping[str, Any]) -> Record:
    beat, source = data["beat"], data["source"]
    if beat is not None and beat not in BEATS:
        raise ValueError(f"there is no beat {beat!r}")
    line = None
    if source is not None:
        function, number = _typed(source, list)
        line = SourceLine(_typed(function, str), _typed(number, int))
    return Record(_typed(data["step"], int), beat, event_from_dict(_typed(data["event"], dict)), line)


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} should be of type {kind.__name__}")
    return value
