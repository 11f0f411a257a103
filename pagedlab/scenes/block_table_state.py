"""The block tables at any record of a trace, on the host and on the device, rebuilt from the events alone.

>>> from pagedlab.events import BlocksAppended, BlockTableCommitted, RowAdded
>>> table = TableReplay()
>>> table.apply(RowAdded(0, "A", num_tokens=5, num_computed_tokens=0, block_ids=((7, 2),)))
>>> table.apply(BlocksAppended(0, "A", 0, (5,)))
>>> table.rows[0].live, table.pending(num_rows=1)
((7, 2, 5), [(0, 0), (0, 1), (0, 2)])
>>> table.apply(BlockTableCommitted(0, num_rows=1, num_bytes=24, mode="changed", changed=((0, 0, (7, 2, 5)),)))
>>> table.rows[0].device[2], table.pending(num_rows=1)
(Entry(block=5, owner='A'), [])

What the row events did to the host's memory follows from them; what the device holds, from the commits. Where a commit
names an entry, the commit is believed. A trace may begin in the middle: what the events do not tell is None.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedlab.events import (
    BlocksAppended,
    BlockTableCommitted,
    Event,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    SlotsComputed,
)
from pagedlab.scenes.replay import GROUP, NULL_BLOCK
from pagedlab.trace import Trace

BYTES_PER_ENTRY = 4
BYTES_PER_CELL = 8
"""What an entry costs in whole rows; and alone, when its place goes with it. Both int32."""


class Entry(NamedTuple):
    """One entry of a block table, and whose row it was written for; None for a null that clearing left."""

    block: int
    owner: str | None


@dataclass
class TableRow:
    """One row; ``num_blocks`` entries of the host are live."""

    request_id: str | None = None
    num_blocks: int = 0
    host: list[Entry | None] = field(default_factory=list)
    device: list[Entry | None] = field(default_factory=list)

    @property
    def live(self) -> tuple[int, ...]:
        """The live block ids."""
        return tuple(entry.block for entry in self.host[: self.num_blocks] if entry is not None)

    def write(self, start: int, block_ids: Iterable[int], owner: str | None) -> None:
        """Write entries on the host from a column on."""
        _write(self.host, start, [Entry(block, owner) for block in block_ids])

    def clear(self) -> int:
        """Set the live entries to the null block; return how many they were."""
        count, self.request_id, self.num_blocks = self.num_blocks, None, 0
        self.write(0, [NULL_BLOCK] * count, None)
        return count


class TableReplay:
    """The table of one KV cache group; `apply` takes events in order."""

    def __init__(self, group: int = GROUP, blocks_per_kv_block: int = 1) -> None:
        self.group = group
        self.blocks_per_kv_block = blocks_per_kv_block
        self.rows: dict[int, TableRow] = {}

    @property
    def num_live_rows(self) -> int:
        """Rows from 0 to the highest live one."""
        return max((at for at, row in self.rows.items() if row.request_id is not None), default=-1) + 1

    @property
    def num_columns_used(self) -> int:
        """Columns that were ever written."""
        return max((max(len(row.host), len(row.device)) for row in self.rows.values()), default=0)

    def expand(self, block_ids: Iterable[int]) -> tuple[int, ...]:
        """Turn blocks of the KV cache manager into those of the kernel."""
        ratio = self.blocks_per_kv_block
        return tuple(block * ratio + part for block in block_ids for part in range(ratio))

    def row(self, row: int) -> TableRow:
        """Return a row, to change it."""
        return self.rows.setdefault(row, TableRow())

    def apply(self, event: Event) -> None:
        """Take one event."""
        match event:
            case RowAdded():
                row = self.row(event.row)
                block_ids = self.expand(event.block_ids[self.group]) if len(event.block_ids) > self.group else ()
                row.write(0, block_ids, event.request_id)
                row.request_id, row.num_blocks = event.request_id, len(block_ids)
            case RowRemoved():
                self.row(event.row).clear()
            case RowMoved():
                source, target = self.row(event.source), self.row(event.target)
                _write(target.host, 0, source.host[: source.num_blocks])
                target.request_id, target.num_blocks = event.request_id, source.num_blocks
                source.clear()
            case RowsSwapped():
                self._swap(self.row(event.first), self.row(event.second))
            case BlocksAppended() if event.group == self.group:
                row, block_ids = self.row(event.row), self.expand(event.block_ids)
                row.write(row.num_blocks, block_ids, event.request_id)
                row.request_id, row.num_blocks = event.request_id, row.num_blocks + len(block_ids)
            case BlockTableCommitted() if event.group == self.group:
                self._commit(event)
            case _:
                pass

    def _swap(self, first: TableRow, second: TableRow) -> None:
        """Exchange the entries up to the longer live prefix; what lies behind stays."""
        longest = max(first.num_blocks, second.num_blocks)
        parts = [_padded(row, longest) for row in (first, second)]
        _write(first.host, 0, parts[1])
        _write(second.host, 0, parts[0])
        first.request_id, second.request_id = second.request_id, first.request_id
        first.num_blocks, second.num_blocks = second.num_blocks, first.num_blocks

    def _commit(self, event: BlockTableCommitted) -> None:
        if event.mode == "full":
            for at, row in self.rows.items():
                if at < event.num_rows:
                    row.device = list(row.host)
        for at, start, block_ids in event.changed:
            row = self.row(at)
            for column, block in enumerate(block_ids, start):
                known = row.host[column] if column < len(row.host) else None
                tenant = row.request_id if column < row.num_blocks else None
                entry = known if known is not None and known.block == block else Entry(block, tenant)
                _write(row.host, column, [entry])
                _write(row.device, column, [entry])

    def pending(self, num_rows: int) -> list[tuple[int, int]]:
        """Return the cells, (row, column), of the first rows in which the device is behind the host."""
        return [cell for row in sorted(self.rows) if row < num_rows for cell in self.behind(row)]

    def waiting(self, num_rows: int) -> list[tuple[int, int]]:
        """Return the cells of the rows from ``num_rows`` on in which the device is behind the host."""
        return [cell for row in sorted(self.rows) if row >= num_rows for cell in self.behind(row)]

    def is_behind(self, row: int, column: int) -> bool:
        """Whether the device's entry differs from the host's."""
        state = self.rows.get(row, TableRow())
        host = state.host[column] if column < len(state.host) else None
        device = state.device[column] if column < len(state.device) else None
        return host is not None and host.block != (device.block if device is not None else None)

    def behind(self, row: int) -> Iterator[tuple[int, int]]:
        """Give the cells of a row in which the device is behind the host."""
        return ((row, column) for column in range(len(self.rows[row].host)) if self.is_behind(row, column))


def _padded(row: TableRow, length: int) -> list[Entry | None]:
    """Return the first entries of a row; what was never written is null, if the row is known at all."""
    never = Entry(NULL_BLOCK, None) if row.request_id is not None else None
    return [*row.host[:length], *[never] * (length - len(row.host))]


def _write(entries: list[Entry | None], start: int, new: list[Entry] | list[Entry | None]) -> None:
    entries.extend([None] * (start - len(entries)))
    entries[start : start + len(new)] = new


def groups_of(trace: Trace) -> list[int]:
    """Return the KV cache groups that the trace tells of."""
    found = {GROUP}
    for record in trace:
        match record.event:
            case RowAdded(block_ids=block_ids):
                found.update(range(len(block_ids)))
            case BlocksAppended(group=group) | BlockTableCommitted(group=group):
                found.add(group)
            case _:
                pass
    return sorted(found)


def tables_of(trace: Trace) -> list[TableReplay]:
    """Return an empty table for each group, which knows how manager blocks become kernel blocks if the trace does."""
    return [TableReplay(group, blocks_per_kv_block(trace, group)) for group in groups_of(trace)]


def kernel_block_size(trace: Trace, group: int = GROUP) -> int | None:
    """Return the tokens of a kernel block, which slots are made of; None if no slots were computed."""
    return next(
        (r.event.block_size for r in trace if isinstance(r.event, SlotsComputed) and r.event.group == group), None
    )


def blocks_per_kv_block(trace: Trace, group: int = GROUP) -> int:
    """Return the kernel blocks in a block of the KV cache manager; 1 if the trace does not tell."""
    size, kernel_size = trace.settings.get("block_size"), kernel_block_size(trace, group)
    if not isinstance(size, int) or not kernel_size or size % kernel_size:
        return 1
    return size // kernel_size


def table_columns(trace: Trace, group: int = GROUP) -> tuple[int, bool] | None:
    """Return the columns of a group's table, and whether that is exact or a lower bound; None if nothing tells.

    A commit of whole rows tells it by its bytes; else a row must at least take ``max_model_len`` tokens.
    """
    for record in trace:
        event = record.event
        if isinstance(event, BlockTableCommitted) and event.group == group and event.mode == "full" and event.num_rows:
            columns, rest = divmod(event.num_bytes, event.num_rows * BYTES_PER_ENTRY)
            return (columns, True) if not rest else None
    longest, size = trace.settings.get("max_model_len"), kernel_block_size(trace, group)
    if not isinstance(longest, int) or not size:
        return None
    # A token without a slot is another rank's: then a block spans more tokens than its size.
    shared = any(isinstance(r.event, SlotsComputed) and any(slot < 0 for slot in r.event.slot_mapping) for r in trace)
    return None if shared else (-(-longest // size), False)
