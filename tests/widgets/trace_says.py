"""What each scene has to show at a moment, read off the events of a trace in the plainest way.

The scenes follow a trace with a replay of their own; nothing of it is used here. `Moment` applies one event after the
other, and `at_the_end_of_each_step` is what the engine itself held then: both have to agree before a scene is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce, singledispatchmethod

from pagedlab import LLMEngine, SamplingParams, record
from pagedlab.events import (
    BlocksAllocated,
    BlocksAppended,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    BlockTableCommitted,
    Event,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    SlotsComputed,
    StepStarted,
    TokenAccepted,
    TokenAppended,
)
from pagedlab.trace import Trace

Facts = Mapping[str, str | int]
Claim = dict[str, dict[str, Facts]]
"""By the first part of a key: all actors whose keys begin so, and what they have to say."""


@dataclass
class Moment:
    """Where a run stands after some of its events."""

    rows: dict[int, str] = field(default_factory=dict)
    row_tokens: dict[str, int] = field(default_factory=dict)
    table: dict[str, list[int]] = field(default_factory=dict)
    device: dict[int, dict[int, int]] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    queue: dict[str, str] = field(default_factory=dict)
    granted: dict[tuple[int, str], int] = field(default_factory=dict)
    preempted: list[tuple[int, str]] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    budget_left: int | None = None
    slots: dict[tuple[str, int], int] = field(default_factory=dict)
    step: int = -1
    taken: tuple[int, ...] = ()

    def after(self, event: Event) -> Moment:
        """Let an event happen."""
        self.taken = event.block_ids if isinstance(event, BlocksAllocated) else ()
        self._apply(event)
        return self

    @singledispatchmethod
    def _apply(self, event: Event) -> None:
        """Keep what an event says; of most, there is nothing to keep here."""

    # --- requests and their blocks

    @_apply.register
    def _(self, event: StepStarted) -> None:
        self.step, self.budget_left = event.index, None

    @_apply.register
    def _(self, event: RequestAdded) -> None:
        self.tokens[event.request_id] = len(event.prompt_token_ids)
        self.queue[event.request_id] = "waiting"

    @_apply.register
    def _(self, event: RequestScheduled) -> None:
        self.granted[self.step, event.request_id] = event.num_scheduled_tokens
        self.queue[event.request_id] = "running"
        self.budget_left = event.budget_left

    @_apply.register
    def _(self, event: RequestPreempted) -> None:
        self.preempted.append((self.step, event.request_id))
        self.queue[event.request_id] = "waiting"

    @_apply.register
    def _(self, event: RequestFinished) -> None:
        self.finished.append((self.step, event.request_id))
        del self.queue[event.request_id]

    @_apply.register
    def _(self, event: TokenAccepted) -> None:
        self.tokens[event.request_id] += 1

    @_apply.register(BlocksAllocated)
    @_apply.register(BlocksTouched)
    def _(self, event: BlocksAllocated | BlocksTouched) -> None:
        self.held.setdefault(event.request_id, []).extend(event.block_ids)

    @_apply.register
    def _(self, event: BlocksFreed) -> None:
        assert sorted(event.block_ids) == sorted(self.held.pop(event.request_id)), "here a request frees all or nothing"

    @_apply.register
    def _(self, event: BlocksCached) -> None:
        self.hashes |= zip(event.block_ids, event.block_hashes, strict=True)

    @_apply.register
    def _(self, event: BlocksEvicted) -> None:
        for block in event.block_ids:
            del self.hashes[block]

    # --- rows and tables

    @_apply.register
    def _(self, event: RowAdded) -> None:
        self.rows[event.row] = event.request_id
        self.row_tokens[event.request_id] = event.num_tokens
        self.table[event.request_id] = [*event.block_ids[0]]

    @_apply.register
    def _(self, event: RowRemoved) -> None:
        assert self.rows.pop(event.row) == event.request_id

    @_apply.register
    def _(self, event: RowMoved) -> None:
        self.rows[event.target] = self.rows.pop(event.source)

    @_apply.register
    def _(self, event: BlocksAppended) -> None:
        self.table[event.request_id] += event.block_ids

    @_apply.register
    def _(self, event: TokenAppended) -> None:
        self.row_tokens[event.request_id] += 1

    @_apply.register
    def _(self, event: BlockTableCommitted) -> None:
        for row, column, entries in event.changed:
            self.device.setdefault(row, {}).update(enumerate(entries, column))

    @_apply.register
    def _(self, event: SlotsComputed) -> None:
        self.slots = dict(zip(self.asked(), event.slot_mapping, strict=False))

    # --- what follows from it

    def asked(self) -> list[tuple[str, int]]:
        """The tokens of the step in batch order: each row's are the next ones that it has not computed."""
        return [
            (request, at)
            for _, request in sorted(self.rows.items())
            for at in range(self.row_tokens[request] - self.granted[self.step, request], self.row_tokens[request])
        ]

    def holders(self, block: int) -> list[str]:
        return [request for request, blocks in self.held.items() if block in blocks]

    def free(self, num_blocks: int) -> list[int]:
        """The free blocks in ascending order. Block 0 is nobody's, and not free."""
        return [block for block in range(1, num_blocks) if not self.holders(block)]


def moment(trace: Trace, record: int) -> Moment:
    """Return where the run stands after a record."""
    return reduce(Moment.after, (one.event for one in trace.records[: record + 1]), Moment())


# --- what the engine itself holds ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What an engine holds between two steps."""

    rows: tuple[str, ...]
    table: Mapping[str, list[int]]
    free_queue: tuple[int, ...]


def run_and_look(
    engine: LLMEngine, requests: Sequence[tuple[str, str, SamplingParams]]
) -> tuple[Trace, dict[int, Held]]:
    """Run requests to their ends; return the trace, and by the record that ends a step what the engine holds then."""
    recorder = record(engine)
    held: dict[int, Held] = {}
    for request in requests:
        engine.add_request(*request)
    while engine.has_unfinished_requests():
        engine.step()
        batch = engine.runner.input_batch
        rows = tuple(batch.req_ids)
        table = {request: batch.block_table[0].row(row).tolist() for row, request in enumerate(rows)}
        held[len(recorder.trace) - 1] = Held(rows, table, engine.kv_cache_manager.free_block_ids)
    return recorder.stop(), held


# --- what each scene has to show ----------------------------------------------------------------------------------


def rows(now: Moment) -> dict[str, Facts]:
    return {
        f"row:{request}": {"row": row, "request": request, "tokens": now.row_tokens[request]}
        for row, request in now.rows.items()
    }


def blocks(now: Moment, num_blocks: int) -> dict[str, Facts]:
    """Every block: how many hold it, and who was first."""
    found: dict[str, Facts] = {}
    for block in range(num_blocks):
        holders = now.holders(block)
        found[f"block:{block}"] = {"block": block, "holders": len(holders), "owner": (holders or [""])[0]}
    return found


def condense(now: Moment, trace: Trace) -> Claim:
    return {"row": rows(now)}


def block_pool(now: Moment, trace: Trace) -> Claim:
    count = trace.settings["num_blocks"]
    queued = {*now.free(count), *now.taken}  # what is being taken is on its way
    return {
        "block": blocks(now, count),
        "queued": {f"queued:{one}": {"block": one, "hashed": int(one in now.hashes)} for one in queued},
        "holder": {f"holder:{one}": {"num_blocks": len(its)} for one, its in now.held.items()},
    }


def block_table(now: Moment, trace: Trace) -> Claim:
    return {
        "row": {
            f"row:0:{request}": {"row": row, "request": request, "blocks": listed(now.table[request])}
            for row, request in now.rows.items()
        },
        "device": {
            f"device:0:{row}": {"row": row, "blocks": listed(entries[at] for at in range(len(entries)))}
            for row, entries in now.device.items()
        },
    }


def slot_mapping(now: Moment, trace: Trace) -> Claim:
    slots = {
        (request, at): at % trace.settings["block_size"]
        + trace.settings["block_size"] * now.table[request][at // trace.settings["block_size"]]
        for request, at in now.asked()
    }
    assert not now.slots or now.slots == slots
    return {
        "row": {f"row:{row}": {"request": request} for row, request in now.rows.items()},
        "entry": entries(now),
        "block": blocks(now, trace.settings["num_blocks"]),
        "slot?": {f"slot:{one}:{at}": {"position": at, "slot": slot} for (one, at), slot in slots.items()},
    }


def timeline(now: Moment, trace: Trace) -> Claim:
    used: dict[int, int] = {}
    for (at, _), tokens in now.granted.items():
        used[at] = used.get(at, 0) + tokens
    return {
        "cell": {
            f"cell:0:{at}:{request}": {"request": request, "step": at, "tokens": tokens}
            for (at, request), tokens in now.granted.items()
        },
        "bar": {f"bar:0:{at}": {"tokens": tokens} for at, tokens in used.items()},
        "lost": {f"lost:0:{at}:{request}": {"request": request} for at, request in now.preempted},
        "end": {f"end:0:{at + 1}:{request}": {"request": request} for at, request in now.finished},
    }


def step(now: Moment, trace: Trace) -> Claim:
    left = trace.settings["max_num_batched_tokens"] if now.budget_left is None else now.budget_left
    return {
        "row": rows(now),
        "chip": {f"chip:{request}": {"queue": queue} for request, queue in now.queue.items()},
        "block": blocks(now, trace.settings["num_blocks"]),
        "budget": {"budget": {"left": left}},
    }


def preemption(now: Moment, trace: Trace) -> Claim:
    lost = [request for _, request in now.preempted]
    return {
        "request": {
            f"request:{request}": {
                "tokens": now.tokens[request],
                "blocks": listed(now.held.get(request, [])),
                "preemptions": lost.count(request),
            }
            for request in now.queue
        },
        "queue": {"queue": {"free": len(now.free(trace.settings["num_blocks"]))}},
    }


def prefix_tree(now: Moment, trace: Trace) -> Claim:
    free = now.free(trace.settings["num_blocks"])
    known = {*now.hashes, *(block for its in now.held.values() for block in its)}
    return {
        "block": {
            f"block:{one}": {"hash": now.hashes.get(one, ""), "holders": json.dumps(now.holders(one))} for one in known
        },
        "free": {f"free:{one}": {"block": one, "cached": int(one in now.hashes)} for one in free},
    }


def paged_attention(now: Moment, trace: Trace) -> Claim:
    size, row_of = trace.settings["block_size"], {request: row for row, request in now.rows.items()}
    return {
        "row": {f"row:{row}": {"request": request} for row, request in now.rows.items()},
        "entry": entries(now),
        "ask": {f"ask:{row_of[one]}:{at}": {"row": row_of[one], "position": at} for one, at in now.asked()},
        "keys?": {
            f"keys:{row}:{at}": {"block": block, "read": min(size, now.row_tokens[request] - at * size)}
            for row, request in now.rows.items()
            for at, block in enumerate(now.table[request])
        },
    }


def entries(now: Moment) -> dict[str, Facts]:
    return {
        f"entry:{row}:{column}": {"row": row, "column": column, "block": block}
        for row, request in now.rows.items()
        for column, block in enumerate(now.table[request])
    }


def listed(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


_SCENES = (condense, block_pool, block_table, slot_mapping, timeline, step, preemption, prefix_tree, paged_attention)
CLAIMS: Mapping[str, Callable[[Moment, Trace], Claim]] = {each.__name__: each for each in _SCENES}


def of_ranks(traces: Sequence[Trace], record: int) -> Claim:
    """What `context_parallel` has to show of a request that is alone in the first step: each slot as its rank tells."""
    told = [
        next((at, one.event) for at, one in enumerate(trace) if isinstance(one.event, SlotsComputed))
        for trace in traces
    ]
    slots = {(rank, at): slot for rank, (_, event) in enumerate(told) for at, slot in enumerate(event.slot_mapping)}
    tables = [moment(trace, record).table for trace in traces]
    wanted: Claim = {
        "rank": {
            f"rank:{rank}": {"blocks": listed(its)} for rank, table in enumerate(tables) for its in table.values()
        },
        "slot?": {f"slot:{rank}:{at}": {"rank": rank, "slot": slot} for (rank, at), slot in slots.items()},
    }
    if record >= told[0][0]:
        wanted["slot"] = wanted.pop("slot?")
        kept = {key: slot for key, slot in slots.items() if slot != -1}
        wanted["tok"] = {f"tok:{at}": {"rank": rank, "slot": slot} for (rank, at), slot in kept.items()}
    return wanted


def claim(scene: str, traces: Sequence[Trace], record: int) -> Claim:
    """What a scene has to show when its traces have come to a record."""
    if scene == "context_parallel":
        return of_ranks(traces, record)
    return CLAIMS[scene](moment(traces[0], record), traces[0])


def wrong(claimed: Claim, shown: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Say in what the actors that are shown, by key their facts, are not as claimed.

    Of a kind with a question mark some may not be there yet; those that are have to be right.
    """
    for kind, wanted in claimed.items():
        prefix = kind.removesuffix("?")
        there = {key: facts for key, facts in shown.items() if facts and key.split(":")[0] == prefix}
        if kind == prefix:
            yield from (f"{key} is missing" for key in wanted.keys() - there.keys())
        for key, facts in there.items():
            if key not in wanted:
                yield f"{key} should not be there"
            elif (said := {name: facts.get(name) for name in wanted[key]}) != _as_text(wanted[key]):
                yield f"{key} says {said}, the trace {_as_text(wanted[key])}"


def _as_text(facts: Facts) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items()}
