"""Questions about a commit of the block table: which cells are sent, and how many bytes they take.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.events import BlocksAppended, BlockTableCommitted, Event, RowAdded, RowMoved, RowRemoved, RowsSwapped
from pagedlab.scenes.block_table_stage import cells_sent_by
from pagedlab.scenes.block_table_state import BYTES_PER_CELL, BYTES_PER_ENTRY, TableReplay, tables_of
from pagedlab.scenes.block_table_words import cells_of, entries, numbered
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import begin, counted, listed, name, names
from pagedlab.trace import Trace


def questions_of_commit(scene: Scene, trace: Trace, step: int) -> Iterator[Question]:
    """Give the questions of a block table scene, about its first commit that is drawn. Nothing if there is none."""
    frame = next((at for at, shown in enumerate(scene.frames) if shown.event == "BlockTableCommitted"), None)
    if frame is None:
        return
    index = scene.frames[frame].record
    event = trace.records[index].event
    if not isinstance(event, BlockTableCommitted) or not event.num_rows:
        return
    table = next(table for table in tables_of(trace) if table.group == event.group)
    for record in trace.records[:index]:
        table.apply(record.event)
    happened = [item.event for item in trace.records[:index] if item.step == step]
    yield cells_sent(event, table, happened, frame)
    if event.num_bytes:
        yield bytes_sent(event, table, frame)


def cells_sent(event: BlockTableCommitted, table: TableReplay, happened: list[Event], frame: int) -> Question:
    """Ask which cells a commit sends."""
    rows = numbered("row", list(range(event.num_rows)))
    pending, waiting = table.pending(event.num_rows), table.waiting(event.num_rows)
    whole = f"{rows.capitalize()}, from end to end"
    nothing = "Nothing"
    sent = cells_sent_by(event)
    exact = begin(cells_of(sent or pending))
    reasons: dict[str, str] = {}
    if event.mode == "full":
        right, explanation = whole, f"This commit sends whole rows: {event.num_bytes:,} bytes."
        if pending:
            reasons[f"Only {exact[:1].lower()}{exact[1:]}"] = (
                f"In these the device is behind, but this commit sends whole rows: {event.num_bytes:,} bytes."
            )
    elif sent:
        right, explanation = exact, f"{entries(len(sent))}: only these changed in the rows that kernels will read."
        reasons[whole] = (
            f"That is what vLLM 0.25.1 does. Here only what changed crosses the bus: {event.num_bytes:,} bytes."
        )
    else:
        right, explanation = nothing, "No entry of these rows changed, so the device’s copy is right already."
        reasons[whole] = "That is what vLLM 0.25.1 does. Here only what changed is sent, and nothing has."
    if right != nothing:
        reasons[nothing] = (
            f"Kernels read the device’s copy, and it is behind in {entries(len(pending))}."
            if pending
            else "This commit sends all rows that are in use, changed or not."
        )
    if waiting:
        behind = sorted({row for row, _ in waiting})
        told = numbered("row", behind)
        more = right[:1].lower() + right[1:]
        reasons[f"{told.capitalize()}" + ("" if right == nothing else f" too, beside {more}")] = (
            f"{told.capitalize()} did change, but kernels read {rows} only. What is not read can wait."
        )
    columns = {row: table.row(row).num_blocks - 1 for row in range(event.num_rows) if table.row(row).num_blocks}
    ends = cells_of(sorted(columns.items()))
    last = f"The last live entry of each row: {ends}"
    if set(columns.items()) != set(sent) and columns and event.mode != "full":
        reasons[last] = "A row gets a new entry only when its last block is full, not in every step."
    return Question(
        f"{_told(happened)} Which entries does the commit send?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        explanation,
        0,
        frame,
    )


def _told(happened: list[Event]) -> str:
    """Say in one sentence what happened to the rows."""
    parts: list[str] = []
    if gone := [event for event in happened if isinstance(event, RowRemoved)]:
        parts.append(f"{names([e.request_id for e in gone])} leave{'s' if len(gone) == 1 else ''}")
    if added := [event for event in happened if isinstance(event, RowAdded)]:
        parts.append(
            f"{names([e.request_id for e in added])} come{'s' if len(added) == 1 else ''} into "
            f"{numbered('row', sorted(e.row for e in added))}"
        )
    if grown := list(dict.fromkeys(event.request_id for event in happened if isinstance(event, BlocksAppended))):
        parts.append(f"{names(grown)} get{'s' if len(grown) == 1 else ''} new blocks")
    for event in happened:
        match event:
            case RowMoved():
                parts.append(f"{name(event.request_id)} moves from row {event.source} to {event.target}")
            case RowsSwapped():
                parts.append(f"rows {event.first} and {event.second} are swapped")
            case _:
                pass
    return f"{listed(parts)}." if parts else "In this step no row changes."


def bytes_sent(event: BlockTableCommitted, table: TableReplay, frame: int) -> Question:
    """Ask how many bytes a commit takes."""
    num_rows, right = event.num_rows, event.num_bytes
    pending = table.pending(num_rows)
    live = sum(table.row(row).num_blocks for row in range(num_rows))
    if event.mode == "full":
        columns = right // (num_rows * BYTES_PER_ENTRY)
        given = f"It sends {counted(num_rows, 'row')} of {counted(columns, 'column')}, whole, int32."
        explanation = f"{num_rows} · {columns} · {BYTES_PER_ENTRY} = {right:,} bytes, however little has changed."
        offers = (
            (len(pending) * BYTES_PER_CELL, "So much would the changed entries take. This commit sends whole rows."),
            (num_rows * columns, "So many entries. Each is an int32: four bytes."),
            (live * BYTES_PER_ENTRY, f"So much are the {live} live entries. The rows are sent with what lies behind."),
        )
    else:
        cells = sum(len(ids) for _, _, ids in event.changed)
        sent = right // BYTES_PER_CELL
        given = f"It sends {entries(sent)}, each with its place in the table; both are int32."
        explanation = f"{sent} · ({BYTES_PER_ENTRY} for the place + {BYTES_PER_ENTRY} for the block) = {right:,} bytes."
        offers = (
            (cells * BYTES_PER_ENTRY, "That is the blocks alone. The device must be told where each belongs, too."),
            (sent, "So many entries. Each takes eight bytes: place and block."),
            (live * BYTES_PER_ENTRY, f"So much are all {live} live entries. Only what changed is sent."),
        )
    return Question(
        f"The commit is about to run. {given} How many bytes is that?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        explanation,
        max(0, frame - 1),
        frame,
    )
