"""Wrong versions of `KVCacheManager`, each named for what its author believed."""

# ruff: noqa: N801 - these classes are named like the mutants of functions

from __future__ import annotations


class _Manager:
    """A right one, in parts that can be got wrong."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_block_ids = self._free_at_first(num_blocks)
        self.block_ids: dict[str, list[int]] = {}

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_missing = max(0, self._num_blocks(num_tokens) - len(self.block_ids.get(request_id, [])))
        return self._take(request_id, num_missing) if num_missing <= len(self.free_block_ids) else None

    def free(self, request_id: str) -> None:
        self._put_back(self.block_ids.pop(request_id, []))

    def _free_at_first(self, num_blocks: int) -> list[int]:
        return list(range(1, num_blocks))

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, request_id: str, num_missing: int) -> list[int]:
        new = [self._next() for _ in range(num_missing)]
        self.block_ids.setdefault(request_id, []).extend(new)
        return new

    def _next(self) -> int:
        return self.free_block_ids.pop(0)

    def _put_back(self, block_ids: list[int]) -> None:
        self.free_block_ids[:0] = reversed(block_ids)


class one_more_at_a_boundary(_Manager):
    """A request needs `num_tokens // block_size` blocks, and one for the rest."""

    def _num_blocks(self, num_tokens: int) -> int:
        return num_tokens // self.block_size + 1


class rounds_down(_Manager):
    """A request needs `num_tokens // block_size` blocks."""

    def _num_blocks(self, num_tokens: int) -> int:
        return num_tokens // self.block_size


class frees_in_forward_order(_Manager):
    """Blocks come back in the order in which they were given out."""

    def _put_back(self, block_ids: list[int]) -> None:
        self.free_block_ids[:0] = block_ids


class puts_them_at_the_end(_Manager):
    """A queue takes back at its end what it gave out at its head."""

    def _put_back(self, block_ids: list[int]) -> None:
        self.free_block_ids.extend(reversed(block_ids))


class gives_the_null_block_away(_Manager):
    """Blocks are numbered from 0, and all of them are there to be used."""

    def _free_at_first(self, num_blocks: int) -> list[int]:
        return list(range(num_blocks))


class forgets_what_it_holds(_Manager):
    """So many tokens need so many blocks: each call takes them all."""

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_missing = self._num_blocks(num_tokens)
        return self._take(request_id, num_missing) if num_missing <= len(self.free_block_ids) else None


class forgets_the_room_in_the_last_block(_Manager):
    """New tokens need new blocks, even while the last one has room."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._num_tokens: dict[str, int] = {}

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_missing = self._num_blocks(num_tokens - self._num_tokens.get(request_id, 0))
        if num_missing > len(self.free_block_ids):
            return None
        self._num_tokens[request_id] = num_tokens
        return self._take(request_id, num_missing)

    def free(self, request_id: str) -> None:
        self._num_tokens.pop(request_id, None)
        super().free(request_id)


class takes_what_there_is(_Manager):
    """It takes block after block until none is left, and then says that there are not enough."""

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_missing = max(0, self._num_blocks(num_tokens) - len(self.block_ids.get(request_id, [])))
        new = self._take(request_id, min(num_missing, len(self.free_block_ids)))
        return new if len(new) == num_missing else None


class never_gives_the_last_block(_Manager):
    """There must be more free blocks than are asked for."""

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_missing = max(0, self._num_blocks(num_tokens) - len(self.block_ids.get(request_id, [])))
        return self._take(request_id, num_missing) if num_missing < len(self.free_block_ids) else None


class takes_from_the_end(_Manager):
    """`pop()` takes the next one."""

    def _next(self) -> int:
        return self.free_block_ids.pop()


class leaves_them_with_the_request(_Manager):
    """What is in the free list is free; the list of the request need not be touched."""

    def free(self, request_id: str) -> None:
        self._put_back(self.block_ids.get(request_id, []))


class returns_all_it_holds(_Manager):
    """The caller wants to know which blocks the request has."""

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        new = super().allocate_slots(request_id, num_tokens)
        return new if new is None else list(self.block_ids[request_id])
