"""Which attention runs: torch anywhere, Triton where its kernels can."""

from __future__ import annotations

import torch
import torch.distributed

from pagedlab.batch.context_parallel import NO_CONTEXT_PARALLEL, ContextParallel
from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.paged_attention import MAX_HEAD_DIM
from pagedlab.runner.attention import KVCache, TorchAttentionBackend
from pagedlab.runner.metadata import AttentionBackend
from pagedlab.runner.ranks_attention import RanksAttentionBackend, check_ranks
from pagedlab.runner.triton_attention import TritonAttentionBackend

ATTENTION_BACKENDS = ("torch", "triton")


def triton_takes(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the Triton kernels compute this dtype and head size."""
    return dtype in (torch.float16, torch.bfloat16, torch.float32) and head_dim <= MAX_HEAD_DIM


def check_triton(option: str, on_gpu: bool) -> None:
    """Raise `ConfigError` if ``option``, which is ``"triton"``, cannot run for a model that is on a GPU or not."""
    tier = backend()
    if not tier.has_triton:
        raise ConfigError(f"{option} is 'triton', which cannot run here: {tier.reason}")
    if tier.name == "cuda" and not on_gpu:
        raise ConfigError(
            f"{option} is 'triton' and the model is on the CPU, whose memory compiled kernels cannot read: use "
            "device='cuda', or set TRITON_INTERPRET=1"
        )


def choose_slot_mapping_backend(wanted: str | None, on_gpu: bool) -> str:
    """Return what computes slots: what is wanted, or Triton where it is compiled and NumPy elsewhere.

    Raises
    ------
    ConfigError
        If there is no such backend, or it cannot run here.
    """
    if wanted not in (None, "numpy", "triton"):
        raise ConfigError(f"slot_mapping_backend is {wanted!r}: give 'numpy', 'triton' or None")
    if wanted == "triton":
        check_triton("slot_mapping_backend", on_gpu)
    return wanted or ("triton" if on_gpu and backend().name == "cuda" else "numpy")


def make_attention_backend(
    name: str,
    cache: KVCache,
    context_parallel: ContextParallel = NO_CONTEXT_PARALLEL,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> AttentionBackend:
    """Return a backend for a cache; with a process group, one that merges what the ranks compute.

    Raises
    ------
    ConfigError
        If there is no such backend, it cannot run here on this cache, or the group has other ranks.
    """
    if name not in ATTENTION_BACKENDS:
        raise ConfigError(f"attention_backend is {name!r}: give one of {', '.join(ATTENTION_BACKENDS)}")
    if name == "triton":
        _check_triton_cache(cache.data)
    if process_group is not None:
        check_ranks(context_parallel, process_group)
        return RanksAttentionBackend(cache, context_parallel, process_group, name)
    return TorchAttentionBackend(cache) if name == "torch" else TritonAttentionBackend(cache)


def _check_triton_cache(data: torch.Tensor) -> None:
    check_triton("attention_backend", data.is_cuda)
    if not triton_takes(data.dtype, data.shape[-1]):
        raise ConfigError(
            f"the Triton kernels compute float16, bfloat16 and float32 with heads of up to {MAX_HEAD_DIM}; the model "
            f"has {str(data.dtype).removeprefix('torch.')} and {data.shape[-1]}: use attention_backend='torch'"
        )
