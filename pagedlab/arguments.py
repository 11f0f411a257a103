"""What the commands' arguments are read with.

vLLM has no counterpart.
"""

from __future__ import annotations

import argparse


def whole(minimum: int, maximum: int | None = None) -> type[int]:
    """Return a parser of whole numbers in a range, for argparse."""
    wanted = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, {wanted}")
        return value

    return parse  # type: ignore[return-value]
