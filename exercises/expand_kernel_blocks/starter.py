"""Append the manager's blocks to a row of kernel blocks. Check it: pagedlab check expand_kernel_blocks THIS_FILE."""

import numpy as np


def expand_kernel_blocks(
    block_ids: list[int],  # new blocks of the manager
    block_size: int,  # tokens in a block of the manager
    kernel_block_size: int,  # tokens in a block of the kernel
    row: np.ndarray,  # [columns] int32: a row of the block table, in blocks of the kernel
    num_blocks: int,  # entries of the row that are in use
) -> int:
    """Append the kernel's blocks to the row; return how many entries are in use then."""
    raise NotImplementedError("expand_kernel_blocks: append the manager's blocks, as blocks of the kernel")
