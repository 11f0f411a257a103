"""The block pool at any record of a trace: who holds each block, what it remembers, and the free queue in order.

>>> from pagedlab.events import BlocksAllocated, BlocksFreed
>>> pool = PoolReplay(num_blocks=5)
>>> pool.apply(BlocksAllocated("A", 0, (1, 2), num_free=2))
>>> pool.state(1), pool.state(3), list(pool.queue)
('owned', 'free', [3, 4])
>>> pool.apply(BlocksFreed("A", 0, (2, 1), num_free=4))
>>> list(pool.queue)  # without a hash: to the head, in the order in which they were freed
[2, 1, 3, 4]

A trace does not tell the order of the free queue, but all that decides it: the queue begins in the order of the ids;
blocks leave it from its head, or when they are hit; they come back to its head, or with a hash to its tail. So it is
replayed.

Where the trace begins in the middle, nobody knows how the queue lay before. Then those blocks are *unknown* until the
trace tells of them, and stand in the queue as a gap. A step that failed has no end: it is taken back, the pool begins
anew. That the prefix cache was reset, no event tells: it shows when a block is given out that should have been evicted.

vLLM counterpart of what is replayed: ``vllm/v1/core/block_pool.py`` (``BlockPool``) at 0.25.1.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pagedlab.events import (
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    StepFinished,
    StepStarted,
)
from pagedlab.scenes.replay import NULL_BLOCK, after_free
from pagedlab.trace import Record, Trace

POOL_EVENTS = (BlocksAllocated, BlocksTouched, BlocksFreed, BlocksCached, BlocksEvicted)
"""What changes the pool."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a hashed block is found by, and the request and column that it was filled as.

    ``block_hash`` is hexadecimal; it is empty, and ``column`` None, if the trace began later. ``life`` counts how often
    the whole pool was free before.
    """

    block_hash: str
    request_id: str
    column: int | None
    life: int = 0


class PoolReplay:
    """All blocks of a pool; `apply` takes events in order.

    Parameters
    ----------
    num_blocks : int
        The null block included.
    is_fresh : bool
        Whether the trace saw the pool from its beginning on.

    Attributes
    ----------
    holders : dict of int to list of str
        Who holds a block; the length is the reference count. Blocks that nobody holds are not in it.
    num_held : dict of str to int
        How many blocks each request holds.
    remembered : dict of int to Remembered
        The blocks with a hash, held or free.
    queue : OrderedDict of int to None
        The free blocks, head first. A number below 0 stands for a gap: blocks of which the trace has not told.
    unknown : set of int
        Blocks of which the trace has not told.
    vague : set of int
        Blocks that are held, perhaps by others too of whom the trace has not told.
    num_free : int or None
        All free blocks; None before the trace tells it.
    """

    def __init__(self, num_blocks: int, is_fresh: bool = True) -> None:
        self.num_blocks = num_blocks
        self._changed: set[int] = set()
        self._begin(is_fresh)

    def _begin(self, is_fresh: bool) -> None:
        usable = range(1, self.num_blocks)
        self.holders: dict[int, list[str]] = {}
        self.num_held: dict[str, int] = {}
        self.remembered: dict[int, Remembered] = {}
        self.unknown: set[int] = set() if is_fresh else set(usable)
        self.vague: set[int] = set()
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(usable if is_fresh else [-1])
        self.num_free = len(usable) if is_fresh else None
        self._num_gaps = 0 if is_fresh else 1
        self._blocks_of: dict[tuple[str, int], list[int]] = {}
        self._in_step = False
        self._life = 0
        self._kinds: dict[int, tuple[str, ...]] = {NULL_BLOCK: ("null",)}
        self._usual = ("free",) if is_fresh else ("unknown",)
        self._counts = Counter({"null": 1, self._usual[0]: len(usable)})
        self._uncounted: set[int] = set()

    # --- what is so now -----------------------------------------------------------------------------------

    def state(self, block: int) -> str:
        """Return ``owned``, ``cached`` (free, with a hash), ``free``, ``null`` or ``unknown``."""
        if block == NULL_BLOCK:
            return "null"
        if block in self.holders:
            return "owned"
        if block in self.unknown:
            return "unknown"
        return "cached" if block in self.remembered else "free"

    def ref_cnt(self, block: int) -> int:
        """Return how many requests hold a block."""
        return len(self.holders.get(block, ()))

    def head(self, count: int) -> list[int]:
        """Return the next blocks to be given out, at most ``count``, as far as they are known."""
        return list(self._until_gap(iter(self.queue), count))

    def tail(self, count: int) -> list[int]:
        """Return the last blocks of the queue in its order, at most ``count``, as far as they are known."""
        return list(self._until_gap(reversed(self.queue), count))[::-1]

    def _until_gap(self, blocks: Iterator[int], count: int) -> Iterator[int]:
        for _, block in zip(range(count), blocks, strict=False):
            if block < 0:
                return
            yield block

    @property
    def counts(self) -> Counter[str]:
        """How many blocks are in each state; and how many, whatever their state, are ``shared`` and ``hashed``."""
        for block in self._uncounted:
            kinds = (
                self.state(block),
                *(["shared"] if self.ref_cnt(block) > 1 else []),
                *(["hashed"] if block in self.remembered else []),
            )
            self._counts.subtract(self._kinds.get(block, self._usual))
            self._counts.update(kinds)
            self._kinds[block] = kinds
        self._uncounted = set()
        return self._counts

    def take_changed(self) -> list[int]:
        """Return the blocks to which something happened since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def _change(self, blocks: Iterable[int]) -> None:
        self._changed.update(blocks)
        self._uncounted.update(blocks)

    # --- events -------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event."""
        match event:
            case BlocksAllocated():
                self._allocate(event)
            case BlocksTouched():
                self._touch(event)
            case BlocksFreed():
                self._free(event)
            case BlocksCached():
                self._remember(event)
            case BlocksEvicted(block_ids=block_ids):
                self._forget(block_ids)
            case StepStarted():
                if self._in_step:
                    self._take_back()
                self._in_step = True
            case StepFinished(num_free_blocks=num_free):
                self._in_step = False
                self._count_free(num_free)
            case _:
                pass

    def _allocate(self, event: BlocksAllocated) -> None:
        for block in event.block_ids:
            self.queue.pop(block, None)
            self.unknown.discard(block)
            if block in self.remembered:
                self._forget_lives_up_to(self.remembered[block].life)
            self.holders[block] = [event.request_id]
        self._hold(event)

    def _touch(self, event: BlocksTouched) -> None:
        met = self.unknown.intersection(event.block_ids)
        if met:  # they were free if so many fewer blocks are free now; else others may hold them
            were_free = len(met) + sum(block in self.queue for block in event.block_ids)
            if self.num_free is None or self.num_free - event.num_free != were_free:
                self.vague |= met
        for block in event.block_ids:
            self.queue.pop(block, None)
            self.unknown.discard(block)
            self.remembered.setdefault(block, Remembered("", event.request_id, None))  # it was hit: so it has a hash
            self.holders.setdefault(block, []).append(event.request_id)
        self._hold(event)

    def _hold(self, event: BlocksAllocated | BlocksTouched) -> None:
        self._blocks_of.setdefault((event.request_id, event.group), []).extend(event.block_ids)
        self._count_held(event.request_id, len(event.block_ids))
        self._change(event.block_ids)
        self._count_free(event.num_free)

    def _free(self, event: BlocksFreed) -> None:
        self._leave_columns(event)
        freed = []
        for block in event.block_ids:
            holders = self.holders.get(block, [])
            if event.request_id in holders:
                holders.remove(event.request_id)
                self._count_held(event.request_id, -1)
                if not holders:
                    del self.holders[block]
                    if block in self.vague:
                        self.vague.discard(block)
                        self.unknown.add(block)
                    else:
                        freed.append(block)
        self._append([block for block in freed if block in self.remembered])
        self._prepend([block for block in freed if block not in self.remembered])
        if not self.unknown.isdisjoint(event.block_ids):  # whether they are free now, and where: nobody knows
            self._prepend([-1 - self._num_gaps])
            self._append([-2 - self._num_gaps])
            self._num_gaps += 2
        self._change(event.block_ids)
        self._count_free(event.num_free)
        self._life += event.num_free == self.num_blocks - 1

    def _leave_columns(self, event: BlocksFreed) -> None:
        key = event.request_id, event.group
        if left := after_free(self._blocks_of.pop(key, []), event.block_ids, NULL_BLOCK):
            self._blocks_of[key] = left

    def _count_held(self, request_id: str, more: int) -> None:
        self.num_held[request_id] = self.num_held.get(request_id, 0) + more
        if not self.num_held[request_id]:
            del self.num_held[request_id]

    def _append(self, blocks: Iterable[int]) -> None:
        self.queue.update(OrderedDict.fromkeys(blocks))

    def _prepend(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)

    def _remember(self, event: BlocksCached) -> None:
        held = self._blocks_of.get((event.request_id, event.group), [])
        for block, block_hash in zip(event.block_ids, event.block_hashes, strict=True):
            if block in self.unknown:  # nobody shares a block that has no hash yet
                self.unknown.discard(block)
                self.holders[block] = [event.request_id]
                self._count_held(event.request_id, 1)
            self.remembered[block] = Remembered(
                block_hash, event.request_id, held.index(block) if block in held else None, self._life
            )
        self._change(event.block_ids)

    def _forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.remembered.pop(block, None)
        self._change(blocks)

    def _forget_lives_up_to(self, life: int) -> None:
        """Forget what was hashed by then: the prefix cache was reset, which takes a pool all of which is free."""
        self._forget([block for block, what in self.remembered.items() if what.life <= life])

    def _take_back(self) -> None:
        """Begin anew: the last step failed."""
        happened = {*self.holders, *self.remembered, *self.unknown}
        self._begin(is_fresh=True)
        self._changed |= happened

    def _count_free(self, num_free: int) -> None:
        """Take in how many blocks are free; if those are all known, there is no gap: somebody holds the others."""
        self.num_free = num_free
        if self._num_gaps and sum(block >= 0 for block in self.queue) == num_free:
            self.queue = OrderedDict.fromkeys(block for block in self.queue if block >= 0)
            self._num_gaps = 0


def replay_of(trace: Trace) -> PoolReplay:
    """Return the pool as a trace finds it."""
    first = next((record.event for record in trace if isinstance(record.event, (StepStarted, *POOL_EVENTS))), None)
    is_fresh = isinstance(first, StepStarted) and first.index == 0
    return PoolReplay(_num_blocks(trace, is_fresh), is_fresh)


def _num_blocks(trace: Trace, is_fresh: bool) -> int:
    """Return the number of blocks: as the settings say, or the first event that counts the free ones, or the ids."""
    known = trace.settings.get("num_blocks")
    if isinstance(known, int):
        return known
    ids = (block for record in trace if isinstance(record.event, POOL_EVENTS) for block in record.event.block_ids)
    most = max(ids, default=NULL_BLOCK) + 1
    if is_fresh:
        for record in trace:
            if isinstance(record.event, BlocksAllocated):
                return max(most, 1 + len(record.event.block_ids) + record.event.num_free)
    return max(2, most)


def requests_of(records: Iterable[Record]) -> list[str]:
    """Return the ids of all requests in the order in which the records meet them: that of their colours."""
    found: dict[str, None] = {}
    for record in records:
        for request_id in getattr(record.event, "request_ids", None) or [getattr(record.event, "request_id", None)]:
            if request_id is not None:
                found.setdefault(request_id)
    return list(found)
