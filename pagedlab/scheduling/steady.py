"""The step that a busy server makes almost always, done for all requests at once.

Every running request decodes: it needs exactly one token. Nobody can be admitted, blocks suffice, and nobody can end
with the next token. Then the plain pass of `Scheduler.schedule` asks each request the same questions and gets the same
answers. A `SteadyBatch` knows the answers: only a request whose last block is full needs a block (one in
``block_size`` of them, known beforehand), and only one whose block becomes full is hashed. The rest is columns.

>>> from pagedlab.request import Request, SamplingParams
>>> a, b = (Request(name, [1] * length, SamplingParams(), arrival_time=0) for name, length in (("A", 5), ("B", 7)))
>>> a.num_computed_tokens, b.num_computed_tokens = 4, 6
>>> batch = SteadyBatch([a, b], block_size=4, max_model_len=99)
>>> [request.request_id for request in batch.need_block], [request.request_id for request in batch.fill_block]
(['A'], [])

vLLM has no counterpart at 0.25.1. A property test holds this path and the plain one equal.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from pagedlab.request import Request
from pagedlab.scheduling.output import OneTokenEach, Shifted


class SteadyBatch:
    """Running requests that all decode, as columns.

    Parameters
    ----------
    requests : sequence of Request
        In running order; each needs exactly one token.
    block_size, max_model_len : int

    Attributes
    ----------
    req_ids : tuple of str
    scheduled : tuple of (str, int)
        One token each.
    num_computed_tokens, num_output_tokens : Shifted
        Per request, before the step.
    """

    def __init__(self, requests: Sequence[Request], block_size: int, max_model_len: int) -> None:
        self._requests = tuple(requests)
        self._token_ids = [request.all_token_ids for request in requests]
        self.req_ids = tuple(request.request_id for request in requests)
        self.scheduled = tuple((req_id, 1) for req_id in self.req_ids)
        self.num_computed_tokens = Shifted(tuple(request.num_computed_tokens for request in requests), 0)
        self.num_output_tokens = Shifted(tuple(request.num_output_tokens for request in requests), 0)
        self._stop_ids = {token for request in requests for token in request.stop_token_ids}
        # Whoever is nearest to its end reaches it after so many tokens.
        self._tokens_left = min(request.max_num_tokens(max_model_len) - request.num_tokens for request in requests)
        # The requests by the place of their next token in its block; the place of all moves on by one a step.
        self._by_offset: list[list[Request]] = [[] for _ in range(block_size)]
        for request in requests:
            self._by_offset[request.num_computed_tokens % block_size].append(request)
        self._first = 0

    @staticmethod
    def all_decode(requests: Sequence[Request]) -> bool:
        """Whether each request needs exactly one token."""
        return all(len(request.all_token_ids) - request.num_computed_tokens == 1 for request in requests)

    @property
    def need_block(self) -> Sequence[Request]:
        """Requests whose next token is the first of a block."""
        return self._by_offset[self._first]

    @property
    def fill_block(self) -> Sequence[Request]:
        """Requests whose next token is the last of its block."""
        return self._by_offset[self._first - 1]

    def count_computed(self) -> None:
        """The step is promised: its tokens count as computed."""
        for request in self._requests:
            request.num_computed_tokens += 1
        self.num_computed_tokens = _one_more(self.num_computed_tokens)
        self._first = (self._first - 1) % len(self._by_offset)

    def accept(self, sampled_token_ids: Mapping[str, tuple[int, ...]]) -> OneTokenEach | None:
        """Append one token to each request; return them in scheduling order.

        None, and nothing appended, if somebody got another number of tokens or may end with them.
        """
        tokens = self._in_order(sampled_token_ids)
        if tokens is None or self._tokens_left <= 1 or (self._stop_ids and not self._stop_ids.isdisjoint(tokens)):
            return None
        collections.deque(map(list.append, self._token_ids, tokens), maxlen=0)  # each its token, without a Python loop
        self._tokens_left -= 1
        self.num_output_tokens = _one_more(self.num_output_tokens)
        return OneTokenEach(self.req_ids, tokens)

    def _in_order(self, sampled_token_ids: Mapping[str, tuple[int, ...]]) -> list[int] | None:
        """Return the only new token of each request, in scheduling order; None if somebody has another number."""
        if isinstance(sampled_token_ids, OneTokenEach) and sampled_token_ids.req_ids == self.req_ids:
            return sampled_token_ids.token_ids
        try:
            return [token_id for (token_id,) in map(sampled_token_ids.__getitem__, self.req_ids)]
        except ValueError:
            return None


def _one_more(counts: Shifted) -> Shifted:
    return Shifted(counts.base, counts.shift + 1)
