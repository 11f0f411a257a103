"""How many CPU threads a step uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

ONE_THREAD_PARAMETERS = 20_000_000
"""Models below this size run on one CPU thread."""


@contextlib.contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Use one CPU thread, for a small model: its work is so short that waiting for a second one costs more."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
