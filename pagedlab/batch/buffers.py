"""One array, seen three ways: NumPy and torch on the host, torch on the device.

>>> buffer = CpuGpuBuffer((4,), torch.int32, torch.device("cpu"))
>>> buffer.np[:] = [1, 2, 3, 4]
>>> buffer.gpu.tolist()  # nothing is visible on the device before it is copied
[0, 0, 0, 0]
>>> buffer.copy_to_gpu(2).tolist()
[1, 2]

Written with NumPy, which is quick for a few numbers, sent in one copy, read by kernels. Where the device is the
CPU the "device" tensor is still a tensor of its own, so that a forgotten copy fails there too.

vLLM counterpart: ``vllm/v1/utils.py`` (``CpuGpuBuffer``) at 0.25.1.
"""

from __future__ import annotations

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
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.cpu = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.np = self.cpu.numpy()
        self.gpu = torch.zeros(shape, dtype=dtype, device=device)

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Send the first ``n`` entries along the first axis (None: all) and return them on the device."""
        if n is None:
            return self.gpu.copy_(self.cpu, non_blocking=True)
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)
