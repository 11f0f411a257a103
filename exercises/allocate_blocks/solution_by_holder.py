"""One table says of each block who holds it; the free ones, kept as a stack, have their head at the end."""

import math


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.stack = [*range(num_blocks - 1, 0, -1)]
        self.holder: dict[int, str] = {}  # in the order in which blocks were given out

    @property
    def free_block_ids(self) -> tuple[int, ...]:
        return tuple(reversed(self.stack))

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        num_held = sum(holder == request_id for holder in self.holder.values())
        num_missing = math.ceil(num_tokens / self.block_size) - num_held
        if num_missing > len(self.stack):
            return None
        new = []
        for _ in range(num_missing):
            new.append(self.stack.pop())
            self.holder[new[-1]] = request_id
        return new

    def free(self, request_id: str) -> None:
        for block_id in [block for block, holder in self.holder.items() if holder == request_id]:
            del self.holder[block_id]
            self.stack.append(block_id)
