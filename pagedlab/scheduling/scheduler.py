"""The scheduler: one token budget, two passes, first come first served.

>>> from pagedlab.config import SchedulerConfig
>>> from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
>>> from pagedlab.request import Request, SamplingParams
>>> config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4)
>>> manager = KVCacheManager([FullAttentionSpec(block_size=4)], num_blocks=9, max_model_len=32)
>>> scheduler = Scheduler(config, manager, max_model_len=32)
>>> for name, length in (("A", 3), ("B", 11)):
...     scheduler.add_request(Request(name, [1] * length, SamplingParams(max_tokens=4), arrival_time=0))
>>> scheduler.schedule().num_scheduled_tokens  # B is cut: chunked prefill
{'A': 3, 'B': 5}

There is no prefill phase and no decode phase. Each request has tokens that are not computed yet; a step gives
each of them some of the budget. A running request comes before a waiting one, and when blocks run out the
running request that came last is *preempted*: it loses its blocks, and will compute its tokens anew.

vLLM counterpart: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.schedule``, ``.update_from_output``) at
0.25.1. What differs: drafts and async scheduling are not here yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pagedlab.config import SchedulerConfig
from pagedlab.errors import DuplicateRequestError, IntegrityError
from pagedlab.events import Observer, RequestAborted, RequestFinished, RequestPreempted, RequestScheduled, TokenAccepted
from pagedlab.kvcache.manager import BlockIds, KVCacheManager
from pagedlab.request import Request, RequestStatus
from pagedlab.scheduling.output import CachedRequestData, NewRequestData, SchedulerOutput, StepResult
from pagedlab.scheduling.queues import FCFSQueue, PriorityQueue, WaitingQueue
from pagedlab.scheduling.steady import SteadyBatch


class Scheduler:
    """Decides, step by step, which requests run and how many tokens each computes.

    Parameters
    ----------
    config : SchedulerConfig
        Budget, seats, chunking.
    kv_cache_manager : KVCacheManager
        Where blocks come from.
    max_model_len : int
        A request ends when prompt and output reach this many tokens.
    fast_path : bool
        Whether steps in which everybody decodes are done in columns (`SteadyBatch`). What is decided is the same; an
        observer sees the plain path.
    keep_uncomputed_hashes : bool
        Do as vLLM 0.25.1 does when a request is preempted in the step that was to compute its blocks: leave their
        hashes, so that it or another may hit blocks that were never computed. For replaying its traces only.

    Raises
    ------
    ConfigError
        If chunked prefill is off and the longest prompt does not fit the budget.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_manager: KVCacheManager,
        max_model_len: int,
        *,
        fast_path: bool = True,
        keep_uncomputed_hashes: bool = False,
    ) -> None:
        config.check_model_len(max_model_len)
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.max_model_len = max_model_len
        self.requests: dict[str, Request] = {}
        self.waiting = self._new_queue()
        self.running: list[Request] = []
        self.observer: Observer | None = None
        self._finished_req_ids: set[str] = set()
        self._fast_path = fast_path and kv_cache_manager.is_uniform
        self._keep_uncomputed_hashes = keep_uncomputed_hashes
        self._steady: SteadyBatch | None = None
        self._steady_output: SchedulerOutput | None = None

    def _new_queue(self) -> WaitingQueue:
        return PriorityQueue() if self.config.policy == "priority" else FCFSQueue()

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the waiting queue.

        Raises
        ------
        DuplicateRequestError
            If a live request has the same id.
        """
        if request.request_id in self.requests:
            raise DuplicateRequestError(
                f"request id {request.request_id!r} is in use by a live request: "
                "wait for it, abort it, or use another id"
            )
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    # --- beat 1: schedule -------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Share out one step's budget, and allocate the blocks that go with it."""
        return self._schedule_steady() or self._schedule_plain()

    def _schedule_plain(self) -> SchedulerOutput:
        """Ask every request in turn: running ones first, then waiting ones."""
        self._forget_steady()
        budget = self.config.max_num_batched_tokens
        granted: dict[str, int] = {}
        new_block_ids: dict[str, BlockIds] = {}
        preempted: list[Request] = []

        # First pass: the running requests, in order. Each may push out the last of them when blocks are short.
        scheduled_running: list[Request] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            # A request one token short of max_model_len has no room for another sampled token.
            room = self.max_model_len - 1 - request.num_computed_tokens
            num_new_tokens = min(self._wanted_tokens(request), budget, room)
            if num_new_tokens <= 0:
                index += 1
                continue
            while (blocks := self.kv_cache_manager.allocate_slots(request, num_new_tokens)) is None:
                victim = self._pick_victim()
                if victim in scheduled_running:  # by priority it may have been granted tokens in this very step
                    scheduled_running.remove(victim)
                    budget += granted.pop(victim.request_id)
                    del new_block_ids[victim.request_id]
                    index -= 1
                    if not self._keep_uncomputed_hashes:
                        self.kv_cache_manager.forget_uncomputed(victim, victim.num_computed_tokens)
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            if blocks is None:
                break  # it pushed out itself; as in vLLM that ends the pass, whoever is behind it
            budget -= num_new_tokens
            new_block_ids[request.request_id] = blocks
            self._grant(granted, request, num_new_tokens, budget, "running")
            scheduled_running.append(request)
            index += 1

        # Second pass: the waiting requests, in order. Whoever does not fit blocks all behind it. A step that had to
        # preempt admits nobody: the blocks it would give are the ones it just took away.
        scheduled_new: list[Request] = []
        scheduled_resumed: list[Request] = []
        while budget > 0 and not preempted and self._may_admit():
            request = self.waiting.peek()
            hit = self.kv_cache_manager.get_computed_blocks(request)
            num_new_tokens = self._wanted_tokens(request, hit.num_tokens)
            if num_new_tokens > budget and not self.config.enable_chunked_prefill:
                break
            num_new_tokens = min(num_new_tokens, budget)
            blocks = self.kv_cache_manager.allocate_slots(
                request, num_new_tokens, hit, reserve_full_sequence=self.config.reserve_full_prompt
            )
            if blocks is None:
                break
            self.waiting.pop()
            self.running.append(request)
            request.num_computed_tokens = hit.num_tokens
            resumed = request.status is RequestStatus.PREEMPTED
            request.status = RequestStatus.RUNNING
            budget -= num_new_tokens
            self._grant(granted, request, num_new_tokens, budget, "resumed" if resumed else "new")
            (scheduled_resumed if resumed else scheduled_new).append(request)

        for request in scheduled_resumed:
            new_block_ids[request.request_id] = self.kv_cache_manager.get_block_ids(request.request_id)
        cached = (*scheduled_running, *scheduled_resumed)
        output = SchedulerOutput(
            scheduled=tuple(granted.items()),
            scheduled_new_reqs=tuple(self._new_request_data(request) for request in scheduled_new),
            scheduled_cached_reqs=CachedRequestData(
                req_ids=tuple(request.request_id for request in cached),
                resumed_req_ids=frozenset(request.request_id for request in scheduled_resumed),
                new_block_ids=tuple(
                    (request.request_id, new_block_ids[request.request_id])
                    for request in cached
                    if any(new_block_ids[request.request_id])
                ),
                num_computed_tokens=tuple(request.num_computed_tokens for request in cached),
                num_output_tokens=tuple(request.num_output_tokens for request in cached),
            ),
            finished_req_ids=frozenset(self._finished_req_ids),
            preempted_req_ids=frozenset(request.request_id for request in preempted),
        )
        # The step is promised: count its tokens as computed now, so that the next schedule can go on from there.
        for request_id, num_tokens in granted.items():
            self.requests[request_id].num_computed_tokens += num_tokens
        self._finished_req_ids = set()
        return output

    def _may_admit(self) -> bool:
        """Whether somebody waits and there is a seat."""
        return len(self.waiting) > 0 and len(self.running) < self.config.max_num_seqs

    def _schedule_steady(self) -> SchedulerOutput | None:
        """Do the step of an all-decoding batch in columns; None, and nothing done, if it is any other step."""
        if not self._fast_path or self.observer is not None or not self.running or self._may_admit():
            return None
        if self._steady_output is not None:
            return None  # the last step has not been updated from yet: nobody needs a token
        manager = self.kv_cache_manager
        if self._steady is None:
            if len(self.running) > self.config.max_num_batched_tokens or not SteadyBatch.all_decode(self.running):
                return None
            self._steady = SteadyBatch(self.running, manager.specs[0].block_size, self.max_model_len)
        steady = self._steady
        if len(steady.need_block) > manager.num_free_blocks:
            return None
        new_block_ids = manager.append_block_to_each(steady.need_block)
        if manager.enable_caching:
            for request in steady.fill_block:
                manager.cache_blocks(request, request.num_tokens)
        self._steady_output = SchedulerOutput(
            scheduled=steady.scheduled,
            scheduled_cached_reqs=CachedRequestData(
                req_ids=steady.req_ids,
                new_block_ids=new_block_ids,
                num_computed_tokens=steady.num_computed_tokens,
                num_output_tokens=steady.num_output_tokens,
            ),
            finished_req_ids=frozenset(self._finished_req_ids),
            total_num_scheduled_tokens=len(steady.req_ids),
        )
        steady.count_computed()
        self._finished_req_ids = set()
        return self._steady_output

    def _forget_steady(self) -> None:
        """Somebody comes, goes or lags behind: columns no longer say what is so."""
        self._steady = self._steady_output = None

    def _wanted_tokens(self, request: Request, num_hit_tokens: int = 0) -> int:
        wanted = request.num_tokens - request.num_computed_tokens - num_hit_tokens
        threshold = self.config.long_prefill_token_threshold
        return min(wanted, threshold) if threshold else wanted

    def _pick_victim(self) -> Request:
        """Choose who loses its blocks: the last that came, or the largest (priority, arrival time)."""
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival_time))
        return self.running[-1]

    def _grant(
        self, granted: dict[str, int], request: Request, num_new_tokens: int, budget_left: int, status: str
    ) -> None:
        """Write down what a request gets in this step."""
        granted[request.request_id] = num_new_tokens
        if self.observer is not None:
            self.observer(
                RequestScheduled(
                    request.request_id,
                    status,
                    num_new_tokens,
                    request.num_computed_tokens,
                    request.num_tokens,
                    budget_left,
                )
            )

    def _preempt(self, request: Request) -> None:
        """Take everything from a running request and put it back among the waiting."""
        self.running.remove(request)
        if self.observer is not None:
            self.observer(RequestPreempted(request.request_id, request.num_computed_tokens))
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.requeue(request)

    def _new_request_data(self, request: Request) -> NewRequestData:
        return NewRequestData(
            request.request_id,
            tuple(request.prompt_token_ids),
            tuple(request.output_token_ids),
            request.sampling_params,
            self.kv_cache_manager.get_block_ids(request.request_id),
            request.num_computed_tokens,
            request.lora_id,
        )

    # --- beat 4: update ---------------------------------------------------------------------------------

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, tuple[int, ...]]
    ) -> StepResult:
        """Append the sampled tokens, and let go of the requests that end with them.

        Parameters
        ----------
        output : SchedulerOutput
            What `schedule` returned for this step.
        sampled_token_ids : mapping of str to tuple of int
            New tokens by request id; empty for a partial prefill.
        """
        if self._steady is not None and output is self._steady_output:
            accepted = self._steady.accept(sampled_token_ids)
            self._steady_output = None
            if accepted is not None:
                return StepResult(accepted, {})
        self._forget_steady()
        new_token_ids: dict[str, tuple[int, ...]] = {}
        finish_reasons: dict[str, str] = {}
        missing = [request_id for request_id, _ in output.scheduled if request_id not in sampled_token_ids]
        if missing:
            raise IntegrityError(f"no tokens (not even none) were given for {missing}, which were scheduled")
        for request_id, _ in output.scheduled:
            request = self.requests.get(request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran, and perhaps its id was taken by another since
            for count, token_id in enumerate(sampled_token_ids[request_id], start=1):
                self._accept(request, token_id)
                new_token_ids[request_id] = sampled_token_ids[request_id][:count]
                if request.check_stop(self.max_model_len):
                    finish_reasons[request_id] = self._finish(request)
                    break  # what was sampled behind the end is dropped
        if finish_reasons:
            self.running = [request for request in self.running if not request.is_finished]
        return StepResult(new_token_ids, finish_reasons)

    def _accept(self, request: Request, token_id: int) -> None:
        request.append_output_token_id(token_id)
        if self.observer is not None:
            self.observer(TokenAccepted(request.request_id, token_id, request.num_tokens - 1))

    def _finish(self, request: Request) -> str:
        """Free what a finished request holds; return why it ended. The worker hears of it in the next output."""
        reason = request.status.finish_reason
        if reason is None:
            raise IntegrityError(f"{request} is not finished")
        if self.observer is not None:
            self.observer(RequestFinished(request.request_id, reason, request.num_output_tokens))
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]
        self._finished_req_ids.add(request.request_id)
        return reason

    def restart(self, requests: Sequence[Request]) -> None:
        """Forget everything and let ``requests`` wait, in this order: what follows a step that failed.

        The blocks must be free (`KVCacheManager.reset`) and the worker must know of nobody (`GPUModelRunner.reset`).
        """
        self._forget_steady()
        self.requests = {request.request_id: request for request in requests}
        self.running = []
        self.waiting = self._new_queue()
        for request in requests:
            self.waiting.add(request)
        self._finished_req_ids = set()

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """End requests at once. Ids that no live request has are ignored: a request may end as its abort arrives.

        Returns
        -------
        list of str
            The ids that were really aborted.
        """
        aborted = [
            self.requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self.requests
        ]
        if aborted:
            self._forget_steady()
        for request in aborted:
            if self.observer is not None:
                self.observer(RequestAborted(request.request_id))
            request.status = RequestStatus.FINISHED_ABORTED
            self._finish(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting.discard(aborted)
        return [request.request_id for request in aborted]

    def check_integrity(self) -> None:
        """Prove that queues, requests and blocks agree.

        Raises
        ------
        IntegrityError
            If they do not.
        """
        self.kv_cache_manager.check_integrity()
        queued = [request.request_id for request in (*self.running, *self.waiting)]
        if sorted(queued) != sorted(self.requests):
            raise IntegrityError(f"queues hold {queued}, but the live requests are {list(self.requests)}")
        if len(self.running) > self.config.max_num_seqs:
            raise IntegrityError(f"{len(self.running)} requests run on {self.config.max_num_seqs} seats")
        holders = set(self.kv_cache_manager.held_block_ids)
        if holders != {request.request_id for request in self.running}:
            raise IntegrityError(f"blocks are held by {sorted(holders)}, but running are {self.running}")
        for request in self.running:
            if not 0 <= request.num_computed_tokens < request.num_tokens:
                raise IntegrityError(f"{request} runs and has nothing to compute, so no step would schedule it again")
