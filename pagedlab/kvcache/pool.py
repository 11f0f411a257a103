"""The pool: every block of KV memory there is, and who may take one.

>>> pool = BlockPool(num_blocks=4)
>>> blocks = pool.get_new_blocks(2)
>>> [block.block_id for block in blocks], pool.num_free_blocks
([1, 2], 1)
>>> pool.free_blocks(reversed(blocks))
>>> [block.block_id for block in pool.free_queue]
[2, 1, 3]

Block 0 is the *null block*: it is taken at the start and never given to a request, so that a padded row of a
block table can point at it.

vLLM counterpart: ``vllm/v1/core/block_pool.py`` (``BlockPool``) at 0.25.1. What differs: prefix caching is not
here yet, so every block is unhashed and a freed block goes to the head of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pagedlab.config import NULL_BLOCK_ID, require_int
from pagedlab.errors import IntegrityError
from pagedlab.kvcache.blocks import FreeKVCacheBlockQueue, KVCacheBlock


class BlockPool:
    """All blocks, the free ones in a queue.

    Parameters
    ----------
    num_blocks : int
        The null block included; at least 2.

    Raises
    ------
    ConfigError
        If ``num_blocks`` is below 2.
    """

    def __init__(self, num_blocks: int) -> None:
        require_int("num_blocks", num_blocks, 2)
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_queue = FreeKVCacheBlockQueue(self.blocks)
        (self.null_block,) = self.free_queue.popleft_n(1)
        self.null_block.ref_cnt = 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_queue.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        """All blocks but the null block."""
        return len(self.blocks) - 1

    @property
    def usage(self) -> float:
        """The share of usable blocks that are taken, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_usable_blocks

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks from the head of the free queue.

        Raises
        ------
        CapacityError
            If fewer than ``n`` are free; nothing is taken then (vLLM: ``ValueError``).
        """
        blocks = self.free_queue.popleft_n(n)
        for block in blocks:
            block.ref_cnt += 1
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Give up one reference to each block.

        Blocks that nobody holds any more become the head of the queue, in the given order.

        Raises
        ------
        IntegrityError
            If a block is freed more often than it is held; nothing is freed then.
        """
        held = Counter(ordered_blocks)
        for block, times in held.items():
            if times > block.ref_cnt:
                raise IntegrityError(f"{block} is freed {times} times but held {block.ref_cnt} times")
        for block, times in held.items():
            block.ref_cnt -= times
        self.free_queue.prepend_n([block for block in held if block.ref_cnt == 0 and block is not self.null_block])

    def check_integrity(self) -> None:
        """Prove that each block is either free or held, and the queue holds exactly the free ones.

        Raises
        ------
        IntegrityError
            If not; the message names the block.
        """
        queued = [block.block_id for block in self.free_queue]
        if len(queued) != len(set(queued)) or len(queued) != self.num_free_blocks:
            raise IntegrityError(f"the free queue says {self.num_free_blocks} blocks and holds {queued}")
        if NULL_BLOCK_ID in queued or self.null_block.ref_cnt != 1:
            raise IntegrityError("the null block has been given away or freed")
        free = set(queued)
        for block in self.blocks:
            if (block.ref_cnt == 0) != (block.block_id in free):
                raise IntegrityError(f"{block} is {'not ' if block.block_id not in free else ''}in the free queue")
