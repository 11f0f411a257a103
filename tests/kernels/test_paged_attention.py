"""Paged attention: the torch reference against attention on keys that lie side by side, Triton against the reference.

Whatever must not be read is poison: slots that hold no key of the request are NaN, block ids behind a request's last
block are -999, and so is what lies around each input. Whatever must not be written is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pagedlab.errors import ConfigError
from pagedlab.kernels import backend
from pagedlab.kernels.attention_work import AttentionTiles
from pagedlab.kernels.merge_attention_states import merge_attention_states_torch, merge_attention_states_triton
from pagedlab.kernels.paged_attention import paged_attention_torch, paged_attention_triton

needs_triton = pytest.mark.skipif(not backend().has_triton, reason=f"no Triton: {backend().reason}")
on_gpu = pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}")
DEVICE = "cuda" if backend().name == "cuda" else "cpu"
GUARD = -777.0
LIMITS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}  # relative to float64

SMALL = {  # enough programs that requests are cut, and tiles small enough that there are several
    "short": AttentionTiles(query_rows=16, keys=16, programs=12, num_warps=4, num_stages=2),
    "long": AttentionTiles(query_rows=32, keys=16, programs=12, num_warps=4, num_stages=2),
}


@contextmanager
def poisoned_workspace() -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN, or the largest int."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass
class Step:
    """A step's tensors: live rows, padded rows behind them, and padded tokens behind these."""

    query_lens: list[int]
    seq_lens: list[int]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    window: int | None = None
    cp: tuple[int, int, int] = (1, 0, 1)  # world size, rank, interleave
    padding: int = 3
    seed: int = 0
    query: torch.Tensor = field(init=False)
    kv: torch.Tensor = field(init=False)
    starts: torch.Tensor = field(init=False)
    lens: torch.Tensor = field(init=False)
    table: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        world_size, rank, interleave = self.cp
        span = self.block_size * world_size
        num_rows = len(self.query_lens) + (self.padding > 0)
        blocks = [-(-seq_len // span) for seq_len in self.seq_lens]
        num_tokens = sum(self.query_lens)
        heads, dim = self.num_kv_heads, self.head_dim
        wide = torch.randn(num_tokens + self.padding, self.num_heads + 2, dim, generator=generator)
        wide[num_tokens:] = wide[:, 0] = wide[:, -1] = torch.nan
        self.query = wide.to(self.dtype).to(DEVICE)[:, 1:-1]
        ids = 1 + torch.randperm(sum(blocks), generator=generator)
        nothing = [0] * (num_rows - len(blocks))
        starts = [0, *accumulate(self.query_lens + nothing)]
        self.starts = torch.tensor([-777, *starts, -777], dtype=torch.int32, device=DEVICE)[1:-1]
        self.lens = torch.tensor([-777, *self.seq_lens, *nothing, -777], dtype=torch.int32, device=DEVICE)[1:-1]
        table = torch.full((num_rows, max([1, *blocks]) + 5), -999, dtype=torch.int32)
        kv = torch.full((2, 8 + (sum(blocks) + 1) * self.block_size + 8, heads, dim), torch.nan)
        for row, (seq_len, owned) in enumerate(zip(self.seq_lens, ids.split(blocks), strict=True)):
            table[row, 1 : 1 + len(owned)] = owned
            # Every token is drawn, also those of other ranks: one seed gives all ranks the same request.
            everything = torch.randn(2, seq_len, heads, dim, generator=torch.Generator().manual_seed(self.seed + row))
            for position in range(seq_len):
                stripe, place = divmod(position, interleave * world_size)
                if place // interleave == rank:
                    local = stripe * interleave + place % interleave
                    slot = int(owned[local // self.block_size]) * self.block_size + local % self.block_size
                    kv[:, 8 + slot] = everything[:, position]
        self.table = table.to(DEVICE)[:, 1:-1]
        self.kv = kv.to(self.dtype).to(DEVICE)[:, 8:-8]

    def attend(self, form: str, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and lse; both are poisoned before, and guarded on both sides."""
        exact = form == "torch"
        shape = self.query.shape
        output = torch.full((shape.numel() + 64,), torch.nan, dtype=torch.float64 if exact else self.dtype)
        lse = torch.full((shape[:2].numel() + 64,), torch.nan, dtype=torch.float64 if exact else torch.float32)
        for buffer in (output, lse):
            buffer[:32] = buffer[-32:] = GUARD
        output, lse = output.to(DEVICE), lse.to(DEVICE)
        before = [tensor.clone() for tensor in (self.query, self.kv, self.starts, self.lens, self.table)]
        world_size, rank, interleave = self.cp
        arguments = (self.query, *self.kv, self.starts, self.lens, self.table, self.block_size)
        named = {
            "output": output[32:-32].view(shape),
            "lse": lse[32:-32].view(shape[:2]),
            "sliding_window": self.window,
            "cp_world_size": world_size,
            "cp_rank": rank,
            "cp_interleave": interleave,
        }
        if exact:
            paged_attention_torch(*arguments, **named)
        else:
            with poisoned_workspace():
                paged_attention_triton(*arguments, max_query_len=max(self.query_lens), **named, **options)
        for tensor, copy in zip((self.query, self.kv, self.starts, self.lens, self.table), before, strict=True):
            assert torch.equal(tensor.nan_to_num(GUARD), copy.nan_to_num(GUARD)), "an input was written"
        for buffer in (output, lse):
            assert (buffer[:32] == GUARD).all(), "written before the result"
            assert (buffer[-32:] == GUARD).all(), "written behind the result"
        return output[32:-32].view(shape).double(), lse[32:-32].view(shape[:2]).double()

    def check(self, **options: object) -> None:
        """Hold the kernel equal to the reference."""
        exact, exact_lse = self.attend("torch")
        output, lse = self.attend("triton", **options)
        assert not output.isnan().any()
        assert (output - exact).norm() <= LIMITS[self.dtype] * exact.norm()
        torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-4)
        num_tokens = sum(self.query_lens)
        assert not output[num_tokens:].any(), "padding gets zeros"
        assert (lse[num_tokens:] == -torch.inf).all()


@pytest.mark.parametrize("window", [None, 5])
def test_the_reference_is_attention_on_keys_that_lie_side_by_side(window: int | None) -> None:
    step = Step([1, 3, 8], [9, 30, 8], window=window, dtype=torch.float64)
    output, lse = step.attend("torch")
    for row, (query_len, seq_len) in enumerate(zip(step.query_lens, step.seq_lens, strict=True)):
        positions = torch.arange(seq_len, device=DEVICE)
        slots = step.table[row, positions // 4].long() * 4 + positions % 4
        keys, values = step.kv[:, slots].transpose(1, 2)  # [num_kv_heads, seq_len, head_dim]
        at = positions[-query_len:, None]
        mask = (positions <= at) & (positions > at - (window or seq_len))
        tokens = slice(step.starts[row], step.starts[row + 1])
        query = step.query[tokens].transpose(0, 1)
        expected = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(output[tokens], expected.transpose(0, 1))
        scores = query @ keys.repeat_interleave(2, 0).transpose(1, 2) / 32**0.5
        torch.testing.assert_close(lse[tokens].T, scores.masked_fill(~mask, -torch.inf).logsumexp(-1))


@pytest.mark.parametrize("interleave", [1, 4])
def test_the_ranks_of_context_parallelism_merge_to_the_whole(interleave: int) -> None:
    """Rank by rank with the references; a rank can have no key of a query at all."""
    whole = Step([1, 2, 9], [1, 30, 17]).attend("torch")
    ranks = [Step([1, 2, 9], [1, 30, 17], cp=(3, rank, interleave)).attend("torch") for rank in range(3)]
    outputs, lses = (torch.stack(part) for part in zip(*ranks, strict=True))
    assert (lses[:, 0] == -torch.inf).any(), "the request of one token is on one rank"
    merged, lse = torch.empty_like(whole[0]), torch.empty_like(whole[1])
    merge_attention_states_torch(outputs, lses, merged, lse)
    torch.testing.assert_close((merged, lse), whole)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Random steps: rows without tokens among them, windows, ranks, heads that share or do not, any block size."""
    rows = st.tuples(st.sampled_from([0, 1, 1, 2, 11]), st.integers(0, 60)).map(lambda row: (row[0], sum(row)))
    query_lens, seq_lens = zip(*draw(st.lists(rows, min_size=1, max_size=3)), strict=True)
    num_kv_heads = draw(st.sampled_from([1, 2]))
    world_size = draw(st.sampled_from([1, 1, 2, 3]))
    block_size = draw(st.sampled_from([1, 2, 8, 16, 64]))
    return Step(
        list(query_lens),
        list(seq_lens),
        num_heads=num_kv_heads * draw(st.sampled_from([1, 3, 4])),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([32, 48, 64])),
        block_size=block_size,
        dtype=draw(st.sampled_from(list(LIMITS))),
        window=draw(st.sampled_from([None, 1, 7, 40])) if world_size == 1 else None,
        cp=(world_size, draw(st.integers(0, world_size - 1)), draw(st.sampled_from([1, min(2, block_size)]))),
        padding=draw(st.sampled_from([0, 1, 40])),
        seed=draw(st.integers(0, 99)),
    )


@needs_triton
@given(steps())
@settings(max_examples=8, deadline=None, phases=[Phase.generate])  # a step takes a second: no time to shrink
def test_triton_equals_torch(step: Step) -> None:
    step.check(**SMALL)


@needs_triton
def test_decodes_of_which_one_is_cut_and_a_chunk_that_is_cut_as_well() -> None:
    step = Step([1, 1, 20, 1], [300, 40, 250, 1], num_heads=2, num_kv_heads=1, block_size=16)
    step.check(**SMALL)


@needs_triton
@pytest.mark.parametrize("programs", [1, 12])
@pytest.mark.parametrize("window", [1, 21])
def test_a_query_sees_its_window_and_no_key_more(window: int, programs: int) -> None:
    """Whether or not the window is cut: tiles in which a query sees nothing come before those in which it does."""
    tiles = {name: replace(shape, programs=programs) for name, shape in SMALL.items()}
    Step([1, 11], [60, 40], num_heads=2, num_kv_heads=1, block_size=8, window=window, padding=0).check(**tiles)


@needs_triton
def test_a_split_in_which_some_queries_see_no_key() -> None:
    """32 queries in one tile, and splits of 16 keys: the first 16 queries see nothing of the last split."""
    Step([32], [64], num_heads=1, num_kv_heads=1, padding=0).check(**SMALL)


@needs_triton
def test_the_shapes_that_the_library_chooses() -> None:
    Step([1, 9, 0, 3], [300, 130, 0, 70], num_heads=6, block_size=16).check()


@needs_triton
@pytest.mark.parametrize("padding", [0, 2])
def test_a_pool_of_one_token(padding: int) -> None:
    step = Step([1], [1], num_heads=1, num_kv_heads=1, block_size=1, padding=padding)
    step.check()
    torch.testing.assert_close(step.attend("triton")[0][0], step.kv[1, 1].double())


@needs_triton
def test_a_step_without_tokens_and_one_of_padding_alone() -> None:
    Step([0, 0], [0, 7], padding=0).check()
    Step([0, 0], [0, 7], padding=5).check()


@needs_triton
def test_the_ranks_of_context_parallelism_merge_to_the_whole_in_triton() -> None:
    lengths = [1, 2, 9], [1, 70, 17]
    ranks = [Step(*lengths, cp=(2, rank, 2)).attend("triton", **SMALL) for rank in range(2)]
    outputs, lses = (torch.stack(part).float() for part in zip(*ranks, strict=True))
    merged = torch.full_like(outputs[0], torch.nan)
    merge_attention_states_triton(outputs, lses, merged)
    torch.testing.assert_close(merged.double(), Step(*lengths).attend("torch")[0], rtol=1e-5, atol=1e-5)


@needs_triton
def test_b8_keys_beyond_2_to_the_31() -> None:
    slots = 2**26 + 16  # of 2 * 16 elements; the last block begins behind 2^31
    try:
        memory = torch.empty(slots, 2, 16, dtype=torch.float16, device=DEVICE)  # 4.3 GB; few pages are touched
    except RuntimeError:
        pytest.skip("4.3 GB of address space are not to be had")
    step = Step([1], [5], num_heads=1, num_kv_heads=1, head_dim=16, block_size=16, dtype=torch.float16, padding=0)
    exact = step.attend("torch")[0]
    memory[-16:, 0], memory[-16:, 1] = step.kv[:, 16:, 0]
    output = torch.full_like(step.query, torch.nan)
    table = torch.full_like(step.table, 2**26 // 16)
    keys, values = memory[:, :1], memory[:, 1:]
    paged_attention_triton(step.query, keys, values, step.starts, step.lens, table, 16, output, max_query_len=1)
    torch.testing.assert_close(output.double(), exact, rtol=1e-2, atol=1e-3)


@needs_triton
def test_what_does_not_fit_together_is_refused_and_nothing_is_written() -> None:
    step = Step([1], [5])
    keys, values = step.kv
    output = torch.full_like(step.query, GUARD)
    batch = (step.starts, step.lens, step.table, 4)

    def call(query: torch.Tensor = step.query, keys: torch.Tensor = keys, **options: object) -> None:
        paged_attention_triton(query, keys, values, *batch, **{"output": output, "max_query_len": 1, **options})

    with pytest.raises(ConfigError, match="float64"):
        call(query=step.query.double())
    with pytest.raises(ConfigError, match="multiple"):
        call(query=step.query[:, :3])
    with pytest.raises(ConfigError, match="key_cache has heads of 16"):
        call(keys=keys[..., :16])
    with pytest.raises(ConfigError, match="same layout"):
        call(keys=keys[1:])
    with pytest.raises(ConfigError, match="side by side in key_cache"):
        call(keys=keys.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(ConfigError, match="shape of query"):
        call(output=output[1:])
    with pytest.raises(ConfigError, match="lse must be"):
        call(lse=torch.zeros(4, 3, device=DEVICE))
    with pytest.raises(ConfigError, match="sliding window"):
        call(sliding_window=0)
    with pytest.raises(ConfigError, match="sliding window"):
        call(sliding_window=8, cp_world_size=2)
    with pytest.raises(ConfigError, match="multiple of the interleave"):
        call(cp_world_size=2, cp_interleave=3)
    assert (output == GUARD).all()


# --- compiled ------------------------------------------------------------------------------------------------

MIXED = [1, 300, 0, 1, 4, 1, 130], [5000, 2000, 0, 1, 700, 64, 130]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize(
    ("head_dim", "block_size", "group"),
    [(32, 1, 3), (64, 16, 8), (80, 32, 2), (128, 16, 4), (192, 128, 1), (256, 8, 16)],
)
def test_compiled_for_every_kind_of_head(dtype: torch.dtype, head_dim: int, block_size: int, group: int) -> None:
    seed = int(torch.randint(2**31, ()))
    step = Step(
        *MIXED,
        num_heads=2 * group,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        padding=50,
        seed=seed,
    )
    step.check()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("options", [{"window": 100}, {"window": 1000}, {"cp": (2, 1, 1)}, {"cp": (3, 0, 16)}])
def test_compiled_with_windows_and_ranks(options: dict[str, object]) -> None:
    Step(*MIXED, num_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16, **options).check()


@pytest.mark.gpu
@on_gpu
def test_compiled_wide_groups_and_many_rows() -> None:
    lens = torch.randint(0, 400, (300,)).tolist()
    Step([min(1, n) for n in lens], lens, num_heads=64, num_kv_heads=1, block_size=16, dtype=torch.bfloat16).check()


@pytest.mark.gpu
@on_gpu
def test_a_cuda_graph_is_right_for_other_lengths_than_those_it_was_captured_with() -> None:
    shape = {"num_heads": 8, "head_dim": 128, "block_size": 16, "dtype": torch.bfloat16, "padding": 0}
    steps = [
        Step([1, 200, 1, 20], [4000, 300, 50, 20], **shape),
        Step([20, 1, 200, 1], [3000, 9000, 200, 1], seed=1, **shape),
        Step([1, 1, 1, 219], [20000, 1, 17, 219], seed=2, **shape),
    ]
    columns = max(step.table.shape[1] for step in steps)
    static = replace(steps[0])
    static.kv = torch.full((2, max(step.kv.shape[1] for step in steps), 2, 128), torch.nan, device="cuda").bfloat16()
    static.table = torch.full((4, columns), -999, dtype=torch.int32, device="cuda")
    output = torch.empty_like(static.query)

    def load(step: Step) -> None:
        for name in ("query", "starts", "lens"):
            getattr(static, name).copy_(getattr(step, name))
        static.kv.fill_(torch.nan)[:, : step.kv.shape[1]] = step.kv
        static.table.fill_(-999)[:, : step.table.shape[1]] = step.table
        output.fill_(torch.nan)

    def call() -> None:
        arguments = (static.query, *static.kv, static.starts, static.lens, static.table, 16, output)
        paged_attention_triton(*arguments, max_query_len=222)

    load(steps[0])
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for step in steps:
        load(step)
        graph.replay()
        exact = step.attend("torch")[0]
        assert (output - exact).norm() <= 1e-2 * exact.norm()
