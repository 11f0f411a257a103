"""Wrong versions of `prepare_inputs`, each named for what its author believed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


class _Step(NamedTuple):
    req_ids: list[str]
    num_scheduled_tokens: dict[str, int]
    num_computed_tokens: Ints
    num_tokens: Ints
    token_ids: Ints
    query_start_loc: Ints
    positions: Ints
    input_ids: Ints
    seq_lens: Ints
    logits_indices: Ints
    discard: npt.NDArray[np.bool_]

    @property
    def begins(self) -> Ints:
        """Where each row's tokens begin, and where the last one's end; once they are filled."""
        return self.query_start_loc[: len(self.req_ids) + 1]

    @property
    def rows(self) -> Ints:
        """The row of each token."""
        return np.repeat(np.arange(len(self.req_ids)), np.diff(self.begins))

    @property
    def within(self) -> Ints:
        """The place of each token in its row: 0, 1, 2, … in each."""
        return np.arange(self.begins[-1]) - self.begins[self.rows]


def _filled(*inputs: Any, query_lens: Iterable[int] | None = None) -> _Step:
    """The right inputs, if ``query_lens`` are the tokens of each row; by default they are."""
    step = _Step(*inputs)
    num_rows = len(step.req_ids)
    lens = [step.num_scheduled_tokens[req_id] for req_id in step.req_ids] if query_lens is None else list(query_lens)
    step.query_start_loc[: num_rows + 1] = np.cumsum([0, *lens])
    step.query_start_loc[num_rows + 1 :] = sum(lens)
    positions = step.num_computed_tokens[step.rows] + step.within
    step.positions[: len(positions)] = positions
    step.input_ids[: len(positions)] = step.token_ids[step.rows, positions]
    step.seq_lens[:num_rows] = step.num_computed_tokens + lens
    step.seq_lens[num_rows:] = 0
    step.logits_indices[:] = step.begins[1:] - 1
    step.discard[:] = step.seq_lens[:num_rows] < step.num_tokens
    return step


def dict_order_for_row_order(*inputs: Any) -> None:
    """The scheduler names requests in the order of rows, so its numbers of tokens are taken as they come."""
    _filled(*inputs, query_lens=_Step(*inputs).num_scheduled_tokens.values())


def samples_a_partial_prefill(*inputs: Any) -> None:
    """Whoever computes tokens gets a new one: nothing is ever discarded."""
    _filled(*inputs).discard[:] = False


def discards_every_prefill(*inputs: Any) -> None:
    """Only a decode, a row of one token, is sampled; a row of several tokens is prefill and gets none."""
    step = _filled(*inputs)
    step.discard[:] = np.diff(step.begins) > 1


def asks_before_the_step(*inputs: Any) -> None:
    """A row is a partial prefill if its request has tokens to compute, before this step has computed any."""
    step = _filled(*inputs)
    step.discard[:] = step.num_computed_tokens < step.num_tokens


def seq_lens_before_the_step(*inputs: Any) -> None:
    """A sequence is as long as what is in memory when the step begins."""
    step = _filled(*inputs)
    seq_lens = step.seq_lens[: len(step.req_ids)]
    seq_lens[:] = step.num_computed_tokens
    step.discard[:] = seq_lens < step.num_tokens


def logits_behind_the_last_token(*inputs: Any) -> None:
    """A row ends where the next one begins: that is its last token."""
    step = _filled(*inputs)
    step.logits_indices[:] = step.begins[1:]


def logits_of_the_first_token(*inputs: Any) -> None:
    """A row is found where it begins, its logits too."""
    step = _filled(*inputs)
    step.logits_indices[:] = step.begins[:-1]


def logits_of_sampled_rows_only(*inputs: Any) -> None:
    """Nobody looks at the logits of a partial prefill, so its row gets no entry."""
    before = _Step(*inputs).logits_indices.copy()
    step = _filled(*inputs)
    sampled = step.logits_indices[~step.discard]
    step.logits_indices[:] = [*sampled, *before[len(sampled) :]]


def positions_from_0(*inputs: Any) -> None:
    """A row's first token of the step is at position 0, and the first of its row in the table."""
    step = _filled(*inputs)
    step.positions[: len(step.rows)] = step.within
    step.input_ids[: len(step.rows)] = step.token_ids[step.rows, step.within]


def reads_each_row_from_its_beginning(*inputs: Any) -> None:
    """The tokens to compute are the first ones of the row, wherever they stand in the request."""
    step = _filled(*inputs)
    step.input_ids[: len(step.rows)] = step.token_ids[step.rows, step.within]


def leaves_the_tails(*inputs: Any) -> None:
    """Behind the last row nobody looks: what an earlier step left there can stay."""
    step = _Step(*inputs)
    tails = step.query_start_loc[len(step.req_ids) + 1 :], step.seq_lens[len(step.req_ids) :]
    before = [tail.copy() for tail in tails]
    _filled(*inputs)
    for tail, left in zip(tails, before, strict=True):
        tail[:] = left
