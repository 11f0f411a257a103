"""How the attention kernel divides a step among programs, found from what a trace tells.

The kernel does this on the device, from the lengths of the step (`pagedlab.kernels.attention_work`); the same rule is
written down here once more, because a scene needs neither torch nor Triton. A test holds both equal.

>>> shape = ModelShape(num_layers=5, num_heads=6, num_kv_heads=2, head_dim=32, itemsize=4)
>>> shape.bytes_per_token
2560
>>> [division.num_splits for division in divide([1, 1], [1500, 9], shape, processors=132)]
[12, 1]

vLLM counterpart: the choice between the 2D and the 3D kernel in
``vllm/v1/attention/ops/triton_unified_attention.py`` at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides how many bytes attention reads.

    Attributes
    ----------
    num_layers, num_heads, num_kv_heads, head_dim : int
    itemsize : int
        Bytes of an element of the KV cache.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ModelShape | None:
        """Return the shape that a trace's settings tell; None if they do not."""
        names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
        numbers = [settings.get(name) for name in names]
        numbers.append(_ITEMSIZES.get(str(settings.get("dtype"))))
        known = [number for number in numbers if isinstance(number, int) and number > 0]
        if len(known) < len(numbers):
            return None
        layers, heads, kv_heads, head_dim, itemsize = known
        return cls(layers, heads, kv_heads, head_dim, itemsize)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def bytes_in_layer(self) -> int:
        """Bytes of one token's K and V in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return self.num_layers * self.bytes_in_layer


@dataclass(frozen=True, slots=True)
class Tiles:
    """A launch of the kernel: the queries and keys of a tile, and how many programs share its work."""

    queries: int
    keys: int
    workers: int


@dataclass(frozen=True, slots=True)
class Division:
    """How the work of one row is divided.

    Attributes
    ----------
    tiles : Tiles
        Of the launch that does this row.
    is_long : bool
        Whether that is the launch for long queries: prefill chunks of more than one short tile.
    query_len, seq_len, window : int
        Of the row; a window of 0 is none.
    key_tiles, num_splits : int
        Tiles of keys that the row's queries see, and the parts that they are cut into.
    num_tiles, share : int
        Tiles of the whole launch, and what of them each worker should do.
    """

    tiles: Tiles
    is_long: bool
    query_len: int
    seq_len: int
    window: int
    key_tiles: int
    num_splits: int
    num_tiles: int
    share: int

    @property
    def query_tiles(self) -> int:
        """Tiles of queries; each is attended on its own."""
        return -(-self.query_len // self.tiles.queries)

    def queries_of(self, query_tile: int) -> range:
        """Return the positions of a tile's queries."""
        first = self.seq_len - self.query_len + query_tile * self.tiles.queries
        return range(first, min(first + self.tiles.queries, self.seq_len))

    def splits_of(self, query_tile: int) -> list[range]:
        """Return the keys that each split of a query tile reads; one may be empty."""
        queries, size = self.queries_of(query_tile), self.tiles.keys
        first = max(queries.start + 1 - self.window, 0) // size if self.window else 0
        count = -(-queries.stop // size) - first
        edges = [first + count * split // self.num_splits for split in range(self.num_splits + 1)]
        ends = [min(edge * size, queries.stop) for edge in edges]
        return [range(start, max(start, stop)) for start, stop in pairwise(ends)]


def divide(
    query_lens: Sequence[int], seq_lens: Sequence[int], shape: ModelShape, processors: int, window: int = 0
) -> list[Division]:
    """Return how the work of each row is divided.

    Parameters
    ----------
    query_lens, seq_lens : sequence of int, [num_reqs]
        Tokens of this step, and of the request after it.
    shape : ModelShape
        The kernel computes elements of 2 or 4 bytes.
    processors : int
        Multiprocessors of the device.
    window : int
        A query sees at most so many keys; 0 for all.
    """
    launches = [_tiles(shape, processors, long=long) for long in (False, True)]
    is_long = [length > launches[0].queries for length in query_lens]
    key_tiles = []
    num_tiles = [0, 0]
    for long, length, seq_len in zip(is_long, query_lens, seq_lens, strict=True):
        tiles = launches[long]
        seen = min(seq_len, window + tiles.queries) if window else seq_len
        key_tiles.append(-(-seen // tiles.keys))
        num_tiles[long] += -(-length // tiles.queries) * key_tiles[-1]
    shares = [max(-(-count // tiles.workers), 1) for count, tiles in zip(num_tiles, launches, strict=True)]
    divisions = []
    for long, length, seq_len, count in zip(is_long, query_lens, seq_lens, key_tiles, strict=True):
        share = shares[long]
        num_splits = max(1, (4 * count + 3 * share - 1) // (4 * share))  # ceil(tiles / share - 1/4)
        divisions.append(
            Division(launches[long], long, length, seq_len, window, count, num_splits, num_tiles[long], share)
        )
    return divisions


def _tiles(shape: ModelShape, processors: int, *, long: bool) -> Tiles:
    """Return the shape of the launch for short queries, or for long ones (`choose_tiles`)."""
    heads, dims = _power_of_two(shape.group), _power_of_two(shape.head_dim)
    wide = dims > 128
    if not long:
        rows, keys, programs = max(16, heads), min(max(16384 // (dims * shape.itemsize), 16), 256), 4
    elif shape.itemsize == 4:
        rows, keys, programs = (max(32, heads), 16, 2) if wide else (max(128, heads), 32, 1)
    else:
        rows, keys, programs = (max(128, heads), 64, 1) if wide else (max(64, heads), 64, 2)
    return Tiles(rows // shape.group, keys, max(1, programs * processors // shape.num_kv_heads))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
