"""Dividing the work of attention: who does what is the same on the device, nothing is left out, and it fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.kernels import backend
from pagedlab.kernels.attention_work import choose_tiles, divide_work_numpy, max_partials

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
DEVICE = "cuda" if backend().name == "cuda" else "cpu"

if backend().has_triton:
    import triton
    import triton.language as tl

    from pagedlab.kernels.attention_work import find_work

    @triton.jit
    def _find_work_kernel(
        starts_ptr,
        seq_lens_ptr,
        found_ptr,
        num_reqs,
        workers,
        ROWS: tl.constexpr,
        QUERIES: tl.constexpr,
        ABOVE: tl.constexpr,
        UP_TO: tl.constexpr,
        WINDOW: tl.constexpr,
    ):
        item = tl.program_id(0)
        row, query_tile, split, num_splits, place, cut, num_cuts = find_work(
            item, num_reqs, starts_ptr, seq_lens_ptr, workers,
            ROWS, QUERIES, 16, ABOVE, UP_TO, WINDOW, 1, 0, 1,
        )  # fmt: skip
        tl.store(found_ptr + item * 7, row)
        tl.store(found_ptr + item * 7 + 1, query_tile)
        tl.store(found_ptr + item * 7 + 2, split)
        tl.store(found_ptr + item * 7 + 3, num_splits)
        tl.store(found_ptr + item * 7 + 4, place)
        tl.store(found_ptr + item * 7 + 5, cut)
        tl.store(found_ptr + item * 7 + 6, num_cuts)


LENGTHS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 400) | st.integers(0, 40)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=9,
)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 40), st.sampled_from([0, 30]))
@settings(max_examples=200, deadline=None)
def test_every_query_tile_is_cut_into_all_its_splits_and_partials_fit(
    lengths: list[tuple[int, int]], queries: int, workers: int, window: int
) -> None:
    query_lens, seq_lens = zip(*lengths, strict=True)
    items = divide_work_numpy(
        query_lens,
        seq_lens,
        queries_per_tile=queries,
        keys_per_tile=16,
        workers=workers,
        window=window,
    )
    expected = {(row, tile) for row, length in enumerate(query_lens) for tile in range(-(-length // queries))}
    assert {(item.row, item.query_tile) for item in items} == expected
    assert len(items) == sum(item.num_splits for item in items if item.split == 0)
    assert len(items) <= len(expected) + workers
    places = [item.place for item in items if item.num_splits > 1]
    assert places == list(range(len(places)))
    assert len(places) <= max_partials(workers)


def test_a_long_request_is_cut_and_short_ones_beside_it_are_not() -> None:
    """So that all programs end at about the same time: 33 of 62 tiles and 63 of 32."""
    items = divide_work_numpy([1] * 64, [131072] + [2048] * 63, workers=66)
    assert sum(item.row == 0 for item in items) == 33
    assert all(item.num_splits == 1 for item in items if item.row > 0)


def test_equal_requests_that_fill_the_machine_are_not_cut() -> None:
    assert all(item.num_splits == 1 for item in divide_work_numpy([1] * 64, [4096] * 64, workers=66))


def test_a_request_of_one_tile_is_never_cut() -> None:
    assert [divide_work_numpy([1], [keys])[0].num_splits for keys in (0, 1, 64, 65)] == [1, 1, 1, 2]


def test_the_shape_of_a_launch_holds_all_query_heads_of_a_kv_head() -> None:
    for group in (1, 3, 4, 16, 40, 128):
        for long in (False, True):
            for itemsize in (2, 4):
                for head_dim in (32, 128, 256):
                    tiles = choose_tiles(itemsize, head_dim, group, long=long, processors=132)
                    assert tiles.query_rows >= group
                    assert tiles.query_rows & (tiles.query_rows - 1) == 0


@needs_triton
@given(
    LENGTHS.map(lambda lengths: lengths[:4]),
    st.integers(2, 4),
    st.integers(1, 8),
    st.sampled_from([(0, 2), (2, 99), (0, 99)]),
    st.integers(0, 1),
)
@settings(max_examples=8, deadline=None)
def test_triton_equals_numpy(
    lengths: list[tuple[int, int]], queries: int, workers: int, selected: tuple[int, int], windowed: int
) -> None:
    query_lens, seq_lens = zip(*lengths, strict=True)
    above, up_to = selected
    items = divide_work_numpy(
        query_lens,
        seq_lens,
        queries_per_tile=queries,
        keys_per_tile=16,
        workers=workers,
        above=above,
        up_to=up_to,
        window=30 * windowed,
    )
    starts = torch.tensor([0, *query_lens], device=DEVICE).cumsum(0).int()
    found = torch.full((len(items) + 1, 7), -777, dtype=torch.int32, device=DEVICE)
    launch: Any = _find_work_kernel[(len(found),)]
    launch(
        starts,
        torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
        found,
        len(lengths),
        workers,
        ROWS=16,
        QUERIES=queries,
        ABOVE=above,
        UP_TO=up_to,
        WINDOW=30 * windowed,
    )
    cuts = [(item.row, item.query_tile) for item in items if item.num_splits > 1 and item.split == 0]
    for item, (row, query_tile, split, num_splits, place, cut, num_cuts) in zip(items, found.tolist(), strict=False):
        assert (row, query_tile, split, num_splits) == (item.row, item.query_tile, item.split, item.num_splits)
        assert num_cuts == len(cuts)
        if num_splits > 1:
            assert place == item.place
            assert cuts[cut] == (row, query_tile)
    assert found[-1, 0] >= len(lengths), "there is no such item"
