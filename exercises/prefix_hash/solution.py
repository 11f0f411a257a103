"""As vLLM does it: SHA-256 over the parent's hash and the tokens, and for each hash the blocks that have it."""

import hashlib


class PrefixCache:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks_by_hash: dict[bytes, dict[int, None]] = {}  # a dict of blocks keeps their order
        self.hash_of_block: dict[int, bytes] = {}

    def block_hashes(self, token_ids: list[int]) -> list[bytes]:
        hashes = []
        parent = b""
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            tokens = ",".join(map(str, token_ids[start : start + self.block_size]))
            parent = hashlib.sha256(parent + tokens.encode()).digest()
            hashes.append(parent)
        return hashes

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        for block_hash, block_id in zip(self.block_hashes(token_ids), block_ids, strict=False):
            self.blocks_by_hash.setdefault(block_hash, {})[block_id] = None
            self.hash_of_block[block_id] = block_hash

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        most = (len(token_ids) - 1) // self.block_size
        hit = []
        for block_hash in self.block_hashes(token_ids)[:most]:
            twins = self.blocks_by_hash.get(block_hash)
            if not twins:
                break
            hit.append(next(iter(twins)))
        return hit

    def evict(self, block_id: int) -> None:
        block_hash = self.hash_of_block.pop(block_id, None)
        if block_hash is not None:
            del self.blocks_by_hash[block_hash][block_id]
