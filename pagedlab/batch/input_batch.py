"""The persistent batch: every live request in a row of arrays that stay where they are between steps.

Two neighbouring steps differ little: a few requests end, a few begin, the others go on. So the batch is not
built anew; it is changed where it differs. Ended requests leave *holes*, new ones take the lowest holes first, and
what holes remain are filled by `condense`, from the end:

    [A, _, B, _, C]  ->  [A, C, B]          C is the highest live row, and 1 the lowest hole

vLLM counterpart: ``vllm/v1/worker/gpu_input_batch.py`` (``InputBatch``) at 0.25.1. What differs: per-row scalars
live in a `RowStore`; penalties, LoRA, bad words, masks, logprobs and drafts are not here yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagedlab.batch.block_table import MultiGroupBlockTable
from pagedlab.batch.row_store import RowStore
from pagedlab.batch.state import BlockIdLists, CachedRequestState
from pagedlab.batch.update import AddedRow, BatchUpdate, BatchUpdateBuilder, MoveDirection
from pagedlab.config import NULL_BLOCK_ID
from pagedlab.errors import CapacityError, DuplicateRequestError, IntegrityError
from pagedlab.events import (
    BatchUpdated,
    BlocksAppended,
    Observer,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    TokenAppended,
)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """What the sampler needs of the batch, on the device; a part that no row uses is None.

    Attributes
    ----------
    temperature : Tensor or None, [num_reqs] float32
        0 for greedy rows; None if all are greedy.
    top_p : Tensor or None, [num_reqs] float32
    top_k : Tensor or None, [num_reqs] int32
        The vocabulary size where a row keeps all tokens.
    generators : dict of int to torch.Generator
        By row, for requests with a seed.
    """

    temperature: torch.Tensor | None
    top_p: torch.Tensor | None
    top_k: torch.Tensor | None
    generators: dict[int, torch.Generator]


class InputBatch:
    """Rows of requests.

    Parameters
    ----------
    max_num_reqs, max_model_len, max_num_batched_tokens, vocab_size : int
        Sizes; all memory is taken here, once.
    block_sizes : tuple of int
        Tokens in a block, per KV cache group.
    device : torch.device

    Attributes
    ----------
    token_ids : numpy.ndarray, [max_num_reqs, max_model_len] int32
        Prompt and output of each row (vLLM: ``token_ids_cpu``). Behind a row's tokens lies what was there before.
    rows : RowStore
        The scalars of each row.
    block_table : MultiGroupBlockTable
    req_id_to_index : dict of str to int
        The row of each request: the one true list of who is in the batch.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        vocab_size: int,
        block_sizes: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self.vocab_size = vocab_size
        self.token_ids = np.zeros((max_num_reqs, max_model_len), dtype=np.int32)
        self.rows = RowStore(max_num_reqs, device)
        self.block_table = MultiGroupBlockTable(
            block_sizes, max_num_reqs, max_model_len, max_num_batched_tokens, device
        )
        self.req_id_to_index: dict[str, int] = {}
        self.req_output_token_ids: list[list[int] | None] = []
        self.generators: dict[int, torch.Generator] = {}
        self.random_reqs: set[str] = set()
        self.top_p_reqs: set[str] = set()
        self.top_k_reqs: set[str] = set()
        self.observer: Observer | None = None
        self._req_ids: list[str | None] = []
        self._updates = BatchUpdateBuilder()
        self.sampling_metadata = self._make_sampling_metadata()

    @property
    def num_reqs(self) -> int:
        """Live requests; right also while there are holes."""
        return len(self.req_id_to_index)

    @property
    def req_ids(self) -> list[str]:
        """Request ids in row order.

        Raises
        ------
        IntegrityError
            If there are holes: condense first.
        """
        req_ids = [req_id for req_id in self._req_ids if req_id is not None]
        if len(req_ids) != len(self._req_ids):
            raise IntegrityError("the batch has holes: condense it before reading its rows")
        return req_ids

    # --- add and remove ---------------------------------------------------------------------------------

    def add_request(self, request: CachedRequestState) -> int:
        """Write a request into the lowest hole, or behind the last row; return the row.

        Raises
        ------
        DuplicateRequestError
            If the request is in the batch already.
        CapacityError
            If every row is taken, or the request has more tokens than a row.
        """
        if request.req_id in self.req_id_to_index:
            raise DuplicateRequestError(f"request {request.req_id!r} is in the batch already")
        if request.num_tokens > self.token_ids.shape[1]:
            raise CapacityError(
                f"request {request.req_id!r} has {request.num_tokens} tokens and a row holds {self.token_ids.shape[1]}"
            )
        if self.num_reqs >= self.max_num_reqs:
            raise CapacityError(f"all {self.max_num_reqs} rows are taken: raise max_num_seqs")
        hole = self._updates.peek_lowest_hole()
        row = self.num_reqs if hole is None else hole
        self.block_table.add_row(request.block_ids, row)  # refuses, before anything has changed
        self._updates.pop_lowest_hole()
        if row == len(self._req_ids):
            self._req_ids.append(request.req_id)
            self.req_output_token_ids.append(request.output_token_ids)
        else:
            self._req_ids[row] = request.req_id
            self.req_output_token_ids[row] = request.output_token_ids
        self.req_id_to_index[request.req_id] = row

        end = request.num_tokens
        self.token_ids[row, : request.num_prompt_tokens] = request.prompt_token_ids
        self.token_ids[row, request.num_prompt_tokens : end] = request.output_token_ids
        self.rows.num_tokens_no_spec[row] = end
        self.rows.num_prompt_tokens[row] = request.num_prompt_tokens
        self.rows.num_computed_tokens[row] = request.num_computed_tokens
        self._write_sampling(request, row)
        self._updates.add(AddedRow(row, request.sampling_params, request.prompt_token_ids, request.output_token_ids))
        if self.observer is not None:
            self.observer(RowAdded(row, request.req_id, end, request.num_computed_tokens, request.block_ids))
        return row

    def _write_sampling(self, request: CachedRequestState, row: int) -> None:
        params = request.sampling_params
        self.rows.temperature[row] = 0.0 if params.greedy else params.temperature
        self.rows.top_p[row] = params.top_p
        keeps_all = not 0 < params.top_k < self.vocab_size
        self.rows.top_k[row] = self.vocab_size if keeps_all else params.top_k
        if not params.greedy:
            self.random_reqs.add(request.req_id)
        if params.top_p < 1:
            self.top_p_reqs.add(request.req_id)
        if not keeps_all:
            self.top_k_reqs.add(request.req_id)
        if request.generator is not None:
            self.generators[row] = request.generator

    def remove_request(self, req_id: str) -> int | None:
        """Make a request's row a hole; return the row, None if the request is not in the batch.

        Tokens and numbers stay where they are, stale. `condense` must follow before rows are read.
        """
        row = self.req_id_to_index.get(req_id)
        if row is None:
            return None
        self._updates.remove(row)  # refuses, before anything has changed
        del self.req_id_to_index[req_id]
        self._req_ids[row] = None
        self.req_output_token_ids[row] = None
        self.block_table.clear_row(row)
        self.generators.pop(row, None)
        for members in (self.random_reqs, self.top_p_reqs, self.top_k_reqs):
            members.discard(req_id)
        if self.observer is not None:
            self.observer(RowRemoved(row, req_id))
        return row

    # --- rows change places -----------------------------------------------------------------------------

    def condense(self) -> None:
        """Fill holes from the end: the highest live row drops into the lowest hole, until none is left inside."""
        if self._updates.num_holes == 0:
            return
        last = len(self._req_ids) - 1
        while True:
            while last >= 0 and self._req_ids[last] is None:
                last -= 1
            hole = self._updates.peek_lowest_hole()
            if hole is None or hole >= last:
                break
            self._updates.pop_lowest_hole()
            self._move_row(last, hole)
            last -= 1
        del self._req_ids[self.num_reqs :]
        del self.req_output_token_ids[self.num_reqs :]

    def _move_row(self, source: int, target: int) -> None:
        """Copy everything of row ``source`` into the hole ``target``."""
        req_id = self._req_ids[source]
        if req_id is None:
            raise IntegrityError(f"row {source} is a hole and cannot move")
        num_tokens = int(self.rows.num_tokens_no_spec[source])
        self._req_ids[source], self._req_ids[target] = None, req_id
        self.req_output_token_ids[target] = self.req_output_token_ids[source]
        self.req_output_token_ids[source] = None
        self.req_id_to_index[req_id] = target
        self.token_ids[target, :num_tokens] = self.token_ids[source, :num_tokens]
        self.rows.move(source, target)
        self.block_table.move_row(source, target)
        if source in self.generators:
            self.generators[target] = self.generators.pop(source)
        self._updates.move(source, target, MoveDirection.UNIDIRECTIONAL)
        if self.observer is not None:
            self.observer(RowMoved(source, target, req_id, num_tokens))

    def swap_rows(self, first: int, second: int) -> None:
        """Exchange two live rows (vLLM: ``swap_states``).

        Raises
        ------
        IntegrityError
            If one of them is a hole.
        """
        first_id, second_id = self._req_ids[first], self._req_ids[second]
        if first_id is None or second_id is None:
            raise IntegrityError(f"rows {first} and {second} cannot be swapped: one is a hole")
        if first == second:
            return
        pair, reverse = [first, second], [second, first]
        self._req_ids[first], self._req_ids[second] = second_id, first_id
        outputs = self.req_output_token_ids
        outputs[first], outputs[second] = outputs[second], outputs[first]
        self.req_id_to_index[first_id], self.req_id_to_index[second_id] = second, first
        num_tokens = int(self.rows.num_tokens_no_spec[pair].max())  # no further: rows are long
        self.token_ids[pair, :num_tokens] = self.token_ids[reverse, :num_tokens]
        self.rows.swap(first, second)
        self.block_table.swap_row(first, second)
        generators = {row: self.generators.pop(row, None) for row in pair}
        for row, other in zip(pair, reverse, strict=True):
            if (generator := generators[other]) is not None:
                self.generators[row] = generator
        self._updates.move(first, second, MoveDirection.SWAP)
        if self.observer is not None:
            self.observer(RowsSwapped(first, second, first_id, second_id))

    # --- a row goes on ----------------------------------------------------------------------------------

    def append_blocks(self, req_id: str, block_ids: BlockIdLists) -> None:
        """Append new blocks to a request's row in every group."""
        row = self.req_id_to_index[req_id]
        self.block_table.append_row(block_ids, row)
        if self.observer is not None:
            for group, ids in enumerate(block_ids):
                self.observer(BlocksAppended(row, req_id, group, ids))

    def append_token(self, row: int, token_id: int) -> None:
        """Write a sampled token at the end of a row, and into the request's output.

        Raises
        ------
        CapacityError
            If the row is full.
        """
        end = int(self.rows.num_tokens_no_spec[row])
        req_id, output = self._req_ids[row], self.req_output_token_ids[row]
        if req_id is None or output is None:
            raise IntegrityError(f"row {row} is a hole and takes no token")
        if end >= self.token_ids.shape[1]:
            raise CapacityError(f"row {row} (request {req_id!r}) is full: {end} tokens")
        self.token_ids[row, end] = token_id
        self.rows.num_tokens_no_spec[row] = end + 1
        output.append(token_id)
        if self.observer is not None:
            self.observer(TokenAppended(row, req_id, token_id))

    def append_token_to_each(self, token_ids: Sequence[int]) -> None:
        """Write one sampled token at the end of every row, in row order; `append_token` for all at once, unobserved.

        Raises
        ------
        CapacityError
            If a row is full; nothing is written then.
        """
        num_reqs = self.num_reqs
        ends = self.rows.num_tokens_no_spec[:num_reqs]
        if num_reqs and ends.max() >= self.token_ids.shape[1]:
            row = int(ends.argmax())
            raise CapacityError(f"row {row} (request {self._req_ids[row]!r}) is full: {ends[row]} tokens")
        self.token_ids[np.arange(num_reqs), ends] = token_ids
        ends += 1
        for output, token_id in zip(self.req_output_token_ids, token_ids, strict=True):
            if output is None:
                raise IntegrityError("the batch has holes: condense it before tokens are appended")
            output.append(token_id)

    # --- what the step's consumers see --------------------------------------------------------------------

    def refresh_metadata(self) -> BatchUpdate | None:
        """Close the step's changes: return them (None if there are none) and rebuild sampling metadata if so."""
        update = self._updates.get_and_reset(self.num_reqs)
        if update is not None:
            self.sampling_metadata = self._make_sampling_metadata()
            if self.observer is not None:
                self.observer(
                    BatchUpdated(
                        update.batch_size,
                        update.removed,
                        tuple(added.row for added in update.added),
                        tuple((moved.source, moved.target, moved.direction.value) for moved in update.moved),
                    )
                )
        return update

    def _make_sampling_metadata(self) -> SamplingMetadata:
        n = self.num_reqs
        if self.random_reqs:
            self.rows.floats.copy_to_gpu()
            self.rows.ints.copy_to_gpu()
        return SamplingMetadata(
            temperature=self.rows.device_view("temperature")[:n] if self.random_reqs else None,
            top_p=self.rows.device_view("top_p")[:n] if self.top_p_reqs else None,
            top_k=self.rows.device_view("top_k")[:n] if self.top_k_reqs else None,
            generators=self.generators,
        )

    def check_integrity(self, held_block_ids: Mapping[str, BlockIdLists]) -> None:
        """Prove that rows and the index are inverse, and that block-table rows begin with the blocks that are held.

        Parameters
        ----------
        held_block_ids : mapping of str to tuple of tuple of int
            What the block pool's side says each request holds. A request that ended in this step is in its row until
            the next, but holds nothing.

        Raises
        ------
        IntegrityError
            If they are not; the message names the request.
        """
        if len(self._req_ids) != self.num_reqs:
            raise IntegrityError(f"{self.num_reqs} requests in {len(self._req_ids)} rows: there are holes")
        for req_id, row in self.req_id_to_index.items():
            if self._req_ids[row] != req_id:
                raise IntegrityError(f"request {req_id!r} should be in row {row}, which holds {self._req_ids[row]!r}")
            for group, table in enumerate(self.block_table):
                block_ids = tuple(table.row(row).tolist())
                held = held_block_ids.get(req_id)
                # A block that fell out of the window is null on the other side; the row still names it, unread.
                if held is not None and (
                    len(held[group]) != len(block_ids)
                    or any(a not in (b, NULL_BLOCK_ID) for a, b in zip(held[group], block_ids, strict=True))
                ):
                    raise IntegrityError(f"request {req_id!r} holds blocks {held[group]}, but its row says {block_ids}")
                if self.rows.num_computed_tokens[row] > len(block_ids) * table.block_size:
                    raise IntegrityError(f"request {req_id!r} has computed more tokens than its blocks hold")
