"""What a trace says about time: who got how many tokens in which step, who waited, who left. For the scene `timeline`.

`Run` reads a trace once and gives its `Moment` s, in order; a moment becomes a frame.

>>> from pagedlab.events import RequestAdded, RequestScheduled, StepStarted
>>> from pagedlab.trace import Record, Trace
>>> events = [RequestAdded("A", (1, 2, 3), 4), StepStarted(0), RequestScheduled("A", "new", 3, 0, 3, 5)]
>>> run = Run(Trace.from_records([Record(0 if at else -1, None, event, None) for at, event in enumerate(events)]))
>>> [(moment.column, moment.change) for moment in run.moments][:2]
[(0, 'A arrives with a prompt of 3 tokens.'), (0, 'A gets 3 tokens.')]

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from pagedlab.errors import TraceError
from pagedlab.events import (
    BeatStarted,
    Event,
    RequestAborted,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    StepStarted,
)
from pagedlab.scenes import timeline_captions as captions
from pagedlab.scenes.admission import is_static
from pagedlab.scenes.replay import Replay
from pagedlab.trace import Record, Trace

_SHOWN = RequestAdded | RequestScheduled | RequestPreempted | RequestFinished | RequestAborted

END, ARRIVAL, SCHEDULE = 0, 1, 2
"""The order of things at one instant: a step ends, requests come, the next step shares out its budget."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Tokens that a request got in a step; of a prefill chunk or, by decoding, its newest one."""

    event: RequestScheduled
    is_prefill: bool

    @property
    def request_id(self) -> str:
        return self.event.request_id

    @property
    def num_tokens(self) -> int:
        return self.event.num_scheduled_tokens

    @property
    def is_cut(self) -> bool:
        """Whether the request had more to compute than it got."""
        return self.num_tokens < self.event.num_tokens - self.event.num_computed_tokens


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened, or several of a kind.

    Attributes
    ----------
    column : int
        The step, counted from the trace's first; for what happens between two steps, the later one.
    phase : int
        `END`, `ARRIVAL` or `SCHEDULE`.
    index : int
        Of the last record it includes.
    record : Record or None
        What caused it.
    seats : tuple of str or None
        Who has which seat after it; None for an idle one.
    kind : str or None
        The kind of its events; None if it only sets the scene.
    arrived, lost, ended : tuple of str
        Who came, who was preempted, who is gone.
    waiting : tuple of str
        Who waits, next first.
    lost_tokens : int
        How many computed tokens those that were preempted lost.
    """

    column: int
    phase: int
    index: int
    record: Record | None
    kind: str | None
    change: str
    detail: str
    seats: tuple[str | None, ...] = ()
    grants: tuple[Grant, ...] = ()
    arrived: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    lost_tokens: int = 0

    @property
    def who(self) -> tuple[str, ...]:
        """The requests it is about."""
        return (*(grant.request_id for grant in self.grants), *self.arrived, *self.lost, *self.ended)


@dataclass(slots=True)
class Column:
    """One step when the scheduler is done: grants in order, and who sits where (None: an idle seat)."""

    step: int
    grants: list[Grant]
    seats: list[str | None]
    lost: list[str]

    @property
    def num_tokens(self) -> int:
        return sum(grant.num_tokens for grant in self.grants)

    @property
    def idle(self) -> int:
        return self.seats.count(None)


class Run:
    """A trace as columns and moments.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    TraceError
        If no step of the trace has begun.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.budget = _number(trace.settings.get("max_num_batched_tokens"))
        self.num_seats = _number(trace.settings.get("max_num_seqs"))
        self.prompts: dict[str, int] = {}
        self.requests: list[str] = []
        self.columns: list[Column] = []
        self.moments: list[Moment] = []
        self._replay = Replay()
        self._seats: list[str | None] = [None] * (self.num_seats or 0)
        self._running_before: tuple[str, ...] = ()
        self._group: list[tuple[int, Record]] = []
        self._is_decided = True
        self._last_told = ""
        for index, record in enumerate(trace.records):
            self._take(index, record)
        self._flush()
        if not self.columns:
            raise TraceError("the trace has no steps, so there is no time to show: record while the engine runs")
        self._queue_lengths()

    def _queue_lengths(self) -> None:
        widest = max((len(column.seats) for column in self.columns), default=0)
        for column in self.columns:  # where the settings do not tell the seats, as many as were ever taken
            column.seats += [None] * (widest - len(column.seats))

    # --- what the whole run comes to --------------------------------------------------------------------------

    @property
    def is_static(self) -> bool:
        return is_static(self.trace.settings)

    @property
    def num_steps(self) -> int:
        return len(self.columns)

    @property
    def idle_seat_steps(self) -> int:
        """Seats that nobody had, summed over the steps."""
        return sum(column.idle for column in self.columns)

    @property
    def num_preemptions(self) -> int:
        return sum(len(column.lost) for column in self.columns)

    @property
    def num_tokens(self) -> int:
        return sum(column.num_tokens for column in self.columns)

    @property
    def num_ended(self) -> int:
        return sum(len(moment.ended) for moment in self.moments)

    # --- reading ----------------------------------------------------------------------------------------------

    def _take(self, index: int, record: Record) -> None:
        event = record.event
        if not self._is_decided and ends_scheduling(event):
            self._decided(index - 1)
        if self._group and isinstance(event, _SHOWN | StepStarted | StepFinished) and not self._goes_with(event):
            self._flush()
        match event:
            case RequestAdded():
                self.prompts[event.request_id] = len(event.prompt_token_ids)
                self._know(event.request_id)
                self._group.append((index, record))
            case StepStarted():
                self._running_before = tuple(self._replay.running)
                self._is_decided = False
                self.columns.append(Column(event.index, [], list(self._seats), []))
            case RequestScheduled() | RequestPreempted() | RequestFinished() | RequestAborted():
                self._know(event.request_id)
                self._group.append((index, record))
            case _:
                pass
        self._replay.apply(event)

    def _know(self, request_id: str) -> None:
        if request_id not in self.requests:
            self.requests.append(request_id)

    def _goes_with(self, event: Event) -> bool:
        """Whether an event shares a frame with those before it."""
        last = self._group[-1][1].event
        match event:
            case RequestAdded():
                return isinstance(last, RequestAdded)
            case RequestFinished() | RequestAborted():
                return isinstance(last, RequestFinished | RequestAborted)
            case RequestScheduled() if isinstance(last, RequestScheduled):
                return not self.grant(event).is_prefill and not self.grant(last).is_prefill
            case _:
                return False

    def grant(self, event: RequestScheduled) -> Grant:
        """Say whether tokens are of a prefill: the prompt is not computed yet, or more than the newest token is not."""
        todo = event.num_tokens - event.num_computed_tokens
        return Grant(event, todo > 1 or event.num_computed_tokens < self.prompts.get(event.request_id, 0))

    def _flush(self) -> None:
        group, self._group = self._group, []
        if not group:
            return
        index, record = group[-1]
        events = [item.event for _, item in group]
        if not self.columns and isinstance(record.event, RequestScheduled | RequestPreempted):
            return  # of a step that began before the recording
        column = max(0, len(self.columns) - 1)
        match record.event:
            case RequestAdded():
                self._arrive([event for event in events if isinstance(event, RequestAdded)], index, record)
            case RequestScheduled():
                grants = tuple(self.grant(event) for event in events if isinstance(event, RequestScheduled))
                for grant in grants:
                    self._seat(grant.request_id)
                if self.columns:
                    self.columns[-1].grants += grants
                    self.columns[-1].seats = list(self._seats)
                change, detail = captions.granted(grants, self.budget, is_chunked=self._is_chunked)
                self._add(column, SCHEDULE, index, record, change, detail, grants=grants)
            case RequestPreempted() as event:
                self._preempt(event, index, record)
            case _:
                self._end(events, index, record)

    @property
    def _is_chunked(self) -> bool:
        return self.trace.settings.get("enable_chunked_prefill") is not False

    def _add(
        self, column: int, phase: int, index: int, record: Record | None, change: str, detail: str,
        *, kind: str | None = "", grants: tuple[Grant, ...] = (), arrived: Iterable[str] = (),
        lost: tuple[str, ...] = (), ended: tuple[str, ...] = (), lost_tokens: int = 0,
    ) -> None:  # fmt: skip
        kind = record.event.kind if kind == "" and record else kind or None
        self.moments.append(
            Moment(
                column,
                phase,
                index,
                record,
                kind,
                change,
                detail,
                tuple(self._seats),
                grants,
                tuple(arrived),
                lost,
                ended,
                tuple(self._replay.waiting),
                lost_tokens,
            )
        )

    def _arrive(self, events: Sequence[RequestAdded], index: int, record: Record) -> None:
        inside = not self._is_decided  # while a step shares out: only an observer can do that
        change, detail = captions.arrived(events)
        column = len(self.columns) - (1 if inside else 0)
        self._add(column, ARRIVAL, index, record, change, detail, arrived=[event.request_id for event in events])

    def _seat(self, request_id: str) -> None:
        if request_id in self._seats:
            return
        if None in self._seats:
            self._seats[self._seats.index(None)] = request_id
        else:
            self._seats.append(request_id)

    def _unseat(self, request_id: str) -> None:
        if request_id in self._seats:
            self._seats[self._seats.index(request_id)] = None

    def _preempt(self, event: RequestPreempted, index: int, record: Record) -> None:
        column = max(0, len(self.columns) - 1)
        self._unseat(event.request_id)
        if self.columns:
            now = self.columns[-1]
            now.grants = [grant for grant in now.grants if grant.request_id != event.request_id]
            now.lost.append(event.request_id)
            now.seats = list(self._seats)
        change, detail = captions.preempted(
            event, self._needed_by(index), self.trace.settings.get("policy") == "priority"
        )
        self._add(
            column, SCHEDULE, index, record, change, detail,
            lost=(event.request_id,), lost_tokens=event.num_computed_tokens,
        )  # fmt: skip

    def _needed_by(self, index: int) -> str | None:
        """Return for whom somebody lost its blocks: who gets tokens next, or else the last that lost its own."""
        needed_by = None
        for record in islice(self.trace.records, index, None):
            match record.event:
                case RequestScheduled(request_id=request_id):
                    return request_id
                case RequestPreempted(request_id=request_id):
                    needed_by = request_id
                case event if ends_scheduling(event):
                    break
                case _:
                    pass
        return needed_by

    def _decided(self, index: int) -> None:
        """Close the scheduler's part of a step, and say who is left out and which seats stay idle, if that is news."""
        self._flush()
        self._is_decided = True
        column = self.columns[-1]
        change, detail, news = captions.decided(
            column.step, self.trace.settings, self._running_before, self._replay,
            column.idle if self.num_seats else 0,
            [grant.request_id for grant in column.grants],
        )  # fmt: skip
        if change and news != self._last_told:
            last = self.moments[-1].record if self.moments and column.grants else None
            self._add(len(self.columns) - 1, SCHEDULE, index, last, change, detail, kind=None)
        self._last_told = news

    def _end(self, events: Sequence[Event], index: int, record: Record) -> None:
        gone: dict[str, RequestFinished | RequestAborted] = {}
        for event in events:
            if isinstance(event, RequestFinished | RequestAborted):
                gone.setdefault(event.request_id, event)
                self._unseat(event.request_id)
        in_step = record.beat is not None
        running = [item for item in self._seats if item is not None]
        change, detail = captions.ended(list(gone.values()), running, self._replay.waiting, is_static=self.is_static)
        column = len(self.columns)
        self._add(column, END if in_step else ARRIVAL, index, record, change, detail, ended=tuple(gone))


def ends_scheduling(event: Event) -> bool:
    """Return whether the scheduler of a step is done when this happens."""
    return (isinstance(event, BeatStarted) and event.beat != "schedule") or isinstance(event, StepFinished)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
