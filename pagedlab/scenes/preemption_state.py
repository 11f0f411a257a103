"""Who runs, who waits and who holds which blocks at any record of a trace; and how much work preemption has undone.

>>> from pagedlab.events import ForwardFinished, RequestAdded, RequestPreempted, RequestScheduled, StepFinished
>>> from pagedlab.trace import Trace
>>> state = QueueState(Trace(()))
>>> for event in [
...     RequestAdded("A", (5, 6, 7), max_tokens=4),
...     StepStarted(0),
...     RequestScheduled("A", "new", 3, num_computed_tokens=0, num_tokens=3, budget_left=0),
...     ForwardFinished(3, 1, 0.1),
...     StepFinished(0, ("A",), (), num_free_blocks=0),
...     StepStarted(1),
...     RequestPreempted("A", num_computed_tokens=3),
...     StepFinished(1, (), ("A",), num_free_blocks=1),
...     StepStarted(2),
...     RequestScheduled("A", "resumed", 3, num_computed_tokens=0, num_tokens=3, budget_left=0),
...     ForwardFinished(3, 1, 0.1),
... ]:
...     state.apply(event)
>>> state.num_computed_tokens, state.num_again  # six tokens were computed, three of them for the second time
(6, 3)

The state is the engine's own at the moment of each event. So a request that is being preempted is, for a moment, in no
queue: it has left the running list, its blocks are free, and only then does it join the waiting queue, with nothing
computed.

vLLM counterpart of what is replayed: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler._preempt_request``) at 0.25.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedlab.events import (
    BeatStarted,
    BlocksAllocated,
    BlocksAppended,
    BlocksFreed,
    BlocksTouched,
    Event,
    ForwardFinished,
    RequestAdded,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    StepFinished,
    StepStarted,
    TokenAccepted,
)
from pagedlab.scenes.block_pool_state import PoolReplay, replay_of
from pagedlab.scenes.preemption_queues import Queues
from pagedlab.scenes.replay import GROUP, NULL_BLOCK, after_free
from pagedlab.trace import Trace


@dataclass
class Held:
    """What the scheduler, and the worker, know of a request.

    Attributes
    ----------
    num_prompt : int
        Tokens of the prompt; 0 if the trace never saw it arrive.
    num_tokens, num_computed : int
        All that it holds, prompt and output; and those that the scheduler counts as computed: this step's too, as soon
        as it has shared out the budget.
    start, granted : int
        Where this step's tokens begin, and how many they are.
    reached : int
        The most tokens that were ever computed at once: what lies below is computed again, if it is computed.
    num_lost : int
        What was computed when it was preempted last.
    blocks : list of int
        Its blocks in their order; 0 for those that fell out of a window.
    worker_blocks : tuple of int
        What the worker's own state says: the blocks of the last time it ran. A resumed request's are replaced.
    """

    request_id: str
    num_prompt: int = 0
    num_tokens: int = 0
    num_computed: int = 0
    start: int = 0
    granted: int = 0
    reached: int = 0
    num_lost: int = 0
    num_preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    worker_blocks: tuple[int, ...] = ()

    @property
    def has_caught_up(self) -> bool:
        """Whether everything is computed again that it lost when it was preempted last."""
        return self.start + self.granted >= self.num_lost


@dataclass(frozen=True, slots=True)
class Loss:
    """One preemption: who lost how many computed tokens."""

    request_id: str
    num_tokens: int


class QueueState(Queues):
    """Queues, blocks and the account of work; `apply` takes events in order.

    Parameters
    ----------
    trace : Trace

    Attributes
    ----------
    preempted : list of str
        Those of this step.
    losses : list of Loss
        All preemptions so far.
    num_computed_tokens, num_again : int
        Tokens that forward passes have computed; and those of them that had been computed before.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.trace = trace
        size = trace.settings.get("block_size")
        self.block_size = size if isinstance(size, int) else 16
        self.pool: PoolReplay = replay_of(trace)
        self.requests: dict[str, Held] = {}
        self.preempted: list[str] = []
        self.losses: list[Loss] = []
        self.num_computed_tokens = 0
        self.num_again = 0
        self.budget_left: int | None = None
        self.forward_is_over = False
        self.step = -1
        self._is_promised = False
        self._resumed: list[str] = []

    def request(self, request_id: str) -> Held:
        """Return the state of a request; one that the trace never saw arrive is begun empty."""
        return self.requests.setdefault(request_id, Held(request_id))

    # --- what happens -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish a preemption: the request joins the waiting queue, and nothing of it is computed."""
        if self.leaving is not None:
            self.request(self.leaving).num_computed = 0
        super().settle()

    def begin_anew(self) -> None:
        super().begin_anew()
        for request in self.requests.values():
            request.num_computed, request.blocks = 0, []

    def apply(self, event: Event) -> None:
        """Take one event."""
        super().apply(event)
        match event:
            case StepStarted():
                self._start_step(event)
            case BeatStarted(beat=beat) if beat != "schedule":
                self._promise()
            case StepFinished():
                self._compute()
            case RequestAdded():
                length = len(event.prompt_token_ids)
                self.requests[event.request_id] = Held(event.request_id, num_prompt=length, num_tokens=length)
            case RequestScheduled():
                self._schedule(event)
            case RequestPreempted():
                self._preempt(event)
            case TokenAccepted():
                self.request(event.request_id).num_tokens = event.position + 1
            case BlocksAllocated() | BlocksTouched():
                if event.group == GROUP:
                    self.request(event.request_id).blocks.extend(event.block_ids)
            case BlocksFreed():
                self._free(event)
            case RowAdded():
                self._add_row(event)
            case BlocksAppended():
                if event.group == GROUP:
                    self.request(event.request_id).worker_blocks += event.block_ids
            case ForwardFinished():
                self._compute()
            case _:
                pass
        self.pool.apply(event)

    def _start_step(self, event: StepStarted) -> None:
        for request in self.requests.values():
            request.granted = 0
        self.preempted, self._resumed, self.budget_left, self.forward_is_over = [], [], None, False
        self._is_promised, self.step = False, event.index

    def _schedule(self, event: RequestScheduled) -> None:
        request = self.request(event.request_id)
        request.num_tokens, request.granted = event.num_tokens, event.num_scheduled_tokens
        request.num_computed = request.start = event.num_computed_tokens
        if request.reached == 0 and event.status == "running":
            request.reached = event.num_computed_tokens  # computed before the recording began
        self.budget_left = event.budget_left
        if event.status == "resumed":
            self._resumed.append(event.request_id)

    def _promise(self) -> None:
        """Count what was granted as computed, as the scheduler does when it is done."""
        if not self._is_promised:
            for request in self.requests.values():
                request.num_computed += request.granted
        self._is_promised = True

    def _compute(self) -> None:
        """Add this step's tokens to the account: at the forward pass, or without a model at the step's end."""
        if self.forward_is_over:
            return
        for request in self.requests.values():
            if request.granted:
                end = request.start + request.granted
                self.num_computed_tokens += request.granted
                self.num_again += max(0, min(request.reached, end) - request.start)
                request.reached = max(request.reached, end)
        self.forward_is_over = True

    def _preempt(self, event: RequestPreempted) -> None:
        request = self.request(event.request_id)
        request.num_lost = event.num_computed_tokens
        request.num_preemptions += 1
        if request.granted and self.budget_left is not None:
            self.budget_left += request.granted  # by priority, it may have been granted tokens in this very step
        request.granted = 0
        self.losses.append(Loss(event.request_id, event.num_computed_tokens))
        self.preempted.append(event.request_id)

    def _add_row(self, event: RowAdded) -> None:
        request = self.request(event.request_id)
        request.worker_blocks = event.block_ids[GROUP] if event.block_ids else ()
        for request_id in self._resumed:  # rows are added when the worker has replaced the ids of all who resume
            self.request(request_id).worker_blocks = tuple(self.request(request_id).blocks)

    def _free(self, event: BlocksFreed) -> None:
        if event.group == GROUP:
            request = self.request(event.request_id)
            request.blocks = after_free(request.blocks, event.block_ids, NULL_BLOCK)
