"""A block of KV memory, and the queue of free ones.

>>> blocks = [KVCacheBlock(i) for i in range(4)]
>>> queue = FreeKVCacheBlockQueue(blocks)
>>> [block.block_id for block in queue.popleft_n(2)]
[0, 1]
>>> queue.remove(blocks[3])
>>> [block.block_id for block in queue]
[2]

The queue is a doubly linked list through the blocks themselves: taking a block out of the *middle* costs no
search, which is what a prefix-cache hit on a free block needs. Two fake blocks at the ends spare every special case.

vLLM counterpart: ``vllm/v1/core/kv_cache_utils.py`` (``KVCacheBlock``, ``FreeKVCacheBlockQueue``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pagedlab.errors import CapacityError, IntegrityError


class KVCacheBlock:
    """One block: its id, how many requests hold it, its neighbours while it is free, and the key it is found by.

    ``key`` is ``(block hash, group)``, None until the block is full and hashed. While a block is held, its two
    links mean nothing.
    """

    __slots__ = ("block_id", "key", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.key: tuple[bytes, int] | None = None
        self.prev_free: Any = None  # a KVCacheBlock or None
        self.next_free: Any = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt})"


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they will be given out, head first."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self.append_n(blocks)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks from the head; each is then held once.

        Raises
        ------
        CapacityError
            If fewer than ``n`` are free; nothing is taken then.
        """
        if not 0 <= n <= self.num_free_blocks:
            raise CapacityError(f"{n} free blocks were asked for and {self.num_free_blocks} are there")
        taken = []
        block = self._head.next_free
        for _ in range(n):
            taken.append(block)
            block.ref_cnt = 1
            block = block.next_free
        self._head.next_free, block.prev_free = block, self._head
        self.num_free_blocks -= n
        return taken

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put ``blocks`` at the tail, in the given order."""
        self._insert(self._tail.prev_free, blocks, self._tail)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put ``blocks`` at the head, in the given order: the first of them will be the next to go."""
        self._insert(self._head, blocks, self._head.next_free)

    def remove(self, block: KVCacheBlock) -> None:
        """Take ``block`` out from wherever it is in the queue.

        Raises
        ------
        IntegrityError
            If somebody holds it: then it is not in the queue.
        """
        if block.ref_cnt != 0:
            raise IntegrityError(f"{block} is not in the free queue")
        block.prev_free.next_free, block.next_free.prev_free = block.next_free, block.prev_free
        self.num_free_blocks -= 1

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not self._tail:
            yield block
            block = block.next_free

    def __len__(self) -> int:
        return self.num_free_blocks

    def _insert(self, before: KVCacheBlock, blocks: Sequence[KVCacheBlock], after: KVCacheBlock) -> None:
        for block in blocks:
            before.next_free = block
            block.prev_free = before
            before = block
        before.next_free, after.prev_free = after, before
        self.num_free_blocks += len(blocks)
