"""A progress bar, for commands that take minutes.

vLLM has no counterpart.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from pagedlab.errors import ExerciseError

Item = TypeVar("Item")


def with_bar(items: Iterable[Item], total: int, done: int = 0, *, unit: str, show: bool) -> Iterator[Item]:
    """Yield the items while a bar on stderr says how many there were; no bar where that is no terminal.

    Parameters
    ----------
    items : iterable
    total, done : int
        How many there will be, and how many of them there were before.
    unit : str
        What one is called.
    show : bool
        False: no bar on a terminal either.

    Raises
    ------
    ExerciseError
        If tqdm is not installed.
    """
    if importlib.util.find_spec("tqdm") is None:
        raise ExerciseError('teachers\' commands need some more packages: pip install "pagedlab[teacher]"')
    from tqdm import tqdm

    yield from tqdm(items, total=total, initial=done, unit=f" {unit}", disable=None if show else True, file=sys.stderr)
