"""KV cache write: put the keys and values of a step's tokens into their slots.

>>> import torch
>>> keys = torch.zeros(4, 1, 2)  # 4 slots, 1 head of size 2
>>> values = torch.zeros(4, 1, 2)
>>> new = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])  # 3 tokens, the last one is graph padding
>>> kv_cache_write_torch(new, -new, keys, values, torch.tensor([2, 0, -1]))
>>> keys[:, 0].tolist()
[[3.0, 4.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]

A token whose slot is PAD writes nothing. PAD is never used as an index: in torch, index -1 is the last slot, and
padding would overwrite whatever lies there.

vLLM counterpart: ``reshape_and_cache_flash`` at 0.25.1. What differs: slots are one flat axis, so the block size is not
needed here; keys and values are stored as they are (no quantised cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend, power_of_two, require_triton

if TYPE_CHECKING:
    import torch


def kv_cache_write_torch(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store keys and values; the reference of `kv_cache_write_triton`.

    Parameters
    ----------
    key, value : Tensor, [num_tokens, num_kv_heads, head_dim]
    key_cache, value_cache : Tensor, [num_slots, num_kv_heads, head_dim]
        Changed in place, in the slots named and nowhere else.
    slot_mapping : Tensor, [at least num_tokens] int64
        The slot of each token, or PAD. No slot may come twice.
    """
    for token, slot in enumerate(slot_mapping[: len(key)].tolist()):
        if slot >= 0:
            key_cache[slot] = key[token]
            value_cache[slot] = value[token]


if backend().has_triton:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["num_tokens"])
    def _kv_cache_write_kernel(
        key_ptr,
        value_ptr,
        key_cache_ptr,
        value_cache_ptr,
        slot_mapping_ptr,  # [num_tokens] int64
        num_tokens,
        key_stride,  # from token to token
        value_stride,
        cache_stride,  # from slot to slot
        WIDTH: tl.constexpr,  # num_kv_heads * head_dim
        WIDTH_TILE: tl.constexpr,
        TOKENS: tl.constexpr,
    ):
        """One program for a few tokens and a stretch of their heads."""
        tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
        places = tl.program_id(1) * WIDTH_TILE + tl.arange(0, WIDTH_TILE)
        slots = tl.load(slot_mapping_ptr + tokens, mask=tokens < num_tokens, other=-1)
        live = (slots >= 0)[:, None] & (places < WIDTH)[None, :]
        rows = tokens[:, None].to(tl.int64)
        keys = tl.load(key_ptr + rows * key_stride + places[None, :], mask=live, other=0.0)
        values = tl.load(value_ptr + rows * value_stride + places[None, :], mask=live, other=0.0)
        cells = slots[:, None] * cache_stride + places[None, :]  # int64, as slots are
        tl.store(key_cache_ptr + cells, keys, mask=live)
        tl.store(value_cache_ptr + cells, values, mask=live)


def kv_cache_write_triton(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store keys and values with one launch.

    Parameters
    ----------
    key, value : Tensor, [num_tokens, num_kv_heads, head_dim] float16, bfloat16 or float32
        Tokens may be apart (a part of a wider tensor); the heads of a token lie side by side.
    key_cache, value_cache : Tensor, [num_slots, num_kv_heads, head_dim], of the same dtype
        Changed in place, in the slots named and nowhere else. Heads of a slot lie side by side.
    slot_mapping : Tensor, [at least num_tokens] int64
        The slot of each token, or PAD. No slot may come twice.

    Raises
    ------
    ConfigError
        If the tensors do not fit together; nothing has been written.
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `kv_cache_write_torch`.
    """
    import torch

    require_triton(key_cache, "kv_cache_write_torch")
    num_tokens, num_kv_heads, head_dim = key.shape
    if slot_mapping.dtype != torch.int64:
        raise ConfigError(f"slots are int64, since they can pass 2^31; slot_mapping is {slot_mapping.dtype}")
    if slot_mapping.shape[0] < num_tokens:
        raise ConfigError(f"{num_tokens} tokens need as many slots; slot_mapping has {slot_mapping.shape[0]}")
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.shape[1:] != key.shape[1:] or tensor.dtype != key.dtype:
            raise ConfigError(
                f"{name} has heads of {list(tensor.shape[1:])} {tensor.dtype}, key of {list(key.shape[1:])} {key.dtype}"
            )
        if tensor.stride(1) != head_dim or tensor.stride(2) != 1:
            raise ConfigError(
                f"the heads of a token must lie side by side in {name}; its strides are {tensor.stride()}"
            )
    if value.shape[0] != num_tokens or (key_cache.shape, key_cache.stride(0)) != (
        value_cache.shape,
        value_cache.stride(0),
    ):
        raise ConfigError("key and value, and key_cache and value_cache, must have the same layout")
    if num_tokens == 0:
        return
    width = num_kv_heads * head_dim
    width_tile = min(power_of_two(width), 1024)
    tokens = max(1, 2048 // width_tile)
    launch: Any = _kv_cache_write_kernel[(-(-num_tokens // tokens), -(-width // width_tile))]
    launch(
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        num_tokens,
        key.stride(0),
        value.stride(0),
        key_cache.stride(0),
        WIDTH=width,
        WIDTH_TILE=width_tile,
        TOKENS=tokens,
        num_warps=4,
    )
