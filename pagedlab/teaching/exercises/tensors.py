"""Tensors for the Triton exercises: what an array becomes on its way into a kernel, and back.

vLLM has no counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedlab.errors import ExerciseError
from pagedlab.kernels import backend

if TYPE_CHECKING:
    from pagedlab.teaching.exercises.exercise import Exercise


@dataclass(frozen=True, slots=True)
class Tensors:
    """The way to a device and back.

    Attributes
    ----------
    device : {"cpu", "cuda"}
    tier : {"interpreter", "cuda"}
        What runs the kernels: see `pagedlab.kernels.backend`.
    """

    device: str
    tier: str

    def wrap(self, value: Any) -> Any:
        """Return a tensor for an array, anything else as it is."""
        import torch

        return torch.from_numpy(value).to(self.device) if isinstance(value, np.ndarray) else value

    def unwrap(self, value: Any) -> Any:
        """Return an array for a tensor, anything else as it is."""
        import torch

        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

    def wait(self) -> None:
        """Wait until the kernels that were launched have ended."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def load_tensors() -> Tensors:
    """Import torch and choose what runs kernels here.

    Raises
    ------
    ExerciseError
        If nothing does.
    """
    tier = backend()
    if not tier.has_triton:
        raise ExerciseError(f"no Triton kernel can run here: {tier.reason}")
    import torch

    device = "cuda" if tier.name == "cuda" else "cpu"
    torch.zeros(1, device=device)  # a GPU takes seconds to wake up: not in a submission's time
    return Tensors(device, tier.name)


def tensors_for(exercise: Exercise) -> Tensors | None:
    """Return how the functions of an exercise get tensors; None if they take arrays."""
    return load_tensors() if exercise.form == "triton" else None


TIERS = {
    "interpreter": "The kernel ran in Triton's interpreter, on the CPU; nothing was compiled.",
    "cuda": "The kernel was compiled and ran on the GPU.",
}
"""What a verdict says of each tier."""
