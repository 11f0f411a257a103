"""The free blocks in a deque, whose head costs nothing to take or to put back."""

from collections import defaultdict, deque


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_block_ids = deque(range(1, num_blocks))
        self.block_ids: defaultdict[str, list[int]] = defaultdict(list)

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        held = self.block_ids[request_id]
        num_missing = -(-num_tokens // self.block_size) - len(held)
        if num_missing > len(self.free_block_ids):
            return None
        new = [self.free_block_ids.popleft() for _ in range(num_missing)]
        held.extend(new)
        return new

    def free(self, request_id: str) -> None:
        self.free_block_ids.extendleft(self.block_ids.pop(request_id, ()))  # each goes before the one put there last
