"""One program a tile of tokens, padding included: each token counts the rows that begin before it."""

import torch
import triton
import triton.language as tl


@triton.jit
def slot_mapping_kernel(
    num_rows,
    num_slots,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = tokens < tl.load(query_start_loc_ptr + num_rows)
    rows = tl.arange(0, ROWS)
    ends = tl.load(query_start_loc_ptr + 1 + rows, mask=rows < num_rows, other=num_slots)
    row = tl.sum((ends[None, :] <= tokens[:, None]).to(tl.int64), axis=1)  # as many rows end before this token

    position = tl.load(positions_ptr + tokens, mask=live, other=0)
    cells = block_table_ptr + row * block_table_stride + position // block_size
    block = tl.load(cells, mask=live, other=0).to(tl.int64)
    slots = tl.where(live, block * block_size + position % block_size, -1)
    tl.store(slot_mapping_ptr + tokens, slots, mask=tokens < num_slots)


def slot_mapping_triton(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
) -> None:
    tile = 128
    slot_mapping_kernel[(triton.cdiv(len(slot_mapping), tile),)](
        len(block_table),
        len(slot_mapping),
        query_start_loc,
        positions,
        block_table,
        block_table.stride(0),
        block_size,
        slot_mapping,
        ROWS=triton.next_power_of_2(max(1, len(block_table))),
        TILE=tile,
    )
