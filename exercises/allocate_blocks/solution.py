"""Two lists, cut and joined."""


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_block_ids = list(range(1, num_blocks))
        self.block_ids: dict[str, list[int]] = {}

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        held = self.block_ids.get(request_id, [])
        num_required = (num_tokens + self.block_size - 1) // self.block_size  # rounded up
        num_missing = max(0, num_required - len(held))
        if num_missing > len(self.free_block_ids):
            return None
        new, self.free_block_ids = self.free_block_ids[:num_missing], self.free_block_ids[num_missing:]
        self.block_ids[request_id] = held + new
        return new

    def free(self, request_id: str) -> None:
        self.free_block_ids = self.block_ids.pop(request_id, [])[::-1] + self.free_block_ids
