"""The state of the engine at any record of a trace, rebuilt from the events alone.

>>> from pagedlab.events import RequestAdded, RowAdded
>>> state = Replay()
>>> state.apply(RequestAdded("A", (84, 111), max_tokens=4))
>>> state.apply(RowAdded(0, "A", num_tokens=2, num_computed_tokens=0, block_ids=((3,),)))
>>> state.rows[0].request_id, state.rows[0].live_tokens, state.rows[0].block_ids
('A', (84, 111), (3,))

What memory really holds is kept, stale parts too: a removed row keeps its tokens, a moved one leaves a copy behind.
A trace may begin in the middle: what the events do not tell is None.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pagedlab.events import (
    BatchUpdated,
    BeatStarted,
    BlocksAllocated,
    BlocksAppended,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestAborted,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    SlotsComputed,
    StepFinished,
    StepStarted,
    TokenAccepted,
    TokenAppended,
)
from pagedlab.trace import Record, Trace

GROUP = 0
"""The KV cache group whose blocks a scene shows."""

NULL_BLOCK = 0

PAD_SLOT = -1
"""The slot of a token that is not written: another rank keeps it, or there is none."""

B = TypeVar("B")


def group_settings(trace: Trace) -> dict[str, Any]:
    """Return what a trace's settings tell of the group that is shown; nothing if they do not."""
    groups = trace.settings.get("kv_cache_groups")
    known = isinstance(groups, Sequence) and len(groups) > GROUP and isinstance(groups[GROUP], dict)
    return groups[GROUP] if known and groups is not None else {}


def after_free(held: Iterable[B], gone: Iterable[B], null: B) -> list[B]:
    """Return a request's blocks when some are given back.

    Blocks behind a sliding window leave ``null`` in their place; a request that ends leaves nothing.

    >>> after_free([4, 7, 2], [4], NULL_BLOCK), after_free([0, 7, 2], [2, 7], NULL_BLOCK)
    ([0, 7, 2], [])
    """
    freed = set(gone)
    left = [null if block in freed else block for block in held]
    return left if any(block != null for block in left) else []


@dataclass
class RequestState:
    """What the scheduler knows of a request."""

    request_id: str
    index: int
    prompt: list[int | None] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    max_tokens: int | None = None
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_scheduled_tokens: int = 0
    finish_reason: str | None = None
    preempted: bool = False

    @property
    def tokens(self) -> list[int | None]:
        return [*self.prompt, *self.output]


@dataclass
class RowState:
    """One row of the persistent batch, as it lies in memory.

    ``memory`` holds ``(token id, request id)`` for each column ever written; the first ``num_tokens`` are live.
    ``request_id`` is None for a hole.
    """

    request_id: str | None = None
    num_tokens: int = 0
    memory: list[tuple[int | None, str]] = field(default_factory=list)
    block_ids: tuple[int, ...] = ()

    @property
    def live_tokens(self) -> tuple[int | None, ...]:
        return tuple(token for token, _ in self.memory[: self.num_tokens])

    def write(self, start: int, tokens: Iterable[int | None], request_id: str) -> None:
        values = [(token, request_id) for token in tokens]
        self.memory.extend([(None, request_id)] * (start - len(self.memory)))
        self.memory[start : start + len(values)] = values


class Replay:
    """Queues, rows, blocks and the KV cache; `apply` takes events in order."""

    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self.requests: dict[str, RequestState] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.rows: dict[int, RowState] = {}
        self.req_id_to_index: dict[str, int] = {}
        self.holders: dict[int, list[str]] = {}  # who holds a block; several, if it was hit in the prefix cache
        self.cached: set[int] = set()  # blocks with a hash: they can be hit
        self.kv: dict[int, tuple[int | None, str, int]] = {}  # slot: token id, request id, position
        self.outdated: set[int] = set()  # slots of blocks that changed hands: what they hold is not the holder's
        self.num_free_blocks: int | None = None
        self.step = -1
        self.beat: str | None = None
        self.budget_left: int | None = None
        self.scheduled: list[RequestScheduled] = []
        self.preempted: list[str] = []  # in this step
        self.inputs: InputsPrepared | None = None
        self.slots: SlotsComputed | None = None
        self.holes: list[int] = []
        self.moves: list[tuple[int, int, str]] = []
        self.added: list[int] = []
        self.update: BatchUpdated | None = None

    @classmethod
    def of(cls, happened: Iterable[Event | Record], block_size: int = 16) -> Replay:
        """Return the state after these events or records."""
        replay = cls(block_size)
        for item in happened:
            replay.apply(item.event if isinstance(item, Record) else item)
        return replay

    def request(self, request_id: str) -> RequestState:
        """Return the state of a request; one that the trace never saw arrive is begun empty."""
        if request_id not in self.requests:
            self.requests[request_id] = RequestState(request_id, len(self.requests))
        return self.requests[request_id]

    @property
    def num_rows(self) -> int:
        """Rows from 0 to the highest live one."""
        return max(self.req_id_to_index.values(), default=-1) + 1

    def apply(self, event: Event) -> None:
        """Take one event."""
        match event:
            case RequestAdded():
                request = self.request(event.request_id)
                # An id may be used again once its request is gone: it starts anew, its colour stays.
                request.prompt, request.output = list(event.prompt_token_ids), []
                request.max_tokens, request.num_computed_tokens = event.max_tokens, 0
                request.finish_reason, request.preempted = None, False
                self.waiting.append(event.request_id)
            case StepStarted():
                self._start_step(event)
            case BeatStarted():
                self.beat = event.beat
            case StepFinished():
                self.running, self.waiting = list(event.running), list(event.waiting)
                self.num_free_blocks, self.beat = event.num_free_blocks, None
            case RequestScheduled():
                self._schedule(event)
            case RequestPreempted():
                request = self.request(event.request_id)
                request.num_computed_tokens, request.num_scheduled_tokens, request.preempted = 0, 0, True
                self.preempted.append(event.request_id)
                for granted in [granted for granted in self.scheduled if granted.request_id == event.request_id]:
                    self.scheduled.remove(granted)
                    self.budget_left = (self.budget_left or 0) + granted.num_scheduled_tokens
                self._leave(event.request_id)
                self.waiting.insert(0, event.request_id)
            case RequestAborted():
                self._leave(event.request_id)
            case TokenAccepted():
                request = self.request(event.request_id)
                missing = event.position - len(request.tokens)
                request.prompt.extend([None] * missing)
                request.output.append(event.token_id)
            case RequestFinished():
                self.request(event.request_id).finish_reason = event.reason
                self._leave(event.request_id)
            case BlocksAllocated() | BlocksTouched():
                self._hold(event)
            case BlocksCached() if event.group == GROUP:
                self.cached.update(event.block_ids)
            case BlocksEvicted():
                self.cached.difference_update(event.block_ids)
            case BlocksFreed():
                self._free(event)
            case RowAdded() | RowRemoved() | RowMoved() | RowsSwapped() | BlocksAppended() | TokenAppended():
                self._apply_to_rows(event)
            case BatchUpdated():
                self.update = event
            case InputsPrepared():
                self.inputs = event
                for row, request_id in enumerate(event.request_ids):
                    self._learn_tokens(event, row, request_id)
            case SlotsComputed() if event.group == GROUP:
                self.slots = event
            case ForwardFinished():
                self._write_kv()
            case _:
                pass

    # --- the scheduler's side -----------------------------------------------------------------------------

    def _start_step(self, event: StepStarted) -> None:
        self.step, self.beat = event.index, None
        self.scheduled, self.preempted, self.budget_left = [], [], None
        self.inputs, self.slots = None, None
        self.holes, self.moves, self.added, self.update = [], [], [], None
        for request in self.requests.values():
            request.num_scheduled_tokens = 0

    def _schedule(self, event: RequestScheduled) -> None:
        request = self.request(event.request_id)
        request.num_scheduled_tokens = event.num_scheduled_tokens
        request.num_computed_tokens = event.num_computed_tokens + event.num_scheduled_tokens
        request.preempted = False
        request.prompt.extend([None] * (event.num_tokens - len(request.tokens)))
        self.scheduled.append(event)
        self.budget_left = event.budget_left
        if event.request_id in self.waiting:
            self.waiting.remove(event.request_id)
        if event.request_id not in self.running:
            self.running.append(event.request_id)

    def _leave(self, request_id: str) -> None:
        for queue in (self.waiting, self.running):
            if request_id in queue:
                queue.remove(request_id)

    @property
    def block_owner(self) -> dict[int, str]:
        """For each block in use, who holds it; of several, the first."""
        return {block: holders[0] for block, holders in self.holders.items()}

    def holds_token(self, block: int, offset: int) -> bool:
        """Whether the K and V at this offset of the block are those of a token that a holder has computed."""
        if block * self.block_size + offset in self.outdated:
            return False
        for request_id in self.holders.get(block, ()):
            request = self.request(request_id)
            if block in request.block_ids:
                column = request.block_ids.index(block)
                if column * self.block_size + offset < request.num_computed_tokens:
                    return True
        return False

    def _hold(self, event: BlocksAllocated | BlocksTouched) -> None:
        self.num_free_blocks = event.num_free
        if event.group == GROUP:
            self.request(event.request_id).block_ids.extend(event.block_ids)
            for block in event.block_ids:
                self.holders.setdefault(block, []).append(event.request_id)
                if isinstance(event, BlocksAllocated):
                    self.outdated.update(range(block * self.block_size, (block + 1) * self.block_size))

    def _free(self, event: BlocksFreed) -> None:
        self.num_free_blocks = event.num_free
        if event.group != GROUP:
            return
        request = self.request(event.request_id)
        request.block_ids = after_free(request.block_ids, event.block_ids, NULL_BLOCK)
        for block in set(event.block_ids):
            holders = self.holders.get(block, [])
            if event.request_id in holders:
                holders.remove(event.request_id)
            if not holders:
                self.holders.pop(block, None)

    # --- the batch's side ---------------------------------------------------------------------------------

    def _row(self, row: int) -> RowState:
        return self.rows.setdefault(row, RowState())

    def _apply_to_rows(
        self, event: RowAdded | RowRemoved | RowMoved | RowsSwapped | BlocksAppended | TokenAppended
    ) -> None:
        match event:
            case RowAdded():
                row = self._row(event.row)
                tokens = self.request(event.request_id).tokens[: event.num_tokens]
                tokens += [None] * (event.num_tokens - len(tokens))
                row.write(0, tokens, event.request_id)
                row.request_id, row.num_tokens = event.request_id, event.num_tokens
                row.block_ids = event.block_ids[GROUP] if event.block_ids else ()
                self.req_id_to_index[event.request_id] = event.row
                self._fill_hole(event.row)
                self.added.append(event.row)
            case RowRemoved():
                row = self._row(event.row)
                row.request_id, row.num_tokens, row.block_ids = None, 0, ()
                self.req_id_to_index.pop(event.request_id, None)
                self.holes.append(event.row)
            case RowMoved():
                source, target = self._row(event.source), self._row(event.target)
                target.request_id, target.num_tokens = event.request_id, event.num_tokens
                target.memory[: event.num_tokens] = source.memory[: event.num_tokens]
                target.block_ids = source.block_ids
                source.request_id, source.num_tokens, source.block_ids = None, 0, ()
                self.req_id_to_index[event.request_id] = event.target
                self._fill_hole(event.target)
                self.moves.append((event.source, event.target, "move"))
            case RowsSwapped():
                self.rows[event.first], self.rows[event.second] = self._row(event.second), self._row(event.first)
                self.req_id_to_index[event.first_request_id] = event.second
                self.req_id_to_index[event.second_request_id] = event.first
                self.moves.append((event.first, event.second, "swap"))
            case BlocksAppended():
                if event.group == GROUP:
                    self._row(event.row).block_ids += event.block_ids
            case TokenAppended():
                row = self._row(event.row)
                row.write(row.num_tokens, [event.token_id], event.request_id)
                row.request_id, row.num_tokens = event.request_id, row.num_tokens + 1

    def _fill_hole(self, row: int) -> None:
        if row in self.holes:
            self.holes.remove(row)

    def _learn_tokens(self, event: InputsPrepared, row: int, request_id: str) -> None:
        """Fill in tokens that the trace has not told: the recorder may have come late."""
        request = self.request(request_id)
        for at in range(event.query_start_loc[row], event.query_start_loc[row + 1]):
            position = event.positions[at]
            if position < len(request.prompt) and request.prompt[position] is None:
                request.prompt[position] = event.input_ids[at]

    # --- memory -------------------------------------------------------------------------------------------

    def _write_kv(self) -> None:
        if self.inputs is None or self.slots is None:
            return
        inputs = self.inputs
        for row, request_id in enumerate(inputs.request_ids):
            for at in range(inputs.query_start_loc[row], inputs.query_start_loc[row + 1]):
                slot = self.slots.slot_mapping[at]
                if slot >= 0:
                    self.kv[slot] = (inputs.input_ids[at], request_id, inputs.positions[at])
                    self.outdated.discard(slot)
