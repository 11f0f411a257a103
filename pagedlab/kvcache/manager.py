"""Which blocks each request holds, whether more tokens still fit, and what of a new request is there already.

>>> from pagedlab.request import Request, SamplingParams
>>> manager = KVCacheManager([FullAttentionSpec(block_size=4)], num_blocks=4, max_model_len=16)
>>> a, b = (Request(name, range(9), SamplingParams(), arrival_time=0) for name in "AB")
>>> manager.allocate_slots(a, num_new_tokens=8)  # two blocks
((1, 2),)
>>> a.num_computed_tokens = 8
>>> manager.allocate_slots(a, num_new_tokens=1)  # the ninth token opens a third
((3,),)
>>> manager.allocate_slots(b, num_new_tokens=1) is None
True

vLLM counterpart: ``vllm/v1/core/kv_cache_manager.py`` (``KVCacheManager``) and ``kv_cache_coordinator.py``
(``UnitaryKVCacheCoordinator``, ``HybridKVCacheCoordinator``) at 0.25.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pagedlab.config import require_bool, require_int
from pagedlab.errors import ConfigError, IntegrityError
from pagedlab.events import BlocksAllocated, BlocksCached, BlocksFreed, BlocksTouched, Observer
from pagedlab.kvcache.blocks import KVCacheBlock
from pagedlab.kvcache.groups import KVCacheGroup, longest_hit
from pagedlab.kvcache.hashing import extend_hashes, extra_key
from pagedlab.kvcache.pool import BlockPool
from pagedlab.kvcache.specs import FullAttentionSpec, KVCacheSpec
from pagedlab.request import Request

BlockIds = tuple[tuple[int, ...], ...]
"""One tuple of block ids per KV cache group."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What of a request is cached: ``blocks`` per group, together ``num_tokens`` tokens."""

    blocks: tuple[tuple[KVCacheBlock, ...], ...]
    num_tokens: int


@dataclass(slots=True)
class PrefixCacheStats:
    """Tokens of admitted requests, and how many of them were found.

    A request counts once, when it is admitted; computing it again after preemption does not count.
    """

    num_queried_tokens: int = 0
    num_hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Found of asked, 0 to 1; 0 before anything was asked."""
        return self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else 0.0


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Every block of the pool, counted once by what it is, and every slot of the held ones by what is in it.

    Attributes
    ----------
    num_held_blocks : int
        Held by at least one request.
    num_cached_blocks : int
        Free, but with a hash: a later request may hit them until they are taken.
    num_empty_blocks : int
        Free and without one.
    num_null_blocks : int
        Always 1.
    num_used_slots, num_wasted_slots : int
        Slots of held blocks with and without a computed token. What is wasted is the ends of last blocks.
    """

    num_held_blocks: int
    num_cached_blocks: int
    num_empty_blocks: int
    num_used_slots: int
    num_wasted_slots: int
    num_null_blocks: int = 1

    @property
    def utilization(self) -> float:
        """Used slots of all slots in held blocks, 0 to 1; 1 if nothing is held."""
        slots = self.num_used_slots + self.num_wasted_slots
        return self.num_used_slots / slots if slots else 1.0


class KVCacheManager:
    """Blocks by request and group, over one `BlockPool`.

    Parameters
    ----------
    specs : sequence of KVCacheSpec
        One per KV cache group. With prefix caching every block size must be a multiple of the smallest.
    num_blocks : int
        Blocks in the pool, the null block included.
    max_model_len : int
        No request is given room for more tokens than this.
    enable_caching : bool
        Whether full blocks are hashed and found again.
    max_num_batched_tokens : int, optional
        The most tokens of one step; bounds what a sliding group can hold at once. None: ``max_model_len``.
    """

    def __init__(
        self,
        specs: Sequence[KVCacheSpec],
        num_blocks: int,
        max_model_len: int,
        *,
        enable_caching: bool = False,
        max_num_batched_tokens: int | None = None,
    ) -> None:
        require_bool("enable_caching", enable_caching)
        require_int("max_model_len", max_model_len, 1)
        if not specs:
            raise ConfigError("there must be at least one KV cache group")
        self.specs = tuple(specs)
        self.max_model_len = max_model_len
        if max_num_batched_tokens is None:
            max_num_batched_tokens = max_model_len
        require_int("max_num_batched_tokens", max_num_batched_tokens, 1)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(num_blocks)
        self._num_blocks = num_blocks
        self.prefix_cache_stats = PrefixCacheStats()
        uncacheable = [type(spec).__name__ for spec in self.specs if not spec.cacheable]
        if enable_caching and uncacheable:
            raise ConfigError(
                f"prefix caching does not work with {', '.join(uncacheable)}: such a group keeps no blocks that could "
                "be found again; set enable_caching=False"
            )
        sizes = [spec.block_size for spec in self.specs]
        self._hash_block_size = min(sizes)
        if enable_caching and any(size % self._hash_block_size for size in sizes):
            raise ConfigError(
                f"block sizes {sizes} cannot share hashes: with prefix caching each must be a multiple of the "
                f"smallest, {self._hash_block_size}"
            )
        self._alignment = math.lcm(*sizes)
        self.groups = self._new_groups()
        self._nothing_new: BlockIds = tuple(() for _ in self.specs)
        self._no_hit = PrefixHit(tuple(() for _ in self.specs), 0)
        # Groups with one spec are hit together; full attention first, since its hits can only be cut from the right.
        distinct = sorted(dict.fromkeys(self.specs), key=lambda spec: not isinstance(spec, FullAttentionSpec))
        self._groups_by_spec = [
            (spec, [index for index, other in enumerate(self.specs) if other == spec]) for spec in distinct
        ]

    @property
    def observer(self) -> Observer | None:
        """Called with every event of the manager and its pool; None for nobody."""
        return self.block_pool.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.block_pool.observer = observer

    @property
    def is_uniform(self) -> bool:
        """Whether there is one group and it keeps everything, so that a decode needs a block or nothing."""
        return len(self.specs) == 1 and isinstance(self.specs[0], FullAttentionSpec)

    # --- what there is ----------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    @property
    def free_block_ids(self) -> tuple[int, ...]:
        """The free queue, head first."""
        return tuple(block.block_id for block in self.block_pool.free_queue)

    def get_block_ids(self, request_id: str) -> BlockIds:
        """Return all blocks of a request, one tuple per group; 0 stands for a block that was skipped."""
        return tuple(group.block_ids(request_id) for group in self.groups)

    @property
    def held_block_ids(self) -> Mapping[str, BlockIds]:
        """The blocks of every request that holds any, in the order of its tokens, per group."""
        holders = dict.fromkeys(request_id for group in self.groups for request_id in group.holders)
        return MappingProxyType({request_id: self.get_block_ids(request_id) for request_id in holders})

    def fits_pool(self, num_tokens: int) -> bool:
        """Whether an otherwise empty pool could hold a request of ``num_tokens``."""
        needed = sum(
            spec.most_blocks(num_tokens, self.max_num_batched_tokens, self.max_model_len) for spec in self.specs
        )
        return needed <= self.block_pool.num_usable_blocks

    def memory_usage(self, requests: Iterable[Request]) -> MemoryUsage:
        """Count all memory.

        Parameters
        ----------
        requests : iterable of Request
            Those that hold blocks; their ``num_computed_tokens`` say how full the blocks are.
        """
        slots: dict[int, tuple[int, int]] = {}  # block id -> used, size; a shared block counts once
        for request in requests:
            for group in self.groups:
                size = group.spec.block_size
                for index, block in enumerate(group.blocks(request.request_id)):
                    if block is not self.block_pool.null_block:
                        used = min(max(request.num_computed_tokens - index * size, 0), size)
                        slots[block.block_id] = (max(used, slots.get(block.block_id, (0, size))[0]), size)
        used = sum(used for used, _ in slots.values())
        cached = sum(block.key is not None for block in self.block_pool.free_queue)
        return MemoryUsage(
            num_held_blocks=len(slots),
            num_cached_blocks=cached,
            num_empty_blocks=self.num_free_blocks - cached,
            num_used_slots=used,
            num_wasted_slots=sum(size for _, size in slots.values()) - used,
        )

    # --- prefix hits ------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Find the longest cached beginning of a request.

        At least the last token is always left to compute, since its logits are needed: a prompt that is cached to its
        last block boundary recomputes that block.
        """
        if not self.enable_caching:
            return self._no_hit
        self._extend_hashes(request)
        hits: dict[int, Sequence[KVCacheBlock]] = {}
        length = request.num_tokens - 1
        while True:
            shorter = length
            for spec, groups in self._groups_by_spec:
                if isinstance(spec, FullAttentionSpec) and groups[0] in hits:
                    shorter = shorter // spec.block_size * spec.block_size
                    continue
                hashes = self._group_hashes(request, spec)
                found = longest_hit(spec, groups, hashes, shorter, self.block_pool, self._alignment)
                hits.update(zip(groups, found, strict=True))
                shorter = len(found[0]) * spec.block_size
            if shorter >= length or len(self._groups_by_spec) == 1:
                length = shorter
                break
            length = shorter
        blocks = tuple(tuple(hits[index][: length // group.spec.block_size]) for index, group in enumerate(self.groups))
        return PrefixHit(blocks, length)

    def _extend_hashes(self, request: Request) -> None:
        extra = extra_key(request.lora_id, request.cache_salt)
        extend_hashes(request.block_hashes, request.all_token_ids, self._hash_block_size, extra)

    def _group_hashes(self, request: Request, spec: KVCacheSpec) -> Sequence[bytes]:
        """Return the hashes of the request's blocks of a group's own size: the last of each run of small ones."""
        step = spec.block_size // self._hash_block_size
        if step == 1:
            return request.block_hashes
        return request.block_hashes[step - 1 :: step]

    # --- allocate ---------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: PrefixHit | None = None,
        *,
        reserve_full_sequence: bool = False,
    ) -> BlockIds | None:
        """Make room for the next ``num_new_tokens`` tokens of a request, in vLLM's order.

        Parameters
        ----------
        request : Request
            Its ``num_computed_tokens`` do not include the hit yet.
        num_new_tokens : int
            Tokens to be computed next; at least 1.
        hit : PrefixHit, optional
            Cached blocks to begin with; None for a request that runs already.
        reserve_full_sequence : bool
            Succeed only if *all* tokens of the request would fit now (the gate of a waiting request).

        Returns
        -------
        tuple of tuple of int, or None
            The ids of the *new* blocks per group, without the hits (often empty: the last block has room). None, and
            nothing allocated, if there are not enough free blocks.

        Raises
        ------
        ValueError
            If ``num_new_tokens`` is below 1.
        """
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens is {num_new_tokens}: there must be something to make room for")
        request_id = request.request_id
        if hit is None and self._is_settled(request, num_new_tokens):
            return self._nothing_new
        begins = hit is not None
        hit = hit or self._no_hit
        num_computed = min(request.num_computed_tokens + hit.num_tokens, self.max_model_len)
        num_tokens = min(num_computed + num_new_tokens, self.max_model_len)
        if reserve_full_sequence and not self._fits_full_sequence(request, num_computed, hit.blocks):
            return None
        needed = 0
        for group in self.groups:
            if group.slides:
                self._skip(group, request_id, num_computed)
            needed += group.num_blocks_to_take(request_id, num_tokens, num_computed, hit.blocks[group.index])
        if needed > self.block_pool.free_queue.num_free_blocks:
            return None
        if hit.num_tokens:
            for group, hits in zip(self.groups, hit.blocks, strict=True):
                self._adopt(group, request_id, hits, num_computed)
        new_block_ids = tuple([self._take(group, request_id, num_tokens) for group in self.groups])
        if self.enable_caching:
            if begins and request.num_preemptions == 0:
                self.prefix_cache_stats.num_queried_tokens += request.num_tokens
                self.prefix_cache_stats.num_hit_tokens += hit.num_tokens
            self.cache_blocks(request, min(num_computed + num_new_tokens, request.num_tokens))
        return new_block_ids

    def _is_settled(self, request: Request, num_new_tokens: int) -> bool:
        """Whether a running request has room already and nothing of it is to be skipped or hashed: most decodes."""
        num_computed = request.num_computed_tokens
        num_tokens = min(num_computed + num_new_tokens, self.max_model_len)
        for group in self.groups:
            if not group.is_settled(request.request_id, num_computed, num_tokens, self.enable_caching):
                return False
        return True

    def _fits_full_sequence(self, request: Request, num_computed: int, hits: Sequence[Sequence[KVCacheBlock]]) -> bool:
        num_tokens = min(request.num_tokens, self.max_model_len)
        needed = 0
        for group, group_hits in zip(self.groups, hits, strict=True):
            most = group.spec.most_blocks(num_tokens, self.max_num_batched_tokens, self.max_model_len)
            needed += group.num_blocks_to_take(request.request_id, num_tokens, num_computed, group_hits, most)
        return needed <= self.num_free_blocks

    def _skip(self, group: KVCacheGroup, request_id: str, num_computed_tokens: int) -> None:
        blocks = group.skip(request_id, num_computed_tokens)
        if self.observer is not None and blocks:
            self.observer(BlocksFreed(request_id, group.index, _ids(blocks), self.num_free_blocks))

    def _adopt(
        self, group: KVCacheGroup, request_id: str, hits: Sequence[KVCacheBlock], num_computed_tokens: int
    ) -> None:
        blocks = group.adopt(request_id, hits, num_computed_tokens)
        if self.observer is not None and blocks:
            self.observer(BlocksTouched(request_id, group.index, _ids(blocks), self.num_free_blocks))

    def _take(self, group: KVCacheGroup, request_id: str, num_tokens: int) -> tuple[int, ...]:
        block_ids = _ids(group.allocate(request_id, num_tokens))
        if block_ids and self.observer is not None:
            self.observer(BlocksAllocated(request_id, group.index, block_ids, self.num_free_blocks))
        return block_ids

    def append_block_to_each(self, requests: Sequence[Request]) -> tuple[tuple[str, BlockIds], ...]:
        """Give decoding requests the blocks that their next tokens begin (`is_uniform` managers only, unobserved).

        The caller knows what `allocate_slots` would find out of each, one after the other: its last block is full, and
        there is a free one.
        """
        (group,) = self.groups
        request_ids = [request.request_id for request in requests]
        blocks = group.append_block_to_each(request_ids)
        return tuple(
            [(request_id, ((block.block_id,),)) for request_id, block in zip(request_ids, blocks, strict=True)]
        )

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Hash the blocks that the first ``num_tokens`` tokens of a request fill."""
        self._extend_hashes(request)
        for group in self.groups:
            blocks = group.cache(request.request_id, self._group_hashes(request, group.spec), num_tokens)
            if self.observer is not None and blocks:
                hashes = tuple([block.key[0].hex() for block in blocks if block.key is not None])
                self.observer(BlocksCached(request.request_id, group.index, _ids(blocks), hashes))

    def forget_uncomputed(self, request: Request, num_computed_tokens: int) -> None:
        """Unhash what a request was to compute and did not.

        Blocks are hashed when they are allocated, before they are computed. If the step then does not run for the
        request, nobody may hit them.
        """
        for group in self.groups:
            group.forget_uncomputed(request.request_id, num_computed_tokens)

    # --- free -------------------------------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """Give back all blocks of a request, group by group, each from the last block to the first.

        A request that holds nothing is accepted: it may have been aborted before it ran.
        """
        for group in self.groups:
            blocks = group.free(request.request_id)
            if self.observer is not None and blocks:
                self.observer(BlocksFreed(request.request_id, group.index, _ids(blocks), self.num_free_blocks))

    def _new_groups(self) -> tuple[KVCacheGroup, ...]:
        return tuple(
            KVCacheGroup(spec, index, self.block_pool, self._alignment) for index, spec in enumerate(self.specs)
        )

    def reset(self) -> None:
        """Take every block back and forget all content, whoever holds it: what follows a step that failed."""
        observer = self.observer
        self.block_pool = BlockPool(self._num_blocks)
        self.groups = self._new_groups()
        self.observer = observer

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing done, while any block is held."""
        return self.block_pool.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Prove that reference counts equal the number of holders, and only hashed blocks are shared.

        Raises
        ------
        IntegrityError
            If not; the message names the block.
        """
        self.block_pool.check_integrity()
        holders = [0] * len(self.block_pool.blocks)
        for group in self.groups:
            for request_id in group.holders:
                for block in group.blocks(request_id):
                    holders[block.block_id] += block is not self.block_pool.null_block
        for block, count in zip(self.block_pool.blocks, holders, strict=True):
            if block.ref_cnt != count:
                raise IntegrityError(f"{block} is held by {count} requests")
            if count > 1 and block.key is None:
                raise IntegrityError(f"{block} is shared by {count} requests and has no hash")


def _ids(blocks: Sequence[KVCacheBlock]) -> tuple[int, ...]:
    return tuple([block.block_id for block in blocks])
