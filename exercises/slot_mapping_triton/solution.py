"""One program a row, tile after tile, and a last one for the padding, as vLLM does it."""

import torch
import triton
import triton.language as tl


@triton.jit
def slot_mapping_kernel(
    num_slots,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    is_padding = row == tl.num_programs(0) - 1
    first = tl.load(query_start_loc_ptr + row)
    end = tl.load(query_start_loc_ptr + row + 1, mask=row < tl.num_programs(0) - 1, other=num_slots)
    while first < end:
        tokens = first + tl.arange(0, TILE)
        mask = tokens < end
        if is_padding:
            tl.store(slot_mapping_ptr + tokens, -1, mask=mask)
        else:
            position = tl.load(positions_ptr + tokens, mask=mask, other=0)
            cells = block_table_ptr + row * block_table_stride + position // block_size
            block = tl.load(cells, mask=mask, other=0).to(tl.int64)
            tl.store(slot_mapping_ptr + tokens, block * block_size + position % block_size, mask=mask)
        first += TILE


def slot_mapping_triton(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
) -> None:
    slot_mapping_kernel[(len(query_start_loc),)](
        len(slot_mapping),
        query_start_loc,
        positions,
        block_table,
        block_table.stride(0),
        block_size,
        slot_mapping,
        TILE=1024,
    )
