"""No loop: a program for each row and each tile of it, on two axes; those beyond the end of their row do nothing."""

import torch
import triton
import triton.language as tl

TILE = 256


@triton.jit
def rows_kernel(
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    slot_mapping_ptr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    tokens = tl.load(query_start_loc_ptr + row) + tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = tokens < tl.load(query_start_loc_ptr + row + 1)
    position = tl.load(positions_ptr + tokens, mask=mask, other=0)
    block = tl.load(block_table_ptr + row * block_table_stride + position // BLOCK_SIZE, mask=mask, other=0)
    tl.store(slot_mapping_ptr + tokens, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE, mask=mask)


@triton.jit
def padding_kernel(num_slots, num_tokens_ptr, slot_mapping_ptr, TILE: tl.constexpr):
    entries = tl.load(num_tokens_ptr) + tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(slot_mapping_ptr + entries, -1, mask=entries < num_slots)


def slot_mapping_triton(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
) -> None:
    num_tiles = triton.cdiv(len(slot_mapping), TILE)
    rows_kernel[(len(block_table), num_tiles)](
        query_start_loc,
        positions,
        block_table,
        block_table.stride(0),
        slot_mapping,
        BLOCK_SIZE=block_size,
        TILE=TILE,
    )
    padding_kernel[(num_tiles,)](len(slot_mapping), query_start_loc[-1:], slot_mapping, TILE=TILE)
