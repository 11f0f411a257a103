"""Validated, immutable settings of the engine.

>>> SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4).enable_chunked_prefill
True
>>> SchedulerConfig(max_num_batched_tokens=0)
Traceback (most recent call last):
pagedlab.errors.ConfigError: max_num_batched_tokens is 0: give a whole number of at least 1

vLLM counterpart: ``vllm/config/scheduler.py`` (``SchedulerConfig``) and ``vllm/config/cache.py``
(``CacheConfig``) at 0.25.1. Names are vLLM's but where a parameter says otherwise, class defaults too. What differs: a
setting that cannot work raises `ConfigError` here and now, and there are no settings that nothing reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagedlab.errors import ConfigError

NULL_BLOCK_ID = 0
"""Block 0 is never given to a request: padded rows and skipped blocks point at it."""


def require_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> None:
    """Raise `ConfigError` unless ``value`` is an int (not a bool) of at least ``minimum``, at most ``maximum``."""
    wanted = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, a {type(value).__name__}: give a whole number of {wanted}")
    if value < minimum or (maximum is not None and value > maximum):
        raise ConfigError(f"{name} is {value}: give a whole number of {wanted}")


def require_bool(name: str, value: Any) -> None:
    """Raise `ConfigError` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: give True or False")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who may run, and how much of each request, in one step.

    Parameters
    ----------
    max_num_batched_tokens : int
        The token budget of a step, shared by prompt and output tokens. At least ``max_num_seqs``: vLLM requires it
        too, so that every running request can get its one decode token.
    max_num_seqs : int
        Seats: the most requests that run at once, and the number of rows of the persistent batch.
    enable_chunked_prefill : bool
        Whether a prompt may be cut to fit what is left of the budget. If not, the first waiting prompt that does not
        fit blocks all behind it (head-of-line blocking).
    long_prefill_token_threshold : int
        The most tokens one request gets in a step; 0 means no limit.
    reserve_full_prompt : bool
        Admit a waiting request only if blocks for *all* of its tokens are free, not just for the first chunk
        (vLLM: ``scheduler_reserve_full_isl``).
    policy : {"fcfs", "priority"}
        Who is admitted first, and who is preempted: the last that came, or the largest (priority, arrival time).

    Raises
    ------
    ConfigError
        If a value is out of range or the values contradict each other.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    reserve_full_prompt: bool = True
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        require_int("max_num_seqs", self.max_num_seqs, 1)
        require_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        require_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        require_bool("reserve_full_prompt", self.reserve_full_prompt)
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"policy is {self.policy!r}: give 'fcfs' or 'priority'")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}): "
                "each running request needs one token of the budget in a step; raise the first or lower the second"
            )

    def check_model_len(self, max_model_len: int) -> None:
        """Raise `ConfigError` if a prompt of ``max_model_len`` tokens could never be scheduled."""
        if self.long_prefill_token_threshold > max_model_len:
            raise ConfigError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) is above max_model_len "
                f"({max_model_len}), so it would never apply: give at most {max_model_len}, or 0 for no limit"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"chunked prefill is off and max_num_batched_tokens ({self.max_num_batched_tokens}) is below "
                f"max_model_len ({max_model_len}): the longest prompt would never fit into one step; "
                f"raise the budget to at least {max_model_len}, lower max_model_len, or turn chunked prefill on"
            )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The memory for keys and values.

    Parameters
    ----------
    block_size : int
        Tokens in one block.
    num_blocks : int or None
        Blocks in the pool, the null block included. None: as many as ``max_num_seqs`` requests of ``max_model_len``
        tokens could use, but no more than fit into ``kv_cache_memory_bytes``.
    enable_prefix_caching : bool
        Whether full blocks are found again by later requests that begin with the same tokens.
    kv_cache_memory_bytes : int
        Bound on the memory of the pool when ``num_blocks`` is None (bytes; vLLM profiles the GPU instead).

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    block_size: int = 16
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)
        require_int("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        require_bool("enable_prefix_caching", self.enable_prefix_caching)
        if self.num_blocks is not None:
            require_int("num_blocks", self.num_blocks, 2)

    def resolve_num_blocks(self, *, max_num_seqs: int, max_model_len: int, bytes_per_token: int) -> int:
        """Return the number of blocks in the pool, the null block included.

        Raises
        ------
        ConfigError
            If ``kv_cache_memory_bytes`` does not hold a single request of ``max_model_len`` tokens.
        """
        if self.num_blocks is not None:
            return self.num_blocks
        blocks_per_request = -(-max_model_len // self.block_size)
        affordable = self.kv_cache_memory_bytes // (bytes_per_token * self.block_size) - 1
        if affordable < blocks_per_request:
            needed = (blocks_per_request + 1) * self.block_size * bytes_per_token
            raise ConfigError(
                f"kv_cache_memory_bytes ({self.kv_cache_memory_bytes}) does not hold one request of max_model_len "
                f"({max_model_len}) tokens: give at least {needed} bytes, or lower max_model_len"
            )
        return min(affordable, max_num_seqs * blocks_per_request) + 1
