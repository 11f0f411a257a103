"""The general scene of an exercise: the watched values of both sides, entry by entry, and your line that runs.

An entry in which the sides differ stands out in both; a ring goes around what the step has changed.

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedlab.scenes.marks import Gap, elide, gap, text
from pagedlab.scenes.scene import Actor, Frame, Part, Scene, Source, in_key_order
from pagedlab.teaching.exercises.playing import Played
from pagedlab.teaching.exercises.recording import Step

_MAX_FRAMES = 80
_MAX_LINES = 12
"""Rows of one table, or entries of one dict, that are drawn."""

_MAX_SOURCE = 90
_SIDE_W, _LEFT, _MIDDLE = 330, 12, 24
_TOP, _HEAD, _PITCH, _CHIP_H = 40, 24, 30, 24
_INDEX_W = 34


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the stage: a value's name, the row or key it stands for, and its entries."""

    key: str
    label: str
    entries: tuple[Any, ...]


def side_by_side(played: Played) -> Scene:
    """Return the scene of both recordings.

    Parameters
    ----------
    played : Played

    Returns
    -------
    Scene
    """
    return _Stage(played).scene()


class _Stage:
    def __init__(self, played: Played) -> None:
        self.played = played
        mine, theirs = played.last_common
        self.yours, self.reference = played.yours[mine:], played.reference[theirs:]
        self.num_frames = min(max(len(self.yours), len(self.reference)), _MAX_FRAMES)
        self.y, self.height = self._places()

    def scene(self) -> Scene:
        exercise = self.played.exercise
        return Scene(
            name=exercise.name,
            title=f"{exercise.title}: yours beside the reference",
            width=2 * _SIDE_W + _MIDDLE + 2 * _LEFT,
            height=self.height,
            frames=tuple(self._frame(number) for number in range(self.num_frames)),
            sources={"yours": self._source()},
            event_names={"change": "change"},
        )

    # --- places -----------------------------------------------------------------------------------------------------

    def _places(self) -> tuple[dict[str, float], float]:
        """Give each line that any step of either side has its height on the stage, the same in all frames."""
        names: dict[str, dict[str, None]] = {}
        for step in (*self.yours, *self.reference):
            for name, value in step.values.items():
                names.setdefault(name, {}).update(dict.fromkeys(line.key for line in _lines(name, value)))
        y: dict[str, float] = {}
        at = float(_TOP)
        for name, keys in names.items():
            y[f"head:{name}"] = at
            at += _HEAD
            for key in keys:
                y[key] = at
                at += _PITCH
            at += 8
        return y, at + 4

    # --- frames -----------------------------------------------------------------------------------------------------

    def _frame(self, number: int) -> Frame:
        mine = self.yours[min(number, len(self.yours) - 1)]
        theirs = self.reference[min(number, len(self.reference) - 1)]
        before = self.yours[number - 1] if 0 < number < len(self.yours) else None
        before_theirs = self.reference[number - 1] if 0 < number < len(self.reference) else None
        actors = [
            *self._heads(),
            *self._side("yours", _LEFT, mine.values, theirs.values),
            *self._side("reference", _LEFT + _SIDE_W + _MIDDLE, theirs.values, mine.values),
        ]
        changed = [
            *(f"yours:{key}" for key in _changed_lines(before, mine)),
            *(f"reference:{key}" for key in _changed_lines(before_theirs, theirs)),
        ]
        keys = {actor.key for actor in actors}
        change, detail = self._caption(number, mine, theirs, before, before_theirs)
        return Frame(
            id=str(number),
            actors=in_key_order(actors),
            change=change,
            detail=detail,
            subtitle=f"{self.played.submission.filename} · change {number} after both agreed",
            event="change" if number else None,
            source=("yours", mine.line) if mine.line is not None and self._shows(mine.line) else None,
            focus=tuple(key for key in changed if key in keys),
            record=number,
        )

    def _caption(
        self, number: int, mine: Step, theirs: Step, before: Step | None, before_theirs: Step | None
    ) -> tuple[str, str]:
        if number == 0:
            done = self.played.last_common[0]
            return (
                "Up to here both have the same." if done else "Both begin with the same input.",
                "What each does next is not the same any more.",
            )
        if before is not None:
            change = f"Yours, line {mine.line}: changes {_listed(_changed_names(before, mine))}."
        elif self.played.ending:
            change = f"Yours has stopped: {self.played.ending}."
        else:
            change = "Yours has ended."
        if before_theirs is not None:
            return change, f"The reference changes {_listed(_changed_names(before_theirs, theirs))}."
        return change, "The reference has ended."

    # --- actors -----------------------------------------------------------------------------------------------------

    def _heads(self) -> Iterator[Actor]:
        for side, x in (("yours", _LEFT), ("the reference", _LEFT + _SIDE_W + _MIDDLE)):
            parts = [text(0, 18, side, "head")]
            parts += [
                text(0, y + _HEAD / 2, key.removeprefix("head:"), "muted mono")
                for key, y in self.y.items()
                if key.startswith("head:")
            ]
            yield Actor(f"heads:{side}", x, 0, parts=tuple(parts), layer=0)

    def _side(self, side: str, x: float, values: Mapping[str, Any], others: Mapping[str, Any]) -> Iterator[Actor]:
        other_lines = {line.key: line.entries for name, value in others.items() for line in _lines(name, value)}
        for name, value in values.items():
            for line in _lines(name, value):
                parts = tuple(_entries(line, other_lines.get(line.key)))
                facts = {
                    "side": side,
                    "value": name,
                    "line": line.label,
                    "entries": ", ".join(map(_text_of, line.entries)),
                }
                yield Actor(f"{side}:{line.key}", x, self.y[line.key], _SIDE_W, _CHIP_H + 2, parts, data=facts)

    # --- the source -------------------------------------------------------------------------------------------------

    def _source(self) -> Source:
        first, lines = self._shown_source()
        submission, exercise = self.played.submission, self.played.exercise
        return Source(submission.filename, exercise.function, first, tuple(lines))

    def _shown_source(self) -> tuple[int, list[str]]:
        """Return the submission, or of a long one the function alone, and its first line."""
        lines = self.played.submission.source.splitlines()
        if len(lines) <= _MAX_SOURCE:
            return 1, lines
        for node in ast.parse(self.played.submission.source).body:
            if isinstance(node, ast.FunctionDef) and node.name == self.played.exercise.function:
                return node.lineno, lines[node.lineno - 1 : node.end_lineno]
        return 1, lines

    def _shows(self, line: int) -> bool:
        first, lines = self._shown_source()
        return first <= line < first + len(lines)


# --- values as lines of entries -----------------------------------------------------------------------------------


def _lines(name: str, value: Any) -> list[_Line]:
    """Return a value as lines: one for a list or a number, one for each row of a table or key of a dict."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return [_Line(f"{name}:{key!r}", _text_of(key), (item,)) for key, item in list(value.items())[:_MAX_LINES]]
    if isinstance(value, list | tuple):
        if value and all(isinstance(row, list | tuple) for row in value):
            return [_Line(f"{name}:{row}", str(row), tuple(entries)) for row, entries in enumerate(value[:_MAX_LINES])]
        return [_Line(f"{name}:", "", tuple(value))]
    return [_Line(f"{name}:", "", (value,))]


def _entries(line: _Line, other: Sequence[Any] | None) -> Iterator[Part]:
    """Draw a line's entries; those that the other side has not stand out."""
    words = [_text_of(entry) for entry in line.entries]
    width = max([26, *(8 * len(word) + 10 for word in words)])
    width = min(width, _SIDE_W - _INDEX_W)
    x = float(_INDEX_W if line.label else 0)
    if line.label:
        yield text(0, _CHIP_H / 2 + 1, line.label[:4], "index mono", title=line.label)
    if not words:
        yield text(x, _CHIP_H / 2 + 1, "empty", "muted")
    differing = [
        at for at in range(len(words)) if other is None or at >= len(other) or not _same(other[at], line.entries[at])
    ]
    focus = range(differing[0], differing[-1] + 1) if differing else None
    for item in elide(len(words), max(1, int((_SIDE_W - x + 3) // (width + 3))), focus, gap_width=1):
        if isinstance(item, Gap):
            yield gap(x, 1, width, _CHIP_H, item.count)
        elif line.entries[item] is None:
            yield Part("box", x, 1, width, _CHIP_H, style="hole", title="None")
            if item in differing:
                yield text(x + width / 2, _CHIP_H / 2 + 1, "None", "accent middle")
        else:
            style = "leaves" if item in differing else ""
            yield Part("chip", x, 1, width, _CHIP_H, words[item][: max(1, (width - 6) // 8)], style, title=words[item])
        x += width + 3


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


def _text_of(entry: Any) -> str:
    return entry if isinstance(entry, str) else repr(entry)


def _changed_lines(before: Step | None, after: Step) -> list[str]:
    if before is None:
        return []
    old = {line.key: line.entries for name, value in before.values.items() for line in _lines(name, value)}
    new = {line.key: line.entries for name, value in after.values.items() for line in _lines(name, value)}
    return [key for key, entries in new.items() if key not in old or not _same(old[key], entries)]


def _changed_names(before: Step, after: Step) -> list[str]:
    return [name for name, state in after.state.items() if before.state.get(name) != state]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
