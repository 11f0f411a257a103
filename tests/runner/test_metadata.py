"""What attention is told of a step: shared by groups that are alike, padded to captured sizes, per kind of group."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.batch import ContextParallel, TableSpec
from pagedlab.errors import ConfigError
from pagedlab.kvcache import EncoderOnlySpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from pagedlab.runner.attention import AttentionMetadata, KVCache, PagedAttention, TorchMetadataBuilder
from pagedlab.runner.metadata import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    build_group_metadata,
    mamba_block_table,
    pad_to_capture_size,
    table_spec,
)

FULL, SLIDING = FullAttentionSpec(4), SlidingWindowSpec(4, 6)


def common_of(
    query_lens: list[int],
    seq_lens: list[int],
    block_table: list[list[int]],
    slots: list[int],
    num_padding: tuple[int, int] = (0, 0),
) -> CommonAttentionMetadata:
    """Return a step of rows with these lengths; ``num_padding`` are rows and tokens behind them."""
    rows, tokens = num_padding
    query_start_loc = np.concatenate([[0], np.cumsum(query_lens), [sum(query_lens)] * rows]).astype(np.int32)
    seq_lens_cpu = np.array(seq_lens + [0] * rows, dtype=np.int32)
    positions = [s - q + i for q, s in zip(query_lens, seq_lens, strict=True) for i in range(q)] + [0] * tokens
    return CommonAttentionMetadata(
        query_start_loc=torch.from_numpy(query_start_loc.copy()),
        query_start_loc_cpu=query_start_loc,
        seq_lens=torch.from_numpy(seq_lens_cpu.copy()),
        seq_lens_cpu=seq_lens_cpu,
        num_reqs=len(query_lens),
        num_tokens=sum(query_lens),
        max_query_len=max(query_lens),
        positions=torch.tensor(positions),
        block_table=torch.tensor(block_table + [[0] * len(block_table[0])] * rows, dtype=torch.int32),
        slot_mapping=torch.tensor(slots + [-1] * tokens),
    )


# --- groups share what is alike -----------------------------------------------------------------------------------


class CountingBuilder:
    """Says of each metadata how it was made."""

    supports_update_block_table: ClassVar[bool] = True
    num_builds = 0

    def build(self, common: CommonAttentionMetadata) -> Any:
        self.num_builds += 1
        return ("built", common)

    def update_block_table(self, metadata: Any, common: CommonAttentionMetadata) -> Any:
        return ("updated", metadata, common)


class OtherBuilder(CountingBuilder):
    """Another kind of builder."""


class PlainBuilder(CountingBuilder):
    """A kind that cannot update."""

    supports_update_block_table: ClassVar[bool] = False


@pytest.fixture
def steps() -> list[CommonAttentionMetadata]:
    """One step as three groups see it."""
    first = common_of([1], [1], [[1, 0]], [4])
    return [first, *(first.for_group(first.block_table + n, first.slot_mapping + n) for n in (1, 2))]


def test_groups_of_one_spec_and_kind_of_builder_are_built_once(steps: list[CommonAttentionMetadata]) -> None:
    builders = [CountingBuilder() for _ in steps]
    built = build_group_metadata([(FULL, b, c) for b, c in zip(builders, steps, strict=True)])
    first = ("built", steps[0])
    assert [b.num_builds for b in builders] == [1, 0, 0]
    assert [m[:-1] for m in built] == [("built",), ("updated", first), ("updated", first)]
    assert all(m[-1] is c for m, c in zip(built, steps, strict=True))


def test_specs_that_are_equal_are_one_spec(steps: list[CommonAttentionMetadata]) -> None:
    builder = CountingBuilder()
    build_group_metadata([(FullAttentionSpec(4), builder, steps[0]), (FullAttentionSpec(4), builder, steps[1])])
    assert builder.num_builds == 1


@pytest.mark.parametrize(
    ("groups", "num_builds"),
    [
        ([(FULL, CountingBuilder), (SLIDING, CountingBuilder), (FULL, CountingBuilder)], 2),
        ([(FULL, CountingBuilder), (FullAttentionSpec(8), CountingBuilder), (SLIDING, CountingBuilder)], 3),
        ([(FULL, CountingBuilder), (FULL, OtherBuilder), (FULL, OtherBuilder)], 2),
        ([(FULL, PlainBuilder), (FULL, PlainBuilder), (FULL, PlainBuilder)], 3),
    ],
)
def test_groups_that_differ_are_built_each(
    groups: list[tuple[KVCacheSpec, type[CountingBuilder]]], num_builds: int, steps: list[CommonAttentionMetadata]
) -> None:
    builders = [kind() for _, kind in groups]
    built = build_group_metadata(
        [(spec, builder, common) for (spec, _), builder, common in zip(groups, builders, steps, strict=True)]
    )
    assert sum(builder.num_builds for builder in builders) == num_builds
    assert [metadata[-1] for metadata in built] == steps


def test_an_updated_group_takes_the_metadata_of_the_group_it_is_like(steps: list[CommonAttentionMetadata]) -> None:
    builder = CountingBuilder()
    built = build_group_metadata([(FULL, builder, steps[0]), (SLIDING, builder, steps[1]), (FULL, builder, steps[2])])
    assert built[2][1] is built[0]


def test_another_group_sees_the_same_step_through_its_own_table() -> None:
    first = common_of([1, 2], [3, 2], [[1, 2], [3, 0]], [4, 5, 6], num_padding=(1, 2))
    table, slots = torch.full_like(first.block_table, 9), torch.full_like(first.slot_mapping, 8)
    other = first.for_group(table, slots)
    assert other.block_table is table
    assert other.slot_mapping is slots
    for field in dataclasses.fields(first):
        if field.name not in ("block_table", "slot_mapping"):
            assert getattr(other, field.name) is getattr(first, field.name), field.name
    assert first.slot_mapping.tolist() == [4, 5, 6, -1, -1]
    assert (other.max_seq_len, other.max_query_len) == (3, 2)


def assert_same(ours: AttentionMetadata, expected: AttentionMetadata) -> None:
    assert (ours.written_tokens is None) == (expected.written_tokens is None)
    if expected.written_tokens is not None:
        assert torch.equal(ours.written_tokens, expected.written_tokens)  # type: ignore[arg-type]
    assert torch.equal(ours.slot_mapping, expected.slot_mapping)
    assert len(ours.query_groups) == len(expected.query_groups)
    for group, other in zip(ours.query_groups, expected.query_groups, strict=True):
        for field in dataclasses.fields(group):
            one, two = getattr(group, field.name), getattr(other, field.name)
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two, field.name


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_to_update_is_to_build_from_scratch(data: st.DataObject) -> None:
    """Of random steps, with tokens of other ranks among them and padding behind, for two groups with own tables."""
    query_lens = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    seq_lens = [length + data.draw(st.integers(0, 6)) for length in query_lens]
    padding = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    blocks = st.lists(st.integers(1, 9), min_size=3, max_size=3)

    def table() -> list[list[int]]:
        return [data.draw(blocks) for _ in query_lens]

    def slots() -> list[int]:
        return [data.draw(st.integers(-1, 39)) for _ in range(sum(query_lens))]

    first, second = (common_of(query_lens, seq_lens, table(), slots(), padding) for _ in range(2))
    builder: AttentionMetadataBuilder = TorchMetadataBuilder(4)
    built = build_group_metadata([(FULL, builder, first), (FULL, builder, second)])
    assert_same(built[0], builder.build(first))
    assert_same(built[1], builder.build(second))


def test_tokens_of_other_ranks_and_padding_are_not_written() -> None:
    common = common_of([3], [3], [[2]], [8, -1, 9], num_padding=(0, 1))
    metadata = TorchMetadataBuilder(4).build(common)
    assert metadata.written_tokens is not None
    assert metadata.written_tokens.tolist() == [0, 2]
    assert metadata.slot_mapping.tolist() == [8, 9]


def test_what_others_left_in_memory_reaches_no_row_not_even_nan() -> None:
    """Of rows of unequal length: the shorter one's table ends in blocks of somebody else, its last block half empty."""
    common = common_of([1, 1, 1], [2, 9, 5], [[1, 7, 7], [2, 3, 4], [5, 6, 7]], [5, 16, 24])
    cache = KVCache(num_layers=1, num_blocks=8, block_size=4, num_kv_heads=1, head_dim=2)
    cache.data.normal_(generator=torch.Generator().manual_seed(0))
    query = torch.ones(3, 1, 2)

    def attend() -> torch.Tensor:
        return PagedAttention(cache, TorchMetadataBuilder(cache.block_size).build(common))(0, query, query, query)

    expected = attend()
    live = [4, *range(8, 16), *range(20, 24)]  # beside the three that this step writes
    others = [slot for slot in range(4, 32) if slot not in live]
    cache.data[:, :, others] = torch.nan
    assert torch.equal(attend(), expected)


# --- kinds of groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FullAttentionSpec(16), TableSpec(16, context_parallel=ContextParallel(4, 3, 2))),
        (SlidingWindowSpec(16, 32), TableSpec(16)),
        (MambaSpec(), TableSpec(1, max_blocks=1)),
        (EncoderOnlySpec(), TableSpec(1, max_blocks=0)),
    ],
)
def test_only_full_attention_is_spread_over_ranks(spec: KVCacheSpec, expected: TableSpec) -> None:
    assert table_spec(spec, ContextParallel(4, 3, 2)) == expected


def test_without_other_ranks_a_group_has_all_its_tokens() -> None:
    assert table_spec(FULL, ContextParallel()) == TableSpec(4)


# --- padding to captured sizes ------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.integers(1, 32), max_size=5))
def test_a_batch_is_padded_to_the_smallest_captured_size_that_holds_it(num_tokens: int, sizes: list[int]) -> None:
    padded = pad_to_capture_size(num_tokens, sizes)
    assert padded >= num_tokens
    holding = [size for size in sizes if size >= num_tokens]
    assert padded == (sorted(holding)[0] if holding else num_tokens)


# --- Mamba states -------------------------------------------------------------------------------------------------

TABLE = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24], [0, 32, 33, 34]], dtype=torch.int32)


def test_without_kept_states_the_table_is_as_it_is() -> None:
    assert mamba_block_table(TABLE, torch.tensor([9, 1, 0]), 4) is TABLE
    assert mamba_block_table(TABLE, torch.tensor([9, 1, 0]), 4, "none", num_spec_tokens=2) is TABLE


@pytest.mark.parametrize(
    ("seq_lens", "num_drafts", "expected"),
    [
        ([1, 4, 0], 0, [[11], [21], [0]]),  # a padded row has the null block
        ([5, 8, 9], 0, [[12], [22], [33]]),
        ([4, 5, 8], 2, [[11, 12, 13], [22, 23, 24], [32, 33, 34]]),
        ([16, 13, 12], 0, [[14], [24], [33]]),
    ],
)
def test_aligned_states_are_those_of_the_last_tokens_block_and_of_the_drafts(
    seq_lens: list[int], num_drafts: int, expected: list[list[int]]
) -> None:
    states = mamba_block_table(TABLE, torch.tensor(seq_lens, dtype=torch.int32), 4, "align", num_drafts)
    assert states.tolist() == expected
    assert states.dtype == torch.int32


def test_aligned_states_of_no_rows_are_none() -> None:
    states = mamba_block_table(TABLE[:0], torch.zeros(0, dtype=torch.int32), 4, "align", 1)
    assert tuple(states.shape) == (0, 2)


@pytest.mark.parametrize(("seq_len", "num_drafts", "column"), [(17, 0, 4), (13, 1, 4), (16, 2, 5)])
def test_a_state_behind_the_table_is_refused(seq_len: int, num_drafts: int, column: int) -> None:
    with pytest.raises(ConfigError, match=f"{seq_len} tokens and {num_drafts} drafts needs column {column} of a table"):
        mamba_block_table(TABLE, torch.tensor([1, seq_len, 1]), 4, "align", num_drafts)


def test_an_unknown_cache_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="'all': give 'none' or 'align'"):
        mamba_block_table(TABLE, torch.tensor([1, 1, 1]), 4, "all")
