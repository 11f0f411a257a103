"""Scenes: what a trace looks like, as frames of keyed actors. Plain values; no picture is drawn here.

A `Scene` is a list of `Frame`. A frame holds *all* actors on the stage, each with a key: an actor that two frames
share is the same thing, and the player moves it from where it was to where it is. So a frame can be shown from any
other one, forwards, backwards or by a jump.

>>> cell = Part("cell", 0, 0, 22, 24, text="T", owner=0)
>>> here = Frame("0", Actor("A:0", 10, 10, 22, 24, (cell,)), change="A waits.")
>>> there = Frame("1", Actor("A:0", 90, 10, 22, 24, (cell,)), change="A runs.")
>>> scene = Scene("tiny", "Tiny", 120, 40, (here, there), requests=("A",))
>>> Scene.from_json(scene.to_json()) == scene
True

The JSON form holds differences between frames, and each distinct body once: a scene of many frames stays small.

What is too many to be actors, say 16,384 blocks, is a `Grid` of cells (`pagedlab.scenes.grid`): a frame says which of
them look otherwise than in the frame before it.

vLLM has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from pagedlab.errors import TraceError
from pagedlab.scenes.grid import Grid, Look, cells_from_json, cells_to_json, grid_from_json, grid_to_json
from pagedlab.scenes.question import Question as Question

FORMAT = "pagedlab-scene"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One mark of an actor, placed relative to it.

    Attributes
    ----------
    kind : {"cell", "chip", "swatch", "box", "bar", "text", "line"}
        A cell holds a token, a chip a number (a block id, say), a swatch shows a request's colour and pattern, a bar
        how many there are.
    x, y, w, h : float
        Place and size in stage units; for a line ``w`` and ``h`` are the way from its start to its end; a text
        is anchored at ``x``, its middle at ``y``.
    text : str
        What it says. Always shown as text, never as markup.
    style : str
        Space-separated style names, see ``player.css``: the state (``live``, ``stale``, ``free``, ``null``, ``hole``)
        or the role (``muted``, ``index``, ``end``).
    owner : int or None
        The request whose colour and pattern it bears, an index into `Scene.requests`.
    title : str
        The tooltip.
    """

    kind: str
    x: float
    y: float
    w: float = 0
    h: float = 0
    text: str = ""
    style: str = ""
    owner: int | None = None
    title: str = ""


@dataclass(frozen=True)
class Actor:
    """A thing on the stage.

    Attributes
    ----------
    key : str
        Its identity, the same in all frames.
    x, y, w, h : float
        Place and size in stage units.
    parts : tuple of Part
        What it looks like.
    layer : int
        Stacking: 0 behind, 1 things, 2 travellers.
    data : mapping of str to str or int
        Facts for tests and for whoever asks the object what it is: ``row``, ``request``, ``block`` …
    origin : (float, float) or None
        Where it comes from when it enters.
    """

    key: str
    x: float
    y: float
    w: float = 0
    h: float = 0
    parts: tuple[Part, ...] = ()
    layer: int = 1
    data: Mapping[str, str | int] = field(default_factory=dict)
    origin: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """A way that something goes, from (``x1``, ``y1``) to (``x2``, ``y2``); ``bend`` pushes its middle sideways."""

    x1: float
    y1: float
    x2: float
    y2: float
    bend: float = 0


@dataclass(frozen=True)
class Frame:
    """One moment: all actors, and in words what changed.

    Attributes
    ----------
    id : str
        Unique in the scene.
    actors : tuple of Actor
        Everything on the stage. (A single actor may be given bare.)
    change, detail : str
        The caption: the change, shown in bold, and what there is to say about it.
    subtitle : str
        Where we are.
    step, beat : int, str or None
        The step of the engine and its beat.
    event : str or None
        The kind of event that the frame shows, None for a frame that only sets the scene.
    source : (str, int) or None
        The line that runs: a key of `Scene.sources` and a line number in the file.
    arrows : tuple of Arrow
    focus : tuple of str
        Keys of the actors that change now; they get a ring.
    record : int
        The index of the last record of the trace that the frame includes; -1 before the first.
    trace : int
        Which of `Scene.traces` the record is of.
    cells : mapping of int to Look
        The cells of `Scene.grid` that look otherwise than in the frame before. They get a ring, but in the first frame.
    """

    id: str
    actors: tuple[Actor, ...] | Actor
    change: str
    detail: str = ""
    subtitle: str = ""
    step: int = -1
    beat: str | None = None
    event: str | None = None
    source: tuple[str, int] | None = None
    arrows: tuple[Arrow, ...] = ()
    focus: tuple[str, ...] = ()
    record: int = -1
    trace: int = 0
    cells: Mapping[int, Look] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.actors, Actor):
            object.__setattr__(self, "actors", (self.actors,))

    @property
    def stage(self) -> dict[str, Actor]:
        """The actors by key."""
        actors = (self.actors,) if isinstance(self.actors, Actor) else self.actors
        return {actor.key: actor for actor in actors}

    @property
    def caption(self) -> str:
        """The whole caption as one text."""
        return f"{self.change} {self.detail}".strip()


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a function that a scene lights up, and where vLLM 0.25.1 does the same.

    ``counterpart`` is ``(file, class and method)`` or None.
    """

    file: str
    name: str
    first_line: int
    lines: tuple[str, ...]
    counterpart: tuple[str, str] | None = None


@dataclass(frozen=True)
class Scene:
    """What a part of a trace looks like.

    Attributes
    ----------
    name, title : str
        ``"condense"``, ``"Condense"``.
    width, height : float
        The stage, in units of one CSS pixel or more: the player never draws it smaller.
    frames : tuple of Frame
    requests : tuple of str
        Request ids. The place of an id gives its colour and pattern.
    sources : mapping of str to Source
    event_names : mapping of str to str
        A word for each kind of event in the frames ("move"), for the player's "next move".
    asked : tuple of Question
        Predictions to make; `questions` binds them to the scene.
    traces : tuple of str
        The digests of the traces that it shows: scenes of one trace follow each other on a page. Empty for a scene
        that no trace was made into.
    grid : Grid or None
        Cells below the stage.

    Raises
    ------
    ValueError
        If a frame changes a cell that the grid does not have.
    """

    name: str
    title: str
    width: float
    height: float
    frames: tuple[Frame, ...]
    requests: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    event_names: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[Question, ...] = ()
    traces: tuple[str, ...] = ()
    grid: Grid | None = None

    def __post_init__(self) -> None:
        count = 0 if self.grid is None else self.grid.count
        for frame in self.frames:
            if outside := [cell for cell in frame.cells if not 0 <= cell < count]:
                raise ValueError(f"frame {frame.id!r} changes cell {outside[0]}: the grid has {count}, from 0 on")

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The scene's predictions, ready for `pagedlab.widgets.predict`."""
        bare = replace(self, asked=())
        return tuple(replace(question, scene=bare) for question in self.asked)

    def frame_of(self, event: str, nth: int = 0) -> int:
        """Return the index of the ``nth`` frame that shows an event of this kind.

        Raises
        ------
        TraceError
            If there is none.
        """
        found = [index for index, frame in enumerate(self.frames) if frame.event == event]
        if not 0 <= nth < len(found):
            kinds = sorted({frame.event for frame in self.frames if frame.event})
            raise TraceError(f"the scene shows {event} {len(found)} times, not {nth + 1}; it shows {', '.join(kinds)}")
        return found[nth]

    def cells_at(self, index: int) -> list[Look]:
        """Return how each cell of the grid looks in a frame; empty without a grid."""
        if self.grid is None:
            return []
        cells = [self.grid.look] * self.grid.count
        for frame in self.frames[: range(len(self.frames))[index] + 1]:
            for cell, look in frame.cells.items():
                cells[cell] = look
        return cells

    # --- JSON: bodies once, frames as differences ---------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the scene as JSON-ready data, as the player reads it."""
        bodies: dict[str, int] = {}
        body_list: list[Any] = []
        looks: dict[Look, int] = {} if self.grid is None else {self.grid.look: 0}

        def body_of(actor: Actor) -> int:
            data = [actor.w, actor.h, actor.layer, dict(actor.data), [_part_to_json(part) for part in actor.parts]]
            text = json.dumps(data, ensure_ascii=False, sort_keys=True)
            if text not in bodies:
                bodies[text] = len(body_list)
                body_list.append(data)
            return bodies[text]

        frames = []
        before: dict[str, list[Any]] = {}
        for frame in self.frames:
            now = {
                key: [key, body_of(actor), actor.x, actor.y, *(actor.origin or ())]
                for key, actor in frame.stage.items()
            }
            frames.append(
                _without_defaults(
                    {
                        "id": frame.id,
                        "set": [value for key, value in now.items() if before.get(key) != value],
                        "drop": [key for key in before if key not in now],
                        "change": frame.change,
                        "detail": frame.detail,
                        "subtitle": frame.subtitle,
                        "step": frame.step,
                        "beat": frame.beat,
                        "event": frame.event,
                        "source": frame.source and list(frame.source),
                        "arrows": [[a.x1, a.y1, a.x2, a.y2, a.bend] for a in frame.arrows],
                        "focus": list(frame.focus),
                        "record": frame.record,
                        "trace": frame.trace,
                        "cells": cells_to_json(frame.cells, looks),
                    }
                )
            )
            before = now
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "title": self.title,
            "width": self.width,
            "height": self.height,
            "requests": list(self.requests),
            "bodies": body_list,
            "frames": frames,
            "sources": {
                key: {
                    "file": source.file,
                    "name": source.name,
                    "first_line": source.first_line,
                    "lines": list(source.lines),
                    "vllm": source.counterpart and list(source.counterpart),
                }
                for key, source in self.sources.items()
            },
            "event_names": dict(self.event_names),
            "questions": [question.to_json() for question in self.asked],
            "traces": list(self.traces),
            **({} if self.grid is None else {"grid": grid_to_json(self.grid, looks)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scene:
        """Read what `to_json` wrote.

        Raises
        ------
        TraceError
            If the data is not a scene of this version.
        """
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise TraceError(
                f"not a scene: expected format {FORMAT!r} version {VERSION}, "
                f"got {data.get('format')!r} version {data.get('version')!r}"
            )
        grid, looks = grid_from_json(data["grid"]) if "grid" in data else (None, [])
        stage: dict[str, Actor] = {}
        frames = []
        for item in data["frames"]:
            for key in item.get("drop", ()):
                del stage[key]
            for key, body, x, y, *origin in item.get("set", ()):
                w, h, layer, facts, parts = data["bodies"][body]
                stage[key] = Actor(
                    key, x, y, w, h, tuple(map(_part_from_json, parts)), layer, facts, tuple(origin) if origin else None
                )
            source = item.get("source")
            frames.append(
                Frame(
                    item["id"],
                    tuple(sorted(stage.values(), key=lambda actor: actor.key)),
                    item["change"],
                    item.get("detail", ""),
                    item.get("subtitle", ""),
                    item.get("step", -1),
                    item.get("beat"),
                    item.get("event"),
                    tuple(source) if source else None,
                    tuple(Arrow(*arrow) for arrow in item.get("arrows", ())),
                    tuple(item.get("focus", ())),
                    item.get("record", -1),
                    item.get("trace", 0),
                    cells_from_json(item.get("cells", ""), looks),
                )
            )
        return cls(
            data["name"],
            data["title"],
            data["width"],
            data["height"],
            tuple(frames),
            tuple(data["requests"]),
            {
                key: Source(
                    source["file"],
                    source["name"],
                    source["first_line"],
                    tuple(source["lines"]),
                    tuple(source["vllm"]) if source["vllm"] else None,
                )
                for key, source in data["sources"].items()
            },
            dict(data["event_names"]),
            tuple(Question.from_json(question) for question in data["questions"]),
            tuple(data["traces"]),
            grid,
        )


def in_key_order(actors: Iterable[Actor]) -> tuple[Actor, ...]:
    """Return actors sorted by key, the order in which a frame keeps them.

    Raises
    ------
    ValueError
        If two share a key.
    """
    ordered = tuple(sorted(actors, key=lambda actor: actor.key))
    for first, second in pairwise(ordered):
        if first.key == second.key:
            raise ValueError(f"two actors share the key {first.key!r}")
    return ordered


def names_of_events(words: Mapping[str, str], frames: Iterable[Frame]) -> dict[str, str]:
    """Return the words for those kinds of event that the frames show."""
    shown = {frame.event for frame in frames}
    return {kind: word for kind, word in words.items() if kind in shown}


_DEFAULTS: Mapping[str, Any] = {
    "drop": [], "set": [], "detail": "", "subtitle": "", "step": -1, "beat": None, "event": None, "source": None,
    "arrows": [], "focus": [], "record": -1, "trace": 0, "cells": "",
}  # fmt: skip


def _without_defaults(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}


def _part_to_json(part: Part) -> list[Any]:
    values = [part.kind, part.x, part.y, part.w, part.h, part.text, part.style, part.owner, part.title]
    defaults: Sequence[Any] = (None, None, None, 0, 0, "", "", None, "")
    while values[-1] == defaults[len(values) - 1]:
        values.pop()
    return values


def _part_from_json(values: Sequence[Any]) -> Part:
    return Part(*values)
