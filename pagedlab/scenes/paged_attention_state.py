"""Which keys and values each row of a step reads, found from its lengths and its row of the block table.

>>> reading = Reading(row=0, request_id="A", query_len=1, seq_len=14, size=4, row_blocks=(7, 2, 5, 13))
>>> reading.blocks, reading.num_keys, list(reading.offsets(3))
((7, 2, 5, 13), 14, [0, 1])

vLLM counterpart of what is shown: what ``vllm/v1/attention/ops/triton_unified_attention.py`` reads, at 0.25.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pagedlab.errors import TraceError
from pagedlab.events import BlockTableCommitted, ForwardFinished, InputsPrepared, SlotsComputed
from pagedlab.scenes.block_table_state import TableReplay, TableRow, blocks_per_kv_block
from pagedlab.scenes.paged_attention_work import Division, ModelShape, divide
from pagedlab.scenes.replay import GROUP, group_settings
from pagedlab.scenes.step_state import StepState
from pagedlab.trace import Record, Trace

PROCESSORS = 132
"""Multiprocessors of an H100 or H200: where the trace tells none, the work is divided as it would be there."""


@dataclass(frozen=True)
class Reading:
    """What one row's queries look at.

    Attributes
    ----------
    row : int
    request_id : str
    query_len, seq_len : int
        Tokens of this step, and of the request after it.
    size : int
        Tokens in a block, as the kernel knows it.
    row_blocks : tuple of int
        The live row of the block table.
    window : int
        A query sees at most so many keys; 0 for all before it.
    """

    row: int
    request_id: str
    query_len: int
    seq_len: int
    size: int
    row_blocks: tuple[int, ...]
    window: int = 0

    @property
    def queries(self) -> range:
        """The positions that ask."""
        return range(self.seq_len - self.query_len, self.seq_len)

    def seen_by(self, position: int) -> range:
        """Return the positions that a query sees: its own and those before it, as far as the window reaches."""
        return range(max(0, position + 1 - self.window) if self.window else 0, position + 1)

    @property
    def keys(self) -> range:
        """The positions that any of the queries sees."""
        return range(self.seen_by(self.queries.start).start, self.seq_len)

    @property
    def num_keys(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> range:
        """The columns of the row whose keys are seen."""
        return range(self.keys.start // self.size, -(-self.seq_len // self.size))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that are read, in the order of the row."""
        return tuple(self.row_blocks[column] for column in self.columns)

    def positions(self, column: int) -> range:
        """Return the positions of a column that are read."""
        first = column * self.size
        return range(max(first, self.keys.start), min(first + self.size, self.seq_len))

    def offsets(self, column: int) -> range:
        """Return the offsets of a column's block that are read."""
        read = self.positions(column)
        return range(read.start - column * self.size, read.stop - column * self.size)

    def slots(self, column: int) -> range:
        """Return the slots of the KV cache that a column makes the queries read."""
        first = self.row_blocks[column] * self.size
        return range(first + self.offsets(column).start, first + self.offsets(column).stop)

    @property
    def is_scattered(self) -> bool:
        """Whether the order of the row is not that of memory."""
        return list(self.blocks) != sorted(self.blocks)


class AttentionStep:
    """One step when its forward pass is over: the memory, and what was read of it.

    Parameters
    ----------
    trace : Trace
    step : int
    processors : int or None
        Multiprocessors among which the work is divided; None: those that the trace tells, else `PROCESSORS`.

    Attributes
    ----------
    state : StepState
        Its replay stands behind the forward pass.
    is_torch : bool
        Whether attention was computed in torch, which divides nothing.
    readings : list of Reading
        Of the rows that have queries, in batch order.
    divisions : dict of int to Division
        By row; empty where the trace does not tell the shape of the model, or no kernel computes its dtype.
    prepared, committed, finished : (int, Record)
        The records, with their indices, of the inputs, of the block table and of the forward pass.

    Raises
    ------
    TraceError
        If no forward pass ran in the step, the block table of none of its rows is known, or other ranks hold keys.
    """

    def __init__(self, trace: Trace, step: int, processors: int | None) -> None:
        trace.of_step(step)  # or it is not there
        _refuse_ranks(trace)
        self.trace = trace
        self.step = step
        self.prepared, self.inputs = self._find_inputs()
        slots, self.slots = self._find_slots()
        self.finished = self._find_forward()
        commits = [
            (index, record)
            for index, record, commit in trace.in_step(step, BlockTableCommitted)
            if index < slots[0] and commit.group == GROUP
        ]
        self.committed = commits[-1] if commits else slots
        self.table = TableReplay(GROUP, blocks_per_kv_block(trace))
        for record in trace.records[: slots[0]]:
            self.table.apply(record.event)
        self.state = StepState(trace, step)
        for index, record in self.state.records:
            if index <= self.finished[0]:
                self.state.replay.apply(record.event)
        self.window = _window(trace)
        self.readings = self._readings()
        if not self.readings:
            raise TraceError(
                f"the trace does not tell the block table of step {step}: record from before the requests are added"
            )
        self.shape = ModelShape.of(trace.settings)
        told = trace.settings.get("attention_processors")
        self.is_torch = not isinstance(told, int)  # attention was not computed by a kernel that divides its work
        self.processors = processors or (told if isinstance(told, int) else PROCESSORS)
        self.divisions = self._divide()

    @property
    def num_unknown(self) -> int:
        """Rows with queries whose block table the trace does not tell."""
        starts = self.inputs.query_start_loc
        return sum(a < b for a, b in pairwise(starts)) - len(self.readings)

    @property
    def num_keys(self) -> int:
        """Keys that are read in the step; one that two rows share counts twice."""
        return sum(reading.num_keys for reading in self.readings)

    @property
    def num_queries(self) -> int:
        return sum(reading.query_len for reading in self.readings)

    def sharers(self, reading: Reading, block: int) -> list[str]:
        """Return the other requests of the step that read a block."""
        return [other.request_id for other in self.readings if other.row != reading.row and block in other.blocks]

    def _find_forward(self) -> tuple[int, Record]:
        for index, record, _ in self.trace.in_step(self.step, ForwardFinished):
            return index, record
        raise TraceError(f"step {self.step} has no forward pass: nothing attends in it")

    def _find_inputs(self) -> tuple[tuple[int, Record], InputsPrepared]:
        for index, record, inputs in self.trace.in_step(self.step, InputsPrepared):
            if inputs.positions:
                return (index, record), inputs
        raise TraceError(f"nothing runs in step {self.step}: no query attends")

    def _find_slots(self) -> tuple[tuple[int, Record], SlotsComputed]:
        for index, record, slots in self.trace.in_step(self.step, SlotsComputed):
            if slots.group == GROUP:
                return (index, record), slots
        raise TraceError(f"step {self.step} computes no slots: nothing says where its keys lie")

    def _readings(self) -> list[Reading]:
        """Return what each row reads; rows whose blocks are not known, or not where the slots are, are left out."""
        found = []
        inputs, size = self.inputs, self.slots.block_size
        for row, request_id in enumerate(inputs.request_ids):
            start, stop = inputs.query_start_loc[row : row + 2]
            if start == stop:
                continue
            live = self.table.rows.get(row, TableRow()).live
            reading = Reading(row, request_id, stop - start, inputs.seq_lens[row], size, live, self.window)
            if len(live) < reading.columns.stop:
                continue
            last = reading.seq_len - 1
            if live[last // size] * size + last % size == self.slots.slot_mapping[stop - 1]:
                found.append(reading)
        return found

    def _divide(self) -> dict[int, Division]:
        if self.shape is None or self.shape.itemsize > 4:
            return {}
        divisions = divide(
            [reading.query_len for reading in self.readings],
            [reading.seq_len for reading in self.readings],
            self.shape,
            self.processors,
            self.window,
        )
        return {reading.row: division for reading, division in zip(self.readings, divisions, strict=True)}


def _window(trace: Trace) -> int:
    """Return the sliding window of the group that is shown, 0 if it has none."""
    window = group_settings(trace).get("window")
    return window if isinstance(window, int) and window > 0 else 0


def _refuse_ranks(trace: Trace) -> None:
    """Raise `TraceError` for a trace that holds a part of each request's keys."""
    facts = group_settings(trace).get("context_parallel")
    world_size = facts.get("world_size") if isinstance(facts, dict) else 1
    if isinstance(world_size, int) and world_size > 1:
        raise TraceError(
            f"this is one rank of {world_size}: it has a part of each request's keys. Show all ranks with "
            "scenes.context_parallel"
        )
