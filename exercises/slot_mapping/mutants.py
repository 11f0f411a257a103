"""Wrong versions of `slot_mapping`, each named for what its author believed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


def _rows(query_start_loc: Ints) -> Ints:
    """The row of each live token."""
    return np.repeat(np.arange(len(query_start_loc) - 1), np.diff(query_start_loc))


def _slots(query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int) -> Ints:
    """The right slots of tokens at ``positions``."""
    columns, offsets = np.divmod(positions, block_size)
    return block_table[_rows(query_start_loc), columns].astype(np.int64) * block_size + offsets


def token_index_for_position(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A token's place in the step is its position."""
    num_tokens = query_start_loc[-1]
    places = np.minimum(np.arange(num_tokens), block_table.shape[1] * block_size - 1)
    slot_mapping[:num_tokens] = _slots(query_start_loc, places, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def place_in_the_row_for_position(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A row's first token of the step is at position 0."""
    num_tokens = query_start_loc[-1]
    places = np.arange(num_tokens) - query_start_loc[:-1][_rows(query_start_loc)]
    slot_mapping[:num_tokens] = _slots(query_start_loc, places, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def never_looks_into_the_table(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A request's memory is one piece: its blocks lie one behind the other, from the first."""
    num_tokens = query_start_loc[-1]
    first = block_table[_rows(query_start_loc), 0].astype(np.int64)
    slot_mapping[:num_tokens] = first * block_size + positions[:num_tokens]
    slot_mapping[num_tokens:] = -1


def every_token_in_row_0(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """One table serves all: each token reads the first row."""
    num_tokens = query_start_loc[-1]
    columns, offsets = np.divmod(positions[:num_tokens], block_size)
    slot_mapping[:num_tokens] = block_table[:1].astype(np.int64)[0, columns] * block_size + offsets if num_tokens else 0
    slot_mapping[num_tokens:] = -1


def forgets_the_offset(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A token's slot is where its block begins."""
    num_tokens = query_start_loc[-1]
    starts = positions[:num_tokens] // block_size * block_size
    slot_mapping[:num_tokens] = _slots(query_start_loc, starts, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def a_block_id_is_a_slot(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """The offset is added to the block's number, which was never multiplied by the block size."""
    num_tokens = query_start_loc[-1]
    columns, offsets = np.divmod(positions[:num_tokens], block_size)
    slot_mapping[:num_tokens] = block_table[_rows(query_start_loc), columns] + offsets
    slot_mapping[num_tokens:] = -1


def leaves_the_padding_stale(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Padding starts where the buffers end: what an earlier step left behind the tokens stays."""
    num_tokens = query_start_loc[-1]
    slot_mapping[:num_tokens] = _slots(query_start_loc, positions[:num_tokens], block_table, block_size)


def pads_with_0(query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints) -> None:
    """Nothing is written for padding, so 0 will do."""
    num_tokens = query_start_loc[-1]
    slot_mapping[:num_tokens] = _slots(query_start_loc, positions[:num_tokens], block_table, block_size)
    slot_mapping[num_tokens:] = 0


def divides_the_padding(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Padding is the position -1, and the formula takes care of it: -1 // 4 is -1, and -1 % 4 is 3."""
    num_tokens = query_start_loc[-1]
    slot_mapping[:num_tokens] = _slots(query_start_loc, positions[:num_tokens], block_table, block_size)
    last_block = int(block_table[-1, -1]) if len(block_table) else 0
    slot_mapping[num_tokens:] = last_block * block_size + block_size - 1


def multiplies_in_int32(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A block id fits into 32 bits, so a slot does."""
    num_tokens = query_start_loc[-1]
    columns, offsets = np.divmod(positions[:num_tokens].astype(np.int32), np.int32(block_size))
    slot_mapping[:num_tokens] = block_table[_rows(query_start_loc), columns] * np.int32(block_size) + offsets
    slot_mapping[num_tokens:] = -1
