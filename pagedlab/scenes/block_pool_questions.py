"""Questions about the block pool: which block is taken next, which comes back first, how many hold it.

vLLM has no counterpart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from pagedlab.events import BlocksAllocated, BlocksEvicted, BlocksFreed, BlocksTouched, Event
from pagedlab.scenes.block_pool_state import POOL_EVENTS, PoolReplay, replay_of
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import blocks, counted, name, names
from pagedlab.trace import Trace

_FEW = 64
"""In a pool of so many blocks every wrong one has its reason; in a larger one those that are likely to be picked."""

_KINDS = 3


def questions_of_pool(scene: Scene, trace: Trace) -> Iterator[Question]:
    """Give the questions of a block pool scene: of each kind the first for which there is an occasion."""
    pool = replay_of(trace)
    ends = [frame.record for frame in scene.frames]
    asked: set[str] = set()
    before = 0  # the frame that shows the last event of the pool
    for index in range(ends[-1] + 1):
        event = trace.records[index].event
        if isinstance(event, POOL_EVENTS):
            at = bisect_left(ends, index)
            if at > before:
                # An eviction would tell what is taken: ask before it.
                told = _next_of_pool(trace, index) if isinstance(event, BlocksEvicted) else index
                shown = bisect_left(ends, told)
                if shown < len(ends):
                    yield from _about(trace.records[told].event, pool, at - 1, shown, asked)
                if len(asked) == _KINDS:
                    return
            before = at
        pool.apply(event)


def _next_of_pool(trace: Trace, index: int) -> int:
    """Return which record is the next to change the pool; the number of records if none does."""
    rest = range(index + 1, len(trace))
    return next((at for at in rest if isinstance(trace.records[at].event, POOL_EVENTS)), len(trace))


def _about(event: Event, pool: PoolReplay, ask_frame: int, frame: int, asked: set[str]) -> Iterator[Question]:
    """Ask of what happens first to the pool in a frame; ``pool`` is as ``ask_frame`` shows it."""
    match event:
        case BlocksAllocated() if "taken" not in asked and len(pool.queue) > 1 and pool.head(1):
            asked.add("taken")
            yield which_is_taken(event, pool, ask_frame, frame)
        case BlocksFreed() if "back" not in asked and 1 < len(event.block_ids) == pool.num_held.get(event.request_id):
            asked.add("back")
            yield which_comes_first(event, pool, ask_frame, frame)
        case BlocksTouched() if "count" not in asked and not pool.unknown and not pool.vague:
            asked.add("count")
            yield reference_count(event, pool, ask_frame, frame)
        case _:
            pass


def which_is_taken(event: BlocksAllocated, pool: PoolReplay, ask_frame: int, frame: int) -> Question:
    """Ask which block an allocation takes first."""
    right = event.block_ids[0]
    free = [block for block in pool.queue if block >= 0]
    wanted = (
        range(pool.num_blocks) if pool.num_blocks <= _FEW else [0, min(free), *free[:8], *pool.tail(2), *_some(pool)]
    )
    reasons = {str(block): _why_not_taken(block, free, pool) for block in wanted if block != right}
    who = name(event.request_id)
    count = len(event.block_ids)
    needs = "a block" if count == 1 else f"{count:,} blocks"
    rest = "" if count == 1 else f" Behind it come {blocks(event.block_ids[1:])}." if count > 2 else ""
    return Question(
        f"{who} is about to get {needs}. Which one is taken{'' if count == 1 else ' first'}?",
        "pick",
        str(right),
        (),
        reasons,
        f"Block {right} is the head of the free queue, and blocks are taken from there.{rest}",
        ask_frame,
        frame,
        fact="block",
    )


def _why_not_taken(block: int, free: list[int], pool: PoolReplay) -> str:
    match pool.state(block):
        case "null":
            return "That is the null block. Padding and skipped blocks point at it; nobody ever gets it."
        case "owned":
            hold = "holds" if pool.ref_cnt(block) == 1 else "hold"
            return f"{names(pool.holders[block], limit=3)} {hold} it: it is not free."
        case "unknown":
            return "Of that block the recording has not told: it began later than the engine."
        case state:
            place = free.index(block)
            stand = f"{counted(place, 'block')} stand{'s' if place == 1 else ''} before it"
            if block == min(free):
                return f"It has the lowest number of the free ones, but numbers do not count: {stand}."
            if place == len(free) - 1 and place > 1:
                return "It is the tail of the queue: all other free blocks are taken before it."
            kept = " What it remembers can still be hit." if state == "cached" else ""
            return f"It is free, but {stand}.{kept}"


def _some(pool: PoolReplay) -> Iterator[int]:
    """Give a few blocks that are held."""
    return (block for _, block in zip(range(8), pool.holders, strict=False))


def which_comes_first(event: BlocksFreed, pool: PoolReplay, ask_frame: int, frame: int) -> Question:
    """Ask which block of a request is given back first."""
    right, last = event.block_ids[0], event.block_ids[-1]
    who = name(event.request_id)
    reasons = {
        str(block): f"It comes {_nth(place)}. {who} gives back from its end: what is behind it goes first."
        for place, block in enumerate(event.block_ids[1 : _FEW + 1], start=2)
    }
    reasons[str(last)] = (
        f"There {who} begins. Its beginning is what another request is most likely to share, so it is given back last."
    )
    others = range(pool.num_blocks) if pool.num_blocks <= _FEW else [0, *_some(pool), *pool.head(4)]
    for block in set(others) - {right}:
        reasons.setdefault(str(block), f"{who} does not hold that block.")
    return Question(
        f"{who} is about to give back {counted(len(event.block_ids), 'block')}. Which one comes back first?",
        "pick",
        str(right),
        (),
        reasons,
        f"Block {right} holds the end of {who}, and blocks come back tail first.",
        ask_frame,
        frame,
        fact="block",
    )


def _nth(place: int) -> str:
    return f"{place}{'th' if place % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th')}"


def reference_count(event: BlocksTouched, pool: PoolReplay, ask_frame: int, frame: int) -> Question:
    """Ask for the reference count of a block that is hit."""
    block = max(event.block_ids, key=pool.ref_cnt)
    before = pool.ref_cnt(block)
    who = name(event.request_id)
    if before:
        holders = names(pool.holders[block], limit=3)
        so_far = f"{holders} hold{'s' if before == 1 else ''} block {block}"
        explanation = (
            f"{so_far} already, and {who} joins: {before} + 1 = {before + 1}. It is free again when all let go."
        )
        reasons = {
            str(before): f"So it is before {who} comes. A hit holds the block, too: else it could be taken from {who}.",
            str(before + 2): f"One too far: {holders} and {who}, that is {before + 1}.",
            "0": "With 0 it would be free, and the next to come might take it.",
        }
    else:
        so_far = f"Block {block} is free, but remembered"
        explanation = f"Nobody held it, now {who} does. It leaves the free queue, from wherever it stands."
        reasons = {
            "0": f"With 0 it would stay in the free queue, and might be taken while {who} reads it.",
            "2": f"Who filled it has let go of it. Only {who} holds it now.",
        }
    return Question(
        f"{so_far}, and {who} is about to hit it. What is its reference count then?",
        "number",
        str(before + 1),
        (),
        reasons,
        explanation,
        ask_frame,
        frame,
    )
