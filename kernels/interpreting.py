"""Where Triton's interpreter needs help with what the compiler takes as it is.

`loop_bound`
    Compiled, ``for i in range(n)`` takes any scalar and is what Triton pipelines (a ``while`` is not). Interpreted by
    Triton 3.5 and 3.6 beside NumPy 2.4 or later, the same line fails: "only 0-dimensional arrays can be converted to
    Python scalars". ``range(loop_bound(n))`` works in both.
`matrix_operand`
    The interpreter keeps bfloat16 as bits, and ``tl.dot`` multiplies the bits (triton-lang/triton#11584, also in 3.7).
    ``tl.dot(matrix_operand(a), matrix_operand(b))`` multiplies the numbers.

vLLM counterpart: none.
"""

from __future__ import annotations

from typing import Any

from pagedlab.kernels import backend

if backend().name == "interpreter":
    import triton.language as tl

    def loop_bound(value: Any) -> int:
        """Return a scalar of the interpreter as a Python int."""
        handle = getattr(value, "handle", None)
        return int(value) if handle is None else int(handle.data.item())

    def matrix_operand(value: Any) -> Any:
        """Return bfloat16 as float32, which holds the same numbers."""
        return value.to(tl.float32) if value.dtype == tl.bfloat16 else value

elif backend().has_triton:
    import triton

    @triton.jit
    def loop_bound(value):
        """Return ``value``."""
        return value

    @triton.jit
    def matrix_operand(value):
        """Return ``value``."""
        return value
