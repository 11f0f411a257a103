"""Merging attention states: the torch reference against attention over all keys, Triton against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.merge_attention_states import merge_attention_states_torch, merge_attention_states_triton

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
DEVICE = "cuda" if backend().name == "cuda" else "cpu"
FORMS = [
    pytest.param(merge_attention_states_torch, id="torch"),
    pytest.param(merge_attention_states_triton, id="triton", marks=needs_triton),
]
GUARD = -777.0
Form = Callable[..., None]


def merge(form: Form, outputs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the merged output and lse; results are poisoned before, and guarded on both sides."""
    shape = outputs.shape[1:]

    def guarded(size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        buffer = torch.full((size.numel() + 64,), float("nan"), dtype=dtype, device=DEVICE)
        buffer[:32] = buffer[-32:] = GUARD
        return buffer

    output, lse = guarded(shape, outputs.dtype), guarded(shape[:2], torch.float32)
    form(outputs.to(DEVICE), lses.to(DEVICE), output[32:-32].view(shape), lse[32:-32].view(shape[:2]))
    for buffer in (output, lse):
        assert (buffer[:32] == GUARD).all(), "written before the result"
        assert (buffer[-32:] == GUARD).all(), "written behind the result"
    return output[32:-32].view(shape).cpu(), lse[32:-32].view(shape[:2]).cpu()


def random_states(seed: int, *shape: int, empty: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and lses ``shape = (states, tokens, heads, head_dim)``; some states saw nothing and hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(*shape, generator=generator)
    lses = 20 * torch.randn(*shape[:3], generator=generator)
    lses[torch.rand(shape[:3], generator=generator) < empty] = -torch.inf
    outputs[lses == -torch.inf] = torch.nan
    return outputs, lses


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_the_keys_merge_to_all_of_them(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(3, 2, 40, generator=generator)  # [tokens, heads, keys]
    values = torch.randn(40, 16, generator=generator)
    parts = [range(7), range(7, 8), range(8, 40)]
    outputs = torch.stack([scores[..., part].softmax(-1) @ values[part] for part in parts])
    lses = torch.stack([scores[..., part].logsumexp(-1) for part in parts])
    merged, lse = merge(form, outputs, lses)
    torch.testing.assert_close(merged, scores.softmax(-1) @ values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_without_keys_counts_nothing_whatever_it_holds(form: Form) -> None:
    outputs = torch.tensor([[[[1.0, 2.0]]], [[[torch.nan, torch.inf]]]])
    lses = torch.tensor([[[0.5]], [[-torch.inf]]])
    merged, lse = merge(form, outputs, lses)
    assert merged.tolist() == [[[1.0, 2.0]]]
    assert lse.tolist() == [[0.5]]
    merged, lse = merge(form, outputs[1:], lses[1:])
    assert merged.tolist() == [[[0.0, 0.0]]]
    assert lse.tolist() == [[-torch.inf]]


@pytest.mark.parametrize("form", FORMS)
def test_merging_is_associative_and_large_scores_do_not_overflow(form: Form) -> None:
    outputs, lses = random_states(1, 4, 2, 2, 32, empty=0)
    lses += 3000
    left, right = merge(form, outputs[:1], lses[:1]), merge(form, outputs[1:], lses[1:])
    twice = merge(form, torch.stack([left[0], right[0]]), torch.stack([left[1], right[1]]))
    torch.testing.assert_close(twice, merge(form, outputs, lses), rtol=1e-4, atol=1e-4)


@needs_triton
@given(st.integers(1, 40), st.integers(0, 2), st.sampled_from([1, 3]), st.sampled_from([8, 32, 80]), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_triton_equals_torch(states: int, tokens: int, heads: int, dim: int, seed: int) -> None:
    outputs, lses = random_states(seed, states, tokens, heads, dim)
    expected = merge(merge_attention_states_torch, outputs, lses)
    torch.testing.assert_close(merge(merge_attention_states_triton, outputs, lses), expected, rtol=1e-5, atol=1e-5)


@needs_triton
def test_what_does_not_fit_together_is_refused() -> None:
    outputs, lses = (tensor.to(DEVICE) for tensor in random_states(2, 2, 3, 2, 16))
    merged = torch.empty(3, 2, 16, device=DEVICE)
    with pytest.raises(ConfigError, match="lses must be"):
        merge_attention_states_triton(outputs, lses[:, :2], merged)
    with pytest.raises(ConfigError, match="merged_lse must be"):
        merge_attention_states_triton(outputs, lses, merged, lses[0, :2])
    with pytest.raises(ConfigError, match="side by side"):
        merge_attention_states_triton(outputs[:0], lses[:0], merged)


@pytest.mark.gpu
@pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 1e-2)])
def test_compiled_kernel_at_real_size(dtype: torch.dtype, limit: float) -> None:
    outputs, lses = random_states(3, 9, 300, 32, 128)
    outputs = outputs.to(dtype)
    exact, exact_lse = merge(merge_attention_states_torch, outputs.double(), lses)
    merged, lse = merge(merge_attention_states_triton, outputs, lses)
    assert (merged.double() - exact).norm() < limit * exact.norm()
    torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=1e-5)
