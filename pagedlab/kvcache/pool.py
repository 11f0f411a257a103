"""The pool: every block of KV memory there is, who may take one, and what the free ones still remember.

>>> pool = BlockPool(num_blocks=4)
>>> blocks = pool.get_new_blocks(2)
>>> [block.block_id for block in blocks], pool.num_free_blocks
([1, 2], 1)
>>> pool.cache(blocks[:1], [b"hash of block 1"], group=0)
>>> pool.free_blocks(blocks[::-1])
>>> [block.block_id for block in pool.free_queue]  # what cannot be hit goes first, what can goes last
[2, 3, 1]
>>> pool.lookup(b"hash of block 1", group=0)
KVCacheBlock(1, ref_cnt=0)

Block 0 is the *null block*: it is taken at the start and never given to a request, so that a padded row of a
block table, or a block that fell out of a sliding window, can point at it.

vLLM counterpart: ``vllm/v1/core/block_pool.py`` (``BlockPool``) at 0.25.1. What differs: a block freed more often than
it is held is an error; the null block has no reference count to keep.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from pagedlab.config import NULL_BLOCK_ID, require_int
from pagedlab.errors import IntegrityError
from pagedlab.events import BlocksEvicted, Observer
from pagedlab.kvcache.blocks import FreeKVCacheBlockQueue, KVCacheBlock
from pagedlab.kvcache.hashing import BlockHash

BlockKey = tuple[BlockHash, int]
"""A block's hash and its group."""


class BlockPool:
    """All blocks, the free ones in a queue, the hashed ones in a map.

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
        self.null_block.ref_cnt = 0  # whoever points at it does not hold it
        self.observer: Observer | None = None
        # Several blocks may have one content: they were computed side by side. The first is the one that is hit.
        self._cached: dict[BlockKey, dict[int, KVCacheBlock]] = {}

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

    # --- take and give back -----------------------------------------------------------------------------

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks from the head of the free queue; what they remembered is forgotten.

        Raises
        ------
        CapacityError
            If fewer than ``n`` are free; nothing is taken then (vLLM: ``ValueError``).
        """
        blocks = self.free_queue.popleft_n(n)
        if self._cached:
            self._evict([(block, block.key) for block in blocks if block.key is not None])
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that were hit; those that were free leave the queue, from wherever they are."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_cnt == 0:
                self.free_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Sequence[KVCacheBlock]) -> None:
        """Give up one reference to each block; null blocks are passed over.

        Of the blocks that nobody holds any more, those without a hash become the head of the queue in the given order,
        and those with one go to its end, in the given order too.

        Raises
        ------
        IntegrityError
            If a block is freed more often than it is held; nothing is freed then.
        """
        freed: list[KVCacheBlock] = []
        overdrawn = None
        for block in ordered_blocks:
            block.ref_cnt = count = block.ref_cnt - 1
            if count == 0:
                freed.append(block)
            elif count < 0 and block is not self.null_block:
                overdrawn = block
        self.null_block.ref_cnt = 0
        if overdrawn is not None:
            for block in ordered_blocks:
                block.ref_cnt += block is not self.null_block
            raise IntegrityError(f"{overdrawn} is freed more often than it is held")
        if self._cached:
            self.free_queue.append_n([block for block in freed if block.key is not None])
            freed = [block for block in freed if block.key is None]
        self.free_queue.prepend_n(freed)

    # --- remember ---------------------------------------------------------------------------------------

    def cache(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[BlockHash], group: int) -> None:
        """Let full blocks be found by their hashes, in their group.

        Raises
        ------
        IntegrityError
            If a block is hashed already.
        """
        for block, block_hash in zip(blocks, hashes, strict=True):
            if block.key is not None:
                raise IntegrityError(f"{block} is hashed twice")
            block.key = key = (block_hash, group)
            twins = self._cached.get(key)
            if twins is None:
                self._cached[key] = {block.block_id: block}
            else:
                twins[block.block_id] = block

    def lookup(self, block_hash: BlockHash, group: int) -> KVCacheBlock | None:
        """Return the block with this content that was hashed first, or None."""
        twins = self._cached.get((block_hash, group))
        return next(iter(twins.values())) if twins else None

    def lookup_all(self, block_hash: BlockHash, groups: Sequence[int]) -> list[KVCacheBlock] | None:
        """Return one block per group, or None unless every group has one."""
        found = [self.lookup(block_hash, group) for group in groups]
        return None if None in found else [block for block in found if block is not None]

    @property
    def num_cached_blocks(self) -> int:
        """Blocks with a hash, free or held."""
        return sum(len(twins) for twins in self._cached.values())

    def forget(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Take the hashes of blocks away: what was to be computed in them was not."""
        self._evict([(block, block.key) for block in blocks if block.key is not None])

    def reset_prefix_cache(self) -> bool:
        """Forget every hash. False, and nothing done, while any block is held (as in vLLM)."""
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        for block in self.blocks:
            block.key = None
        self._cached.clear()
        return True

    def _evict(self, hashed_blocks: Sequence[tuple[KVCacheBlock, BlockKey]]) -> None:
        for block, key in hashed_blocks:
            block.key = None
            twins = self._cached[key]
            if len(twins) == 1:
                del self._cached[key]
            else:
                del twins[block.block_id]
        if self.observer is not None and hashed_blocks:
            self.observer(BlocksEvicted(tuple(block.block_id for block, _ in hashed_blocks)))

    def check_integrity(self) -> None:
        """Prove that each block is free or held, that the queue holds the free ones, and the map the hashed ones.

        Raises
        ------
        IntegrityError
            If not; the message names the block.
        """
        queued = [block.block_id for block in itertools.islice(self.free_queue, len(self.blocks) + 1)]
        if len(queued) != len(set(queued)) or len(queued) != self.num_free_blocks:
            raise IntegrityError(f"the free queue says {self.num_free_blocks} blocks and holds {queued}")
        if NULL_BLOCK_ID in queued or self.null_block.key is not None:
            raise IntegrityError("the null block has been given away or hashed")
        free = set(queued)
        for block in self.blocks[1:]:
            if (block.ref_cnt == 0) != (block.block_id in free):
                raise IntegrityError(f"{block} is {'not ' if block.block_id not in free else ''}in the free queue")
            if block.key is not None and block.block_id not in self._cached.get(block.key, {}):
                raise IntegrityError(f"{block} is hashed and cannot be found")
        hashed = sum(block.key is not None for block in self.blocks)
        if hashed != self.num_cached_blocks:
            raise IntegrityError(f"{hashed} blocks are hashed, but {self.num_cached_blocks} can be found")
