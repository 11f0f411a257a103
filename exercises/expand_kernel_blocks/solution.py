"""As vLLM does it: the first part of each block, plus 0, 1, 2, …, row by row of a small table."""

import numpy as np


def expand_kernel_blocks(
    block_ids: list[int],
    block_size: int,
    kernel_block_size: int,
    row: np.ndarray,
    num_blocks: int,
) -> int:
    parts, rest = divmod(block_size, kernel_block_size)
    if rest:
        raise ValueError(f"kernel_block_size {kernel_block_size} does not divide block_size {block_size}")
    first = np.array(block_ids, dtype=np.int64).reshape(-1, 1) * parts
    expanded = (first + np.arange(parts)).reshape(-1)
    end = num_blocks + len(expanded)
    row[num_blocks:end] = expanded
    return end
