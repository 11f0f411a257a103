"""The scene `block_pool`: each block of KV memory, who holds it, what the free ones remember, the free queue in order.

    scene = block_pool(trace)                          # the step that shows most, event by event
    scene = block_pool(trace, step=3)
    scene = block_pool(trace, steps=range(1000))       # a long run, one frame a step

Up to 64 blocks are cards, and entries travel between them and the queue. A larger pool, of 100,000 blocks say, is a
grid to zoom into, and a frame holds only what changed.

vLLM counterpart of what is shown: ``vllm/v1/core/block_pool.py`` (``BlockPool``) and ``kv_cache_utils.py``
(``FreeKVCacheBlockQueue``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from pagedlab.errors import TraceError
from pagedlab.events import BlocksAllocated, BlocksEvicted, BlocksFreed, BlocksTouched, Event
from pagedlab.scenes.assembling import assemble
from pagedlab.scenes.block_pool_questions import questions_of_pool
from pagedlab.scenes.block_pool_stage import WIDTH, PoolStage
from pagedlab.scenes.block_pool_state import POOL_EVENTS, replay_of, requests_of
from pagedlab.scenes.block_pool_words import Caption, Story
from pagedlab.scenes.grid import Look
from pagedlab.scenes.scene import Frame, Scene, in_key_order
from pagedlab.trace import Record, Trace

_EVENT_NAMES = {
    "BlocksAllocated": "allocation",
    "BlocksEvicted": "eviction",
    "BlocksTouched": "hit",
    "BlocksFreed": "return",
    "BlocksCached": "hash",
}
_MOST_TELLING: tuple[type[Event], ...] = (BlocksEvicted, BlocksTouched, BlocksFreed, BlocksAllocated)
_MOST_ENTRIES = 24
"""So many entries are seen to travel at once."""


def block_pool(trace: Trace, step: int | None = None, *, steps: range | None = None) -> Scene:
    """Show what happens to the block pool: event by event in one step, or step by step in a long run.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        The step to show event by event. By default the first that evicts, else the first with a hit in the prefix
        cache, else the first in which blocks are given back, else the first in which some are taken.
    steps : range, optional
        Show these steps instead, one frame each: ``range(trace.num_steps)`` for all. Those that the trace does not have
        are left out.

    Returns
    -------
    Scene
        With a `Grid` if the pool has more than 64 blocks.

    Raises
    ------
    TraceError
        If both ``step`` and ``steps`` are given, ``steps`` is not a range that goes up by ones, the trace has none of
        these steps, or nothing happens to the pool in them.
    """
    if steps is None:
        step = _first_step(trace) if step is None else step
        shown, where = range(step, step + 1), f"step {step}"
        records = trace.of_step(step)
    else:
        if step is not None:
            raise TraceError(f"step={step} and steps={steps} were given: give one of them")
        if not isinstance(steps, range) or steps.step != 1 or not steps:
            raise TraceError(f"steps is {steps!r}: give a range that goes up by ones, such as range(0, 100)")
        shown, where = steps, f"steps {steps.start} to {steps.stop - 1}"
        records = tuple(record for record in trace if record.step in steps)
        if not records:
            raise TraceError(f"the trace has none of the {where}: it has {trace.num_steps} steps")
    if not any(isinstance(record.event, POOL_EVENTS) for record in records):
        raise TraceError(f"nothing happens to the block pool in {where}: no block is taken, hit, hashed or given back")
    walk = _Walk(trace, shown)
    frames = tuple(walk.events() if steps is None else walk.steps())
    return assemble(
        trace,
        records,
        "block_pool",
        "Block pool",
        (WIDTH, walk.stage.height),
        frames,
        walk.requests,
        _EVENT_NAMES,
        lambda scene: questions_of_pool(scene, trace),
        grid=walk.grid,
    )


def _first_step(trace: Trace) -> int:
    for kind in _MOST_TELLING:
        for record in trace:
            if isinstance(record.event, kind):
                return record.step
    raise TraceError("no step of this trace touches the block pool: record an engine while it runs a request")


class _Walk:
    """Takes the pool through some steps, and shows the stage after each event, or after each step."""

    def __init__(self, trace: Trace, shown: range) -> None:
        self.trace = trace
        indices = [index for index, record in enumerate(trace.records) if record.step in shown]
        self.first, self.last = indices[0], indices[-1]
        self.requests = requests_of(trace.records[: self.last + 1])
        self.pool = replay_of(trace)
        self.stage = PoolStage(self.pool, self.requests)
        self.grid = self.stage.grid()
        self.story = Story(self.pool)
        for record in trace.records[: self.first]:
            self.story.take(record.event)
        self.story.begin()
        self._looks: dict[int, Look] = {}  # of the cells in the last frame, where they are not what most are
        self._queued: set[int] = set()  # the free blocks in the last frame

    def _records(self) -> Iterator[tuple[int, Record]]:
        return ((index, self.trace.records[index]) for index in range(self.first, self.last + 1))

    def events(self) -> Iterator[Frame]:
        """Walk through a step: how it finds the pool, and each event."""
        yield self._opening()
        for index, record in self._records():
            caption = self.story.tell(record.event, record.beat)
            if isinstance(record.event, POOL_EVENTS):
                yield self._frame(str(index), index, record.step, caption, record)

    def steps(self) -> Iterator[Frame]:
        """Walk through many steps: how the first finds the pool, and how each leaves it."""
        yield self._opening()
        for step, records in groupby(self._records(), key=lambda item: item[1].step):
            telling: Record | None = None
            index = self.first
            for index, record in records:  # noqa: B007  (the last one is shown)
                self.story.take(record.event)
                if isinstance(record.event, POOL_EVENTS) and _tells_more(record, telling):
                    telling = record
            frame = self._frame(str(step), index, step, self.story.step_caption(step), telling)
            yield replace(frame, beat=None)

    def _opening(self) -> Frame:
        self.pool.take_changed()
        step = self.trace.records[self.first].step
        frame = self._frame("open", self.first - 1, step, self.story.opening_caption(step), None)
        return replace(frame, cells=self._new_looks(range(self.pool.num_blocks)))

    def _frame(self, key: str, index: int, step: int, caption: Caption, shown: Record | None) -> Frame:
        changed = self.pool.take_changed()
        if self.stage.has_cards:
            now = set(self.pool.queue)
            self.stage.leaving = sorted(self._queued - now)[:_MOST_ENTRIES]
            self.stage.entering = sorted(now - self._queued)[:_MOST_ENTRIES]
            self._queued = now
        actors = in_key_order(self.stage.actors())
        keys = {actor.key for actor in actors}
        source = shown.source if shown is not None else None
        return Frame(
            id=key,
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=self._subtitle(step),
            step=step,
            beat=shown.beat if shown is not None else None,
            event=shown.event.kind if shown is not None else None,
            source=(source.function, source.line) if source is not None else None,
            focus=tuple(key for key in map("block:{}".format, changed) if key in keys),
            record=index,
            cells=self._new_looks(changed),
        )

    def _subtitle(self, step: int) -> str:
        counts, free = self.pool.counts, self.pool.num_free
        in_use = f"{counts['owned']:,} of {self.pool.num_blocks - 1:,} blocks in use"
        return f"step {step} · {in_use}{'' if free is None else f' · {free:,} free'}"

    def _new_looks(self, blocks: Iterable[int]) -> dict[int, Look]:
        """Return the cells among these that look otherwise than in the last frame."""
        if self.grid is None:
            return {}
        usual = self.grid.look
        looks = self.stage.cells(blocks)
        looks = {block: look for block, look in looks.items() if look != self._looks.get(block, usual)}
        self._looks.update(looks)
        return looks


def _tells_more(record: Record, other: Record | None) -> bool:
    """Whether an event of a step is rather the one to show than another, earlier one."""
    if other is None:
        return True
    kinds = (*_MOST_TELLING, type(record.event), type(other.event))
    return kinds.index(type(record.event)) < kinds.index(type(other.event))
