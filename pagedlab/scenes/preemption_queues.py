"""The running list and the waiting queue at any record of a trace, in their order.

>>> from pagedlab.events import RequestAdded, RequestPreempted, RequestScheduled, StepStarted
>>> from pagedlab.trace import Trace
>>> queues = Queues(Trace(()))
>>> for event in [
...     RequestAdded("A", (5,), max_tokens=4),
...     RequestScheduled("A", "new", 1, num_computed_tokens=0, num_tokens=1, budget_left=0),
...     RequestPreempted("A", num_computed_tokens=1),
... ]:
...     queues.apply(event)
>>> queues.running, queues.waiting, queues.leaving  # it has left the list, and not joined the queue
([], [], 'A')
>>> queues.apply(StepStarted(1))
>>> queues.waiting
['A']

The queues are the engine's own at the moment of each event. A request that is being preempted is in neither while its
blocks are freed. A trace tells no priorities, but each step does: it admits in order, and its end names who is left.

vLLM counterpart of what is replayed: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.running``, ``.waiting``) at
0.25.1.
"""

from __future__ import annotations

from pagedlab.events import (
    BlocksFreed,
    Event,
    RequestAborted,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    StepStarted,
)
from pagedlab.trace import Trace


class Queues:
    """Who runs and who waits; `apply` takes events in order.

    Parameters
    ----------
    trace : Trace
        Looked through once, for the order of a priority queue.

    Attributes
    ----------
    running, waiting : list of str
    leaving : str or None
        Who is being preempted right now: in neither.
    by_priority : bool
    """

    def __init__(self, trace: Trace) -> None:
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.leaving: str | None = None
        self.by_priority = trace.settings.get("policy") == "priority"
        self._orders = _orders(trace) if self.by_priority else []
        self._num_steps = 0  # finished ones
        self._in_step = False

    def apply(self, event: Event) -> None:
        """Take one event."""
        if not (isinstance(event, BlocksFreed) and event.request_id == self.leaving):
            self.settle()
        match event:
            case StepStarted():
                if self._in_step:  # the step before failed, and was taken back: everybody begins anew
                    self.begin_anew()
                self._in_step = True
            case StepFinished(running=running, waiting=waiting):
                self.running, self.waiting, self._in_step = list(running), list(waiting), False
                self._num_steps += 1
            case RequestAdded(request_id=request_id):
                self.waiting.append(request_id)
                self._sort_waiting()
            case RequestScheduled(request_id=request_id):
                if request_id in self.waiting:
                    self.waiting.remove(request_id)
                if request_id not in self.running:
                    self.running.append(request_id)
            case RequestPreempted(request_id=request_id):
                self._leave(request_id)
                self.leaving = request_id
            case RequestFinished(request_id=request_id) | RequestAborted(request_id=request_id):
                self._leave(request_id)
            case _:
                pass

    def settle(self) -> None:
        """Finish a preemption: who was leaving joins the waiting queue."""
        if self.leaving is not None:
            self.waiting.insert(0, self.leaving)
            self.leaving = None
            self._sort_waiting()

    def begin_anew(self) -> None:
        """Let everybody wait: those who ran first."""
        self.waiting, self.running = [*self.running, *self.waiting], []
        self._sort_waiting()

    def _leave(self, request_id: str) -> None:
        for queue in (self.waiting, self.running):
            if request_id in queue:
                queue.remove(request_id)

    def _sort_waiting(self) -> None:
        if self.by_priority and self._num_steps < len(self._orders):
            place = self._orders[self._num_steps]
            self.waiting.sort(key=lambda request_id: place.get(request_id, len(place)))


def _orders(trace: Trace) -> list[dict[str, int]]:
    """Return, for each step that ends, the places of those whom it admits and then of those who are left."""
    orders: list[dict[str, int]] = []
    admitted: list[str] = []
    for record in trace:
        match record.event:
            case StepStarted():
                admitted = []
            case RequestScheduled(request_id=request_id, status="new" | "resumed"):
                admitted.append(request_id)
            case StepFinished(waiting=waiting):
                orders.append({request_id: at for at, request_id in enumerate(dict.fromkeys((*admitted, *waiting)))})
            case _:
                pass
    return orders
