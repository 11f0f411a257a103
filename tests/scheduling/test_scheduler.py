"""The scheduler: properties over random workloads, the fast path beside the plain one, and bugs that were reported."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.config import SchedulerConfig
from pagedlab.errors import ConfigError, DuplicateRequestError, IntegrityError
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, KVCacheSpec, SlidingWindowSpec
from pagedlab.request import Request, SamplingParams
from pagedlab.scheduling import Scheduler, SchedulerOutput

MAX_MODEL_LEN = 48


def make_scheduler(
    *,
    budget: int = 16,
    seats: int = 4,
    num_blocks: int = 40,
    specs: tuple[KVCacheSpec, ...] = (FullAttentionSpec(4),),
    caching: bool = False,
    fast_path: bool = True,
    **config: Any,
) -> Scheduler:
    manager = KVCacheManager(specs, num_blocks, MAX_MODEL_LEN, enable_caching=caching, max_num_batched_tokens=budget)
    scheduler_config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **config)
    return Scheduler(scheduler_config, manager, MAX_MODEL_LEN, fast_path=fast_path)


def request(name: str, prompt: int, max_tokens: int = 5, arrival: float = 0, **keys: Any) -> Request:
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(keys.pop("min_tokens", 0), max_tokens),
        temperature=0,
        stop_token_ids=keys.pop("stop", ()),
    )
    return Request(name, [zlib.crc32(name.encode()) % 7] * prompt, params, arrival, **keys)


def model(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, tuple[int, ...]]:
    """Say a token that depends on the request and its length alone; none for a partial prefill."""
    tokens = {}
    for request_id, _ in output.scheduled:
        live = scheduler.requests.get(request_id)
        if live is None or live.is_prefill_chunk:
            tokens[request_id] = ()
        else:
            tokens[request_id] = (zlib.crc32(f"{request_id}:{live.num_tokens}".encode()) % 50,)
    return tokens


@dataclass(frozen=True)
class Workload:
    """Requests (name, prompt, max_tokens, arrival step, priority, min_tokens, stop ids) and aborts (name, step)."""

    requests: tuple[tuple[str, int, int, int, int, int, tuple[int, ...]], ...]
    aborts: tuple[tuple[str, int], ...]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    requests = []
    for index in range(draw(st.integers(1, 9))):
        stop = draw(st.sampled_from([(), (), (3,), (1, 2, 5)]))
        prompt, max_tokens = draw(st.integers(1, 24)), draw(st.sampled_from([1, 3, 9, 20, 60]))
        arrival, priority = draw(st.integers(0, 8)), draw(st.integers(0, 2))
        min_tokens = draw(st.sampled_from([0, 4, 60]))
        requests.append((f"r{index}", prompt, max_tokens, arrival, priority, min_tokens, stop))
    names = st.sampled_from([name for name, *_ in requests])
    aborts = draw(st.lists(st.tuples(names, st.integers(0, 15)), max_size=3))
    return Workload(tuple(requests), tuple(aborts))


class Run:
    """One scheduler driven through a workload, with what must always hold checked after each step."""

    def __init__(self, scheduler: Scheduler, workload: Workload) -> None:
        self.scheduler = scheduler
        self.workload = workload
        self.outputs: list[SchedulerOutput] = []
        self.tokens: dict[str, list[int]] = {name: [] for name, *_ in workload.requests}
        self.reasons: dict[str, str] = {}
        self.step = 0

    def one_step(self) -> None:
        scheduler = self.scheduler
        for name, prompt, max_tokens, arrival, priority, min_tokens, stop in self.workload.requests:
            if arrival == self.step:
                keys = {"priority": priority, "min_tokens": min_tokens, "stop": stop}
                scheduler.add_request(request(name, prompt, max_tokens, arrival=arrival, **keys))
        for name in scheduler.abort_requests(n for n, step in self.workload.aborts if step == self.step):
            self.reasons[name] = "abort"
        output = scheduler.schedule()
        self.outputs.append(output)
        assert output.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
        assert len(scheduler.running) <= scheduler.config.max_num_seqs
        assert all(count >= 1 for _, count in output.scheduled)
        result = scheduler.update_from_output(output, model(scheduler, output))
        for name, new in result.new_token_ids.items():
            self.tokens[name] += new
        self.reasons |= result.finish_reasons
        scheduler.check_integrity()
        self.step += 1

    @property
    def busy(self) -> bool:
        return self.scheduler.has_unfinished_requests() or self.step <= 9

    def to_end(self) -> Run:
        while self.busy:
            self.one_step()
            assert self.step < 2000, "the workload does not end"
        manager = self.scheduler.kv_cache_manager
        assert manager.num_free_blocks == manager.block_pool.num_usable_blocks, "a block was lost"
        return self


variants = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([4, 8, 16, 64]),
        "seats": st.integers(1, 4),
        "num_blocks": st.sampled_from([49, 60]),
        "caching": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "long_prefill_token_threshold": st.sampled_from([0, 3]),
        "reserve_full_prompt": st.booleans(),
        "specs": st.sampled_from(
            [(FullAttentionSpec(4),), (FullAttentionSpec(2),), (FullAttentionSpec(4), SlidingWindowSpec(4, 6))]
        ),
    }
)


@given(workloads(), variants)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_with_exactly_its_tokens(workload: Workload, variant: dict[str, Any]) -> None:
    """Budget, seats, books and blocks hold; the tokens do not depend on budget, policy, caching or pool."""
    run = Run(make_scheduler(**variant), workload).to_end()
    alone = Run(make_scheduler(budget=64, num_blocks=400), workload).to_end()
    for name, _, max_tokens, *_, stop in workload.requests:
        if "abort" in (run.reasons.get(name), alone.reasons.get(name)):
            continue
        assert run.tokens[name] == alone.tokens[name]
        assert run.reasons[name] == alone.reasons[name]
        assert len(run.tokens[name]) <= max_tokens
        if run.reasons[name] == "stop":
            assert run.tokens[name][-1] in stop


@given(workloads(), variants)
@settings(max_examples=150, deadline=None)
def test_the_fast_path_decides_what_the_plain_path_decides(workload: Workload, variant: dict[str, Any]) -> None:
    fast = Run(make_scheduler(**variant), workload)
    plain = Run(make_scheduler(**variant, fast_path=False), workload)
    while fast.busy or plain.busy:
        fast.one_step()
        plain.one_step()
        assert fast.outputs[-1] == plain.outputs[-1]
        ours, theirs = fast.scheduler.kv_cache_manager, plain.scheduler.kv_cache_manager
        assert ours.free_block_ids == theirs.free_block_ids
        assert ours.block_pool.num_cached_blocks == theirs.block_pool.num_cached_blocks
    assert fast.tokens == plain.tokens
    assert fast.reasons == plain.reasons


def test_the_fast_path_is_really_taken() -> None:
    scheduler = make_scheduler(seats=3, num_blocks=60)
    taken: list[bool] = []
    steady = scheduler._schedule_steady

    def spy() -> SchedulerOutput | None:
        output = steady()
        taken.append(output is not None)
        return output

    scheduler._schedule_steady = spy  # type: ignore[method-assign]
    Run(scheduler, Workload(tuple((f"r{i}", 4, 20, 0, 0, 0, ()) for i in range(4)), ())).to_end()
    assert sum(taken) > len(taken) / 2


def test_a_schedule_that_was_not_updated_from_gives_nothing_twice() -> None:
    scheduler = make_scheduler(seats=1)
    scheduler.add_request(request("A", 3))
    granted(scheduler)
    first = scheduler.schedule()
    assert first.scheduled == (("A", 1),)
    assert scheduler.schedule().scheduled == ()


def test_no_block_is_lost_over_ten_thousand_steps() -> None:
    scheduler = make_scheduler(budget=8, seats=4, num_blocks=20, caching=True)
    for step in range(10_000):
        if step % 3 == 0:
            scheduler.add_request(request(f"r{step}", 1 + step * 7 % 23, 1 + step * 5 % 11, arrival=step))
        if step % 17 == 0:
            scheduler.abort_requests([f"r{step - 34}"])
        output = scheduler.schedule()
        scheduler.update_from_output(output, model(scheduler, output))
        if step % 100 == 0:
            scheduler.check_integrity()
        if len(scheduler.waiting) > 50:
            scheduler.abort_requests([r.request_id for r in list(scheduler.waiting)[:40]])
    scheduler.abort_requests(list(scheduler.requests))
    scheduler.check_integrity()
    assert scheduler.kv_cache_manager.num_free_blocks == 19


# --- rules, one at a time ---------------------------------------------------------------------------------------


def granted(scheduler: Scheduler) -> dict[str, int]:
    output = scheduler.schedule()
    scheduler.update_from_output(output, model(scheduler, output))
    return output.num_scheduled_tokens


def test_without_chunking_a_prompt_that_does_not_fit_blocks_those_behind_it() -> None:
    scheduler = make_scheduler(budget=48, enable_chunked_prefill=False)
    for name, length in (("A", 30), ("B", 30), ("C", 5)):
        scheduler.add_request(request(name, length))
    assert granted(scheduler) == {"A": 30}
    assert granted(scheduler) == {"A": 1, "B": 30, "C": 5}


def test_with_chunking_the_budget_is_always_used() -> None:
    scheduler = make_scheduler(budget=16)
    for name, length in (("A", 10), ("B", 10), ("C", 5)):
        scheduler.add_request(request(name, length))
    assert granted(scheduler) == {"A": 10, "B": 6}
    assert granted(scheduler) == {"A": 1, "B": 4, "C": 5}


def test_a_threshold_leaves_room_for_others() -> None:
    scheduler = make_scheduler(budget=16, long_prefill_token_threshold=4)
    for name, length in (("A", 20), ("B", 20)):
        scheduler.add_request(request(name, length))
    assert granted(scheduler) == {"A": 4, "B": 4}


def test_a_step_that_preempts_admits_nobody() -> None:
    scheduler = make_scheduler(budget=16, seats=4, num_blocks=6, reserve_full_prompt=False)
    for name in "AB":
        scheduler.add_request(request(name, 8, max_tokens=9))
    granted(scheduler)
    scheduler.add_request(request("C", 1))
    granted(scheduler)
    outputs = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        outputs.append(output)
        scheduler.update_from_output(output, model(scheduler, output))
    preempting = [output for output in outputs if output.preempted_req_ids]
    assert preempting
    assert all(not o.scheduled_new_reqs and not o.scheduled_cached_reqs.resumed_req_ids for o in preempting)


def test_d2_a_prompt_beyond_the_budget_without_chunking_is_refused_at_once() -> None:
    SchedulerConfig(2048, 8, enable_chunked_prefill=False).check_model_len(2048)
    with pytest.raises(ConfigError, match=r"2048.*2049"):
        SchedulerConfig(2048, 8, enable_chunked_prefill=False).check_model_len(2049)


def test_a_threshold_above_the_model_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"64.*48"):
        make_scheduler(long_prefill_token_threshold=64)


def test_d3_a_victim_that_was_scheduled_in_this_step_gives_everything_back() -> None:
    """A (priority 0) and B (5) are scheduled, C (1) finds no block: B goes, its token returns to the budget."""
    scheduler = make_scheduler(budget=16, seats=3, num_blocks=7, policy="priority")
    for arrival, (name, prompt, priority) in enumerate((("A", 3, 0), ("B", 6, 5), ("C", 8, 1))):
        scheduler.add_request(request(name, prompt, max_tokens=12, arrival=arrival, priority=priority))
    while True:
        output = scheduler.schedule()
        if output.preempted_req_ids:
            break
        scheduler.update_from_output(output, model(scheduler, output))
    assert output.preempted_req_ids == {"B"}
    assert output.num_scheduled_tokens == {"A": 1, "C": 1}
    assert set(output.scheduled_cached_reqs.req_ids) == {"A", "C"}
    assert [r.request_id for r in scheduler.waiting] == ["B"]
    scheduler.update_from_output(output, model(scheduler, output))
    scheduler.check_integrity()


def test_nobody_hits_blocks_of_a_victim_that_were_never_computed() -> None:
    """B is granted tokens, which hashes their blocks, and is preempted in the same step: it must compute them later."""
    ever_computed = 4
    for keep in (False, True):  # True: what vLLM 0.25.1 does
        manager = KVCacheManager([FullAttentionSpec(1)], 9, 12, enable_caching=True)
        config = SchedulerConfig(12, 4, policy="priority", long_prefill_token_threshold=2)
        scheduler = Scheduler(config, manager, 12, keep_uncomputed_hashes=keep)
        params = SamplingParams(max_tokens=1, temperature=0)
        scheduler.add_request(Request("B", [1, 2, 3, 4, 5, 6], params, 0, priority=5))
        granted(scheduler)
        scheduler.add_request(Request("A", [11, 12, 13], params, 1, priority=0))
        resumed = None
        while resumed is None:
            output = scheduler.schedule()
            scheduler.update_from_output(output, model(scheduler, output))
            cached = output.scheduled_cached_reqs
            if "B" in cached.resumed_req_ids:
                resumed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))["B"]
        assert (resumed > ever_computed) == keep


def test_an_output_that_lacks_a_request_is_refused_before_anything_is_appended() -> None:
    scheduler = make_scheduler()
    for name in "AB":
        scheduler.add_request(request(name, 3))
    output = scheduler.schedule()
    with pytest.raises(IntegrityError, match=r"\['B'\]"):
        scheduler.update_from_output(output, {"A": (1,)})
    assert scheduler.requests["A"].num_output_tokens == 0


def test_a_token_of_an_aborted_request_does_not_go_to_the_next_with_its_id() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(request("A", 3))
    output = scheduler.schedule()
    scheduler.abort_requests(["A"])
    scheduler.add_request(request("A", 5))
    assert scheduler.update_from_output(output, {"A": (7,)}).new_token_ids == {}
    assert scheduler.requests["A"].num_output_tokens == 0


def test_a_live_id_is_refused_and_a_finished_one_is_free_again() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(request("A", 3, max_tokens=1))
    with pytest.raises(DuplicateRequestError, match="in use"):
        scheduler.add_request(request("A", 5))
    granted(scheduler)
    scheduler.add_request(request("A", 5))
    output = scheduler.schedule()
    assert output.finished_req_ids == {"A"}
    assert output.num_scheduled_tokens == {"A": 5}
