"""Find the beginning of a prompt in the prefix cache. Check it: pagedlab check prefix_hash THIS_FILE."""


class PrefixCache:
    """Full blocks by the hash of what is in them and of all that comes before."""

    def __init__(self, block_size: int) -> None:  # tokens in a block
        self.block_size = block_size

    def cache_blocks(
        self,
        token_ids: list[int],  # of a prompt
        block_ids: list[int],  # the blocks that hold them; the last one may be partly filled
    ) -> None:
        """Let the full ones of these blocks be found."""
        raise NotImplementedError("prefix_hash: hash the full blocks, each with the one before it")

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        """Return the blocks with which this prompt can begin; its last token is never among them."""
        raise NotImplementedError("prefix_hash: follow the chain as far as it is cached")

    def evict(self, block_id: int) -> None:
        """Let this block be found no more."""
        raise NotImplementedError("prefix_hash: forget a block")
