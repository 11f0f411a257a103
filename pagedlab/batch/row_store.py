"""The scalars of every row, in two matrices: one field a line, one row of the batch a column.

>>> store = RowStore(max_num_reqs=4, device=torch.device("cpu"))
>>> store.num_computed_tokens[2] = 7
>>> store.temperature[2] = 0.5
>>> store.move(2, 0)
>>> int(store.num_computed_tokens[0]), float(store.temperature[0])
(7, 0.5)

The int32 and the float32 matrix lie in one memory, since both are four bytes wide. So a row moves in one assignment,
however many fields there are; one copy brings all to the device; and a change of many rows is one vector operation on
a named view.

vLLM counterpart: the arrays of ``InputBatch`` in ``vllm/v1/worker/gpu_input_batch.py`` at 0.25.1. What differs: vLLM
keeps about twenty arrays and moves them one by one; its LoRA ids are int64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.buffers import CpuGpuBuffer

INT_FIELDS = (
    "num_tokens_no_spec",
    "num_prompt_tokens",
    "num_computed_tokens",
    "num_accepted_tokens",
    "top_k",
    "lora_id",
)
FLOAT_FIELDS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


class RowStore:
    """Per-row scalars.

    Attributes
    ----------
    ints : CpuGpuBuffer
        ``[len(INT_FIELDS), max_num_reqs]`` int32.
    floats : CpuGpuBuffer
        ``[len(FLOAT_FIELDS), max_num_reqs]`` float32.
    num_tokens_no_spec, num_prompt_tokens, num_computed_tokens : numpy.ndarray
        Tokens in the row (drafts not counted), of its prompt, and computed; views of one field, ``[max_num_reqs]``.
    num_accepted_tokens : numpy.ndarray
        Tokens that the last step brought: 1, and more where drafts were accepted.
    top_k, lora_id, temperature, top_p, frequency_penalty, presence_penalty, repetition_penalty : numpy.ndarray
        Settings. LoRA id 0 is none.
    """

    num_tokens_no_spec: npt.NDArray[np.int32]
    num_prompt_tokens: npt.NDArray[np.int32]
    num_computed_tokens: npt.NDArray[np.int32]
    num_accepted_tokens: npt.NDArray[np.int32]
    top_k: npt.NDArray[np.int32]
    lora_id: npt.NDArray[np.int32]
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    presence_penalty: npt.NDArray[np.float32]
    repetition_penalty: npt.NDArray[np.float32]

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        num_ints, num_floats = len(INT_FIELDS), len(FLOAT_FIELDS)
        self._all = CpuGpuBuffer((num_ints + num_floats, max_num_reqs), torch.int32, device)
        self.ints = self._all.part(0, (num_ints, max_num_reqs))
        self.floats = self._all.part(num_ints * max_num_reqs, (num_floats, max_num_reqs), torch.float32)
        for names, buffer in ((INT_FIELDS, self.ints), (FLOAT_FIELDS, self.floats)):
            for index, name in enumerate(names):
                setattr(self, name, buffer.np[index])
        self.num_accepted_tokens[:] = 1
        self._rows = list(self._all.np.T)  # a view of each row: making one costs more than copying it

    def move(self, source: int, target: int) -> None:
        """Copy every field of row ``source`` to row ``target``."""
        self._rows[target][:] = self._rows[source]

    def swap(self, first: int, second: int) -> None:
        """Exchange every field of two rows."""
        one, other = self._rows[first], self._rows[second]
        kept = one.copy()
        one[:] = other
        other[:] = kept

    def copy_to_gpu(self) -> None:
        """Bring all fields of all rows to the device, in one copy."""
        self._all.send()

    def device_view(self, name: str) -> torch.Tensor:
        """Return one field's device twin, ``[max_num_reqs]``; as fresh as the last copy."""
        if name in INT_FIELDS:
            return self.ints.gpu[INT_FIELDS.index(name)]
        return self.floats.gpu[FLOAT_FIELDS.index(name)]
