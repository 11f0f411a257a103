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


class KVCacheSpec:
    """What all groups answer. A group that only says how long a row is keeps everything and skips nothing."""

    __slots__ = ()

    block_size: int
    """Tokens in a block."""

    cacheable = False
    """Whether a full block never changes, so that it can be hashed and found again."""

    num_window_blocks = 0
    """Neighbouring blocks that a hit must end with where those before may be missing; 0: none may be missing."""

    def num_blocks(self, num_tokens: int) -> int:
        """Return the length of the row of a request with ``num_tokens``, skipped blocks included."""
        raise NotImplementedError

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many tokens from the start no later token will look at."""
        return 0

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Return the most blocks a request of ``num_tokens`` ever holds at once."""
        return self.num_blocks(num_tokens)


@dataclass(frozen=True, slots=True)
class FullAttentionSpec(KVCacheSpec):
    """Every token is kept until the request ends.

    Parameters
    ----------
    block_size : int
        Tokens in a block.
    """

    block_size: int
    cacheable = True

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec(KVCacheSpec):
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
    cacheable = True

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)
        require_int("window", self.window, 1)

    @property
    def num_window_blocks(self) -> int:  # type: ignore[override]
        return -(-(self.window - 1) // self.block_size)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.window + 1)

    def most_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Count one step's tokens and the window before them, which may begin inside a block."""
        reach = min(self.window - 1 + max_num_batched_tokens, max_model_len)
        return min(self.num_blocks(num_tokens), -(-reach // self.block_size) + 1)


@dataclass(frozen=True, slots=True)
class MambaSpec(KVCacheSpec):
    """A layer with a state instead of keys and values: one block per request, however long it is.

    The block is rewritten with every token, so it says nothing of a prefix: there is no prefix caching with such a
    group (vLLM's ``mamba_cache_mode="none"``).
    """

    block_size = 1

    def num_blocks(self, num_tokens: int) -> int:
        return min(num_tokens, 1)


@dataclass(frozen=True, slots=True)
class EncoderOnlySpec(KVCacheSpec):
    """Attention within one forward pass: nothing is kept, so there are no blocks and no table."""

    block_size = 1

    def num_blocks(self, num_tokens: int) -> int:
        return 0
