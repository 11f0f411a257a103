"""Writing keys and values to their slots: the torch reference by hand, and the Triton kernel against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.kv_cache_write import kv_cache_write_torch, kv_cache_write_triton

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
DEVICE = "cuda" if backend().name == "cuda" else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
FORMS = [
    pytest.param(kv_cache_write_torch, id="torch"),
    pytest.param(kv_cache_write_triton, id="triton", marks=needs_triton),
]
GUARD = -777.0
Form = Callable[..., None]


def write(form: Form, key: torch.Tensor, value: torch.Tensor, slots: list[int], num_slots: int) -> torch.Tensor:
    """Return keys and values ``[2, num_slots, ...]`` after a write into memory full of NaN, guarded on both sides."""
    heads, dim = key.shape[1:]
    memory = torch.full((2, num_slots + 8, heads, dim), float("nan"), dtype=key.dtype, device=DEVICE)
    memory[:, :4] = memory[:, -4:] = GUARD
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=DEVICE)
    form(key.to(DEVICE), value.to(DEVICE), memory[0, 4:-4], memory[1, 4:-4], slot_mapping)
    assert (memory[:, :4] == GUARD).all(), "written before the cache"
    assert (memory[:, -4:] == GUARD).all(), "written behind the cache"
    return memory[:, 4:-4].cpu()


@pytest.mark.parametrize("form", FORMS)
def test_a_token_goes_to_its_slot_and_nothing_else_changes(form: Form) -> None:
    key = torch.arange(12.0).view(3, 2, 2)
    keys, values = write(form, key, -key, [5, 0, 2], 6)
    assert keys[[5, 0, 2]].tolist() == key.tolist()
    assert values[[5, 0, 2]].tolist() == (-key).tolist()
    assert keys[[1, 3, 4]].isnan().all()
    assert values[[1, 3, 4]].isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_b2_pad_writes_nothing_not_even_the_last_slot(form: Form) -> None:
    key = torch.arange(1.0, 9.0).view(4, 1, 2)
    keys, values = write(form, key, -key, [-1, 7, -1, -1], 20)
    assert keys[7].tolist() == [[3.0, 4.0]]
    assert keys.isnan().sum() == values.isnan().sum() == 19 * 2


@pytest.mark.parametrize("form", FORMS)
def test_a_pool_of_one_slot_and_a_step_of_no_token(form: Form) -> None:
    key = torch.tensor([[[1.0, 2.0]]])
    assert write(form, key, -key, [0], 1).tolist() == [[[[1.0, 2.0]]], [[[-1.0, -2.0]]]]
    assert write(form, key[:0], key[:0], [], 1).isnan().all()


@needs_triton
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_triton_equals_torch(data: st.DataObject) -> None:
    """Any number and size of heads, tokens apart from each other, more slots named than there are tokens."""
    num_tokens = data.draw(st.integers(0, 9))
    heads, dim = data.draw(st.sampled_from([(1, 8), (2, 32), (3, 20), (8, 128), (9, 256)]))
    seed = data.draw(st.integers(0, 2**32))
    qkv = torch.randn(num_tokens, 3 * heads, dim, generator=torch.Generator().manual_seed(seed))
    qkv = qkv.to(data.draw(st.sampled_from(DTYPES)))
    key, value = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    slots = data.draw(st.permutations(range(12)))
    slots = [data.draw(st.sampled_from([slot, -1])) for slot in slots]
    expected = write(kv_cache_write_torch, key, value, slots, 12)
    written = write(kv_cache_write_triton, key, value, slots, 12)
    assert torch.equal(written.nan_to_num(GUARD), expected.nan_to_num(GUARD))


@pytest.mark.parametrize("form", FORMS)
def test_b8_offsets_beyond_2_to_the_31(form: Form) -> None:
    num_slots = 2**26 + 8  # of 2 * 16 elements
    try:
        memory = torch.empty(num_slots, 2, 16, dtype=torch.float16, device=DEVICE)  # 4.3 GB; few pages are touched
    except RuntimeError:
        pytest.skip("4.3 GB of address space are not to be had")
    key = torch.randn(2, 1, 16).to(memory)
    slots = torch.tensor([num_slots - 1, 3], device=DEVICE)
    form(key, -key, memory[:, :1], memory[:, 1:], slots)
    assert torch.equal(memory[slots, 0], key[:, 0])
    assert torch.equal(memory[slots, 1], -key[:, 0])


@needs_triton
def test_what_does_not_fit_together_is_refused_and_nothing_is_written() -> None:
    key = torch.ones(2, 2, 16, device=DEVICE)
    cache = torch.zeros(2, 4, 2, 16, device=DEVICE)
    slots = torch.tensor([0, 1], device=DEVICE)
    with pytest.raises(ConfigError, match="int64"):
        kv_cache_write_triton(key, key, cache[0], cache[1], slots.int())
    with pytest.raises(ConfigError, match="as many slots"):
        kv_cache_write_triton(key, key, cache[0], cache[1], slots[:1])
    with pytest.raises(ConfigError, match="value_cache"):
        kv_cache_write_triton(key, key, cache[0], cache[1].half(), slots)
    with pytest.raises(ConfigError, match="side by side"):
        kv_cache_write_triton(key.transpose(1, 2).contiguous().transpose(1, 2), key, cache[0], cache[1], slots)
    with pytest.raises(ConfigError, match="same layout"):
        kv_cache_write_triton(key, key[:1], cache[0], cache[1], slots)
    assert not cache.any()


@pytest.mark.gpu
@pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_kernel_at_real_size(dtype: torch.dtype) -> None:
    num_tokens, num_slots = 8192, 40_000
    key, value = torch.randn(2, num_tokens, 8, 128).to(dtype)
    slots = torch.randperm(num_slots)[:num_tokens]
    slots[torch.rand(num_tokens) < 0.3] = -1
    expected = write(kv_cache_write_torch, key, value, slots.tolist(), num_slots)
    written = write(kv_cache_write_triton, key, value, slots.tolist(), num_slots)
    assert torch.equal(written.nan_to_num(GUARD), expected.nan_to_num(GUARD))
