"""Words for captions and labels: counts, request names, token labels.

>>> counted(1, "token"), counted(12, "token")
('1 token', '12 tokens')
>>> shorten("chat-7f3a9c-regression-0041", 12)
'chat-7…-0041'
>>> listed(["A", "B", "C"])
'A, B and C'

vLLM has no counterpart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_LABELS = {" ": "␣", "␠": "␣", "\n": "↵", "⏎": "↵", "\r": "␍", "\t": "⇥", "<end>": "■", "<|endoftext|>": "■"}
_SPOKEN = {"␣": "a space", "↵": "a new line", "⇥": "a tab", "■": "the end of the text"}
_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def counted(number: int, noun: str) -> str:
    """Return ``"1 token"``, ``"2 tokens"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(items: Sequence[str], limit: int = 5) -> str:
    """Join items as in a sentence; those past ``limit`` are counted."""
    items = list(items)
    if len(items) > limit:
        items = [*items[: limit - 1], f"{len(items) - limit + 1:,} more"]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" and {items[-1]}" if items else "none"


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of ``text`` so that it has at most ``limit`` characters."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}" if tail else f"{text[: limit - 1]}…"


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
    return listed([name(request_id) for request_id in request_ids], limit)


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
        longest = max((len(self.label(token)) for token in token_ids), default=1)
        return max(20, 8 * longest + 8)
