"""Which blocks each request holds, and whether more tokens still fit.

>>> manager = KVCacheManager(block_size=4, num_blocks=4, max_model_len=16)
>>> manager.allocate_slots("A", num_computed_tokens=0, num_new_tokens=8)  # two blocks
((1, 2),)
>>> manager.allocate_slots("A", num_computed_tokens=8, num_new_tokens=1)  # the ninth token opens a third
((3,),)
>>> manager.allocate_slots("B", num_computed_tokens=0, num_new_tokens=1) is None
True

Block ids are handed out as one tuple per KV cache group, as vLLM does it; there is one group here.

vLLM counterpart: ``vllm/v1/core/kv_cache_manager.py`` (``KVCacheManager.allocate_slots``, ``.free``) and
``vllm/v1/core/single_type_kv_cache_manager.py`` (``FullAttentionManager``) at 0.25.1. What differs: prefix
caching, sliding windows and several groups are not here yet, and the manager is given counts instead of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pagedlab.config import require_int
from pagedlab.errors import IntegrityError
from pagedlab.events import BlocksAllocated, BlocksFreed, Observer
from pagedlab.kvcache.blocks import KVCacheBlock
from pagedlab.kvcache.pool import BlockPool

BlockIds = tuple[tuple[int, ...], ...]
"""One tuple of block ids per KV cache group."""

_GROUP = 0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks ``num_tokens`` tokens fill or begin."""
    return -(-num_tokens // block_size)


class KVCacheManager:
    """Blocks by request, over one `BlockPool`.

    Parameters
    ----------
    block_size : int
        Tokens in a block.
    num_blocks : int
        Blocks in the pool, the null block included.
    max_model_len : int
        No request is given room for more tokens than this.
    """

    def __init__(self, block_size: int, num_blocks: int, max_model_len: int) -> None:
        require_int("block_size", block_size, 1)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.block_pool = BlockPool(num_blocks)
        self.observer: Observer | None = None
        self._req_to_blocks: dict[str, list[KVCacheBlock]] = {}

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    @property
    def free_block_ids(self) -> tuple[int, ...]:
        """The free queue, head first."""
        return tuple(block.block_id for block in self.block_pool.free_queue)

    @property
    def held_block_ids(self) -> Mapping[str, tuple[int, ...]]:
        """The blocks of every request that holds any, in the order of its tokens."""
        return MappingProxyType(
            {req: tuple(block.block_id for block in blocks) for req, blocks in self._req_to_blocks.items()}
        )

    def get_block_ids(self, request_id: str) -> BlockIds:
        """Return all blocks of a request, one tuple per group."""
        return (tuple(block.block_id for block in self._req_to_blocks.get(request_id, ())),)

    def fits_pool(self, num_tokens: int) -> bool:
        """Whether an otherwise empty pool could hold a request of ``num_tokens``."""
        return blocks_for(num_tokens, self.block_size) <= self.block_pool.num_usable_blocks

    def allocate_slots(
        self,
        request_id: str,
        num_computed_tokens: int,
        num_new_tokens: int,
        *,
        reserve_tokens: int = 0,
    ) -> BlockIds | None:
        """Make room for the next ``num_new_tokens`` tokens of a request.

        Parameters
        ----------
        request_id : str
            Who.
        num_computed_tokens : int
            Tokens that have their KV already.
        num_new_tokens : int
            Tokens to be computed next; at least 1.
        reserve_tokens : int
            Succeed only if so many tokens *would* fit in all (the full-prompt gate of a waiting request).

        Returns
        -------
        tuple of tuple of int, or None
            The ids of the *new* blocks per group (often empty: the last block has room). None, and nothing changed,
            if there are not enough free blocks.

        Raises
        ------
        ValueError
            If ``num_new_tokens`` is below 1.
        """
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens is {num_new_tokens}: there must be something to make room for")
        blocks = self._req_to_blocks.get(request_id, [])
        needed = self._blocks_needed(blocks, num_computed_tokens + num_new_tokens)
        reserved = self._blocks_needed(blocks, reserve_tokens)
        if max(needed, reserved) > self.num_free_blocks:
            return None
        new_blocks = self.block_pool.get_new_blocks(needed)
        self._req_to_blocks[request_id] = blocks + new_blocks
        block_ids = tuple(block.block_id for block in new_blocks)
        if self.observer is not None and block_ids:
            self.observer(BlocksAllocated(request_id, _GROUP, block_ids, self.num_free_blocks))
        return (block_ids,)

    def _blocks_needed(self, blocks: list[KVCacheBlock], num_tokens: int) -> int:
        return max(0, blocks_for(min(num_tokens, self.max_model_len), self.block_size) - len(blocks))

    def free(self, request_id: str) -> None:
        """Give back all blocks of a request, the last one first, so that tails are reused before beginnings.

        A request that holds nothing is accepted: it may have been aborted before it ran.
        """
        blocks = self._req_to_blocks.pop(request_id, [])
        blocks.reverse()
        self.block_pool.free_blocks(blocks)
        if self.observer is not None and blocks:
            block_ids = tuple(block.block_id for block in blocks)
            self.observer(BlocksFreed(request_id, _GROUP, block_ids, self.num_free_blocks))

    def check_integrity(self) -> None:
        """Prove that reference counts equal the number of holders.

        Raises
        ------
        IntegrityError
            If not; the message names the block.
        """
        self.block_pool.check_integrity()
        holders = [0] * len(self.block_pool.blocks)
        holders[self.block_pool.null_block.block_id] = 1
        for request_id, blocks in self._req_to_blocks.items():
            for block in blocks:
                holders[block.block_id] += 1
                if block is self.block_pool.null_block:
                    raise IntegrityError(f"request {request_id!r} holds the null block")
        for block, count in zip(self.block_pool.blocks, holders, strict=True):
            if block.ref_cnt != count:
                raise IntegrityError(f"{block} is held by {count} requests")
            if count > 1:
                raise IntegrityError(f"{block} is shared by {count} requests, and nothing shares blocks here")
