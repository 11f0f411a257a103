"""Wrong versions of `PrefixCache`, each named for what its author believed."""

# ruff: noqa: N801 - these classes are named like the mutants of functions

from __future__ import annotations

from collections.abc import Hashable


class _Cache:
    """A right one, in parts that can be got wrong. A key is nested tuples, which tell contents apart as a hash does."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cached: list[tuple[Hashable, int]] = []

    def keys(self, token_ids: list[int]) -> list[Hashable]:
        keys: list[Hashable] = []
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            keys.append(self.key(keys, tuple(token_ids[start : start + self.block_size])))
        return keys

    def key(self, before: list[Hashable], tokens: tuple[int, ...]) -> Hashable:
        return (before[-1] if before else None, tokens)

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        self.cached += zip(self.keys(token_ids), block_ids, strict=False)

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        hit: list[int] = []
        for key in self.keys(token_ids[: self.num_searched(len(token_ids))]):
            block_id = self.find(key)
            if block_id is None:
                break
            hit.append(block_id)
        return hit

    def num_searched(self, num_tokens: int) -> int:
        return num_tokens - 1

    def find(self, key: Hashable) -> int | None:
        return next((block_id for cached, block_id in self.cached if cached == key), None)

    def evict(self, block_id: int) -> None:
        self.cached = [pair for pair in self.cached if pair[1] != block_id]


class hashes_without_the_parent(_Cache):
    """A block is what is in it: equal tokens, equal blocks."""

    def key(self, before: list[Hashable], tokens: tuple[int, ...]) -> Hashable:
        return tokens


class hashes_its_place(_Cache):
    """A block is its tokens and their position in the prompt."""

    def key(self, before: list[Hashable], tokens: tuple[int, ...]) -> Hashable:
        return (len(before), tokens)


class hashes_its_neighbour_only(_Cache):
    """A block is its tokens and those of the block before it."""

    def keys(self, token_ids: list[int]) -> list[Hashable]:
        size = self.block_size
        starts = range(0, len(token_ids) - size + 1, size)
        return [tuple(token_ids[max(0, start - size) : start + size]) for start in starts]


class hits_the_last_token(_Cache):
    """What is cached need not be computed: if that is the whole prompt, the better."""

    def num_searched(self, num_tokens: int) -> int:
        return num_tokens


class computes_the_last_block_always(_Cache):
    """To leave something to compute, leave out the last full block."""

    def num_searched(self, num_tokens: int) -> int:
        return num_tokens // self.block_size * self.block_size - self.block_size


class goes_on_behind_a_gap(_Cache):
    """Each block that is there spares work, whatever is missing before it."""

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        found = [self.find(key) for key in self.keys(token_ids[:-1])]
        return [block_id for block_id in found if block_id is not None]


class all_or_nothing(_Cache):
    """A prompt is cached or it is not."""

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        keys = self.keys(token_ids[:-1])
        hit = super().get_computed_blocks(token_ids)
        return hit if len(hit) == len(keys) else []


class takes_the_newest(_Cache):
    """Of two blocks with the same content the newer one counts."""

    def find(self, key: Hashable) -> int | None:
        return next((block_id for cached, block_id in reversed(self.cached) if cached == key), None)


class keeps_one_of_each(_Cache):
    """What is cached already is not cached again."""

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        for key, block_id in zip(self.keys(token_ids), block_ids, strict=False):
            if self.find(key) is None:
                self.cached.append((key, block_id))


class evicts_what_comes_behind(_Cache):
    """Without its beginning the rest is worthless, so it goes too."""

    def evict(self, block_id: int) -> None:
        gone = {key for key, cached_id in self.cached if cached_id == block_id}
        super().evict(block_id)
        self.cached = [pair for pair in self.cached if gone.isdisjoint(self._with_all_before(pair[0]))]

    def _with_all_before(self, key: Hashable) -> set[Hashable]:
        before: set[Hashable] = set()
        while isinstance(key, tuple):
            key = key[0]
            before.add(key)
        return before


class never_evicts(_Cache):
    """A block keeps its hash until it gets another one."""

    def evict(self, block_id: int) -> None:
        pass
