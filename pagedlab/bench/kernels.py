"""The kernels on this GPU, beside what can be reached at best and what vLLM's own kernels reach.

Two floors say how good a figure can be: an empty kernel's time (the launch floor), and the time in which the bytes that
must be moved can be moved (the bytes floor, at the speed of a large copy on this GPU).

Figures of others (vLLM 0.25.1's slot kernel and copy, 0.33.0's unified attention, torch's dense SDPA on decodes) are
constants here: measured on an NVIDIA H200 with torch 2.11 and Triton 3.6, 2026-11-29, in the same way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from pagedlab.batch import CpuGpuBuffer, MultiGroupBlockTable, TableSpec
from pagedlab.bench.gpu import eager_microseconds, gpu_name, microseconds, wall_microseconds
from pagedlab.kernels.kv_cache_write import kv_cache_write_triton
from pagedlab.kernels.paged_attention import paged_attention_torch, paged_attention_triton
from pagedlab.kernels.slot_mapping import slot_mapping_triton

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One case of one kernel.

    Attributes
    ----------
    kernel, case : str
    microseconds : float
    bytes_floor, launch_floor : float or None
        Microseconds that no kernel could go below.
    gb_per_s : float or None
        Bytes that must be moved, over the time.
    error : float or None
        Against float64, relative norm.
    others : dict of str to float
        Microseconds of others on the same case.
    """

    kernel: str
    case: str
    microseconds: float
    bytes_floor: float | None = None
    launch_floor: float | None = None
    gb_per_s: float | None = None
    error: float | None = None
    others: dict[str, float] | None = None

    def __str__(self) -> str:
        parts = [f"{self.kernel:16} {self.case:42} {self.microseconds:9.2f} us"]
        if self.bytes_floor is not None:
            parts.append(f"bytes floor {self.bytes_floor:.2f}")
        if self.gb_per_s is not None:
            parts.append(f"{self.gb_per_s:,.0f} GB/s")
        if self.error is not None:
            parts.append(f"error {self.error:.1e}")
        parts += [f"{name} {value:.2f}" for name, value in (self.others or {}).items()]
        return "   ".join(parts)


def kernel_rows() -> Iterator[KernelRow]:
    """Measure and yield every row of every kernel."""
    launch, bytes_per_us = launch_floor(), copy_bytes_per_microsecond()
    yield KernelRow("empty kernel", "the launch floor", launch)
    yield KernelRow("copy", "1 GiB read, 1 GiB written", 2 * 2**30 / bytes_per_us, gb_per_s=bytes_per_us / 1000)
    yield from slot_mapping_rows(launch, bytes_per_us)
    yield from commit_rows()
    yield from write_rows(bytes_per_us)
    yield from attention_rows(bytes_per_us)


def launch_floor() -> float:
    """Return the microseconds of a kernel that does next to nothing."""
    one = torch.zeros(1, device="cuda")
    return microseconds(lambda: one.fill_(1.0))


def copy_bytes_per_microsecond() -> float:
    """Return how fast this GPU copies, bytes read and written."""
    source = torch.ones(2**28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / microseconds(lambda: torch.neg(source, out=target), calls=5)


# --- slot mapping -----------------------------------------------------------------------------------------------

_SLOT_CASES: tuple[tuple[str, tuple[int, ...], int, float], ...] = (
    ("decode, 256 requests, T = 8,192", (1,) * 256, 8192, 2.59),
    ("decode, 1,024", (1,) * 1024, 8192, 3.93),
    ("decode, 4,096", (1,) * 4096, 8192, 10.58),
    ("one chunk of 7,937 + 255 decodes", (7937, *(1,) * 255), 8192, 14.50),
    ("one prefill of 8,192", (8192,), 8192, 14.19),
    ("8 prefills of 8,192", (8192,) * 8, 65536, 14.64),
    ("one prefill of 65,536", (65536,), 65536, 104.86),
    ("one prefill of 131,072", (131072,), 131072, 209.79),
    ("64 decodes, T = 131,072 (padding)", (1,) * 64, 131072, 17.66),
    ("16 prefills of 65,536", (65536,) * 16, 1048576, 107.45),
)
"""Case, tokens of each request, length of the slot mapping, and microseconds of vLLM 0.25.1."""


def slot_mapping_rows(launch: float, bytes_per_us: float) -> Iterator[KernelRow]:
    """Measure both kernels on every case."""
    for case, query_lens, max_num_tokens, vllm in _SLOT_CASES:
        tokens, requests = (_slot_mapping_call(query_lens, max_num_tokens, programs) for programs in _PROGRAMS)
        num_bytes = 8 * sum(query_lens) + 8 * max_num_tokens  # positions in, slots out
        yield KernelRow(
            "slot_mapping",
            case,
            microseconds(tokens),
            bytes_floor=num_bytes / bytes_per_us,
            launch_floor=launch,
            others={"vLLM 0.25.1": vllm, "a program a request": microseconds(requests)},
        )
    for case, query_lens, max_num_tokens, vllm in (
        ("256 decodes, launched by the host", (1,) * 256, 8192, 6.4),
        ("one prefill of 131,072, launched by the host", (131072,), 131072, 323.0),
    ):
        call = _slot_mapping_call(query_lens, max_num_tokens, "tokens")
        yield KernelRow("slot_mapping", case, eager_microseconds(call), others={"vLLM 0.25.1": vllm})
    together, apart = _slots_of_groups_calls(num_groups=4, num_reqs=256, max_num_tokens=8192)
    case = "256 decodes, 4 KV cache groups in one launch"
    yield KernelRow(
        "slot_mapping_groups", case, microseconds(together), others={"a launch a group": microseconds(apart)}
    )


_PROGRAMS = ("tokens", "requests")


def _slot_mapping_call(query_lens: Sequence[int], max_num_tokens: int, programs: str) -> Callable[[], None]:
    device = torch.device("cuda")
    lengths = torch.tensor(query_lens)
    query_start_loc = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int().to(device)
    # A prefill begins at 0; a decode is somewhere in its request.
    starts = torch.where(lengths > 1, 0, torch.arange(len(lengths)) * 37 % 4000)
    positions = torch.cat([start + torch.arange(int(n)) for start, n in zip(starts, lengths, strict=True)]).to(device)
    columns = -(-int(max(max(query_lens), 4096)) // _BLOCK_SIZE)
    table = torch.randint(1, 2**20, (len(query_lens), columns), dtype=torch.int32, device=device)
    padded = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)
    padded[: len(positions)] = positions
    slots = torch.empty(max_num_tokens, dtype=torch.int64, device=device)
    return lambda: slot_mapping_triton(query_start_loc, padded, table, _BLOCK_SIZE, slots, programs=programs)


def _slots_of_groups_calls(
    num_groups: int, num_reqs: int, max_num_tokens: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the slots of several groups of decodes: in one launch, and one group after the other."""
    device = torch.device("cuda")
    tables = MultiGroupBlockTable([TableSpec(_BLOCK_SIZE)] * num_groups, num_reqs, 8192, max_num_tokens, device)
    for row in range(num_reqs):
        tables.add_row([range(1, 300)] * num_groups, row)
    tables.commit(num_reqs)
    query_start_loc = CpuGpuBuffer((num_reqs + 1,), torch.int32, device)
    positions = CpuGpuBuffer((max_num_tokens,), torch.int64, device)
    query_start_loc.np[:] = range(num_reqs + 1)
    positions.np[:num_reqs] = np.arange(num_reqs) * 37 % 4000
    query_start_loc.copy_to_gpu()
    positions.copy_to_gpu()

    def together() -> None:
        tables.compute_slot_mapping(num_reqs, query_start_loc, positions, backend="triton")

    def apart() -> None:
        for table in tables:
            table.compute_slot_mapping(num_reqs, query_start_loc, positions, backend="triton")

    return together, apart


# --- commit and KV write -----------------------------------------------------------------------------------------


def commit_rows() -> Iterator[KernelRow]:
    """Measure a commit in a step of decodes in both modes: on the device, and host and device together."""
    num_rows, columns = 1024, 8192
    wall, device = {}, {}
    for mode in ("changed", "full"):
        tables = MultiGroupBlockTable(
            [TableSpec(_BLOCK_SIZE)], num_rows, columns * _BLOCK_SIZE, 8192, torch.device("cuda"), commit_mode=mode
        )
        rows, blocks = np.arange(0, num_rows, _BLOCK_SIZE), np.arange(1, 65, dtype=np.int32)

        def change(tables: MultiGroupBlockTable = tables, rows: Any = rows, blocks: Any = blocks) -> None:
            tables[0].num_blocks_per_row[:] = 99  # as after many steps, each time anew
            tables[0].append_each(blocks, rows)

        def commit(tables: MultiGroupBlockTable = tables) -> None:
            tables.commit(num_rows)

        def both() -> None:
            change()
            commit()

        wall[mode] = wall_microseconds(commit, before=change)
        device[mode] = eager_microseconds(both)
    case = "a step of 1,024 decodes, 1,024 x 8,192"
    vllm = {"full copy, vLLM 0.25.1": 615.0}
    yield KernelRow("commit", f"{case}, on the device", device["changed"], others={"full copy": device["full"], **vllm})
    yield KernelRow("commit", f"{case}, host and device", wall["changed"], others={"full copy": wall["full"], **vllm})


def write_rows(bytes_per_us: float) -> Iterator[KernelRow]:
    """Measure writing keys and values: 8 heads of 128 in bfloat16, out of a fused projection."""
    for num_tokens in (256, 8192, 65536):
        qkv = torch.randn(num_tokens, 48, 128, dtype=torch.bfloat16, device="cuda")
        key, value = qkv[:, 32:40], qkv[:, 40:]
        cache = torch.zeros(2, max(2 * num_tokens, 65536), 8, 128, dtype=torch.bfloat16, device="cuda")
        slots = torch.randperm(cache.shape[1], device="cuda")[:num_tokens]
        num_bytes = 2 * 2 * key.numel() * key.element_size() + 8 * num_tokens

        def write(key: Any = key, value: Any = value, cache: Any = cache, slots: Any = slots) -> None:
            kv_cache_write_triton(key, value, cache[0], cache[1], slots)

        time = microseconds(write)
        floor = num_bytes / bytes_per_us
        yield KernelRow("kv_cache_write", f"{num_tokens:,} tokens", time, floor, gb_per_s=num_bytes / time / 1000)


# --- attention --------------------------------------------------------------------------------------------------


class AttentionCase:
    """A step's tensors: 32 query heads, 8 KV heads of 128, blocks of 16 in random order, stale entries poisoned."""

    def __init__(self, query_lens: Sequence[int], seq_lens: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        blocks = [-(-length // _BLOCK_SIZE) for length in seq_lens]
        ids = 1 + torch.randperm(sum(blocks), generator=generator, device="cuda").int()
        self.block_table = torch.full((len(blocks), max(blocks)), -999, dtype=torch.int32, device="cuda")
        for row, part in enumerate(torch.split(ids, blocks)):
            self.block_table[row, : len(part)] = part
        slots = (sum(blocks) + 1) * _BLOCK_SIZE
        self.kv = torch.randn(2, slots, 8, 128, dtype=dtype, device="cuda", generator=generator)
        self.query = torch.randn(sum(query_lens), 32, 128, dtype=dtype, device="cuda", generator=generator)
        self.query_start_loc = torch.tensor([0, *query_lens], device="cuda").cumsum(0).int()
        self.seq_lens = torch.tensor(seq_lens, dtype=torch.int32, device="cuda")
        self.output = torch.full_like(self.query, torch.nan)
        self.max_query_len = max(query_lens)

    def __call__(self) -> None:
        paged_attention_triton(**self._arguments(self.output), max_query_len=self.max_query_len)

    def _arguments(self, output: torch.Tensor) -> dict[str, Any]:
        return {
            "query": self.query,
            "key_cache": self.kv[0],
            "value_cache": self.kv[1],
            "query_start_loc": self.query_start_loc,
            "seq_lens": self.seq_lens,
            "block_table": self.block_table,
            "block_size": _BLOCK_SIZE,
            "output": output,
        }

    def error(self) -> float:
        """Return the relative error of the output against float64; NaN if something was not written."""
        exact = torch.empty(self.query.shape, dtype=torch.float64, device="cuda")
        paged_attention_torch(**self._arguments(exact))
        return float((self.output.double() - exact).norm() / exact.norm())

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that must be read."""
        return int(self.seq_lens.sum()) * 2 * 8 * 128 * self.kv.element_size()

    def one_by_one(self) -> Callable[[], None]:
        """Return torch's SDPA on the same requests, each contiguous, one after the other."""
        from torch.nn.attention.bias import causal_lower_right

        starts, parts = self.query_start_loc.tolist(), []
        for row, seq_len in enumerate(self.seq_lens.tolist()):
            positions = torch.arange(seq_len, device="cuda")
            slots = self.block_table[row, positions // _BLOCK_SIZE].long() * _BLOCK_SIZE + positions % _BLOCK_SIZE
            key, value = self.kv[:, slots].transpose(1, 2).repeat_interleave(4, 1).contiguous()
            query = self.query[starts[row] : starts[row + 1]].transpose(0, 1).contiguous()
            mask = causal_lower_right(query.shape[1], seq_len) if query.shape[1] > 1 else None
            parts.append((query[None], key[None], value[None], mask))

        def call() -> None:
            for query, key, value, mask in parts:
                torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        return call


_DECODES: tuple[tuple[str, tuple[int, ...], dict[str, float]], ...] = (
    ("64 x 4,096", (4096,) * 64, {"vLLM 0.33.0, unified": 290, "dense SDPA": 408}),
    ("256 x 1,024", (1024,) * 256, {"vLLM 0.33.0, unified": 298, "dense SDPA": 429}),
    ("8 x 32,768", (32768,) * 8, {"vLLM 0.33.0, unified": 454, "dense SDPA": 256}),
    ("1 x 131,072", (131072,), {"vLLM 0.33.0, unified": 657, "dense SDPA": 156}),
    ("1 x 131,072 beside 63 x 2,048", (131072, *(2048,) * 63), {}),
)
"""Lengths of decodes, and microseconds of others."""


def attention_rows(bytes_per_us: float) -> Iterator[KernelRow]:
    """Measure decodes of several shapes, and a prefill chunk beside decodes."""
    for name, seq_lens, others in _DECODES:
        case = AttentionCase((1,) * len(seq_lens), seq_lens)
        time = microseconds(case)
        floor, speed = case.kv_bytes / bytes_per_us, case.kv_bytes / time / 1000
        yield KernelRow("paged_attention", f"decode, {name}", time, floor, None, speed, case.error(), others)
    chunk = AttentionCase((2048, *(1,) * 63), (14336 + 2048, *(4096,) * 63))
    time = microseconds(chunk, calls=10)
    others = {"torch SDPA one by one": microseconds(chunk.one_by_one(), calls=5)}
    error = chunk.error()
    name = "a chunk of 2,048 after 14,336 + 63 decodes at 4,096"
    yield KernelRow("paged_attention", name, time, error=error, others=others)
    exact = AttentionCase((1,) * 8, (700,) * 8, torch.float32)
    time = microseconds(exact)
    yield KernelRow("paged_attention", "decode, 8 x 700, float32", time, error=exact.error())


def kernel_report(rows: Sequence[KernelRow], engine: dict[str, Any]) -> dict[str, Any]:
    """Return what is committed as data: the GPU, the date, the rows, the whole engine."""
    return {
        "machine": gpu_name(),
        "date": dt.date.today().isoformat(),
        "rows": [{key: value for key, value in asdict(row).items() if value is not None} for row in rows],
        "engine": engine,
    }
