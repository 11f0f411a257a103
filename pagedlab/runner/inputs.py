"""What one forward pass needs: the flat batch of tokens, in tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch import BlockTable, CpuGpuBuffer, InputBatch, SamplingMetadata
from pagedlab.batch.block_table import STALE
from pagedlab.events import InputsPrepared
from pagedlab.runner.metadata import CommonAttentionMetadata


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Everything one forward pass needs. Tensors are views of persistent buffers, valid until the next `prepare`.

    Attributes
    ----------
    req_ids : tuple of str
        Requests in batch order, which is not the scheduling order.
    input_ids : Tensor, [num_tokens] int32
    positions : Tensor, [num_tokens] int64
    query_start_loc : ndarray, [num_reqs + 1] int32
    seq_lens : ndarray, [num_reqs] int32
        Tokens of each request after this step.
    logits_indices : ndarray, [num_reqs] int32
    discard : ndarray, [num_reqs] bool
        True for a partial prefill: what is sampled for it is dropped.
    sampling : SamplingMetadata
    attention : tuple of CommonAttentionMetadata
        One per KV cache group, padded to the captured size where there is one.
    """

    req_ids: tuple[str, ...]
    input_ids: torch.Tensor
    positions: torch.Tensor
    query_start_loc: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    logits_indices: npt.NDArray[np.int32]
    discard: npt.NDArray[np.bool_]
    sampling: SamplingMetadata
    attention: tuple[CommonAttentionMetadata, ...]

    @property
    def num_tokens_padded(self) -> int:
        """Tokens of the forward pass, padding among them."""
        return len(self.attention[0].positions)

    @property
    def num_reqs_padded(self) -> int:
        """Rows of the forward pass, padding among them."""
        return len(self.attention[0].seq_lens_cpu)

    @property
    def is_all_decodes(self) -> bool:
        """Whether every row has one token, padded rows not counted, and a padded token has a row of its own."""
        return self.attention[0].max_query_len == 1 and self.num_reqs_padded == self.num_tokens_padded

    @property
    def block_table(self) -> torch.Tensor:
        """The block table on the device, of the group that the model's layers are in: ``[num_reqs, columns]`` int32."""
        return self.attention[0].block_table[: len(self.req_ids)]

    @property
    def slot_mapping(self) -> torch.Tensor:
        """Where each token's K and V go, in the same group: ``[num_tokens]`` int64."""
        return self.attention[0].slot_mapping[: len(self.input_ids)]

    def to_event(self) -> InputsPrepared:
        """Return the same numbers as an event."""
        arrays = (
            self.input_ids,
            self.positions,
            self.query_start_loc,
            self.seq_lens,
            self.logits_indices,
            self.discard,
        )
        return InputsPrepared(self.req_ids, *(tuple(array.tolist()) for array in arrays))


class InputBuffers:
    """The persistent tensors of the flat batch: made once, written in place, so that a captured graph finds them.

    Parameters
    ----------
    max_num_reqs, max_num_tokens : int
    device : torch.device

    Attributes
    ----------
    input_ids : CpuGpuBuffer, [max_num_tokens] int32
    positions : CpuGpuBuffer, [max_num_tokens] int64
    query_start_loc : CpuGpuBuffer, [max_num_reqs + 1] int32
    seq_lens : CpuGpuBuffer, [max_num_reqs] int32
    """

    def __init__(self, max_num_reqs: int, max_num_tokens: int, device: torch.device) -> None:
        self.input_ids = CpuGpuBuffer((max_num_tokens,), torch.int32, device)
        self.positions = CpuGpuBuffer((max_num_tokens,), torch.int64, device)
        self.query_start_loc = CpuGpuBuffer((max_num_reqs + 1,), torch.int32, device)
        self.seq_lens = CpuGpuBuffer((max_num_reqs,), torch.int32, device)
        self._rows = np.arange(max_num_reqs)
        self._views: tuple[tuple[int, int], tuple[torch.Tensor, ...]] | None = None

    def fill(self, batch: InputBatch, query_lens: npt.NDArray[np.int32], num_tokens: int) -> None:
        """Read the tokens of this step out of the rows.

        Parameters
        ----------
        batch : InputBatch
        query_lens : ndarray of int32, [num_reqs]
            Tokens of each row in this step, at least one.
        num_tokens : int
            Their sum.
        """
        num_reqs = len(query_lens)
        query_start_loc, seq_lens = self.query_start_loc.np, self.seq_lens.np
        query_start_loc[0] = 0
        query_lens.cumsum(out=query_start_loc[1 : num_reqs + 1])
        query_start_loc[num_reqs + 1 :] = num_tokens  # non-decreasing to the end, so that padded rows are empty
        computed = batch.rows.num_computed_tokens[:num_reqs]
        np.add(computed, query_lens, out=seq_lens[:num_reqs])
        seq_lens[num_reqs:] = 0

        positions = self.positions.np[:num_tokens]
        if num_tokens == num_reqs:  # one token each
            rows = self._rows[:num_reqs]
            positions[:] = computed
        else:
            rows = np.repeat(self._rows[:num_reqs], query_lens)  # the row of each token
            within = np.arange(num_tokens) - query_start_loc[rows]  # 0, 1, 2 ... in each row
            np.add(computed[rows], within, out=positions)
        self.input_ids.np[:num_tokens] = batch.token_ids[rows, positions]

    def send(self, num_tokens: int, num_tokens_padded: int) -> None:
        """Bring the flat batch to the device; padded tokens are token 0 at position 0."""
        if num_tokens_padded > num_tokens:
            self.input_ids.np[num_tokens:num_tokens_padded] = 0
            self.positions.np[num_tokens:num_tokens_padded] = 0
        self.input_ids.send(num_tokens_padded)
        self.positions.send(num_tokens_padded)
        self.query_start_loc.send()
        self.seq_lens.send()

    def views(self, num_reqs: int, num_tokens: int) -> tuple[torch.Tensor, ...]:
        """Return what kernels see of ``query_start_loc``, ``seq_lens``, ``input_ids`` and ``positions``."""
        if self._views is None or self._views[0] != (num_reqs, num_tokens):
            tensors = (
                self.query_start_loc.gpu[: num_reqs + 1],
                self.seq_lens.gpu[:num_reqs],
                self.input_ids.gpu[:num_tokens],
                self.positions.gpu[:num_tokens],
            )
            self._views = ((num_reqs, num_tokens), tensors)
        return self._views[1]

    def decodes(self, num_reqs: int, table: BlockTable) -> tuple[torch.Tensor, CommonAttentionMetadata]:
        """Return input ids and metadata of ``num_reqs`` decodes, padded ones among them: persistent tensors only.

        What is in them is not looked at, so that this is right for every step of this size.
        """
        query_start_loc, seq_lens, input_ids, positions = self.views(num_reqs, num_reqs)
        return input_ids, CommonAttentionMetadata(
            query_start_loc,
            self.query_start_loc.np[: num_reqs + 1],
            seq_lens,
            self.seq_lens.np[:num_reqs],
            num_reqs,
            num_reqs,
            1,
            positions,
            table.device_tensor(num_reqs),
            table.slot_mapping.gpu[:num_reqs],
        )

    def poison(self) -> None:
        """Overwrite what earlier steps left behind; what a step needs is written after that."""
        for buffer in (self.input_ids, self.positions, self.query_start_loc, self.seq_lens):
            buffer.np[:] = STALE
            buffer.gpu[:] = STALE
