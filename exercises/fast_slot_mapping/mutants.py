"""Wrong versions of `fast_slot_mapping`, each named for what its author believed; the first two are right, and slow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


def _rows(query_start_loc: Ints) -> Ints:
    """The row of each token."""
    return np.repeat(np.arange(len(query_start_loc) - 1), np.diff(query_start_loc))


def _slots(rows: Ints, positions: Ints, block_table: Ints, block_size: int) -> Ints:
    """The slots of tokens at ``positions`` of ``rows``."""
    columns, offsets = np.divmod(positions, block_size)
    return block_table[rows, columns].astype(np.int64) * block_size + offsets


# --- right, and slow ----------------------------------------------------------------------------------------------


def pads_one_by_one(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Padding is a trifle: a loop over what is left will do."""
    num_tokens = query_start_loc[-1]
    slot_mapping[:num_tokens] = _slots(_rows(query_start_loc), positions, block_table, block_size)
    for entry in range(num_tokens, len(slot_mapping)):
        slot_mapping[entry] = -1


def goes_through_the_rows(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Each row has tokens and blocks of its own, so rows are done one after the other."""
    for row in range(len(block_table)):
        tokens = slice(query_start_loc[row], query_start_loc[row + 1])
        blocks = block_table[row, positions[tokens] // block_size].astype(np.int64)
        slot_mapping[tokens] = blocks * block_size + positions[tokens] % block_size
    slot_mapping[query_start_loc[-1] :] = -1


# --- wrong ---------------------------------------------------------------------------------------------------------


def finds_the_row_before(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """A token's row is the last one that begins before it, which a search finds."""
    num_tokens = query_start_loc[-1]
    rows = np.maximum(np.searchsorted(query_start_loc, np.arange(num_tokens)) - 1, 0)
    slot_mapping[:num_tokens] = _slots(rows, positions, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def forgets_rows_without_tokens(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Each beginning is marked with a 1, and the marks up to a token count its row."""
    num_tokens = query_start_loc[-1]
    marks = np.zeros(num_tokens + 1, dtype=np.int64)
    marks[query_start_loc[1:-1]] = 1
    slot_mapping[:num_tokens] = _slots(np.cumsum(marks[:num_tokens]), positions, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def as_many_tokens_in_each_row(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Rows are dealt out evenly: a token's row is its number over the tokens of a row."""
    num_tokens = query_start_loc[-1]
    in_a_row = max(1, -(-num_tokens // max(1, len(block_table))))
    slot_mapping[:num_tokens] = _slots(np.arange(num_tokens) // in_a_row, positions, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def maps_one_token_a_row(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Everybody decodes: the rows of the table and the tokens of the step go side by side."""
    num_tokens = query_start_loc[-1]
    rows = np.minimum(np.arange(num_tokens), max(0, len(block_table) - 1))
    slot_mapping[:num_tokens] = _slots(rows, positions, block_table, block_size)
    slot_mapping[num_tokens:] = -1


def leaves_the_padding(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """What nobody computes need not be written, and not writing is fastest."""
    num_tokens = query_start_loc[-1]
    slot_mapping[:num_tokens] = _slots(_rows(query_start_loc), positions, block_table, block_size)


def multiplies_in_int32(
    query_start_loc: Ints, positions: Ints, block_table: Ints, block_size: int, slot_mapping: Ints
) -> None:
    """Half as wide is twice as fast, and a block id fits into 32 bits."""
    num_tokens = query_start_loc[-1]
    columns, offsets = np.divmod(positions.astype(np.int32), np.int32(block_size))
    slot_mapping[:num_tokens] = block_table[_rows(query_start_loc), columns] * np.int32(block_size) + offsets
    slot_mapping[num_tokens:] = -1
