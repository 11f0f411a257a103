"""The persistent batch: every live request in a row of arrays that stay where they are between steps.

Two neighbouring steps differ little: a few requests end, a few begin, the others go on. So the batch is not
built anew; it is changed where it differs. Ended requests leave *holes*, new ones take the lowest holes first, and
what holes remain are filled by `condense`, from the end:

    [A, _, B, _, C]  ->  [A, C, B]          C is the highest live row, and 1 the lowest hole

vLLM counterpart: ``vllm/v1/worker/gpu_input_batch.py`` (``InputBatch``) at 0.25.1. What differs: per-row scalars
live in a `RowStore`, sampling settings in `SamplingRows`; which prompts are embeddings is only kept once one is;
defects that 0.33.0 mended are not here, nor are pooling and async scheduling (`docs/differences.md`).
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch.block_table import STALE
from pagedlab.batch.buffers import rows_as_bytes, swap_prefix
from pagedlab.batch.integrity import check_batch
from pagedlab.batch.logits_processors import LogitsProcessor, builtin_logits_processors
from pagedlab.batch.multi_group import MultiGroupBlockTable
from pagedlab.batch.row_store import RowStore
from pagedlab.batch.sampling_metadata import SamplingMetadata
from pagedlab.batch.sampling_rows import SamplingRows
from pagedlab.batch.state import BlockIdLists, CachedRequestState
from pagedlab.batch.table_spec import TableSpec
from pagedlab.batch.update import BatchUpdate, BatchUpdateBuilder, MoveDirection
from pagedlab.errors import CapacityError, DuplicateRequestError, IntegrityError, RequestError
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
class LoRAInputs:
    """Which adapter each token and each sample needs (vLLM: what ``make_lora_inputs`` returns).

    Attributes
    ----------
    per_sample, per_token : ndarray of int32
        LoRA ids, 0 for none: of each token that is sampled, and of each that is computed.
    active : frozenset of int
        The adapters that must be there.
    """

    per_sample: npt.NDArray[np.int32]
    per_token: npt.NDArray[np.int32]
    active: frozenset[int]


class InputBatch:
    """Rows of requests.

    Parameters
    ----------
    max_num_reqs, max_model_len, max_num_batched_tokens, vocab_size : int
        Sizes; all memory is taken here, once.
    tables : sequence of TableSpec
        One per KV cache group.
    device : torch.device
    logits_processors : sequence of LogitsProcessor, optional
        None: those that every batch has, without an end-of-text token.
    commit_mode, commit_backend : str, optional
        As for `MultiGroupBlockTable`.

    Attributes
    ----------
    token_ids : numpy.ndarray, [max_num_reqs, max_model_len] int32
        Prompt, output and drafts of each row (vLLM: ``token_ids_cpu``). Behind them lies what was there before.
    is_token_ids : numpy.ndarray or None, [max_num_reqs, max_model_len] bool
        False where the prompt is an embedding; None as long as no prompt ever was.
    rows : RowStore
        The scalars of each row.
    sampling : SamplingRows
        How each row is sampled.
    block_table : MultiGroupBlockTable
    req_id_to_index : dict of str to int
        The row of each request: the one true list of who is in the batch.
    req_output_token_ids, spec_token_ids : list
        By row: the request's own list of outputs, and the draft tokens behind them.
    req_prompt_embeds : dict of int to Tensor
        By row, where the prompt is embeddings.
    lora_requests : dict of int to set of str
        The requests of each adapter that is in use (vLLM: ``lora_id_to_request_ids``).
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        vocab_size: int,
        tables: Sequence[TableSpec],
        device: torch.device,
        *,
        logits_processors: Sequence[LogitsProcessor] | None = None,
        commit_mode: str = "changed",
        commit_backend: str | None = None,
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.token_ids = np.zeros((max_num_reqs, max_model_len), dtype=np.int32)
        self.is_token_ids: npt.NDArray[np.bool_] | None = None
        self.rows = RowStore(max_num_reqs, device)
        # The same memory, for work on one row at a time.
        self._token_rows = rows_as_bytes(self.token_ids)
        self._ends = self.rows.num_tokens_no_spec.data
        self._row_numbers = np.arange(max_num_reqs)
        self.logits_processors = (
            builtin_logits_processors(device) if logits_processors is None else tuple(logits_processors)
        )
        self.sampling = SamplingRows(self.rows, max_num_reqs, vocab_size, device, self.logits_processors)
        self.block_table = MultiGroupBlockTable(
            tables,
            max_num_reqs,
            max_model_len,
            max_num_batched_tokens,
            device,
            commit_mode=commit_mode,
            commit_backend=commit_backend,
        )
        self.req_id_to_index: dict[str, int] = {}
        self.req_output_token_ids: list[list[int] | None] = []
        self.spec_token_ids: list[list[int]] = []
        self.req_prompt_embeds: dict[int, torch.Tensor] = {}
        self.lora_requests: dict[int, set[str]] = {}
        self.observer: Observer | None = None
        self._may_have_drafts = False
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
        if len(self._req_ids) != len(self.req_id_to_index):
            raise IntegrityError("the batch has holes: condense it before reading its rows")
        return [*self._req_ids]  # type: ignore[list-item]

    def num_row_tokens(self, row: int) -> int:
        """Return how many tokens stand in a row, drafts included."""
        return self._ends[row] + len(self.spec_token_ids[row])

    # --- add and remove ---------------------------------------------------------------------------------

    def add_request(self, request: CachedRequestState) -> int:
        """Write a request into the lowest hole, or behind the last row; return the row.

        Raises
        ------
        DuplicateRequestError
            If the request is in the batch already.
        CapacityError
            If every row is taken, or the request has more tokens than a row.
        RequestError
            If its adapter or an allowed token is out of range.
        IntegrityError
            If rows have moved in this step.
        """
        req_id, num_prompt_tokens = request.req_id, request.num_prompt_tokens
        end = num_prompt_tokens + len(request.output_token_ids)
        if req_id in self.req_id_to_index:
            raise DuplicateRequestError(f"request {req_id!r} is in the batch already")
        if end > self.max_model_len:
            raise CapacityError(f"request {req_id!r} has {end} tokens and a row holds {self.max_model_len}")
        num_reqs = len(self.req_id_to_index)
        if num_reqs >= self.max_num_reqs:
            raise CapacityError(f"all {self.max_num_reqs} rows are taken: raise max_num_seqs")
        prompt = request.prompt_bytes  # refuses what is no token id
        outputs = request.output_array if end > num_prompt_tokens else None
        if request.lora_id or request.sampling_params.allowed_token_ids is not None:
            self._check_settings(request)
        self.block_table.check_room(request.block_ids)
        row = self._updates.row_to_add(num_reqs)
        self.block_table.write_row(request.block_ids, row)
        if row == len(self._req_ids):
            self._req_ids.append(req_id)
            self.req_output_token_ids.append(request.output_token_ids)
            self.spec_token_ids.append([])
        else:
            self._req_ids[row] = req_id
            self.req_output_token_ids[row] = request.output_token_ids
            self.spec_token_ids[row] = []
        self.req_id_to_index[req_id] = row

        self._token_rows[row][: len(prompt)] = prompt
        if outputs is not None:
            self.token_ids[row, num_prompt_tokens:end] = outputs
        if request.prompt_embeds is not None:
            self.req_prompt_embeds[row] = request.prompt_embeds
            if self.is_token_ids is None:
                self.is_token_ids = np.ones(self.token_ids.shape, dtype=np.bool_)
        if self.is_token_ids is not None:
            self.is_token_ids[row, :num_prompt_tokens] = request.prompt_embeds is None
            self.is_token_ids[row, num_prompt_tokens:end] = True
        rows = self.rows
        rows.num_tokens_no_spec[row] = end
        rows.num_prompt_tokens[row] = num_prompt_tokens
        rows.num_computed_tokens[row] = request.num_computed_tokens
        rows.num_accepted_tokens[row] = 1
        rows.lora_id[row] = request.lora_id
        if request.lora_id:
            self.lora_requests.setdefault(request.lora_id, set()).add(req_id)
        self.sampling.add(req_id, row, request.sampling_params, request.generator)
        self._updates.add((row, request.sampling_params, request.prompt_token_ids, request.output_token_ids))
        if self.observer is not None:
            block_ids = tuple(tuple(ids) for ids in request.block_ids)
            self.observer(RowAdded(row, req_id, end, request.num_computed_tokens, block_ids))
        return row

    def _check_settings(self, request: CachedRequestState) -> None:
        """Raise `RequestError` if a row cannot hold a request's adapter or settings."""
        if not 0 <= request.lora_id < 2**31:
            raise RequestError(f"request {request.req_id!r} has the LoRA id {request.lora_id}: give 0 to 2^31 - 1")
        allowed = request.sampling_params.allowed_token_ids
        if allowed is not None and max(allowed) >= self.vocab_size:
            raise RequestError(
                f"request {request.req_id!r} allows token {max(allowed)}, and the vocabulary has {self.vocab_size}: "
                "give ids below that"
            )

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
        self.spec_token_ids[row] = []
        self.block_table.clear_row(row)
        self.req_prompt_embeds.pop(row, None)
        self.sampling.remove(req_id, row)
        if self.lora_requests and (lora_id := int(self.rows.lora_id[row])):
            members = self.lora_requests[lora_id]
            members.remove(req_id)
            if not members:
                del self.lora_requests[lora_id]
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
        del self.spec_token_ids[self.num_reqs :]

    def _move_row(self, source: int, target: int) -> None:
        """Copy everything of row ``source`` into the hole ``target``."""
        req_id = self._req_ids[source]
        if req_id is None:
            raise IntegrityError(f"row {source} is a hole and cannot move")
        num_tokens = self.num_row_tokens(source)
        self._req_ids[source], self._req_ids[target] = None, req_id
        outputs, drafts = self.req_output_token_ids, self.spec_token_ids
        outputs[source], outputs[target] = outputs[target], outputs[source]
        drafts[source], drafts[target] = drafts[target], drafts[source]
        self.req_id_to_index[req_id] = target
        num_bytes = num_tokens * self.token_ids.itemsize
        self._token_rows[target][:num_bytes] = self._token_rows[source][:num_bytes]
        if self.is_token_ids is not None:
            self.is_token_ids[target, :num_tokens] = self.is_token_ids[source, :num_tokens]
            if source in self.req_prompt_embeds:
                self.req_prompt_embeds[target] = self.req_prompt_embeds.pop(source)
        self.rows.move(source, target)
        self.sampling.move(source, target)
        self.block_table.move_row(source, target)
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
        req_ids = self._req_ids
        if not (0 <= first < len(req_ids) and 0 <= second < len(req_ids)):
            raise IntegrityError(f"rows {first} and {second} cannot be swapped: {len(req_ids)} rows are in use")
        first_id, second_id = req_ids[first], req_ids[second]
        if first_id is None or second_id is None:
            raise IntegrityError(f"rows {first} and {second} cannot be swapped: one is a hole")
        if first == second:
            return
        outputs, drafts = self.req_output_token_ids, self.spec_token_ids
        end, other_end = self._ends[first] + len(drafts[first]), self._ends[second] + len(drafts[second])
        num_tokens = end if end > other_end else other_end  # no further: rows are long
        req_ids[first], req_ids[second] = second_id, first_id
        outputs[first], outputs[second] = outputs[second], outputs[first]
        drafts[first], drafts[second] = drafts[second], drafts[first]
        self.req_id_to_index[first_id], self.req_id_to_index[second_id] = second, first
        swap_prefix(self._token_rows, first, second, num_tokens * self.token_ids.itemsize)
        if self.is_token_ids is not None:
            swap_prefix(rows_as_bytes(self.is_token_ids), first, second, num_tokens)
            embeds = {row: self.req_prompt_embeds.pop(row, None) for row in (first, second)}
            for row, other in ((first, second), (second, first)):
                if (prompt := embeds[other]) is not None:
                    self.req_prompt_embeds[row] = prompt
        self.rows.swap(first, second)
        self.sampling.swap(first, second)
        self.block_table.swap_row(first, second)
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
                self.observer(BlocksAppended(row, req_id, group, tuple(ids)))

    def append_blocks_to_each(self, new_block_ids: Sequence[tuple[str, BlockIdLists]]) -> None:
        """`append_blocks` for several requests; at once where each got one block, of the only group, unobserved."""
        if self.observer is None and len(self.block_table) == 1:
            try:
                blocks = [block for _, ((block,),) in new_block_ids]
            except ValueError:  # somebody got several, or none
                pass
            else:
                rows = [self.req_id_to_index[req_id] for req_id, _ in new_block_ids]
                self.block_table[0].append_each(np.array(blocks, dtype=np.int32), np.array(rows, dtype=np.int64))
                return
        for req_id, block_ids in new_block_ids:
            self.block_table.check_room(block_ids, self.req_id_to_index[req_id])
        for req_id, block_ids in new_block_ids:
            self.append_blocks(req_id, block_ids)

    def append_token(self, row: int, token_id: int) -> None:
        """Write a sampled token at the end of a row, and into the request's output. The row's drafts are over.

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
        self.spec_token_ids[row] = []
        if self.is_token_ids is not None:
            self.is_token_ids[row, end] = True
        self.rows.num_tokens_no_spec[row] = end + 1
        output.append(token_id)
        if self.observer is not None:
            self.observer(TokenAppended(row, req_id, token_id))

    def append_token_to_each(self, token_ids: npt.NDArray[np.integer]) -> list[int]:
        """Write one sampled token at the end of every row; `append_token` for all at once, unobserved.

        Parameters
        ----------
        token_ids : ndarray of int, [num_reqs]
            By row.

        Returns
        -------
        list of int
            The same.

        Raises
        ------
        CapacityError
            If a row is full; nothing is written then.
        """
        num_reqs = self.num_reqs
        ends = self.rows.num_tokens_no_spec[:num_reqs]
        if len(self._req_ids) != num_reqs:
            raise IntegrityError("the batch has holes: condense it before tokens are appended")
        if len(token_ids) != num_reqs:
            raise ValueError(f"{len(token_ids)} tokens were given for {num_reqs} rows: give one each")
        try:
            self.token_ids[self._row_numbers[:num_reqs], ends] = token_ids
        except IndexError as error:
            row = int(ends.argmax())
            raise CapacityError(f"row {row} (request {self._req_ids[row]!r}) is full: {ends[row]} tokens") from error
        if self._may_have_drafts:
            self.spec_token_ids = [[] for _ in range(num_reqs)]
            self._may_have_drafts = False
        if self.is_token_ids is not None:
            self.is_token_ids[self._row_numbers[:num_reqs], ends] = True
        ends += 1
        tokens: list[int] = token_ids.tolist()
        outputs: list[list[int]] = self.req_output_token_ids  # type: ignore[assignment]  # no holes, so no None
        collections.deque(map(list.append, outputs, tokens), maxlen=0)  # `append` for each pair, without a Python loop
        return tokens

    def truncate_outputs(self, request: CachedRequestState, num_output_tokens: int) -> None:
        """Forget what a request generated beyond ``num_output_tokens``, in the batch too if it is there."""
        del request.output_token_ids[num_output_tokens:]
        row = self.req_id_to_index.get(request.req_id)
        if row is not None:
            self.rows.num_tokens_no_spec[row] = request.num_tokens
            self.spec_token_ids[row] = []

    def set_drafts(self, req_id: str, draft_token_ids: Sequence[int]) -> None:
        """Write a request's draft tokens behind its tokens, in place of those it had (``update_req_spec_token_ids``).

        Raises
        ------
        CapacityError
            If the row is too short for them; the old drafts are then still there.
        """
        row = self.req_id_to_index[req_id]
        start = int(self.rows.num_tokens_no_spec[row])
        end = start + len(draft_token_ids)
        if end > self.max_model_len:
            raise CapacityError(
                f"row {row} (request {req_id!r}) holds {start} tokens and cannot take {len(draft_token_ids)} drafts: "
                f"a row holds {self.max_model_len}"
            )
        self.token_ids[row, start:end] = np.array(draft_token_ids, dtype=np.int32)
        self.spec_token_ids[row] = list(draft_token_ids)
        self._may_have_drafts = True
        if self.is_token_ids is not None:
            self.is_token_ids[row, start:end] = True

    # --- what the step's consumers see --------------------------------------------------------------------

    def refresh_metadata(self) -> BatchUpdate | None:
        """Close the step's changes: return them, None if there are none.

        Logits processors hear of every step; sampling metadata are made anew only if something changed.

        Raises
        ------
        IntegrityError
            If there are holes; nothing has been closed then.
        """
        if len(self._req_ids) != self.num_reqs:
            raise IntegrityError("the batch has holes: condense it before its changes are closed")
        update = self._updates.get_and_reset(self.num_reqs)
        for processor in self.logits_processors:
            processor.update_state(update)
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
        outputs: Sequence[list[int]] = self.req_output_token_ids  # type: ignore[assignment]  # no holes, so no None
        return self.sampling.make_metadata(self.req_ids, self.token_ids, outputs, self.is_token_ids)

    def make_lora_inputs(
        self, num_scheduled_tokens: npt.NDArray[np.integer], num_sampled_tokens: npt.NDArray[np.integer]
    ) -> LoRAInputs:
        """Spread each row's adapter over its tokens.

        Parameters
        ----------
        num_scheduled_tokens, num_sampled_tokens : ndarray of int, [num_reqs]
            By row.
        """
        lora_ids = self.rows.lora_id[: self.num_reqs]
        return LoRAInputs(
            np.repeat(lora_ids, num_sampled_tokens),
            np.repeat(lora_ids, num_scheduled_tokens),
            frozenset(self.lora_requests),
        )

    def poison(self) -> None:
        """Overwrite everything that is stale with `STALE`: nobody may look at it, so nothing may change."""
        num_reqs = self.num_reqs
        for row in range(self.max_num_reqs):
            live = self.num_row_tokens(row) if row < num_reqs else 0
            self.token_ids[row, live:] = STALE
        self.rows.ints.np[:, num_reqs:] = STALE
        self.rows.floats.np[:, num_reqs:] = STALE
        for table in self.block_table:
            table.poison()

    def check_integrity(self, held_block_ids: Mapping[str, BlockIdLists]) -> None:
        """Prove that rows, index, tokens, settings and block tables agree (`pagedlab.batch.integrity`).

        Parameters
        ----------
        held_block_ids : mapping of str to sequence of sequences of int
            What the block pool's side says each request holds. A request that ended in this step is in its row until
            the next, but holds nothing.

        Raises
        ------
        IntegrityError
            If they do not; the message names the request.
        """
        check_batch(self, held_block_ids)
