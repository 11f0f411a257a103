"""Print texts while an engine writes them: one as it comes, several as lines that can interleave.

>>> import sys
>>> printer = ManyTexts({"1": "To be", "2": "O"}, sys.stdout)
>>> printer.write("1", " or", False)
1 > To be
>>> printer.write("2", " Romeo", True)
2 > O
2 |  Romeo
>>> printer.write("1", " not", True)
1 |  or not

vLLM counterpart: none; ``vllm complete`` prints one text.
"""

from __future__ import annotations

from typing import TextIO


def harmless(text: str) -> str:
    """Return ``text`` without control characters: a model may write any byte, a terminal would obey some."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


class OneText:
    """One prompt: its text as it comes. On a terminal the prompt stands before it, dimmed."""

    def __init__(self, prompt: str, stream: TextIO) -> None:
        self._stream = stream
        self._clean = harmless if stream.isatty() else str
        if stream.isatty():
            stream.write(f"\x1b[2m{harmless(prompt)}\x1b[0m")

    def write(self, request_id: str, text: str, finished: bool) -> None:
        """Print a piece of the text, and an end of line after the last."""
        self._stream.write(self._clean(text) + ("\n" if finished else ""))
        self._stream.flush()


class ManyTexts:
    """Several prompts: whole lines as they fill, each after the number of its prompt, so that they can interleave."""

    width = 78

    def __init__(self, prompts: dict[str, str], stream: TextIO) -> None:
        self._prompts = prompts
        self._clean = harmless if stream.isatty() else str
        self._stream = stream
        self._pending = dict.fromkeys(prompts, "")
        self._unseen = set(prompts)

    def write(self, request_id: str, text: str, finished: bool) -> None:
        """Take a piece of a text; print its lines that are full, and at its end the rest."""
        if request_id in self._unseen and (text or finished):
            self._unseen.remove(request_id)
            self._line(request_id, ">", self._prompts[request_id])
        self._pending[request_id] += text
        *lines, rest = self._pending[request_id].split("\n")
        while len(rest) > self.width:
            cut = rest.rfind(" ", 1, self.width) + 1 or self.width
            lines.append(rest[:cut])
            rest = rest[cut:]
        if finished and rest:
            lines.append(rest)
            rest = ""
        for line in lines:
            self._line(request_id, "|", line)
        self._pending[request_id] = rest
        self._stream.flush()

    def _line(self, request_id: str, mark: str, line: str) -> None:
        self._stream.write(f"{request_id} {mark} {self._clean(line)}".rstrip() + "\n")
