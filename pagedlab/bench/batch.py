"""The persistent batch alone: rows that come, go, move and change places, and what is sent to the device."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from pagedlab.batch import BlockTable, CachedRequestState, InputBatch, MultiGroupBlockTable, TableSpec
from pagedlab.bench.measure import Row, best_rate
from pagedlab.request import SamplingParams

_CPU = torch.device("cpu")
_BLOCK_SIZE = 16
_NUM_ROWS = 256
_LIVE_TOKENS = 520
_GREEDY = SamplingParams(temperature=0)


def batch_rows(seconds: float) -> Iterator[Row]:
    """Measure and yield every row of the batch."""
    yield Row(
        "batch_churn_8_of_256",
        f"8 of 256 requests of {_LIVE_TOKENS} tokens leave and 8 come in a step: remove, add, condense, refresh; a row "
        "operation is one removal or one addition",
        churn_rate(seconds),
        "row operations/s",
        69_700.0,
    )
    yield Row(
        "batch_churn_8_of_256_moved",
        "the same in two steps, so that 8 rows move as well: remove, condense, refresh; add, refresh",
        churn_rate(seconds, holes_first=True),
        "row operations/s",
    )
    yield Row(
        "batch_swap", f"two rows of {_LIVE_TOKENS} tokens change places", swap_rate(8192, seconds), "swaps/s", 71_300.0
    )
    for max_model_len in (1024, 131_072):
        yield Row(
            f"batch_swap_{max_model_len}",
            f"the same, max_model_len {max_model_len:,}",
            swap_rate(max_model_len, seconds),
            "swaps/s",
        )
    yield Row(
        "table_add_32_append_1",
        "BlockTable: a row of 32 blocks is added, then one is appended",
        table_rate(seconds),
        "rows/s",
        958_000.0,
    )
    yield Row(
        "commit_bytes",
        "bytes sent to the device in a step of 1,024 decodes, of the bytes of a full copy (1,024 x 8,192)",
        commit_bytes_percent(),
        "percent",
    )


def _request(name: str, seed: int, num_tokens: int = _LIVE_TOKENS) -> CachedRequestState:
    blocks = tuple(1 + (seed * 37 + index) % 9999 for index in range(-(-num_tokens // _BLOCK_SIZE)))
    request = CachedRequestState(name, (seed % 50_000,) * num_tokens, _GREEDY, (blocks,), num_tokens - 1)
    request.prompt_bytes  # noqa: B018 - made with the request, as the runner has it
    return request


def _batch(max_num_reqs: int, max_model_len: int = 8192) -> InputBatch:
    return InputBatch(max_num_reqs, max_model_len, 8192, 50_000, [TableSpec(_BLOCK_SIZE)], _CPU)


def churn_rate(seconds: float, num_changed: int = 8, *, holes_first: bool = False) -> float:
    """Return row operations per second: as many requests leave random rows as come.

    ``holes_first``: the holes are filled by moves before the new requests come, in a step of their own.
    """

    def prepare() -> Callable[[], int]:
        batch, dice = _batch(_NUM_ROWS), random.Random(0)
        states = [_request(f"request-{index}", index) for index in range(_NUM_ROWS + num_changed)]
        inside, outside = states[:_NUM_ROWS], states[_NUM_ROWS:]
        for request in inside:
            batch.add_request(request)
        batch.refresh_metadata()
        choices = itertools.cycle([dice.sample(range(_NUM_ROWS), num_changed) for _ in range(1000)])

        def run() -> int:
            places = next(choices)
            coming, going = outside.copy(), [inside[place] for place in places]
            for request in going:
                batch.remove_request(request.req_id)
            if holes_first:
                batch.condense()
                batch.refresh_metadata()
            for request in coming:
                batch.add_request(request)
            batch.condense()
            batch.refresh_metadata()
            for place, request in zip(places, coming, strict=True):
                inside[place] = request
            outside[:] = going
            return 2 * num_changed

        return run

    return best_rate(prepare, seconds)


def swap_rate(max_model_len: int, seconds: float) -> float:
    """Return swaps per second."""

    def prepare() -> Callable[[], int]:
        batch = _batch(8, max_model_len)
        for index in range(8):
            batch.add_request(_request(f"request-{index}", index))
        batch.refresh_metadata()
        pairs = list(itertools.combinations(range(8), 2))

        def run() -> int:
            for first, second in pairs:
                batch.swap_rows(first, second)
            batch.refresh_metadata()
            return len(pairs)

        return run

    return best_rate(prepare, seconds)


def table_rate(seconds: float) -> float:
    """Return rows per second, each written twice: 32 blocks, then one more."""

    def prepare() -> Callable[[], int]:
        table = BlockTable(TableSpec(_BLOCK_SIZE), _NUM_ROWS, 8192, 8192, _CPU)
        blocks, one = list(range(1, 33)), [33]

        def run() -> int:
            for row in range(_NUM_ROWS):
                table.add_row(blocks, row)
                table.append_row(one, row)
            return 2 * _NUM_ROWS

        return run

    return best_rate(prepare, seconds)


def commit_bytes_percent() -> float:
    """Return what a step of decodes sends of 1,024 rows of 8,192 columns, where one row in sixteen gets a block."""
    num_rows, columns = 1024, 8192
    tables = MultiGroupBlockTable([TableSpec(_BLOCK_SIZE)], num_rows, columns * _BLOCK_SIZE, 8192, _CPU)
    for row in range(num_rows):
        tables.add_row([range(1, 100)], row)
    full = num_rows * columns * 4
    tables.commit(num_rows)
    tables[0].append_each(np.arange(64, dtype=np.int32), np.arange(0, num_rows, _BLOCK_SIZE))
    return 100 * tables.commit(num_rows) / full
