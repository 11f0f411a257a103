"""What a KV cache group must keep of a request.

>>> SlidingWindowSpec(block_size=4, window=6).num_skipped_tokens(20)  # the next token sees itself and 5 before
15

Layers whose KV memory behaves alike form a *group*; each group has its own row of blocks per request, all from one
pool.

vLLM counterpart: ``vllm/v1/kv_cache_interface.py`` (``FullAttentionSpec``, ``SlidingWindowSpec``,
``MambaSpec``, ``EncoderOnlyAttentionSpec``) at 0.25.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.config import require_int


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Every token is kept until the request ends.

    Parameters
    ----------
    block_size : int
        Tokens in a block.
    """

    block_size: int

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many tokens from the start no later token will look at."""
        return 0

    @property
    def num_window_blocks(self) -> int:
        """Blocks before the next token that a hit must have without a gap; here a hit has no gaps anyway."""
        return 0

    def num_blocks(self, num_tokens: int) -> int:
        """Return the length of the row of a request with ``num_tokens``."""
        return -(-num_tokens // self.block_size)

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Return the most blocks a request of ``num_tokens`` ever holds at once."""
        return self.num_blocks(num_tokens)


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """A token sees itself and the ``window - 1`` tokens before it; what lies further back is given up.

    Parameters
    ----------
    block_size : int
        Tokens in a block.
    window : int
        Tokens that a query sees, itself included.
    """

    block_size: int
    window: int

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)
        require_int("window", self.window, 1)

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many tokens from the start no later token will look at."""
        return max(0, num_computed_tokens - self.window + 1)

    @property
    def num_window_blocks(self) -> int:
        """Blocks that hold everything before the next token that it can see."""
        return -(-(self.window - 1) // self.block_size)

    def num_blocks(self, num_tokens: int) -> int:
        """Return the length of the row of a request with ``num_tokens``, skipped blocks included."""
        return -(-num_tokens // self.block_size)

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Return the most blocks a request of ``num_tokens`` ever holds at once.

        One step's tokens and the window before them, which may begin inside a block.
        """
        reach = min(self.window - 1 + max_num_batched_tokens, max_model_len)
        return min(self.num_blocks(num_tokens), -(-reach // self.block_size) + 1)


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """A layer with a state instead of keys and values: one block per request, however long it is.

    The block is rewritten with every token, so it says nothing of a prefix: there is no prefix caching with such a
    group (vLLM's ``mamba_cache_mode="none"``).
    """

    @property
    def block_size(self) -> int:
        """One state, in one slot."""
        return 1

    @property
    def num_window_blocks(self) -> int:
        """No block of it is ever hit."""
        return 0

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return 0: the one block stays."""
        return 0

    def num_blocks(self, num_tokens: int) -> int:
        """Return 1, as soon as there is a token."""
        return min(num_tokens, 1)

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Return the most blocks a request of ``num_tokens`` ever holds at once."""
        return self.num_blocks(num_tokens)


@dataclass(frozen=True, slots=True)
class EncoderOnlySpec:
    """Attention within one forward pass: nothing is kept, so there are no blocks and no table."""

    @property
    def block_size(self) -> int:
        """Of no meaning: there are no blocks."""
        return 1

    @property
    def num_window_blocks(self) -> int:
        """No block of it is ever hit."""
        return 0

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return 0: there is nothing to skip."""
        return 0

    def num_blocks(self, num_tokens: int) -> int:
        """Return 0."""
        return 0

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Return 0."""
        return 0


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec | MambaSpec | EncoderOnlySpec
CACHEABLE = (FullAttentionSpec, SlidingWindowSpec)
"""Groups whose full blocks never change, so that they can be hashed and found again."""
