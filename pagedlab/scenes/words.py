"""Words for captions and labels: counts, request names, token labels.

>>> counted(1, "token"), counted(12, "token")
('1 token', '12 tokens')
>>> counted(1, "branch", "branches"), counted(3, "branch", "branches")
('1 branch', '3 branches')
>>> shorten("chat-7f3a9c-regression-0041", 12)
'chat-7…-0041'
>>> listed(["A", "B", "C"])
'A, B and C'

vLLM has no counterpart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

_LABELS = {
    " ": "␣",
    "␠": "␣",
    "\n": "↵",
    "⏎": "↵",
    "\r": "\\r",
    "␍": "\\r",
    "\t": "⇥",
    "<end>": "■",
    "<|endoftext|>": "■",
}
_SPOKEN = {"␣": "a space", "↵": "a new line", "⇥": "a tab", "■": "the end of the text"}
_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``"1 token"``, ``"2 tokens"``; a noun that takes more than an s comes with its plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def either(count: int, one: str, many: str) -> str:
    """Return the word for one or for several.

    >>> either(1, "it", "them"), either(2, "it", "them")
    ('it', 'them')
    """
    return one if count == 1 else many


def begin(words: str) -> str:
    """Return words with a capital letter, to begin a sentence."""
    return words[:1].upper() + words[1:]


def listed(items: Sequence[str], limit: int = 5) -> str:
    """Join items as in a sentence; those past ``limit`` are counted."""
    items = list(items)
    if len(items) > limit:
        items = [*items[: limit - 1], f"{len(items) - limit + 1:,} more"]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" and {items[-1]}" if items else "none"


def are(count: int) -> str:
    """Return the verb that goes with a count."""
    return "is" if count == 1 else "are"


def blocks(block_ids: Sequence[int]) -> str:
    """Return ``"block 3"``, ``"blocks 3, 4 and 7"``."""
    return f"block {block_ids[0]}" if len(block_ids) == 1 else f"blocks {listed([str(block) for block in block_ids])}"


def finish(reason: str) -> str:
    """Return how a request ended, to go behind its name."""
    return {"stop": "wrote its end token", "length": "reached its length limit"}.get(reason, "was aborted")


def vector(values: Sequence[int], room: int = 24) -> str:
    """Return numbers as a caption shows an array; one longer than ``room`` characters loses its middle.

    >>> vector([0, 13, 24]), vector(range(100), room=20)
    ('[0, 13, 24]', '[0, 1, 2, …, 98, 99]')
    """
    items = [str(value) for value in values]
    whole = f"[{', '.join(items)}]"
    head = len(items) - 2
    while len(whole) > room and head > 1:
        head -= 1
        whole = f"[{', '.join(items[:head])}, …, {', '.join(items[-2:])}]"
    return whole


def columns(text: str) -> int:
    """Return how many columns of a fixed-width font ``text`` takes: 2 for an emoji or a CJK character.

    >>> columns("abc"), columns("日本"), columns("e\u0301")
    (3, 4, 1)
    """
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
        for char in text
    )


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of ``text`` so that it takes at most ``limit`` columns."""
    if columns(text) <= limit:
        return text
    tail = (limit - 1) // 2
    start = _beginning(text, limit - 1 - tail)
    return f"{start}…{_beginning(text[: len(start) : -1], tail)[::-1]}"


def _beginning(text: str, room: int) -> str:
    ends = accumulate(map(columns, text))
    return "".join(char for char, end in zip(text, ends, strict=True) if end <= room)


def printable(text: str) -> str:
    """Return ``text`` on one line, with marks for what cannot be seen."""
    shown = "".join(_LABELS.get(char, char) if char != " " else char for char in text)
    return "".join(char if unicodedata.category(char) not in {"Cc", "Cf", "Cs"} else "�" for char in shown)


def name(request_id: str, limit: int = 28) -> str:
    """Return a request id as a caption writes it: one line, not too long, apart from the text around it."""
    shown = shorten(printable(request_id), limit)
    if not shown.strip():
        return "“” (an empty id)"
    if any(unicodedata.bidirectional(char) in {"R", "AL", "AN"} for char in shown):
        return f"{_FIRST_STRONG_ISOLATE}{shown}{_POP_ISOLATE}"
    return shown


def label(request_id: str, limit: int) -> str:
    """Return a request id as a row or chip writes it."""
    shown = shorten(printable(request_id), limit)
    return shown if shown.strip() else "“”"


def names(request_ids: Iterable[str], limit: int = 5) -> str:
    """Return several request ids as a caption writes them."""
    return listed([name(item) if at < limit else item for at, item in enumerate(request_ids)], limit)


class TokenLabels:
    """Short labels for token ids.

    Parameters
    ----------
    vocabulary : mapping of int to str
        `Trace.vocabulary`.
    limit : int
        The most characters of a label.
    """

    def __init__(self, vocabulary: Mapping[int, str], limit: int = 6) -> None:
        self._vocabulary = vocabulary
        self._limit = limit

    def label(self, token_id: int | None) -> str:
        """Return what a cell shows."""
        if token_id is None:
            return "?"
        text = self._vocabulary.get(token_id, str(token_id))
        text = _LABELS.get(text, text)
        if len(text) == 4 and text.startswith("\\x"):
            text = text[2:]  # one byte of a longer character, in hexadecimal
        return shorten(printable(text), self._limit)

    def quoted(self, token_id: int | None) -> str:
        """Return what a caption says."""
        shown = self.label(token_id)
        return _SPOKEN.get(shown, f"“{shown}”")

    def title(self, token_id: int | None, position: int, request_id: str) -> str:
        """Return the tooltip of a token."""
        what = "unknown token" if token_id is None else f"{self.quoted(token_id)}, token id {token_id}"
        return f"{name(request_id)}, position {position}: {what}"

    def width(self, token_ids: Iterable[int | None]) -> int:
        """Return the width of a cell, in stage units, that holds any of these labels at 13 px."""
        longest = max((columns(self.label(token)) for token in token_ids), default=1)
        return max(20, 8 * longest + 8)
