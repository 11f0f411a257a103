"""The free queue, the pool and the manager, each against a plain list that anyone can check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedlab.errors import CapacityError, ConfigError, IntegrityError
from pagedlab.kvcache import (
    BlockPool,
    EncoderOnlySpec,
    FreeKVCacheBlockQueue,
    FullAttentionSpec,
    KVCacheBlock,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    MemoryUsage,
    SlidingWindowSpec,
)
from pagedlab.kvcache.hashing import ROOT, chain_hash
from pagedlab.kvcache.manager import BlockIds
from pagedlab.request import Request, SamplingParams


class QueueAgainstList(RuleBasedStateMachine):
    """The linked list does what a Python list does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [KVCacheBlock(i) for i in range(8)]
        self.queue = FreeKVCacheBlockQueue(self.blocks)
        self.model = list(self.blocks)
        self.taken: list[KVCacheBlock] = []

    @rule(n=st.integers(0, 4))
    def popleft(self, n: int) -> None:
        if n > len(self.model):
            with pytest.raises(CapacityError):
                self.queue.popleft_n(n)
            return
        assert self.queue.popleft_n(n) == self.model[:n]
        self.taken += self.model[:n]
        del self.model[:n]

    @rule(n=st.integers(0, 4), front=st.booleans())
    def give_back(self, n: int, front: bool) -> None:
        back, self.taken = self.taken[:n], self.taken[n:]
        for block in back:
            block.ref_cnt = 0
        if front:
            self.queue.prepend_n(back)
            self.model[:0] = back
        else:
            self.queue.append_n(back)
            self.model += back

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_from_the_middle(self, data: st.DataObject) -> None:
        block = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
        self.queue.remove(block)
        self.taken.append(block)
        block.ref_cnt = 1  # as whoever takes it does
        with pytest.raises(IntegrityError, match="not in the free queue"):
            self.queue.remove(block)

    @invariant()
    def same_order(self) -> None:
        assert list(self.queue) == self.model
        assert len(self.queue) == len(self.model)


TestQueueAgainstList = QueueAgainstList.TestCase
TestQueueAgainstList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(5)
    assert [block.block_id for block in pool.get_new_blocks(4)] == [1, 2, 3, 4]
    with pytest.raises(CapacityError, match="1 free blocks were asked for and 0 are there"):
        pool.get_new_blocks(1)
    assert pool.usage == 1.0


def test_a_negative_number_of_blocks_is_refused() -> None:
    pool = BlockPool(5)
    with pytest.raises(CapacityError):
        pool.get_new_blocks(-1)
    assert pool.num_free_blocks == 4


def test_integrity_ends_also_on_a_queue_that_runs_in_a_circle() -> None:
    pool = BlockPool(5)
    first = next(iter(pool.free_queue))
    first.next_free = first
    with pytest.raises(IntegrityError, match="the free queue says"):
        pool.check_integrity()


def test_freed_blocks_are_the_next_to_go_in_the_given_order() -> None:
    pool = BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    pool.free_blocks([c, b, a])
    assert [block.block_id for block in pool.free_queue] == [3, 2, 1, 4, 5]


def test_c3_freeing_a_block_twice_is_an_error_unless_it_is_held_twice() -> None:
    pool = BlockPool(5)
    _, _, block = pool.get_new_blocks(3)
    with pytest.raises(IntegrityError, match="more often than it is held"):
        pool.free_blocks([block, block])
    assert pool.num_free_blocks == 1
    block.ref_cnt = 2
    pool.free_blocks([block, block])
    assert pool.num_free_blocks == 2
    pool.check_integrity()


def manager(num_blocks: int, *specs: KVCacheSpec, caching: bool = False) -> KVCacheManager:
    return KVCacheManager(
        specs or [FullAttentionSpec(4)], num_blocks, max_model_len=32, enable_caching=caching, max_num_batched_tokens=32
    )


def request(name: str, tokens: Sequence[int], **keys: Any) -> Request:
    return Request(name, tokens, SamplingParams(), arrival_time=0, **keys)


def compute(kv: KVCacheManager, req: Request, count: int | None = None) -> BlockIds | None:
    """Do what the scheduler does with a request: hit, allocate, count as computed."""
    hit = kv.get_computed_blocks(req) if req.num_computed_tokens == 0 else None
    hit_tokens = hit.num_tokens if hit else 0
    count = req.num_tokens - req.num_computed_tokens - hit_tokens if count is None else count
    blocks = kv.allocate_slots(req, count, hit)
    if blocks is not None:
        req.num_computed_tokens += hit_tokens + count
    kv.check_integrity()
    return blocks


def test_c5_a_block_is_taken_at_its_first_slot_not_at_the_last_of_the_one_before() -> None:
    kv, a = manager(2), request("A", range(9))
    assert compute(kv, a, 3) == ((1,),)
    assert kv.num_free_blocks == 0
    assert compute(kv, a, 1) == ((),)
    assert compute(kv, a, 1) is None
    assert kv.get_block_ids("A") == ((1,),)


def test_c6_an_exact_multiple_fills_its_last_block() -> None:
    kv, a = manager(4), request("A", range(8))
    assert compute(kv, a) == ((1, 2),)
    kv.free(a)
    assert all(block.ref_cnt == 0 for block in kv.block_pool.blocks)


def test_c8_a_prompt_of_whole_blocks_in_chunks_opens_a_third_block_for_the_first_output() -> None:
    kv, a = manager(8), request("A", range(9))
    compute(kv, a, 4)
    compute(kv, a, 4)
    assert kv.get_block_ids("A") == ((1, 2),)
    assert compute(kv, a, 1) == ((3,),)


def test_reserving_takes_nothing_but_may_refuse() -> None:
    kv, a = manager(4), request("A", range(16))
    assert kv.allocate_slots(a, 4, reserve_full_sequence=True) is None
    assert kv.num_free_blocks == 3
    b = request("B", range(12))
    assert kv.allocate_slots(b, 4, reserve_full_sequence=True) == ((1,),)
    assert kv.num_free_blocks == 2
    with pytest.raises(ValueError, match="something to make room for"):
        kv.allocate_slots(b, 0)


# --- prefix caching ------------------------------------------------------------------------------------------


def test_a_second_request_begins_with_the_blocks_of_the_first() -> None:
    kv, a, b = manager(9, caching=True), request("A", range(10)), request("B", [*range(8), 99, 98, 97])
    compute(kv, a)
    assert compute(kv, b) == ((4,),)
    assert kv.get_block_ids("B") == ((1, 2, 4),)
    assert kv.block_pool.blocks[1].ref_cnt == 2
    assert kv.prefix_cache_stats.num_hit_tokens == 8


def test_a_full_hit_recomputes_the_last_block() -> None:
    kv, a, b = manager(9, caching=True), request("A", range(8)), request("B", range(8))
    compute(kv, a)
    hit = kv.get_computed_blocks(b)
    assert (hit.num_tokens, [block.block_id for block in hit.blocks[0]]) == (4, [1])


def test_c4_a_block_that_was_reused_is_not_hit() -> None:
    kv = manager(2, caching=True)
    x, y = request("X", [1, 2, 3, 4]), request("Y", [9, 9, 9, 9])
    compute(kv, x)
    kv.free(x)
    compute(kv, y)
    assert kv.get_computed_blocks(request("X2", [1, 2, 3, 4, 5])).num_tokens == 0


def test_c10_the_tail_is_evicted_first_so_that_the_beginning_can_still_be_hit() -> None:
    kv = manager(4, caching=True)
    a = request("A", range(12))
    compute(kv, a)
    kv.free(a)
    assert kv.free_block_ids == (3, 2, 1)
    other = request("B", [50, 51])
    assert compute(kv, other) == ((3,),)
    assert kv.get_computed_blocks(request("A2", range(13))).num_tokens == 8


def test_c13_tokens_are_hashed_whole_and_with_their_parents() -> None:
    assert chain_hash(ROOT, [65]) != chain_hash(ROOT, [321])
    parents = [chain_hash(ROOT, [1]), chain_hash(ROOT, [2])]
    assert chain_hash(parents[0], [7]) != chain_hash(parents[1], [7])


def test_c14_recomputing_after_preemption_is_no_hit() -> None:
    kv, a = manager(9, caching=True), request("A", range(9))
    compute(kv, a)
    kv.free(a)
    a.num_computed_tokens, a.num_preemptions = 0, 1
    assert kv.get_computed_blocks(a).num_tokens == 8
    compute(kv, a)
    assert kv.prefix_cache_stats.hit_rate == 0
    assert kv.prefix_cache_stats.num_queried_tokens == 9


@pytest.mark.parametrize("keys", [{"lora_id": 1}, {"cache_salt": "other"}, {"cache_salt": ""}])
def test_another_adapter_or_salt_shares_nothing(keys: dict[str, Any]) -> None:
    kv = manager(9, caching=True)
    compute(kv, request("A", range(10)))
    assert kv.get_computed_blocks(request("B", range(10), **keys)).num_tokens == 0
    assert kv.get_computed_blocks(request("C", range(10))).num_tokens == 8


def test_the_prefix_cache_is_reset_only_when_nobody_holds_a_block() -> None:
    kv, a = manager(9, caching=True), request("A", range(10))
    compute(kv, a)
    assert not kv.reset_prefix_cache()
    kv.free(a)
    assert kv.reset_prefix_cache()
    assert kv.get_computed_blocks(request("B", range(10))).num_tokens == 0
    kv.check_integrity()


def test_sliding_blocks_are_given_up_from_the_highest_index_down() -> None:
    kv, a = manager(9, SlidingWindowSpec(block_size=4, window=4)), request("A", range(20))
    compute(kv, a, 12)
    assert kv.free_block_ids == (4, 5, 6, 7, 8)
    compute(kv, a, 1)  # 9 tokens are out of reach: blocks 2 and 1 are free again, and one of them is taken
    assert kv.get_block_ids("A") == ((0, 0, 3, 2),)
    assert kv.free_block_ids == (1, 4, 5, 6, 7, 8)


def test_block_sizes_that_cannot_share_hashes_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of the smallest"):
        manager(9, FullAttentionSpec(6), SlidingWindowSpec(4, 8), caching=True)
    manager(9, FullAttentionSpec(6), SlidingWindowSpec(4, 8))


@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(0, 9)), max_size=60),
    st.booleans(),
    st.sampled_from([(FullAttentionSpec(4),), (FullAttentionSpec(4), SlidingWindowSpec(2, 3))]),
)
@settings(deadline=None)
def test_every_block_is_free_or_held(
    operations: list[tuple[str, int]], caching: bool, specs: tuple[KVCacheSpec, ...]
) -> None:
    """0 tokens means: free. Integrity after every operation, and at the end every block is free."""
    kv = manager(12, *specs, caching=caching)
    live: dict[str, Request] = {}
    for name, count in operations:
        if count == 0:
            if name in live:
                kv.free(live.pop(name))
        else:
            req = live.setdefault(name, request(name, [7] * 30))
            hit = kv.get_computed_blocks(req).num_tokens if req.num_computed_tokens == 0 else 0
            left = req.num_tokens - req.num_computed_tokens - hit
            if left and compute(kv, req, min(count, left)) is None and req.num_computed_tokens == 0:
                live.pop(name)
        kv.check_integrity()
    for req in live.values():
        kv.free(req)
    kv.check_integrity()
    assert kv.num_free_blocks == 11


def test_integrity_notices_a_lost_and_a_shared_block() -> None:
    kv = manager(4)
    compute(kv, request("A", range(4)))
    kv.block_pool.blocks[1].ref_cnt = 0
    with pytest.raises(IntegrityError):
        kv.check_integrity()
    kv.block_pool.blocks[1].ref_cnt = 2
    with pytest.raises(IntegrityError, match="held by 1"):
        kv.check_integrity()


# --- groups without keys and values ---------------------------------------------------------------------------


def test_a_mamba_group_holds_one_state_block_and_an_encoder_only_group_none() -> None:
    kv, a = manager(9, FullAttentionSpec(4), MambaSpec(), EncoderOnlySpec()), request("A", range(20))
    assert compute(kv, a, 6) == ((1, 2), (3,), ())
    assert compute(kv, a, 6) == ((4,), (), ())
    assert kv.get_block_ids("A") == ((1, 2, 4), (3,), ())
    assert kv.memory_usage([a]).num_held_blocks == 4
    kv.free(a)
    assert kv.num_free_blocks == 8


def test_a_pool_that_holds_the_states_of_its_requests_only() -> None:
    kv = manager(3, MambaSpec())
    a, b, c = (request(name, range(30)) for name in "ABC")
    assert compute(kv, a) == ((1,),)
    assert compute(kv, b) == ((2,),)
    assert compute(kv, c) is None


@pytest.mark.parametrize("spec", [MambaSpec(), EncoderOnlySpec()])
def test_prefix_caching_with_a_group_that_keeps_no_content_is_refused(spec: KVCacheSpec) -> None:
    with pytest.raises(ConfigError, match=type(spec).__name__):
        manager(9, FullAttentionSpec(4), spec, caching=True)


# --- memory ---------------------------------------------------------------------------------------------------


def test_every_block_and_slot_is_counted_once() -> None:
    kv = manager(12, caching=True)
    a, b = request("A", range(10)), request("B", [*range(8), 77])
    compute(kv, a)
    compute(kv, b)  # shares A's first two blocks
    usage = kv.memory_usage([a, b])
    assert usage == MemoryUsage(
        num_held_blocks=4, num_cached_blocks=0, num_empty_blocks=7, num_used_slots=8 + 2 + 1, num_wasted_slots=2 + 3
    )
    kv.free(a)
    kv.free(b)
    usage = kv.memory_usage([])
    assert (usage.num_held_blocks, usage.num_cached_blocks, usage.num_empty_blocks) == (0, 2, 9)
    assert usage.utilization == 1.0


def test_blocks_of_several_groups_and_skipped_blocks_are_counted_with_their_own_sizes() -> None:
    kv, a = manager(20, FullAttentionSpec(4), SlidingWindowSpec(2, 4)), request("A", range(30))
    compute(kv, a, 9)
    compute(kv, a, 1)
    usage = kv.memory_usage([a])
    held = 3 + (5 - 3)  # three full blocks; of five small ones three lie before the window
    assert usage.num_held_blocks == held
    assert usage.num_held_blocks + usage.num_empty_blocks + usage.num_null_blocks == 20
    assert usage.num_used_slots + usage.num_wasted_slots == 3 * 4 + 2 * 2
    assert usage.num_used_slots == 10 + 4
