"""Putting a scene together from the frames of a walk: its sources, the names of its events, its questions, its trace.

vLLM has no counterpart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from pagedlab.scenes.counterparts import sources_of
from pagedlab.scenes.grid import Grid
from pagedlab.scenes.scene import Frame, Question, Scene, names_of_events
from pagedlab.trace import Record, SourceLine, Trace


def assemble(
    trace: Trace,
    records: Iterable[Record],
    name: str,
    title: str,
    size: tuple[float, float],
    frames: tuple[Frame, ...],
    requests: Iterable[str],
    event_names: Mapping[str, str],
    ask: Callable[[Scene], Iterable[Question]],
    grid: Grid | None = None,
) -> Scene:
    """Return the scene of ``records``, with what ``ask`` asks of it.

    Parameters
    ----------
    trace : Trace
        Holds the source of the functions that caused the records.
    records : iterable of Record
    name, title : str
    size : tuple of float
        Width and height of the stage.
    frames : tuple of Frame
    requests : iterable of str
        In the order of their colours.
    event_names : mapping of str to str
        What kinds of event are called in "next …"; those that no frame shows are left out.
    ask : callable
        From the scene without questions to its questions.
    grid : Grid, optional
    """
    width, height = size
    scene = Scene(
        name,
        title,
        width,
        height,
        frames,
        tuple(requests),
        sources_of(trace, records),
        names_of_events(event_names, frames),
        traces=(digest(trace),),
        grid=grid,
    )
    return replace(scene, asked=tuple(ask(scene)))


def line_with(trace: Trace, record: Record, words: str) -> SourceLine | None:
    """Return the line of a record's function that holds these words: it ran too, and emitted nothing; or None."""
    source = trace.sources.get(record.source.function) if record.source is not None else None
    if source is None or record.source is None:
        return None
    found = (at for at, line in enumerate(source.lines, source.first_line) if words in line)
    return next((SourceLine(record.source.function, at) for at in found), None)


def by_kind(numbered: Iterable[tuple[int, Record]]) -> Iterator[list[tuple[int, Record]]]:
    """Put neighbours together whose events are of one kind."""
    kind: Callable[[tuple[int, Record]], Any] = lambda item: type(item[1].event)  # noqa: E731
    for _, run in groupby(numbered, key=kind):
        yield list(run)


def digest(trace: Trace) -> str:
    """Return what tells a trace from others: the same for equal traces, one that was saved and loaded too.

    >>> from pagedlab.events import StepStarted
    >>> first, second = (Trace((Record(0, None, StepStarted(index), None),)) for index in (0, 1))
    >>> digest(first) == digest(Trace.loads(first.dumps())), digest(first) == digest(second)
    (True, False)
    """
    # A repr is much cheaper than the file's JSON, and says as much: records are values of values.
    text = repr((trace.records, sorted(trace.settings.items())))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
