"""From the other side: which block, and which part of it, is entry `at` of the new ones?"""

import numpy as np


def expand_kernel_blocks(
    block_ids: list[int],
    block_size: int,
    kernel_block_size: int,
    row: np.ndarray,
    num_blocks: int,
) -> int:
    parts = block_size / kernel_block_size
    if not parts.is_integer():
        raise ValueError(f"{block_size} / {kernel_block_size} is not a whole number")
    parts = int(parts)
    entries = np.arange(len(block_ids) * parts)
    row[num_blocks:][entries] = np.repeat(np.array(block_ids, dtype=row.dtype) * parts, parts) + entries % parts
    return num_blocks + len(entries)
