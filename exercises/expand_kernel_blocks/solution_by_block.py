"""One block after the other: each is a range of kernel blocks."""

import numpy as np


def expand_kernel_blocks(
    block_ids: list[int],
    block_size: int,
    kernel_block_size: int,
    row: np.ndarray,
    num_blocks: int,
) -> int:
    if block_size % kernel_block_size:
        raise ValueError("the blocks of the kernel do not fill one of the manager")
    parts = block_size // kernel_block_size
    for block_id in block_ids:
        row[num_blocks : num_blocks + parts] = range(block_id * parts, (block_id + 1) * parts)
        num_blocks += parts
    return num_blocks
