"""Give each token its slot, in Triton. Check it: pagedlab check slot_mapping_triton THIS_FILE."""

import torch
import triton
import triton.language as tl


@triton.jit
def slot_mapping_kernel(
    query_start_loc_ptr,  # the address of query_start_loc[0]; the others likewise
    positions_ptr,
    block_table_ptr,
    slot_mapping_ptr,
    TILE: tl.constexpr,  # tokens that a program takes at a time, a power of two
):
    """What one program does: tl.program_id(0) says which it is. Add the parameters that you need."""


def slot_mapping_triton(
    query_start_loc: torch.Tensor,  # [rows + 1] int32: where each row's tokens begin
    positions: torch.Tensor,  # [tokens, and more behind them] int64: each token's position in its request
    block_table: torch.Tensor,  # [rows, columns] int32: block ids; from row to row it is block_table.stride(0) entries
    block_size: int,  # tokens in a block
    slot_mapping: torch.Tensor,  # [as long as positions, or longer] int64: to be filled, padding with -1
) -> None:
    """Launch the kernel: slot_mapping_kernel[(number of programs,)](arguments ..., TILE=...)."""
    raise NotImplementedError("slot_mapping_triton: give each token its slot, in a Triton kernel")
