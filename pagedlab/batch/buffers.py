"""One array, seen three ways: NumPy and torch on the host, torch on the device.

>>> buffer = CpuGpuBuffer((4,), torch.int32, torch.device("cpu"))
>>> buffer.np[:] = [1, 2, 3, 4]
>>> buffer.gpu.tolist()  # nothing is visible on the device before it is copied
[0, 0, 0, 0]
>>> buffer.copy_to_gpu(2).tolist()
[1, 2]

Written with NumPy, which is quick for a few numbers, sent in one copy, read by kernels. Where the device is the
CPU the "device" tensor is still a tensor of its own, so that a forgotten copy fails there too.

A copy to a GPU only *begins* when it is asked for. Whoever writes the host array again before the copy has run changes
what arrives; a `Fence` tells when it has run.

vLLM counterpart: ``vllm/v1/utils.py`` (``CpuGpuBuffer``) at 0.25.1; the fence is ``prepare_inputs_event`` of
``vllm/v1/worker/gpu_model_runner.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt
import torch


class CpuGpuBuffer:
    """A host array (pinned where there is a GPU) and its device twin.

    Parameters
    ----------
    shape : tuple of int
    dtype : torch.dtype
        One that NumPy has too.
    device : torch.device

    Attributes
    ----------
    cpu : torch.Tensor
    np : numpy.ndarray
        A view of ``cpu``.
    gpu : torch.Tensor
        What kernels read.
    gpu_np : numpy.ndarray or None
        A view of ``gpu`` where the device is the CPU: small work costs less in NumPy than in torch.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._see(
            torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda"),
            torch.zeros(shape, dtype=dtype, device=device),
        )

    def _see(self, cpu: torch.Tensor, gpu: torch.Tensor) -> None:
        self.cpu, self.gpu = cpu, gpu
        self.np = cpu.numpy()
        self.gpu_np = None if gpu.is_cuda else gpu.numpy()

    def part(self, start: int, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> CpuGpuBuffer:
        """Return a buffer that shares this one's memory: the entries from the flat index ``start`` on, as ``shape``.

        ``dtype``, if given, is as wide as this buffer's: the same bytes, read otherwise.
        """
        view = CpuGpuBuffer.__new__(CpuGpuBuffer)
        stop = start + math.prod(shape)
        cpu, gpu = (tensor.view(-1)[start:stop].view(shape) for tensor in (self.cpu, self.gpu))
        view._see(cpu, gpu) if dtype is None else view._see(cpu.view(dtype), gpu.view(dtype))
        return view

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Send the first ``n`` entries along the first axis (None: all) and return them on the device."""
        self.send(n)
        return self.gpu if n is None else self.gpu[:n]

    def send(self, n: int | None = None) -> None:
        """Do `copy_to_gpu` for a caller that has the device tensor already."""
        if self.gpu_np is not None:
            self.gpu_np[:n] = self.np[:n]
        else:
            self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


Rows = list[memoryview]
"""The rows of a matrix as bytes: for a few entries of one row at a time they cost half of what NumPy does."""


def rows_as_bytes(matrix: npt.NDArray[Any]) -> Rows:
    """Return a view of each row of a C-contiguous matrix."""
    return [row.data.cast("B") for row in matrix]


def swap_prefix(rows: Rows, first: int, second: int, num_bytes: int) -> None:
    """Exchange the first bytes of two rows.

    >>> import numpy as np
    >>> matrix = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32)
    >>> swap_prefix(rows_as_bytes(matrix), 0, 1, 8)
    >>> matrix.tolist()
    [[4, 5, 3], [1, 2, 6]]
    """
    one, other = rows[first][:num_bytes], rows[second][:num_bytes]
    kept = one.tobytes()
    one[:] = other
    other[:] = kept


class Fence:
    """A point in the device's work that the host can wait for; on a CPU everything has happened already."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Mark everything that the device has been asked to do so far."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Return when the device has done what was marked (at once if nothing was)."""
        if self._event is not None:
            self._event.synchronize()
