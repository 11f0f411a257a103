"""Commit: the NumPy reference against a loop, and the Triton kernel against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import kernels
from pagedlab.kernels import Backend, backend
from pagedlab.kernels.commit import commit_numpy, commit_triton

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
GUARD, BAND = -777, 32
Form = Callable[..., list[int]]
INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def changes(draw: st.DrawFn, max_cells: int = 12) -> tuple[list[int], list[tuple[int, int]]]:
    """A table and cells of it, some of them twice, with the same value."""
    table = draw(st.lists(INT32, min_size=1, max_size=20))
    new = draw(st.dictionaries(st.integers(0, len(table) - 1), INT32, max_size=max_cells))
    twice = draw(st.lists(st.sampled_from(sorted(new)), max_size=5)) if new else []
    cells = draw(st.permutations([*new, *twice]))
    return table, [(cell, new[cell]) for cell in cells]


def by_loop(table: list[int], cells: list[tuple[int, int]]) -> list[int]:
    """The specification, as anyone can read it."""
    result = list(table)
    for where, what in cells:
        result[where] = what
    return result


def packed_array(cells: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
    return np.array(cells, dtype=np.int32).reshape(-1, 2).T.copy()


def by_numpy(table: list[int], cells: list[tuple[int, int]]) -> list[int]:
    result = np.array(table, dtype=np.int32)
    commit_numpy(packed_array(cells), result)
    return result.tolist()


def by_triton(table: list[int], cells: list[tuple[int, int]], *, tile: int = 4) -> list[int]:
    """Run the kernel with guard bands on both sides of the table and of the packed cells."""
    device = "cuda" if backend().name == "cuda" else "cpu"

    def guarded(values: npt.ArrayLike) -> torch.Tensor:
        flat = torch.from_numpy(np.array(values, dtype=np.int32).reshape(-1))
        band = torch.full((BAND,), GUARD, dtype=torch.int32)
        return torch.cat([band, flat, band]).to(device)

    packed, out = guarded(packed_array(cells)), guarded(table)
    before = packed.clone()
    commit_triton(packed[BAND:-BAND].view(2, len(cells)), out[BAND:-BAND], tile=tile)
    assert torch.equal(packed, before), "the cells were written to"
    assert (out[:BAND] == GUARD).all(), "written before the table"
    assert (out[-BAND:] == GUARD).all(), "written behind the table"
    return out[BAND:-BAND].tolist()


@given(changes())
@settings(max_examples=100, deadline=None)
def test_numpy_equals_the_loop(change: tuple[list[int], list[tuple[int, int]]]) -> None:
    assert by_numpy(*change) == by_loop(*change)


@needs_triton
@given(changes(), st.sampled_from([1, 4, 16]))
@settings(max_examples=60, deadline=None)
def test_triton_equals_numpy_also_with_more_cells_than_a_tile(
    change: tuple[list[int], list[tuple[int, int]]], tile: int
) -> None:
    assert by_triton(*change, tile=tile) == by_numpy(*change)


FORMS = [pytest.param(by_numpy, id="numpy"), pytest.param(by_triton, id="triton", marks=needs_triton)]


@pytest.mark.parametrize("form", FORMS)
def test_the_cells_change_and_nothing_beside_them(form: Form) -> None:
    assert form([9] * 6, [(4, 7), (0, 5)]) == [5, 9, 9, 9, 7, 9]


@pytest.mark.parametrize("form", FORMS)
def test_no_cells_change_nothing(form: Form) -> None:
    assert form([3, 4], []) == [3, 4]


@needs_triton
@pytest.mark.parametrize("num_cells", [255, 256, 257, 700])
def test_the_default_tile_takes_any_number_of_cells(num_cells: int) -> None:
    """Around the 256 cells of a program, each at the far end of the table as well."""
    table = list(range(1000))
    cells = [(999 - cell, -cell) for cell in range(num_cells)]
    assert by_triton(table, cells, tile=256) == by_loop(table, cells)


def test_where_triton_cannot_run_the_reference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "backend", lambda: Backend("numpy", "Triton is not installed"))
    with pytest.raises(RuntimeError, match="Triton is not installed; use commit_numpy"):
        commit_triton(torch.zeros((2, 1), dtype=torch.int32), torch.zeros(4, dtype=torch.int32))


@pytest.mark.gpu
@pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
def test_compiled_kernel_at_real_size() -> None:
    generator = np.random.default_rng(0)
    table = generator.integers(0, 2**31, size=1024 * 8192)
    where = generator.integers(0, table.size, size=100_000)
    cells = [(int(cell), int(cell) % 997) for cell in where]
    assert by_triton(table.tolist(), cells, tile=256) == by_numpy(table.tolist(), cells)
