"""Which attention runs: torch anywhere, Triton where its kernels can."""

from __future__ import annotations

import torch

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.paged_attention import MAX_HEAD_DIM
from pagedlab.runner.attention import KVCache, TorchAttentionBackend
from pagedlab.runner.metadata import AttentionBackend
from pagedlab.runner.triton_attention import TritonAttentionBackend

ATTENTION_BACKENDS = ("torch", "triton")


def triton_takes(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the Triton kernels compute this dtype and head size."""
    return dtype in (torch.float16, torch.bfloat16, torch.float32) and head_dim <= MAX_HEAD_DIM


def make_attention_backend(name: str, cache: KVCache) -> AttentionBackend:
    """Return a backend for a cache.

    Raises
    ------
    ConfigError
        If there is no such backend, or it cannot run here on this cache.
    """
    if name == "torch":
        return TorchAttentionBackend(cache)
    if name != "triton":
        raise ConfigError(f"attention_backend is {name!r}: give one of {', '.join(ATTENTION_BACKENDS)}")
    tier, data = backend(), cache.data
    if not tier.has_triton:
        raise ConfigError(f"attention_backend is 'triton', which cannot run here: {tier.reason}")
    if tier.name == "cuda" and not data.is_cuda:
        raise ConfigError(
            "attention_backend is 'triton' and the model is on the CPU, whose memory compiled kernels cannot read: use "
            "device='cuda', or set TRITON_INTERPRET=1"
        )
    if not triton_takes(data.dtype, data.shape[-1]):
        raise ConfigError(
            f"the Triton kernels compute float16, bfloat16 and float32 with heads of up to {MAX_HEAD_DIM}; the model "
            f"has {str(data.dtype).removeprefix('torch.')} and {data.shape[-1]}: use attention_backend='torch'"
        )
    return TritonAttentionBackend(cache)
