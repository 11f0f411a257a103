"""Traces for the tests of scenes: a small deterministic stand-in for the engine that emits consistent events.

It needs no torch, runs no line of the engine (so its records have no source), and takes any request id and any
length: for property tests and hostile names. `recorded` has what the real engine did. What the stand-in does is the
engine's contract in its plainest form: one budget, first come first served, rows that are removed, added into the
lowest hole and condensed, blocks from a free queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagedlab.events import (
    BatchUpdated,
    BeatStarted,
    BlocksAllocated,
    BlocksAppended,
    BlocksFreed,
    BlockTableCommitted,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestAdded,
    RequestFinished,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    SlotsComputed,
    StepFinished,
    StepStarted,
    TokenAccepted,
    TokenAppended,
    TokenSampled,
)
from pagedlab.trace import Record, Trace


@dataclass
class _Request:
    name: str
    prompt: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class _Engine:
    def __init__(self, budget: int, seats: int, block_size: int, num_blocks: int) -> None:
        self.budget, self.seats, self.block_size = budget, seats, block_size
        self.records: list[Record] = []
        self.free = deque(range(1, num_blocks))
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.rows: list[_Request | None] = []
        self.gone: list[str] = []
        self.step_index = -1
        self.beat: str | None = None

    def emit(self, event: Event) -> None:
        match event:
            case StepStarted():
                self.step_index, self.beat = event.index, None
            case BeatStarted():
                self.beat = event.beat
        self.records.append(Record(self.step_index, self.beat, event, None))

    def add(self, name: str, prompt: Sequence[int], max_tokens: int) -> None:
        self.waiting.append(_Request(name, list(prompt), max_tokens))
        self.emit(RequestAdded(name, tuple(prompt), max_tokens))

    def step(self) -> None:
        self.emit(StepStarted(self.step_index + 1))
        self.emit(BeatStarted("schedule"))
        granted = self.schedule()
        self.emit(BeatStarted("prepare"))
        self.prepare(granted)
        self.emit(BeatStarted("execute"))
        sampled = self.execute(granted)
        self.emit(BeatStarted("update"))
        self.update(sampled)
        running, waiting = (tuple(r.name for r in queue) for queue in (self.running, self.waiting))
        self.beat = None
        self.emit(StepFinished(self.step_index, running, waiting, len(self.free)))

    def schedule(self) -> dict[str, tuple[_Request, int, list[int]]]:
        granted = {}
        budget = self.budget
        queue = [(r, "running") for r in self.running] + [(r, "new") for r in self.waiting]
        for request, status in queue:
            tokens = min(len(request.tokens) - request.computed, budget)
            if tokens <= 0 or (status == "new" and len(self.running) >= self.seats):
                break
            need = -(-(request.computed + tokens) // self.block_size) - len(request.blocks)
            if need > len(self.free):
                break
            new = [self.free.popleft() for _ in range(need)]
            request.blocks += new
            if new:
                self.emit(BlocksAllocated(request.name, 0, tuple(new), len(self.free)))
            if status == "new":
                self.waiting.remove(request)
                self.running.append(request)
            budget -= tokens
            granted[request.name] = (request, tokens, new)
            self.emit(RequestScheduled(request.name, status, tokens, request.computed, len(request.tokens), budget))
        return granted

    def prepare(self, granted: Mapping[str, tuple[_Request, int, list[int]]]) -> None:
        holes = []
        for row, request in enumerate(self.rows):
            if request is not None and request.name in self.gone:
                self.rows[row] = None
                holes.append(row)
                self.emit(RowRemoved(row, request.name))
        self.gone = []
        added, moved = [], []
        for request, _, new in granted.values():
            if request in self.rows and new:
                self.emit(BlocksAppended(self.rows.index(request), request.name, 0, tuple(new)))
        for request, _, _ in granted.values():
            if request not in self.rows:
                row = holes.pop(0) if holes else len(self.rows)
                self.rows[row : row + 1] = [request]
                added.append(row)
                blocks = (tuple(request.blocks),)
                self.emit(RowAdded(row, request.name, len(request.tokens), request.computed, blocks))
        while holes:
            while self.rows and self.rows[-1] is None:
                self.rows.pop()
            if holes[0] >= len(self.rows):
                break
            hole, last = holes.pop(0), len(self.rows) - 1
            request = self.rows.pop()
            assert request is not None
            self.rows[hole] = request
            moved.append((last, hole, "move"))
            self.emit(RowMoved(last, hole, request.name, len(request.tokens)))
        self.emit(BatchUpdated(len(self.rows), tuple(sorted(holes, reverse=True)), tuple(added), tuple(moved)))
        ids, inputs, positions, starts, lens, logits, discard, slots = [], [], [], [0], [], [], [], []
        for request in self.rows:
            assert request is not None
            tokens = granted[request.name][1] if request.name in granted else 0
            window = range(request.computed, request.computed + tokens)
            ids.append(request.name)
            inputs += [request.tokens[p] for p in window]
            positions += window
            slots += [request.blocks[p // self.block_size] * self.block_size + p % self.block_size for p in window]
            starts.append(starts[-1] + tokens)
            lens.append(window.stop)
            logits.append(starts[-1] - 1)
            discard.append(window.stop < len(request.tokens))
        parts = (ids, inputs, positions, starts, lens, logits, discard)
        self.emit(InputsPrepared(*(tuple(part) for part in parts)))
        self.emit(BlockTableCommitted(0, len(self.rows), 32 * len(self.rows), "full", ()))
        self.emit(SlotsComputed(0, tuple(slots), self.block_size, "numpy"))

    def execute(self, granted: Mapping[str, tuple[_Request, int, list[int]]]) -> dict[str, int]:
        self.emit(ForwardFinished(sum(tokens for _, tokens, _ in granted.values()), len(self.rows), 0.002))
        sampled = {}
        for row, request in enumerate(self.rows):
            assert request is not None
            if request.name not in granted:
                continue
            request.computed += granted[request.name][1]
            token = 97 + (7 * len(request.tokens) + row) % 26
            discarded = request.computed < len(request.tokens)
            self.emit(TokenSampled(row, request.name, token, discarded))
            if not discarded:
                sampled[request.name] = token
        for row, request in enumerate(self.rows):
            if request is not None and request.name in sampled:
                self.emit(TokenAppended(row, request.name, sampled[request.name]))
        return sampled

    def update(self, sampled: Mapping[str, int]) -> None:
        for request in list(self.running):
            if request.name not in sampled:
                continue
            request.output.append(sampled[request.name])
            self.emit(TokenAccepted(request.name, sampled[request.name], len(request.tokens) - 1))
            if len(request.output) >= request.max_tokens:
                self.emit(RequestFinished(request.name, "length", len(request.output)))
                blocks = request.blocks[::-1]
                self.free.extendleft(blocks[::-1])
                self.emit(BlocksFreed(request.name, 0, tuple(blocks), len(self.free)))
                self.running.remove(request)
                self.gone.append(request.name)


def make_trace(
    prompts: Mapping[str, str],
    lengths: Sequence[int],
    *,
    steps: int | None = None,
    budget: int = 16,
    seats: int = 8,
    block_size: int = 4,
    num_blocks: int = 40,
    arrivals: Sequence[int] | None = None,
) -> Trace:
    """Run prompts (name to text, one token a byte) with so many output tokens each; return the trace."""
    engine = _Engine(budget, seats, block_size, num_blocks)
    arrivals = arrivals or [0] * len(prompts)
    todo = list(zip(prompts.items(), lengths, arrivals, strict=True))
    step = 0
    while (todo or engine.running or engine.waiting or engine.gone) and (steps is None or step < steps):
        for item in [item for item in todo if item[2] <= step]:
            (name, text), length, _ = item
            engine.add(name, list(text.encode()), length)
            todo.remove(item)
        engine.step()
        step += 1
        if step > 1000:
            raise RuntimeError(f"{[r.name for r in engine.waiting]} can never run: give the stand-in more blocks")
    special = {32: "␠", 10: "⏎"}
    vocabulary = {i: special.get(i) or (chr(i) if 32 < i < 127 else f"\\x{i:02x}") for i in range(256)}
    settings = {
        "block_size": block_size, "num_blocks": num_blocks, "max_num_seqs": seats,
        "max_num_batched_tokens": budget, "max_model_len": 256, "model": "stand-in",
    }  # fmt: skip
    return Trace(tuple(engine.records), {}, vocabulary, settings)


def five_requests() -> Trace:
    """A, D and B end early so that C, then E, drop into holes: rows ``[A,B,C,D,E]`` condense."""
    prompts = {"A": "To be, or n", "B": "not to", "C": "that is t", "D": "he ques", "E": "tion:"}
    return make_trace(prompts, [9, 3, 8, 3, 9], budget=64)
