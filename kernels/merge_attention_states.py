"""Merging attention states: softmax over all keys from softmaxes over parts of them.

Attention over a part of the keys gives, for each query and head, an output (the weighted mean of the values) and the
log of the sum of exponentiated scores (``lse``). Two such states hold all that is needed of the keys they saw:

>>> import torch
>>> scores, values = torch.tensor([0.5, 2.0, -1.0]), torch.tensor([[10.0], [20.0], [30.0]])
>>> parts = [slice(0, 1), slice(1, 3)]
>>> outputs = torch.stack([scores[part].softmax(0) @ values[part] for part in parts]).view(2, 1, 1, 1)
>>> lses = torch.stack([scores[part].logsumexp(0) for part in parts]).view(2, 1, 1)
>>> merged, lse = torch.empty(1, 1, 1), torch.empty(1, 1)
>>> merge_attention_states_torch(outputs, lses, merged, lse)
>>> bool(torch.isclose(merged.squeeze(), (scores.softmax(0) @ values).squeeze()))
True

Each part counts with ``exp(lse - lse of all)``: its share of the whole sum. A part that saw no key has ``lse`` -inf and
counts nothing. Merging is associative: parts may be splits of one long request, or ranks of context parallelism.

vLLM counterpart: ``merge_attn_states`` (two states) and the log-sum-exp correction of DCP, at 0.25.1. What differs: any
number of states in one launch; ``lse`` is laid out like the tokens, ``[num_tokens, num_heads]``, natural logarithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend, power_of_two, require_triton

if TYPE_CHECKING:
    import torch


def merge_attention_states_torch(
    outputs: torch.Tensor, lses: torch.Tensor, merged: torch.Tensor, merged_lse: torch.Tensor | None = None
) -> None:
    """Merge states, computing in float64; the reference of `merge_attention_states_triton`.

    Parameters
    ----------
    outputs : Tensor, [num_states, num_tokens, num_heads, head_dim]
        What attention over each part of the keys gave.
    lses : Tensor, [num_states, num_tokens, num_heads]
        Logarithm of the sum of exponentiated scores; -inf where a part had no keys (its output is then ignored).
    merged : Tensor, [num_tokens, num_heads, head_dim]
        Overwritten; zeros where no part had keys.
    merged_lse : Tensor, [num_tokens, num_heads], optional
        Overwritten with the merged state's own ``lse``.
    """
    lse = lses.double().logsumexp(dim=0)  # [num_tokens, num_heads]
    has_keys = (lses > -float("inf"))[..., None]
    shares = (lses.double() - lse).exp()[..., None]
    merged.copy_((outputs.double() * shares).where(has_keys, 0).sum(dim=0))
    if merged_lse is not None:
        merged_lse.copy_(lse)


if backend().has_triton:
    import triton
    import triton.language as tl

    from pagedlab.kernels.interpreting import loop_bound

    @triton.jit(do_not_specialize=["num_states", "num_rows"])
    def _merge_attention_states_kernel(
        outputs_ptr,
        lses_ptr,
        merged_ptr,
        merged_lse_ptr,
        num_states,
        num_rows,  # tokens times heads
        output_stride,  # from state to state
        lse_stride,
        HEAD_DIM: tl.constexpr,
        DIMS: tl.constexpr,
        ROWS: tl.constexpr,
        HAS_LSE: tl.constexpr,
    ):
        """One program a few heads, for all states."""
        rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        has_row = rows < num_rows
        highest = tl.full([ROWS], -float("inf"), tl.float32)
        for state in range(loop_bound(num_states)):
            lses = tl.load(lses_ptr + state * lse_stride + rows, mask=has_row, other=-float("inf"))
            highest = tl.maximum(highest, lses)
        base = tl.where(highest > -float("inf"), highest, 0.0)  # -inf - -inf would be NaN

        dims = tl.arange(0, DIMS)
        live = has_row[:, None] & (dims < HEAD_DIM)[None, :]
        cells = rows[:, None] * HEAD_DIM + dims[None, :]
        total = tl.zeros([ROWS], dtype=tl.float32)
        merged = tl.zeros([ROWS, DIMS], dtype=tl.float32)
        for state in tl.range(0, loop_bound(num_states), num_stages=4):  # nothing waits: loads run ahead
            lses = tl.load(lses_ptr + state * lse_stride + rows, mask=has_row, other=-float("inf"))
            outputs = tl.load(outputs_ptr + state * output_stride + cells, mask=live, other=0.0).to(tl.float32)
            outputs = tl.where((lses > -float("inf"))[:, None], outputs, 0.0)  # without keys it may hold anything
            shares = tl.exp(lses - base)
            total += shares
            merged += outputs * shares[:, None]
        safe_total = tl.where(total > 0, total, 1.0)
        merged = merged / safe_total[:, None]
        tl.store(merged_ptr + cells, merged.to(merged_ptr.dtype.element_ty), mask=live)
        if HAS_LSE:
            lse = tl.where(total > 0, highest + tl.log(safe_total), -float("inf"))
            tl.store(merged_lse_ptr + rows, lse, mask=has_row)


def merge_attention_states_triton(
    outputs: torch.Tensor, lses: torch.Tensor, merged: torch.Tensor, merged_lse: torch.Tensor | None = None
) -> None:
    """Merge states with one launch, computing in float32.

    Parameters
    ----------
    outputs : Tensor, [num_states, num_tokens, num_heads, head_dim] float16, bfloat16 or float32
        States may be apart; the tokens of a state lie side by side.
    lses : Tensor, [num_states, num_tokens, num_heads] float32
        -inf where a part had no keys (its output is then ignored, whatever it holds).
    merged : Tensor, [num_tokens, num_heads, head_dim]
        Overwritten; zeros where no part had keys.
    merged_lse : Tensor, [num_tokens, num_heads] float32, optional
        Overwritten.

    Raises
    ------
    ConfigError
        If the tensors do not fit together; nothing has been written.
    RuntimeError
        If Triton cannot run here, or not on these tensors: use `merge_attention_states_torch`.
    """
    require_triton(merged, "merge_attention_states_torch")
    num_states, num_tokens, num_heads, head_dim = outputs.shape
    shapes = {"lses": (lses, outputs.shape[:3]), "merged": (merged, outputs.shape[1:])}
    if merged_lse is not None:
        shapes["merged_lse"] = (merged_lse, outputs.shape[1:3])
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ConfigError(f"{name} must be {list(shape)} for these outputs; it is {list(tensor.shape)}")
    results = (merged,) if merged_lse is None else (merged, merged_lse)
    if num_states == 0 or not all(tensor.is_contiguous() for tensor in (outputs[0], lses[0], *results)):
        raise ConfigError("there must be a state, and the tokens of a state and of the results must lie side by side")
    if merged.numel() == 0:
        return
    num_rows, rows = num_tokens * num_heads, 8
    launch: Any = _merge_attention_states_kernel[(-(-num_rows // rows),)]
    launch(
        outputs,
        lses,
        merged,
        merged_lse,
        num_states,
        num_rows,
        outputs.stride(0),
        lses.stride(0),
        HEAD_DIM=head_dim,
        DIMS=power_of_two(head_dim),
        ROWS=rows,
        HAS_LSE=merged_lse is not None,
        num_warps=2,
    )
