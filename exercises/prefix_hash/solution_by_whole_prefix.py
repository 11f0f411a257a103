"""No hash at all: the key of a block is everything up to its end. Right, and its keys grow with the prompt."""


class PrefixCache:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prefix_of: dict[int, tuple[int, ...]] = {}

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        for number, block_id in enumerate(block_ids, 1):
            if number * self.block_size <= len(token_ids):
                self.prefix_of[block_id] = tuple(token_ids[: number * self.block_size])

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        hit: list[int] = []
        end = self.block_size
        while end < len(token_ids):
            wanted = tuple(token_ids[:end])
            block_id = next((block for block, prefix in self.prefix_of.items() if prefix == wanted), None)
            if block_id is None:
                return hit
            hit.append(block_id)
            end += self.block_size
        return hit

    def evict(self, block_id: int) -> None:
        self.prefix_of.pop(block_id, None)
