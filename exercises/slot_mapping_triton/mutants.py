"""Wrong versions of `slot_mapping_triton`, each named for what its author believed.

One kernel, with a program for each tile of tokens; each belief changes it in one place.
"""

from __future__ import annotations

from typing import Any

import torch

from pagedlab.kernels import backend

backend()  # Triton looks, when it is imported, whether it is to interpret: this has said so before

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

_TILE = 1024


@triton.jit
def _kernel(
    num_slots,
    num_tokens,
    padding_begins,
    rows_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    BELIEF: tl.constexpr,
    TILE: tl.constexpr,
):
    tokens = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    live = tokens < num_tokens
    written = (tokens < num_slots) & (live | (tokens >= padding_begins))
    if BELIEF == "token index":
        position = tokens
    elif BELIEF == "padding has position -1":
        position = tl.load(positions_ptr + tokens, mask=live, other=-1)
        live = written
    else:
        position = tl.load(positions_ptr + tokens, mask=live, other=0)
    row = tl.load(rows_ptr + tokens, mask=written, other=0)
    cells = block_table_ptr + row * block_table_stride + position // block_size
    block = tl.load(cells, mask=live, other=0)
    if BELIEF != "int32":
        block = block.to(tl.int64)
    slots = tl.where(live, block * block_size + position % block_size, -1)
    if BELIEF == "no mask":
        tl.store(slot_mapping_ptr + tokens, slots)
    else:
        tl.store(slot_mapping_ptr + tokens, slots, mask=written)


def _launch(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    *,
    belief: str = "",
    stride: int | None = None,
    padding_begins: int | None = None,
    programs: int | None = None,
) -> None:
    """Launch the kernel, the right one unless told otherwise; it is told the row of each entry."""
    num_slots, num_tokens = len(slot_mapping), int(query_start_loc[-1])
    begins = query_start_loc[1:-1].contiguous()
    entries = torch.arange(num_slots, dtype=torch.int32, device=begins.device)
    _kernel[(programs or triton.cdiv(num_slots, _TILE),)](
        num_slots,
        num_tokens,
        num_tokens if padding_begins is None else padding_begins,
        torch.searchsorted(begins, entries, right=True),  # padding is counted to the last row
        positions,
        block_table,
        block_table.stride(0) if stride is None else stride,
        block_size,
        slot_mapping,
        BELIEF=belief,
        TILE=_TILE,
    )


def token_index_for_position(*inputs: Any) -> None:
    """A token's place in the step is its position."""
    _launch(*inputs, belief="token index")


def every_token_in_row_0(*inputs: Any) -> None:
    """The kernel gets the address of the table, so it reads the table from there, whatever its row."""
    _launch(*inputs, stride=0)


def width_for_stride(*inputs: Any) -> None:
    """From one row of the table to the next it is as far as a row is wide."""
    _launch(*inputs, stride=inputs[2].shape[1])


def one_tile_is_enough(*inputs: Any) -> None:
    """A tile of 1024 tokens holds whatever a step brings."""
    _launch(*inputs, programs=1)


def leaves_the_padding_stale(*inputs: Any) -> None:
    """A program a row is all: behind the last row's tokens there is nothing to do."""
    _launch(*inputs, padding_begins=len(inputs[4]))


def pads_from_the_end_of_positions(*inputs: Any) -> None:
    """There are as many tokens as there are positions, so padding begins behind these."""
    _launch(*inputs, padding_begins=len(inputs[1]))


def divides_the_padding(*inputs: Any) -> None:
    """What is masked is loaded as position -1, and the formula makes -1 of it."""
    _launch(*inputs, belief="padding has position -1")


def multiplies_in_int32(*inputs: Any) -> None:
    """A block id fits into 32 bits, so a slot does."""
    _launch(*inputs, belief="int32")


def stores_without_a_mask(*inputs: Any) -> None:
    """What a store writes behind the end is -1 and harms nobody."""
    _launch(*inputs, belief="no mask")
