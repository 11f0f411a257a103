"""The Triton kernels, and which tier of them this machine can run.

>>> backend().name in ("cuda", "interpreter", "numpy")
True

Each kernel exists three times with one contract: a slow reference that a beginner can read, the Triton kernel
(compiled on a GPU, interpreted on a CPU), and a test that holds them equal.

========== ===========================================================================
tier       when
========== ===========================================================================
cuda       there is a GPU: kernels are compiled
interpreter no GPU, but Triton: kernels run line by line in Python, slowly and exactly
numpy      no Triton (macOS, Windows): the references run
========== ===========================================================================

Triton reads ``TRITON_INTERPRET`` when it is imported, so this package sets it first where it is needed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Backend:
    """``name`` is ``"cuda"``, ``"interpreter"`` or ``"numpy"``; ``reason`` says why, in words."""

    name: str
    reason: str

    @property
    def has_triton(self) -> bool:
        return self.name != "numpy"


@functools.cache
def backend() -> Backend:
    """Return the tier that is active in this process, and why.

    The first call decides: where there is no GPU it sets ``TRITON_INTERPRET=1`` before Triton is imported.
    """
    if importlib.util.find_spec("triton") is None:
        return Backend("numpy", f"Triton is not installed (it exists for Linux only; this is {sys.platform})")
    wanted = os.environ.get("TRITON_INTERPRET") == "1"
    import torch

    if torch.cuda.is_available() and not wanted:
        return Backend("cuda", f"compiled for {torch.cuda.get_device_name()}")
    if "triton" in sys.modules and not wanted:
        return Backend(
            "numpy",
            "Triton was imported without TRITON_INTERPRET=1 and there is no GPU: import pagedlab.kernels before it",
        )
    os.environ["TRITON_INTERPRET"] = "1"
    return Backend("interpreter", "TRITON_INTERPRET=1 is set" if wanted else "no CUDA GPU: Triton's interpreter runs")


def require_triton(tensor: torch.Tensor, reference: str) -> None:
    """Raise `RuntimeError` if no Triton kernel can run here on ``tensor``; the message says what can: ``reference``."""
    tier = backend()
    if not tier.has_triton:
        raise RuntimeError(f"the Triton kernel cannot run here: {tier.reason}; use {reference}")
    if tier.name == "cuda" and not tensor.is_cuda:
        raise RuntimeError(
            f"the compiled Triton kernel cannot read CPU tensors: use {reference}, or set TRITON_INTERPRET=1"
        )


def power_of_two(number: int) -> int:
    """Return the least power of two that is ``number`` or more.

    >>> power_of_two(5), power_of_two(8)
    (8, 8)
    """
    return 1 << (number - 1).bit_length()


__all__ = ["Backend", "backend", "power_of_two", "require_triton"]
