"""The scalars of every row, in two matrices: one field a line, one row of the batch a column.

>>> store = RowStore(max_num_reqs=4, device=torch.device("cpu"))
>>> store.num_computed_tokens[2] = 7
>>> store.temperature[2] = 0.5
>>> store.move(2, 0)
>>> int(store.num_computed_tokens[0]), float(store.temperature[0])
(7, 0.5)

A row moves in two assignments, however many fields there are; one copy of each matrix brings all to the device; and
a change of many rows is one vector operation on a named view.

vLLM counterpart: the arrays of ``InputBatch`` in ``vllm/v1/worker/gpu_input_batch.py`` at 0.25.1. What differs: vLLM
keeps about twenty arrays and moves them one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer

INT_FIELDS = ("num_tokens_no_spec", "num_prompt_tokens", "num_computed_tokens", "top_k")
FLOAT_FIELDS = ("temperature", "top_p")


class RowStore:
    """Per-row scalars.

    Attributes
    ----------
    ints : CpuGpuBuffer
        ``[len(INT_FIELDS), max_num_reqs]`` int32.
    floats : CpuGpuBuffer
        ``[len(FLOAT_FIELDS), max_num_reqs]`` float32.
    num_tokens_no_spec, num_prompt_tokens, num_computed_tokens, top_k, temperature, top_p : numpy.ndarray
        Views of one field, ``[max_num_reqs]``.
    """

    num_tokens_no_spec: npt.NDArray[np.int32]
    num_prompt_tokens: npt.NDArray[np.int32]
    num_computed_tokens: npt.NDArray[np.int32]
    top_k: npt.NDArray[np.int32]
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        self.ints = CpuGpuBuffer((len(INT_FIELDS), max_num_reqs), torch.int32, device)
        self.floats = CpuGpuBuffer((len(FLOAT_FIELDS), max_num_reqs), torch.float32, device)
        for names, buffer in ((INT_FIELDS, self.ints), (FLOAT_FIELDS, self.floats)):
            for index, name in enumerate(names):
                setattr(self, name, buffer.np[index])

    def move(self, source: int, target: int) -> None:
        """Copy every field of row ``source`` to row ``target``."""
        self.ints.np[:, target] = self.ints.np[:, source]
        self.floats.np[:, target] = self.floats.np[:, source]

    def swap(self, first: int, second: int) -> None:
        """Exchange every field of two rows."""
        pair, reverse = [first, second], [second, first]
        self.ints.np[:, pair] = self.ints.np[:, reverse]
        self.floats.np[:, pair] = self.floats.np[:, reverse]

    def device_view(self, name: str) -> torch.Tensor:
        """Return one field's device twin, ``[max_num_reqs]``; as fresh as the last copy."""
        if name in INT_FIELDS:
            return self.ints.gpu[INT_FIELDS.index(name)]
        return self.floats.gpu[FLOAT_FIELDS.index(name)]
