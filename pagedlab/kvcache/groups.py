"""The blocks of one KV cache group: what each request holds in it, and how hits are found in it.

>>> pool = BlockPool(num_blocks=10)
>>> group = KVCacheGroup(SlidingWindowSpec(block_size=2, window=3), 0, pool)
>>> _ = group.allocate("A", num_tokens=8)
>>> [block.block_id for block in group.skip("A", num_computed_tokens=7)]  # from the highest index down
[2, 1]
>>> group.block_ids("A")  # what was skipped points at the null block
(0, 0, 3, 4)

vLLM counterpart: ``vllm/v1/core/single_type_kv_cache_manager.py`` (``FullAttentionManager``,
``SlidingWindowManager``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pagedlab.kvcache.blocks import KVCacheBlock
from pagedlab.kvcache.hashing import BlockHash
from pagedlab.kvcache.pool import BlockPool
from pagedlab.kvcache.specs import KVCacheSpec, SlidingWindowSpec


class KVCacheGroup:
    """Blocks by request, in one group.

    Parameters
    ----------
    spec : KVCacheSpec
    index : int
        The group's number.
    pool : BlockPool
        Shared by all groups.
    alignment : int, optional
        Tokens after which the blocks of all groups end together (the least common multiple of their sizes); hits end
        only there. None: the group's own block size.
    """

    def __init__(self, spec: KVCacheSpec, index: int, pool: BlockPool, alignment: int | None = None) -> None:
        self.spec = spec
        self.index = index
        self.alignment = alignment or spec.block_size
        self.slides = isinstance(spec, SlidingWindowSpec)
        self._pool = pool
        self._blocks: dict[str, list[KVCacheBlock]] = {}
        self._num_hashed: dict[str, int] = {}

    def block_ids(self, request_id: str) -> tuple[int, ...]:
        """Return the ids of all blocks of a request, 0 for those it skipped."""
        return tuple(block.block_id for block in self._blocks.get(request_id, ()))

    @property
    def holders(self) -> Collection[str]:
        """The ids of the requests that hold blocks here."""
        return self._blocks.keys()

    def blocks(self, request_id: str) -> Sequence[KVCacheBlock]:
        return self._blocks.get(request_id, ())

    def is_settled(self, request_id: str, num_computed_tokens: int, num_tokens: int, caching: bool) -> bool:
        """Whether a request that holds blocks needs nothing to go on to ``num_tokens``: no block, skip or hash."""
        blocks = self._blocks.get(request_id)
        if blocks is None or len(blocks) < self.spec.num_blocks(num_tokens):
            return False
        if caching and num_tokens // self.alignment * self.alignment // self.spec.block_size > self._num_hashed.get(
            request_id, 0
        ):
            return False
        skipped = self._num_skipped_blocks(num_computed_tokens) if self.slides else 0
        return skipped == 0 or blocks[skipped - 1] is self._pool.null_block

    # --- allocate ---------------------------------------------------------------------------------------

    def num_blocks_to_take(
        self,
        request_id: str,
        num_tokens: int,
        num_computed_tokens: int,
        hits: Sequence[KVCacheBlock],
        most_blocks: int | None = None,
    ) -> int:
        """Return how many blocks would leave the free queue to make room for ``num_tokens``.

        Parameters
        ----------
        num_tokens : int
            All tokens that must have a slot.
        num_computed_tokens : int
            Those that have their KV already, hits included.
        hits : sequence of KVCacheBlock
            Cached blocks to be adopted; those that are free now leave the queue too.
        most_blocks : int, optional
            The request never holds more than this at once.
        """
        required = self.spec.num_blocks(num_tokens)
        if most_blocks is not None:
            required = min(required, most_blocks)
        held = len(self._blocks.get(request_id, ()))
        skipped = self._num_skipped_blocks(num_computed_tokens) if self.slides else 0
        new = max(0, required - max(skipped, held + len(hits)))
        if not hits:
            return new
        adopted = hits[max(0, skipped - held) :]
        return new + sum(block.ref_cnt == 0 and block is not self._pool.null_block for block in adopted)

    def _num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return self.spec.num_skipped_tokens(num_computed_tokens) // self.spec.block_size

    def adopt(self, request_id: str, hits: Sequence[KVCacheBlock], num_computed_tokens: int) -> list[KVCacheBlock]:
        """Begin a request with the blocks that were hit; what is skipped already becomes null. Return what is held."""
        skipped = min(self._num_skipped_blocks(num_computed_tokens), len(hits))
        kept = list(hits[skipped:])
        self._pool.touch(kept)
        self._blocks[request_id] = [self._pool.null_block] * skipped + kept
        self._num_hashed[request_id] = skipped + len(kept)
        return [block for block in kept if block is not self._pool.null_block]

    def allocate(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Take the blocks that ``num_tokens`` tokens need beyond those held; return the new ones.

        Raises
        ------
        CapacityError
            If there are not enough; ask `num_blocks_to_take` first.
        """
        blocks = self._blocks.setdefault(request_id, [])
        missing = self.spec.num_blocks(num_tokens) - len(blocks)
        if missing <= 0:
            return []
        new_blocks = self._pool.get_new_blocks(missing)
        blocks += new_blocks
        return new_blocks

    def append_block_to_each(self, request_ids: Sequence[str]) -> list[KVCacheBlock]:
        """Take one block for each of several requests; return them in the same order."""
        new_blocks = self._pool.get_new_blocks(len(request_ids))
        for request_id, block in zip(request_ids, new_blocks, strict=True):
            self._blocks[request_id].append(block)
        return new_blocks

    def skip(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Give up the blocks that fell out of the window, the highest index first; return them."""
        blocks = self._blocks.get(request_id, [])
        given_up: list[KVCacheBlock] = []
        skipped = min(self._num_skipped_blocks(num_computed_tokens), len(blocks))
        if skipped == 0:
            return given_up
        for index in reversed(range(skipped)):
            if blocks[index] is self._pool.null_block:
                break  # and so is everything before it
            given_up.append(blocks[index])
            blocks[index] = self._pool.null_block
        self._pool.free_blocks(given_up)
        return given_up

    def free(self, request_id: str) -> list[KVCacheBlock]:
        """Give back everything, the last block first; return what was really held, in that order."""
        blocks = self._blocks.pop(request_id, [])
        self._num_hashed.pop(request_id, None)
        blocks.reverse()
        if self._pool.null_block in blocks:
            blocks = [block for block in blocks if block is not self._pool.null_block]
        self._pool.free_blocks(blocks)
        return blocks

    # --- hash and hit -----------------------------------------------------------------------------------

    def cache(self, request_id: str, hashes: Sequence[BlockHash], num_tokens: int) -> list[KVCacheBlock]:
        """Hash the full blocks that ``num_tokens`` tokens fill; return those that got a hash now.

        A sliding group hashes only what a hit could use: the last window before each place where hits may end.
        """
        first = self._num_hashed.get(request_id, 0)
        last = num_tokens // self.alignment * self.alignment // self.spec.block_size
        if last <= first:
            return []
        self._num_hashed[request_id] = last
        blocks, hashes = self._blocks[request_id][first:last], hashes[first:last]
        if self.slides:
            useful = [
                index
                for index, block in enumerate(blocks)
                if block is not self._pool.null_block and self._ends_a_segment(first + index)
            ]
            blocks, hashes = [blocks[index] for index in useful], [hashes[index] for index in useful]
        self._pool.cache(blocks, hashes, self.index)
        return blocks

    def _ends_a_segment(self, index: int) -> bool:
        """Whether a block is in the last window before a place where hits may end."""
        per_segment = self.alignment // self.spec.block_size
        return index % per_segment >= per_segment - self.spec.num_window_blocks

    def forget_uncomputed(self, request_id: str, num_computed_tokens: int) -> None:
        """Take the hashes of the blocks away that ``num_computed_tokens`` tokens do not fill."""
        first = num_computed_tokens // self.spec.block_size
        self._pool.forget(self._blocks.get(request_id, [])[first:])
        self._num_hashed[request_id] = min(first, self._num_hashed.get(request_id, 0))


def longest_hit(
    spec: KVCacheSpec,
    groups: Sequence[int],
    hashes: Sequence[BlockHash],
    max_tokens: int,
    pool: BlockPool,
    alignment: int,
) -> list[list[KVCacheBlock]]:
    """Return the longest run of cached blocks that a request could begin with, one list per group.

    Parameters
    ----------
    spec : KVCacheSpec
        The same for all ``groups``.
    groups : sequence of int
        A block counts only if all of them have it.
    hashes : sequence of bytes
        One per full block of the request, of the spec's block size.
    max_tokens : int
        No hit is longer than this.
    alignment : int
        A hit ends at a multiple of it.
    """
    num_blocks = min(max_tokens // spec.block_size, len(hashes))
    per_segment = alignment // spec.block_size
    if isinstance(spec, SlidingWindowSpec):
        run = _window_run(spec, groups, hashes, num_blocks, pool, per_segment)
    else:
        run = []
        for block_hash in hashes[:num_blocks]:
            blocks = pool.lookup_all(block_hash, groups)
            if blocks is None:
                break
            run.append(blocks)
        del run[len(run) // per_segment * per_segment :]
    return [[blocks[group] for blocks in run] for group in range(len(groups))]


def _window_run(
    spec: SlidingWindowSpec,
    groups: Sequence[int],
    hashes: Sequence[BlockHash],
    num_blocks: int,
    pool: BlockPool,
    per_segment: int,
) -> list[list[KVCacheBlock]]:
    """Search from the right for one window of neighbouring blocks; what lies before it is null."""
    null = [pool.null_block] * len(groups)
    run = [null] * num_blocks
    length = 0
    for index in reversed(range(num_blocks)):
        blocks = pool.lookup_all(hashes[index], groups)
        if blocks is None or (length == 0 and (index + 1) % per_segment):
            length = 0
            continue
        run[index] = blocks
        length += 1
        if length >= spec.num_window_blocks:
            return run[: index + length]
    # No whole window, but a run that reaches the beginning needs none.
    while length % per_segment:
        length -= 1
    return run[:length]
