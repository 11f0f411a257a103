"""The captions of the scene `block_table`, computed from what the trace tells.

>>> entries(1), entries(3)
('1 entry', '3 entries')
>>> cells_of([(1, 0), (1, 1), (4, 7)])
'row 1, columns 0 and 1; row 4, column 7'

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from pagedlab.events import BlocksAppended, BlockTableCommitted, Event, RowAdded, RowMoved, RowRemoved, RowsSwapped
from pagedlab.scenes.block_table_stage import Meter, TablePanel, cells_sent_by
from pagedlab.scenes.block_table_state import BYTES_PER_CELL, TableReplay
from pagedlab.scenes.replay import NULL_BLOCK
from pagedlab.scenes.words import are, blocks, counted, either, listed, name, names
from pagedlab.trace import Trace

Caption = tuple[str, str]


def entries(count: int) -> str:
    """Return ``"1 entry"``, ``"2 entries"``."""
    return f"{count:,} entr{'y' if count == 1 else 'ies'}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return ``"row 3"``, ``"rows 0 to 4"``, ``"rows 1, 3 and 4"``.

    >>> numbered("row", [3]), numbered("row", [0, 1, 2, 3]), numbered("column", [1, 4])
    ('row 3', 'rows 0 to 3', 'columns 1 and 4')
    """
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{noun}s {numbers[0]} to {numbers[-1]}"
    return f"{noun}s {listed([str(number) for number in numbers])}"


def cells_of(cells: Sequence[tuple[int, int]]) -> str:
    """Return where cells lie; rows past the fourth are counted."""
    by_row = {row: [column for _, column in run] for row, run in groupby(sorted(cells), key=lambda cell: cell[0])}
    alike = {tuple(columns) for columns in by_row.values()}
    if len(by_row) > 2 and len(alike) == 1:
        return f"{numbered('row', list(by_row))}, {numbered('column', list(alike.pop()))} each"
    told = [f"row {row}, {numbered('column', columns)}" for row, columns in by_row.items()]
    rest = len(told) - 4
    return "; ".join(told if rest <= 0 else [*told[:4], f"and {counted(rest, 'more row')}"])


def opening_caption(panel: TablePanel, step: int, num_groups: int) -> Caption:
    """Say what the step finds."""
    table = panel.table
    live = sum(row.request_id is not None for row in table.rows.values())
    change = f"Step {step} finds {counted(live, 'live row')}." if live else f"Step {step} finds no live row."
    detail = (
        "A row is a growing array of block ids: only its live entries mean anything. Kernels read the device’s copy."
    )
    if num_groups > 1:
        detail += (
            f" There {are(num_groups)} {counted(num_groups, 'KV cache group')}: each has a table, with the same rows."
        )
    return change, detail


def event_caption(events: Sequence[Event], panel: TablePanel, before: Mapping[int, int]) -> Caption:
    """Say what one event did to the rows, or several of one kind; ``before`` has the live lengths before it."""
    event, table = events[0], panel.table
    match event:
        case RowRemoved():
            gone = [item for item in events if isinstance(item, RowRemoved)]
            count = sum(before.get(item.row, 0) for item in gone)
            who = names([item.request_id for item in gone])
            change = (
                f"{who} leaves row {event.row}: {_its(count)} become{'s' if count == 1 else ''} the null block, 0."
                if len(gone) == 1
                else f"{who} leave {numbered('row', sorted(item.row for item in gone))}: {entries(count)} become 0."
            )
            return change, "That is so on the host. The device keeps what it has until a commit covers the row."
        case RowAdded():
            added = [item for item in events if isinstance(item, RowAdded)]
            return _added(added, table)
        case RowMoved():
            count = before.get(event.source, 0)
            return (
                f"{name(event.request_id)} moves from row {event.source} to row {event.target}: {entries(count)} "
                f"{are(count)} copied.",
                f"Only live entries are copied, and the ones in row {event.source} become the null block, 0 "
                "(vLLM 0.25.1 leaves them)." + _behind(table, event.target),
            )
        case RowsSwapped():
            first, second = before.get(event.first, 0), before.get(event.second, 0)
            return (
                f"{name(event.first_request_id)} and {name(event.second_request_id)} exchange rows {event.first} and "
                f"{event.second}.",
                f"They hold {first} and {second}: {entries(max(first, second))} of each row {are(max(first, second))} "
                "exchanged, as far as the longer one is live (vLLM 0.25.1: whole rows). Requests that decode go first.",
            )
        case BlocksAppended():
            return _grown([item for item in events if isinstance(item, BlocksAppended)], table, before)
        case _:
            return event.kind, ""


def _its(count: int) -> str:
    return "its entry" if count == 1 else f"its {entries(count)}"


def _added(added: Sequence[RowAdded], table: TableReplay) -> Caption:
    event = added[0]
    held = event.block_ids[table.group] if len(event.block_ids) > table.group else ()
    if len(added) > 1:
        count = sum(table.row(item.row).num_blocks for item in added)
        rows = numbered("row", sorted(item.row for item in added))
        return f"{names([item.request_id for item in added])} are written into {rows}.", f"{entries(count)} in all."
    what = f": {blocks(held)}" if held else ", without blocks"
    change = f"{name(event.request_id)} is written into row {event.row}{what}."
    ratio = table.blocks_per_kv_block
    detail = _expanded(held, table) if held and ratio > 1 else ""
    detail += f"Its live prefix is {entries(table.row(event.row).num_blocks)} long."
    return change, detail + _behind(table, event.row)


def _behind(table: TableReplay, row: int) -> str:
    state = table.row(row)
    stale = state.host[state.num_blocks :]
    if not stale:
        return ""
    number, told = len(stale), entries(len(stale))
    if all(entry is None or entry.block == NULL_BLOCK for entry in stale):
        return f" Behind it {told} {are(number)} 0, as clearing left {either(number, 'it', 'them')}."
    return f" Behind it {told} of an earlier tenant stay{either(number, 's', '')}: nobody reads so far."


def _expanded(held: Sequence[int], table: TableReplay) -> str:
    """Say how manager blocks become kernel blocks, by the last one."""
    parts = [str(block) for block in table.expand(held[-1:])]
    return (
        f"A block of the manager is {table.blocks_per_kv_block} of the kernel’s, side by side: {held[-1]} becomes "
        f"{listed(parts)}. "
    )


def _grown(grown: Sequence[BlocksAppended], table: TableReplay, before: Mapping[int, int]) -> Caption:
    here = [event for event in grown if event.group == table.group] or list(grown)
    first = here[0]
    expand = _expanded(first.block_ids, table) if table.blocks_per_kv_block > 1 else ""
    rule = "Appending writes behind the live prefix and makes it longer; nothing else is touched."
    if len(here) == 1:
        join = "joins" if len(first.block_ids) == 1 else "join"
        column = before.get(first.row, 0)
        where = f", from column {column} on" if len(first.block_ids) > 1 or expand else f" in column {column}"
        change = f"{name(first.request_id)} grows: {blocks(first.block_ids)} {join} row {first.row}{where}."
        return change, expand + rule
    count = sum(len(event.block_ids) for event in here)
    return (
        f"{names([event.request_id for event in here])} grow: {counted(count, 'block')} join their rows.",
        expand + rule,
    )


def look_caption(
    pending: Sequence[tuple[int, int]], waiting: Sequence[tuple[int, int]], event: BlockTableCommitted
) -> Caption:
    """Say what a commit finds, before it sends anything."""
    rows = numbered("row", list(range(event.num_rows))) if event.num_rows else "no row"
    change = (
        f"Commit covers {rows}: the device is behind in {entries(len(pending))}."
        if pending
        else f"Commit covers {rows}: the device has every entry already."
    )
    if not waiting:
        return change, "A ring marks what the device does not have yet."
    them = sorted({row for row, _ in waiting})
    differ = "differs" if len(them) == 1 else "differ"
    wait = "it waits" if len(them) == 1 else "they wait"
    return change, f"{numbered('row', them).capitalize()} {differ} too, but {are_not_read(len(them))}: {wait}."


def are_not_read(count: int) -> str:
    """Return the clause that goes with rows behind the last live one."""
    return "no kernel will read it" if count == 1 else "no kernel will read them"


def commit_caption(
    event: BlockTableCommitted, num_pending: int, waiting: Sequence[tuple[int, int]], meter: Meter, trace: Trace
) -> Caption:
    """Say what was sent, and what it took."""
    whole = meter.whole_rows(event.group, event.num_rows)
    if event.mode == "full":
        who = "Row 0 is" if event.num_rows == 1 else f"All {event.num_rows} rows are"
        change = f"{who} sent whole: {event.num_bytes:,} bytes."
        detail = f"{whole[1]}. " if whole else ""
        detail += f"The device was behind in {entries(num_pending)}."
        chooses = any(isinstance(r.event, BlockTableCommitted) and r.event.mode == "changed" for r in trace)
        if chooses and num_pending * BYTES_PER_CELL >= event.num_bytes:
            detail += f" Sent alone, an entry takes {BYTES_PER_CELL} bytes: with so many, whole rows are fewer bytes."
        return change, detail
    cells = cells_sent_by(event)
    if not cells:
        save = f" Whole rows would be {whole[1]}." if whole else ""
        return "Nothing is sent: 0 bytes.", f"No entry of these rows has changed since the last commit.{save}"
    sent = event.num_bytes // BYTES_PER_CELL
    change = f"{entries(len(cells))} {are(len(cells))} sent: {cells_of(cells)}."
    twice = f" ({entries(sent - len(cells))} more than once)" if sent > len(cells) else ""
    detail = f"Each takes {BYTES_PER_CELL} bytes, its place and its block: {event.num_bytes:,} bytes{twice}."
    if 0 < num_pending < len(cells):
        detail += f" (The device had {len(cells) - num_pending} of them already: a row is sent up to its last change.)"
    if whole:
        detail += f" Whole rows: {whole[1]}."
    if waiting:
        behind = sorted({row for row, _ in waiting})
        detail += f" {numbered('row', behind).capitalize()} wait{'s' if len(behind) == 1 else ''}."
    return change, detail
