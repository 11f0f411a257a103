"""The free queue, the pool and the manager, each against a plain list that anyone can check."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedlab.errors import CapacityError, IntegrityError
from pagedlab.kvcache import BlockPool, FreeKVCacheBlockQueue, KVCacheBlock, KVCacheManager


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


def test_freed_blocks_are_the_next_to_go_in_the_given_order() -> None:
    pool = BlockPool(6)
    a, b, c = pool.get_new_blocks(3)
    pool.free_blocks([c, b, a])
    assert [block.block_id for block in pool.free_queue] == [3, 2, 1, 4, 5]


def test_c3_freeing_a_block_twice_is_an_error_unless_it_is_held_twice() -> None:
    pool = BlockPool(5)
    _, _, block = pool.get_new_blocks(3)
    with pytest.raises(IntegrityError, match="freed 2 times but held 1"):
        pool.free_blocks([block, block])
    assert pool.num_free_blocks == 1
    block.ref_cnt = 2
    pool.free_blocks([block, block])
    assert pool.num_free_blocks == 2
    pool.check_integrity()


def test_c5_a_block_is_taken_at_its_first_slot_not_at_the_last_of_the_one_before() -> None:
    manager = KVCacheManager(block_size=4, num_blocks=2, max_model_len=32)
    assert manager.allocate_slots("A", 0, 3) == ((1,),)
    assert manager.num_free_blocks == 0
    assert manager.allocate_slots("A", 3, 1) == ((),)
    assert manager.allocate_slots("A", 4, 1) is None
    assert manager.get_block_ids("A") == ((1,),)


def test_c6_an_exact_multiple_fills_its_last_block() -> None:
    manager = KVCacheManager(block_size=4, num_blocks=4, max_model_len=32)
    assert manager.allocate_slots("A", 0, 8) == ((1, 2),)
    manager.free("A")
    assert all(block.ref_cnt == 0 for block in manager.block_pool.blocks[1:])
    manager.check_integrity()


def test_c8_a_prompt_of_whole_blocks_in_chunks_opens_a_third_block_for_the_first_output() -> None:
    manager = KVCacheManager(block_size=4, num_blocks=8, max_model_len=32)
    manager.allocate_slots("A", 0, 4)
    manager.allocate_slots("A", 4, 4)
    assert manager.get_block_ids("A") == ((1, 2),)
    assert manager.allocate_slots("A", 8, 1) == ((3,),)


def test_reserving_takes_nothing_but_may_refuse() -> None:
    manager = KVCacheManager(block_size=4, num_blocks=4, max_model_len=32)
    assert manager.allocate_slots("A", 0, 4, reserve_tokens=16) is None
    assert manager.num_free_blocks == 3
    assert manager.allocate_slots("A", 0, 4, reserve_tokens=12) == ((1,),)
    assert manager.num_free_blocks == 2
    with pytest.raises(ValueError, match="something to make room for"):
        manager.allocate_slots("A", 4, 0)


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(0, 9)), max_size=60))
def test_every_block_is_free_or_held_by_one(operations: list[tuple[str, int]]) -> None:
    """0 tokens means: free. Held blocks are exactly what the tokens need."""
    manager = KVCacheManager(block_size=4, num_blocks=10, max_model_len=24)
    tokens = dict.fromkeys("ABCD", 0)
    for name, count in operations:
        if count == 0:
            manager.free(name)
            tokens[name] = 0
        elif manager.allocate_slots(name, tokens[name], count) is not None:
            tokens[name] += count
        manager.check_integrity()
        held = sum(-(-min(n, 24) // 4) for n in tokens.values())
        assert manager.num_free_blocks == 9 - held


def test_integrity_notices_a_lost_and_a_shared_block() -> None:
    manager = KVCacheManager(block_size=4, num_blocks=4, max_model_len=32)
    manager.allocate_slots("A", 0, 4)
    manager.block_pool.blocks[1].ref_cnt = 0
    with pytest.raises(IntegrityError):
        manager.check_integrity()
    manager.block_pool.blocks[1].ref_cnt = 2
    with pytest.raises(IntegrityError, match="held by 1"):
        manager.check_integrity()
