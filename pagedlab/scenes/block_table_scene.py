"""The scene `block_table`: rows of block ids grow, move and swap on the host, and a commit sends what changed.

The stage shows the table twice: as it lies in the host's memory, where rows are written, and as the device has it,
where kernels read. An entry that the device lacks has a ring of the accent; the commit sends it. Below stands what that
costs.

vLLM counterpart of what is shown: ``vllm/v1/worker/block_table.py`` (``BlockTable``, ``MultiGroupBlockTable``) at
0.25.1, which sends all rows in use in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagedlab.errors import TraceError
from pagedlab.events import BlocksAppended, BlockTableCommitted, Event, RowAdded, RowMoved, RowRemoved, RowsSwapped
from pagedlab.scenes.assembling import assemble, by_kind
from pagedlab.scenes.block_table_questions import questions_of_commit
from pagedlab.scenes.block_table_stage import WIDTH, TablePanel, TableStage, cells_sent_by
from pagedlab.scenes.block_table_words import commit_caption, entries, event_caption, look_caption, opening_caption
from pagedlab.scenes.replay import GROUP, Replay
from pagedlab.scenes.scene import Arrow, Frame, Scene, in_key_order
from pagedlab.scenes.words import counted
from pagedlab.trace import Record, Trace

EVENTS = (RowRemoved, RowAdded, RowMoved, RowsSwapped, BlocksAppended, BlockTableCommitted)
"""What the scene shows, each in a frame of its own; neighbouring ``BlocksAppended`` share one."""

_EVENT_NAMES = {
    "RowMoved": "move",
    "RowsSwapped": "swap",
    "BlocksAppended": "growth",
    "RowAdded": "new row",
    "RowRemoved": "removal",
    "BlockTableCommitted": "commit",
}

_MANY = 6
"""So many rows of one kind in a row are told together."""


def block_table(trace: Trace, step: int | None = None) -> Scene:
    """Show how one step changes the block table, and what its commit sends to the device.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        Which step; by default the first in which a row moves or two swap, else the first in which one grows, else the
        first that touches the table at all.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such step, or nothing happens to the table in it.
    """
    if step is None:
        step = _first_step(trace, (RowMoved, RowsSwapped), (BlocksAppended,), EVENTS)
    records = trace.of_step(step)
    if not any(isinstance(record.event, EVENTS) for record in records):
        raise TraceError(f"nothing happens to the block table in step {step}: no row changes and nothing is committed")
    walk = _Walk(trace, step)
    frames = tuple(walk.frames())
    return assemble(
        trace,
        records,
        "block_table",
        "Block table",
        (WIDTH, walk.stage.height),
        frames,
        walk.requests,
        _EVENT_NAMES,
        lambda scene: questions_of_commit(scene, trace, step),
    )


def _first_step(trace: Trace, *wanted: tuple[type[Event], ...]) -> int:
    for kinds in wanted:
        for record in trace:
            if isinstance(record.event, kinds):
                return record.step
    raise TraceError("no step of this trace touches the block table: record an engine while it runs a request")


class _Walk:
    """Takes the tables through the events of one step, and shows the stage after each."""

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.step = step
        self.records = [(index, record) for index, record in enumerate(trace.records) if record.step == step]
        self.first = self.records[0][0]
        end = Replay.of(trace.records[: self.records[-1][0] + 1])
        for _, record in self.records:  # a request whose arrival the trace does not hold
            for request_id in _requests_of(record.event):
                end.request(request_id)
        self.requests = tuple(end.requests)
        self.stage = TableStage(trace, self.first, self.records, self.requests)
        commits = [record.event for _, record in self.records if isinstance(record.event, BlockTableCommitted)]
        self.group = self.stage.panels[0].group if self.stage.panels else GROUP
        self.num_rows = commits[0].num_rows if commits else self.stage.panels[0].table.num_live_rows

    @property
    def panel(self) -> TablePanel:
        """The panel of the group that the frame is about."""
        return self.stage.panel(self.group) or self.stage.panels[0]

    def frames(self) -> Iterator[Frame]:
        """Walk through the step: before it, each event, and a look ahead of each commit."""
        shown = [(index, record) for index, record in self.records if isinstance(record.event, EVENTS)]
        yield self._frame(
            self.first - 1, shown[0][1], opening_caption(self.panel, self.step, self.stage.num_groups), is_event=False
        )
        for part in _together(shown):
            index, record = part[-1]
            if isinstance(record.event, BlockTableCommitted):
                yield from self._commit_frames(index, record, record.event)
                continue
            stale = {panel.group: _lengths(panel) for panel in self.stage.panels}
            for _, item in part:
                for panel in self.stage.panels:
                    panel.table.apply(item.event)
            events = [item.event for _, item in part]
            caption = event_caption(events, self.panel, stale[self.panel.group])
            yield self._frame(index, record, caption, focus=self._focus(events), arrows=self._arrows(events))

    def _commit_frames(self, index: int, record: Record, event: BlockTableCommitted) -> Iterator[Frame]:
        panel = self.stage.panel(event.group)
        if panel is None:
            return
        self.group, self.num_rows = event.group, event.num_rows
        self.stage.meter.event = None
        pending = panel.table.pending(event.num_rows)
        waiting = panel.table.waiting(event.num_rows)
        self.stage.meter.num_differing = len(pending)
        if event.mode == "full":
            sent = [
                (row, column)
                for row, state in sorted(panel.table.rows.items())
                if row < event.num_rows
                for column, entry in enumerate(state.host)
                if entry is not None
            ]
        else:
            sent = cells_sent_by(event)
            for row, column in sent:  # a cell that the events before did not tell of
                state = panel.table.row(row)
                state.host.extend([None] * (column + 1 - len(state.host)))
        panel.sending = dict.fromkeys(sent, "host")
        yield self._frame(index - 1, record, look_caption(pending, waiting, event), is_event=False)
        panel.table.apply(event)
        panel.num_committed = event.num_rows
        panel.sending = dict.fromkeys(sent, "device")
        self.stage.meter.event = event
        caption = commit_caption(event, len(pending), waiting, self.stage.meter, self.trace)
        ways = [panel.way(row, columns) for row, columns in _by_row(sent).items()]
        arrows = tuple(arrow for way in ways for arrow in way) if len(ways) <= _MANY else ()
        yield self._frame(index, record, caption, focus=("meter",), arrows=arrows)
        panel.sending = {}

    def _focus(self, events: Sequence[Event]) -> tuple[str, ...]:
        keys: list[str] = []
        for panel in self.stage.panels:
            for event in events[:_MANY]:
                match event:
                    case RowRemoved(row=row):
                        keys.append(f"track:{panel.group}:{row}")
                    case BlocksAppended(group=group) if group != panel.group:
                        pass
                    case RowAdded() | RowMoved() | RowsSwapped() | BlocksAppended():
                        keys += [f"row:{panel.group}:{request_id}" for request_id in _requests_of(event)]
                    case _:
                        pass
        return tuple(dict.fromkeys(keys))

    def _arrows(self, events: Sequence[Event]) -> tuple[Arrow, ...]:
        found: list[Arrow] = []
        for panel in self.stage.panels:
            for event in events:
                match event:
                    case RowMoved(source=source, target=target):
                        found += panel.arrow(source, target)
                    case RowsSwapped(first=first, second=second):
                        found += (*panel.arrow(first, second), *panel.arrow(second, first))
                    case _:
                        pass
        return tuple(found)

    def _frame(
        self,
        index: int,
        record: Record,
        caption: tuple[str, str],
        *,
        focus: tuple[str, ...] = (),
        arrows: tuple[Arrow, ...] = (),
        is_event: bool = True,
    ) -> Frame:
        actors = in_key_order(self.stage.actors(self.group, self.num_rows))
        keys = {actor.key for actor in actors}
        table = self.panel.table
        live = sum(row.request_id is not None for row in table.rows.values())
        behind = len(table.pending(self.num_rows)) + len(table.waiting(self.num_rows))
        differ = "differs" if behind == 1 else "differ"
        return Frame(
            id=f"{index}{'' if is_event else '+'}",
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {self.step} · {counted(live, 'live row')} · {entries(behind)} {differ} on the device",
            step=self.step,
            beat=record.beat,
            event=record.event.kind if is_event else None,
            source=(record.source.function, record.source.line) if record.source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=index,
        )


def _together(shown: Sequence[tuple[int, Record]]) -> Iterator[list[tuple[int, Record]]]:
    """Give the events frame by frame: growth of neighbours at once, and many rows that come or go at once."""
    for run in by_kind(shown):
        kind = type(run[0][1].event)
        if kind is BlocksAppended or (kind in (RowAdded, RowRemoved) and len(run) > _MANY):
            yield run
        else:
            yield from ([item] for item in run)


def _by_row(cells: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, column in cells:
        rows.setdefault(row, []).append(column)
    return rows


def _lengths(panel: TablePanel) -> dict[int, int]:
    return {at: row.num_blocks for at, row in panel.table.rows.items()}


def _requests_of(event: Event) -> tuple[str, ...]:
    match event:
        case RowAdded(request_id=who) | RowMoved(request_id=who) | BlocksAppended(request_id=who):
            return (who,)
        case RowsSwapped(first_request_id=one, second_request_id=other):
            return one, other
        case _:
            return ()
