"""What is under way in one step of the engine: the state that the bands of the scene `step` draw.

`StepState` holds a `Replay` and what a trace does not say: where each request's tokens of this step are (budget, row,
flat batch, KV cache) and where the sampled tokens are. It has run ahead to the end of the step, so that the layout
can be decided once, for all frames: nothing shifts but what moves. What does not fit is left out and counted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagedlab.events import (
    BlocksAllocated,
    BlocksFreed,
    BlocksTouched,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    SlotsComputed,
    StepFinished,
    TokenSampled,
)
from pagedlab.scenes.marks import Gap, choose, elide, share
from pagedlab.scenes.replay import GROUP, Replay
from pagedlab.scenes.words import TokenLabels
from pagedlab.trace import Trace

WIDTH = 584
BAND_X, BAND_W = 6, 572
LEFT, RIGHT = 88, 572  # where queues, budget and flat batch lie
HEAD = 24
CELL_H = 24
MAX_ROWS = 6


class StepState:
    """The engine as a `Replay` knows it, and the tokens that travel.

    Parameters
    ----------
    trace : Trace
    step : int

    Attributes
    ----------
    replay, end : Replay
        The engine now, and at the end of the step.
    grants : dict of str to range
        The positions that each request computes in this step.
    plan : dict of str to list of (int or Gap)
        Which of them are drawn, for the budget and the flat batch alike.
    places : dict of str to str
        Where a request's tokens of this step are: ``bar``, ``row``, ``flat``, ``kv``.
    sample_places : dict of str to str
        Where its sampled token is: ``flat``, ``row``, ``chip``.
    """

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.step = step
        self.first = next(index for index, record in enumerate(trace.records) if record.step == step)
        self.records = [(index, record) for index, record in enumerate(trace.records) if record.step == step]
        self.block_size = int(trace.settings.get("block_size") or _block_size_seen(trace))
        self.replay = Replay.of(trace.records[: self.first], self.block_size)
        self.end = Replay.of(trace.records[: self.first], self.block_size)
        self.running_before = tuple(self.replay.running)
        self.places: dict[str, str] = {}
        self.sampled: dict[str, TokenSampled] = {}
        self.sample_places: dict[str, str] = {}
        self.has_inputs = self.has_slots = False
        self.targets: set[int] = set()
        self.grants: dict[str, range] = {}
        self.used_blocks: list[int] = []
        self._run_ahead()
        self._plan_tokens()

    def _run_ahead(self) -> None:
        """Run ``end`` through the step, and note all that will be on the stage."""
        end, tokens, touched_rows = self.end, set[int | None](), set[int]()
        admitted, left_waiting = list[str](), list[str]()
        self.queues: list[list[str]] = [self.replay.waiting, self.replay.running]
        num_rows = end.num_rows
        for _, record in self.records:
            end.apply(record.event)
            num_rows = max(num_rows, end.num_rows, max(end.holes, default=-1) + 1)
            match record.event:
                case RequestScheduled() as event:
                    start = event.num_computed_tokens
                    self.grants[event.request_id] = range(start, start + event.num_scheduled_tokens)
                    admitted += [event.request_id] if event.status != "running" else []
                case RequestPreempted(request_id=request_id):
                    self.grants.pop(request_id, None)
                case RowAdded(row=row) | RowRemoved(row=row):
                    touched_rows.add(row)
                case RowMoved(source=a, target=b) | RowsSwapped(first=a, second=b):
                    touched_rows |= {a, b}
                case (
                    BlocksAllocated(block_ids=ids, group=group)
                    | BlocksTouched(block_ids=ids, group=group)
                    | BlocksFreed(block_ids=ids, group=group)
                ):
                    self.used_blocks += ids if group == GROUP else ()
                case SlotsComputed(slot_mapping=slots, block_size=size, group=group) if group == GROUP:
                    self.used_blocks += [slot // size for slot in slots if slot >= 0]
                case TokenSampled(token_id=token):
                    tokens.add(token)
                case StepFinished(waiting=waiting):
                    left_waiting = list(waiting)
                case _:
                    pass
            self.queues += [list(end.waiting), list(end.running)]
        self._waiting_order = {request_id: at for at, request_id in enumerate((*admitted, *left_waiting))}
        # Several records of a step may add a request: rows are counted from those that ever lived in it.
        self.rows = choose(num_rows, touched_rows, MAX_ROWS)
        for state in end.rows.values():
            tokens.update(token for token, _ in state.memory)
        for request in end.requests.values():
            tokens.update(request.tokens)
        self.labels = TokenLabels(self.trace.vocabulary)
        self.cell_w = max(22, self.labels.width(tokens))

    def _plan_tokens(self) -> None:
        """Choose which of this step's tokens are drawn."""
        width = RIGHT - LEFT
        room = int(width // self.cell_w)
        self.budget_cells = self.budget is not None and self.budget <= room
        room = room if self.budget_cells else int((width - 92) // self.cell_w)
        visible = {self.end.rows[row].request_id for row in self.rows if isinstance(row, int) and row in self.end.rows}
        shown = [request_id for request_id in self.grants if request_id in visible][:MAX_ROWS]
        shown = shown or list(self.grants)[:MAX_ROWS]
        # A request that is drawn needs three cells: a gap, and the last token, which gives the next one.
        need = [min(len(self.grants[request_id]), 3) for request_id in shown]
        while len(need) > 1 and sum(need) > room - (3 if len(need) < len(self.grants) else 0):
            need.pop()
        shown = shown[: len(need)]
        self.left_out = [request_id for request_id in self.grants if request_id not in shown]
        room -= 3 if self.left_out else 0
        counts = [len(self.grants[request_id]) for request_id in shown]
        self.plan: dict[str, list[int | Gap]] = {}
        for request_id, granted in zip(shown, share(counts, room), strict=True):
            window = self.grants[request_id]
            items = elide(len(window), max(granted, 2)) if len(window) > 1 else [0]
            self.plan[request_id] = [
                Gap(item.start + window.start, item.stop + window.start)
                if isinstance(item, Gap)
                else item + window.start
                for item in items
            ]

    # --- what the settings say ----------------------------------------------------------------------------------

    @property
    def budget(self) -> int | None:
        """The token budget of a step; None if the trace does not tell it."""
        budget = self.trace.settings.get("max_num_batched_tokens")
        return budget if isinstance(budget, int) else None

    @property
    def seats(self) -> int | None:
        """How many requests may run at once; None if the trace does not tell it."""
        seats = self.trace.settings.get("max_num_seqs")
        return seats if isinstance(seats, int) else None

    # --- what is so now -----------------------------------------------------------------------------------------

    @property
    def forward_is_over(self) -> bool:
        """Whether the forward pass of this step has been."""
        return "kv" in self.places.values() or bool(self.sampled)

    @property
    def num_free_blocks(self) -> int | None:
        """The free blocks now; before anything told their number, counted back from the first event that does."""
        if self.replay.num_free_blocks is not None:
            return self.replay.num_free_blocks
        for record in self.trace:
            match record.event:
                case BlocksAllocated(num_free=free, block_ids=ids):
                    return free + len(ids)
                case BlocksFreed(num_free=free, block_ids=ids):
                    return free - len(ids)
                case _:
                    pass
        return None

    @property
    def waiting(self) -> list[str]:
        """The waiting queue, next first.

        A trace tells no priorities, but the step does: it admits in order, and its end names who is left, in order.
        """
        return sorted(self.replay.waiting, key=lambda item: self._waiting_order.get(item, len(self._waiting_order)))

    @property
    def bar_order(self) -> list[str]:
        """The requests as they stand in the budget."""
        return [event.request_id for event in self.replay.scheduled]

    @property
    def flat_order(self) -> list[str]:
        """The requests as they stand in the flat batch."""
        return list(self.replay.inputs.request_ids) if self.replay.inputs else []

    def line(self, order: Sequence[str]) -> tuple[Mapping[tuple[str, int], float], float]:
        """Return where in a line of cells each planned item begins, by request and first position; and its end."""
        xs: dict[tuple[str, int], float] = {}
        x = float(LEFT)
        for request_id in order:
            for item in self.plan.get(request_id, ()):
                xs[request_id, first_of(item)] = x
                x += self.cell_w * width_of(item)
        return xs, x


def first_of(item: int | Gap) -> int:
    """Return the position of a token, or the first one of a gap."""
    return item.start if isinstance(item, Gap) else item


def width_of(item: int | Gap) -> int:
    """Return how many cells a token or a gap is wide."""
    return 2 if isinstance(item, Gap) else 1


def _block_size_seen(trace: Trace) -> int:
    return next((record.event.block_size for record in trace if isinstance(record.event, SlotsComputed)), 16)
