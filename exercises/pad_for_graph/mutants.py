"""Wrong versions of `pad_for_graph`, each named for what its author believed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


class _Batch(NamedTuple):
    capture_sizes: list[int]
    num_reqs: int
    input_ids: Ints
    positions: Ints
    query_start_loc: Ints
    seq_lens: Ints
    block_table: Ints
    slot_mapping: Ints

    @property
    def size(self) -> int:
        """The right one."""
        return min((size for size in self.capture_sizes if size >= self.num_reqs), default=self.num_reqs)


def _padding(batch: _Batch, size: int) -> dict[str, Ints]:
    """The part of each buffer that padded rows have, up to ``size``; of `query_start_loc` where they end."""
    rows = slice(batch.num_reqs, size)
    return {
        "input_ids": batch.input_ids[rows],
        "positions": batch.positions[rows],
        "query_start_loc": batch.query_start_loc[1:][rows],
        "seq_lens": batch.seq_lens[rows],
        "block_table": batch.block_table[rows],
        "slot_mapping": batch.slot_mapping[rows],
    }


def _pad(batch: _Batch, size: int, *leave: str, **otherwise: Any) -> int:
    """Pad to ``size``; leave some buffers as they are, and fill some with something else."""
    right = dict.fromkeys(("input_ids", "positions", "seq_lens", "block_table"), 0)
    right |= {"query_start_loc": batch.num_reqs, "slot_mapping": -1}
    for name, part in _padding(batch, size).items():
        if name not in leave:
            part[:] = otherwise.get(name, right[name])
    return size


def pads_slots_with_0(*inputs: Any) -> int:
    """0 is what empty looks like, for a slot too."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, slot_mapping=0)


def chooses_a_size_only(*inputs: Any) -> int:
    """The graph knows which rows are live, so what stands behind them can stay."""
    return _Batch(*inputs).size


def leaves_the_slots(*inputs: Any) -> int:
    """Nobody asks for the slot of a token that does not exist."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, "slot_mapping")


def leaves_the_rows_of_the_table(*inputs: Any) -> int:
    """A padded row is not looked up, so its old block ids can stay in the table."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, "block_table")


def leaves_the_lengths(*inputs: Any) -> int:
    """A row without tokens is skipped, whatever `seq_lens` says."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, "seq_lens")


def leaves_the_tokens(*inputs: Any) -> int:
    """The results of padded tokens are thrown away, so their ids and positions can be anything."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, "input_ids", "positions")


def a_token_for_each_padded_row(*inputs: Any) -> int:
    """The graph computes a token in each row, so `query_start_loc` goes on counting."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, query_start_loc=np.arange(batch.num_reqs, batch.size) + 1)


def padded_rows_begin_at_0(*inputs: Any) -> int:
    """A row without tokens begins nowhere: `query_start_loc` is 0."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, query_start_loc=0)


def at_least_one_token_long(*inputs: Any) -> int:
    """No sequence is shorter than one token: attention would have nothing to look at."""
    batch = _Batch(*inputs)
    return _pad(batch, batch.size, seq_lens=1)


def repeats_the_last_request(*inputs: Any) -> int:
    """A copy of a real row is always valid, so the last one is repeated, with a token of its own."""
    batch = _Batch(*inputs)
    last = batch.num_reqs - 1
    names = ("input_ids", "positions", "seq_lens", "block_table", "slot_mapping")
    copied = {name: getattr(batch, name)[last].copy() for name in names}
    return _pad(batch, batch.size, query_start_loc=np.arange(batch.num_reqs, batch.size) + 1, **copied)


def always_one_size_up(*inputs: Any) -> int:
    """There must be room for padding: a graph of exactly as many rows is too small."""
    batch = _Batch(*inputs)
    size = next((size for size in batch.capture_sizes if size > batch.num_reqs), batch.num_reqs)
    return _pad(batch, size)


def rounds_down(*inputs: Any) -> int:
    """The size is the largest one that the requests fill; who is left over comes next."""
    batch = _Batch(*inputs)
    filled = [size for size in batch.capture_sizes if size <= batch.num_reqs]
    return filled[-1] if filled else _pad(batch, batch.size)


def largest_if_none_fits(*inputs: Any) -> int:
    """There is always a graph: if all are too small, the largest comes closest."""
    batch = _Batch(*inputs)
    if batch.capture_sizes and batch.capture_sizes[-1] < batch.num_reqs:
        return batch.capture_sizes[-1]
    return _pad(batch, batch.size)
