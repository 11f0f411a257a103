"""Proofs that the persistent batch is whole: run by tests after every step, and by whoever doubts.

What is proved: there are no holes, rows and index are inverse, each row holds its request's outputs and drafts, only
requests of the batch have settings and adapters, block-table rows are the blocks that are held, and the device's tables
say what the host's say but for what the next commit will send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagedlab.batch.block_table import BlockTable
from pagedlab.batch.state import BlockIdLists
from pagedlab.config import NULL_BLOCK_ID
from pagedlab.errors import IntegrityError

if TYPE_CHECKING:
    from pagedlab.batch.input_batch import InputBatch


def check_batch(batch: InputBatch, held_block_ids: Mapping[str, BlockIdLists]) -> None:
    """Prove it, or raise `IntegrityError` (`InputBatch.check_integrity`)."""
    req_ids = batch.req_ids  # raises if there are holes
    if not len(req_ids) == len(batch.req_output_token_ids) == len(batch.spec_token_ids):
        raise IntegrityError(f"{len(req_ids)} rows have {len(batch.req_output_token_ids)} lists of outputs")
    if batch.req_id_to_index != {req_id: row for row, req_id in enumerate(req_ids)}:
        raise IntegrityError(f"rows hold {req_ids}, but the index says {batch.req_id_to_index}")
    batch.sampling.check_integrity(req_ids)
    adapters: dict[int, set[str]] = {}
    for row, req_id in enumerate(req_ids):
        _check_tokens(batch, req_id, row)
        if lora_id := int(batch.rows.lora_id[row]):
            adapters.setdefault(lora_id, set()).add(req_id)
        for group, table in enumerate(batch.block_table):
            block_ids = table.row(row).tolist()
            held = held_block_ids.get(req_id)
            if held is not None:
                _check_blocks(req_id, block_ids, held[group], table.blocks_per_kv_block)
            per_block = table.block_size * table.context_parallel.world_size
            if table.spec.has_slots and batch.rows.num_computed_tokens[row] > len(block_ids) * per_block:
                raise IntegrityError(f"request {req_id!r} has computed more tokens than its blocks hold")
    if adapters != batch.lora_requests:
        raise IntegrityError(f"rows use the adapters {adapters}, but {batch.lora_requests} are said to be in use")
    for table in batch.block_table:
        _check_device(table, len(req_ids))


def _check_tokens(batch: InputBatch, req_id: str, row: int) -> None:
    """Prove that a row ends with the request's outputs, and its drafts."""
    outputs, num_prompt_tokens = batch.req_output_token_ids[row], int(batch.rows.num_prompt_tokens[row])
    end = int(batch.rows.num_tokens_no_spec[row])
    if outputs is None or batch.token_ids[row, num_prompt_tokens:end].tolist() != outputs:
        raise IntegrityError(f"request {req_id!r} has other outputs than its row {row}")
    if batch.token_ids[row, end : batch.num_row_tokens(row)].tolist() != batch.spec_token_ids[row]:
        raise IntegrityError(f"request {req_id!r} has other drafts than its row {row}")


def _check_blocks(req_id: str, block_ids: list[int], held: Sequence[int], blocks_per_kv_block: int) -> None:
    """Prove that a row's kernel blocks are those of the manager blocks that are held."""
    expanded = [
        (block_id, block_id * blocks_per_kv_block + index) for block_id in held for index in range(blocks_per_kv_block)
    ]
    # A block that fell out of the window is null on the other side; the row still names it, unread.
    if len(expanded) != len(block_ids) or any(
        manager_id != NULL_BLOCK_ID and kernel_id != block_id
        for (manager_id, kernel_id), block_id in zip(expanded, block_ids, strict=True)
    ):
        raise IntegrityError(f"request {req_id!r} holds blocks {[*held]}, but its row says {block_ids}")


def _check_device(table: BlockTable, num_reqs: int) -> None:
    """Prove that what a commit would leave on the device is what the host has, live entries of live rows."""
    host, device = table.table.np[:num_reqs], table.table.gpu[:num_reqs].cpu().numpy().copy()
    pending = table.pending_cells(num_reqs)
    device.reshape(-1)[pending] = host.reshape(-1)[pending]
    live = np.arange(table.num_columns) < table.num_blocks_per_row[:num_reqs, None]
    wrong = np.argwhere((host != device) & live)
    if len(wrong):
        row, column = wrong[0].tolist()
        raise IntegrityError(
            f"group {table.group}, row {row}, column {column}: the device has block {device[row, column]}, the host "
            f"{host[row, column]}, and no commit would send it"
        )
