"""Wrong versions of `expand_kernel_blocks`, each named for what its author believed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int32]


def _parts(block_size: int, kernel_block_size: int) -> int:
    """How many blocks of the kernel a block of the manager is."""
    if block_size % kernel_block_size:
        raise ValueError(f"{kernel_block_size} does not divide {block_size}")
    return block_size // kernel_block_size


def _append(kernel_blocks: Iterable[int], row: Row, num_blocks: int) -> int:
    """Write blocks of the kernel into the row; return where they end."""
    for block in kernel_blocks:
        row[num_blocks] = block
        num_blocks += 1
    return num_blocks


def firsts_before_seconds(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """All blocks have a first part, and then all have a second."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block * parts + part for part in range(parts) for block in block_ids), row, num_blocks)


def multiplies_by_the_kernel_block_size(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """The kernel's numbers are the manager's times the size of the kernel's blocks."""
    parts = _parts(block_size, kernel_block_size)
    first = (block * kernel_block_size for block in block_ids)
    return _append((block + part for block in first for part in range(parts)), row, num_blocks)


def counts_on_from_the_id(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """A block begins at its own number in the kernel's counting too, and its parts follow."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block + part for block in block_ids for part in range(parts)), row, num_blocks)


def all_parts_the_same(block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int) -> int:
    """The entries of a block's parts all say where the block begins."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block * parts for block in block_ids for _ in range(parts)), row, num_blocks)


def null_block_stays_null(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """The null block is no memory, so it has no parts: all its entries are 0."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block and block * parts + part for block in block_ids for part in range(parts)), row, num_blocks)


def returns_the_managers_count(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """The row has grown by as many entries as there are new block ids."""
    parts = _parts(block_size, kernel_block_size)
    _append((block * parts + part for block in block_ids for part in range(parts)), row, num_blocks)
    return num_blocks + len(block_ids)


def takes_the_count_for_the_managers(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """`num_blocks` counts blocks of the manager, so the row is in use up to `num_blocks * parts`."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block * parts + part for block in block_ids for part in range(parts)), row, num_blocks * parts)


def starts_the_row_anew(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """A row is what was given last: it begins at column 0."""
    parts = _parts(block_size, kernel_block_size)
    return _append((block * parts + part for block in block_ids for part in range(parts)), row, 0)


def lets_sizes_pass_that_do_not_fit(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """What does not divide is rounded down, and the rest of a block stays unused."""
    parts = block_size // kernel_block_size
    return _append((block * parts + part for block in block_ids for part in range(parts)), row, num_blocks)


def takes_the_kernels_for_the_larger(
    block_ids: list[int], block_size: int, kernel_block_size: int, row: Row, num_blocks: int
) -> int:
    """Several of the manager's blocks make one of the kernel's."""
    blocks = _parts(kernel_block_size, block_size)
    return _append((block // blocks for block in block_ids[::blocks]), row, num_blocks)
