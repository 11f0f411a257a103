"""Wrong versions of `local_slots`, each named for what its author believed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


class _Share(NamedTuple):
    block_ids: Ints
    positions: Ints
    seq_len: int
    block_size: int
    world_size: int
    rank: int
    interleave: int
    slot_mapping: Ints

    @property
    def is_mine(self) -> npt.NDArray[np.bool_]:
        """Which tokens of the step are on this rank."""
        return np.equal(self.positions // self.interleave % self.world_size, self.rank)

    @property
    def columns(self) -> Ints:
        """The block of each token, as a column of the table."""
        return self.positions // (self.block_size * self.world_size)

    @property
    def offsets(self) -> Ints:
        """The place of each token in its rank's block."""
        runs, in_run = np.divmod(self.positions % (self.block_size * self.world_size), self.interleave)
        return runs // self.world_size * self.interleave + in_run

    @property
    def num_local(self) -> int:
        """How many of the request's tokens are on this rank."""
        return int((np.arange(self.seq_len) // self.interleave % self.world_size == self.rank).sum())


def _fill(
    share: _Share,
    *,
    is_mine: npt.NDArray[np.bool_] | None = None,
    columns: Ints | None = None,
    offsets: Ints | None = None,
    other: int | Ints = -1,
    num_local: int | None = None,
) -> int:
    """Fill the slots, in the right way unless told otherwise."""
    is_mine = share.is_mine if is_mine is None else is_mine
    blocks = share.block_ids[share.columns if columns is None else columns].astype(np.int64)
    slots = blocks * share.block_size + (share.offsets if offsets is None else offsets)
    share.slot_mapping[len(slots) :] = -1
    share.slot_mapping[: len(slots)] = np.where(is_mine, slots, other)
    return share.num_local if num_local is None else num_local


def rank_by_block(*inputs: Any) -> int:
    """Ranks take turns by blocks: a whole block of tokens goes to one, the next block to the next."""
    share = _Share(*inputs)
    return _fill(share._replace(interleave=share.block_size))


def one_token_at_a_time(*inputs: Any) -> int:
    """Ranks take turns by tokens, whatever the interleave is."""
    return _fill(_Share(*inputs)._replace(interleave=1))


def one_piece_for_each_rank(*inputs: Any) -> int:
    """A request is cut into as many pieces as there are ranks, and each gets one."""
    share = _Share(*inputs)
    piece = -(-share.seq_len // share.world_size)
    owners, places = np.divmod(share.positions, piece)
    num_local = min(max(share.seq_len - share.rank * piece, 0), piece)
    columns, offsets = np.divmod(places, share.block_size)
    return _fill(share, is_mine=owners == share.rank, columns=columns, offsets=offsets, num_local=num_local)


def a_block_ends_after_block_size_tokens(*inputs: Any) -> int:
    """The block of a token is `position // block_size`, as on one rank."""
    share = _Share(*inputs)
    columns, offsets = np.divmod(share.positions, share.block_size)
    slots = [
        int(share.block_ids[column]) * share.block_size + offset if mine else -1
        for mine, column, offset in zip(share.is_mine, columns.tolist(), offsets.tolist(), strict=True)
    ]
    share.slot_mapping[:] = slots + [-1] * (len(share.slot_mapping) - len(slots))
    return share.num_local


def leaves_room_for_the_others(*inputs: Any) -> int:
    """A token's place in its block is its place in the stretch that the block stands for on all ranks."""
    share = _Share(*inputs)
    return _fill(share, offsets=share.positions % (share.block_size * share.world_size))


def forgets_the_place_in_the_run(*inputs: Any) -> int:
    """A rank's offset is the number of the round: tokens of one run need no counting of their own."""
    share = _Share(*inputs)
    runs = share.positions % (share.block_size * share.world_size) // share.interleave
    return _fill(share, offsets=runs // share.world_size * share.interleave)


def keeps_every_token(*inputs: Any) -> int:
    """Each rank writes all tokens; which of them are its own matters when they are read."""
    share = _Share(*inputs)
    return _fill(share, is_mine=np.ones(len(share.positions), dtype=bool))


def leaves_the_others_stale(*inputs: Any) -> int:
    """A rank has nothing to say about tokens of others, so their entries stay as they are."""
    share = _Share(*inputs)
    return _fill(share, other=share.slot_mapping[: len(share.positions)].copy())


def the_same_length_for_all(*inputs: Any) -> int:
    """Tokens are dealt out evenly: each rank has `seq_len / world_size`, rounded up."""
    share = _Share(*inputs)
    return _fill(share, num_local=-(-share.seq_len // share.world_size))


def counts_whole_rounds_only(*inputs: Any) -> int:
    """What does not fill a round is not dealt out yet."""
    share = _Share(*inputs)
    return _fill(share, num_local=share.seq_len // (share.interleave * share.world_size) * share.interleave)


def counts_this_step_only(*inputs: Any) -> int:
    """The tokens to count are those that get a slot."""
    share = _Share(*inputs)
    return _fill(share, num_local=int(share.is_mine.sum()))
