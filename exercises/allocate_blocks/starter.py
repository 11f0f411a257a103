"""Allocate and free blocks of KV memory. Check it: pagedlab check allocate_blocks THIS_FILE."""


class KVCacheManager:
    """Who holds which blocks, and which are free."""

    def __init__(
        self,
        num_blocks: int,  # in the pool, block 0 among them
        block_size: int,  # tokens in a block
    ) -> None:
        self.block_size = block_size
        self.free_block_ids: list[int] = []  # in the order in which they are given out: which are there at first?
        self.block_ids: dict[str, list[int]] = {}  # by request: the blocks that it holds, in the order of its tokens

    def allocate_slots(
        self,
        request_id: str,
        num_tokens: int,  # of the request in all, prompt and output
    ) -> list[int] | None:
        """Give a request the blocks that it lacks; return the new ones, or None if there are not enough."""
        raise NotImplementedError("allocate_blocks: give a request the blocks that it lacks")

    def free(self, request_id: str) -> None:
        """Take back all blocks of a request, the last one first."""
        raise NotImplementedError("allocate_blocks: take back the blocks of a request")
