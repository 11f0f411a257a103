"""What the block table of one KV cache group is like: its block sizes, its width, this rank's part.

>>> TableSpec(block_size=32, kernel_block_size=16).blocks_per_kv_block
2

vLLM counterpart: the arguments of ``MultiGroupBlockTable`` in ``vllm/v1/worker/block_table.py`` at 0.25.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.batch.context_parallel import NO_CONTEXT_PARALLEL, ContextParallel
from pagedlab.config import require_int
from pagedlab.errors import ConfigError

_WIDTH_ALIGNMENT_TOKENS = 128
"""Some attention kernels read a row of the table in pieces of this many tokens."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What the block table of one KV cache group is like.

    Parameters
    ----------
    block_size : int
        Tokens in a block of the KV cache manager.
    kernel_block_size : int, optional
        Tokens in a block as the attention kernel knows it; must divide ``block_size``. Each manager block is then
        ``block_size / kernel_block_size`` blocks of the kernel, side by side, in the table and in the slots.
    context_parallel : ContextParallel
        This rank's part of the tokens. Groups that every rank keeps whole (sliding windows, Mamba) have the default.
    max_blocks : int, optional
        The most blocks of a request, for a group that has no slots: one for a Mamba state, 0 for a layer that keeps
        nothing. None: as many as ``max_model_len`` takes, and a slot for each token.

    Raises
    ------
    ConfigError
        If a size is out of range, ``kernel_block_size`` does not divide ``block_size``, or the interleave of context
        parallelism does not divide the block size.
    """

    block_size: int
    kernel_block_size: int | None = None
    context_parallel: ContextParallel = NO_CONTEXT_PARALLEL
    max_blocks: int | None = None

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)
        if self.max_blocks is not None:
            require_int("max_blocks", self.max_blocks, 0)
        if self.kernel_block_size is not None:
            require_int("kernel_block_size", self.kernel_block_size, 1)
            if self.block_size % self.kernel_block_size:
                raise ConfigError(
                    f"a kernel's blocks of {self.kernel_block_size} tokens do not fill a block of {self.block_size} "
                    "evenly: kernel_block_size must divide block_size"
                )
        interleave = self.context_parallel.interleave
        if (self.kernel_block_size or self.block_size) % interleave:
            raise ConfigError(
                f"runs of {interleave} tokens on a rank do not fill a block of "
                f"{self.kernel_block_size or self.block_size} evenly: interleave must divide the block size"
            )

    @property
    def has_slots(self) -> bool:
        """Whether each token has a slot in this group."""
        return self.max_blocks is None

    @property
    def blocks_per_kv_block(self) -> int:
        """Kernel blocks in a manager block."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    def columns(self, max_model_len: int) -> int:
        """Return the columns of the table: enough for ``max_model_len``, rounded up to 128 tokens if it has slots.

        >>> TableSpec(block_size=4).columns(max_model_len=72)
        32
        """
        if self.max_blocks is not None:
            return max(1, self.max_blocks) * self.blocks_per_kv_block
        num_blocks = -(-max_model_len // (self.block_size * self.context_parallel.world_size))
        alignment = max(1, _WIDTH_ALIGNMENT_TOKENS // self.block_size)
        return -(-num_blocks // alignment) * alignment * self.blocks_per_kv_block
