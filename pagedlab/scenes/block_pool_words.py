"""The captions of the scene `block_pool`, computed from what the trace tells.

>>> from pagedlab.events import BlocksFreed, RequestFinished
>>> story = Story(PoolReplay(num_blocks=9))
>>> story.tell(BlocksAllocated("A", 0, (1, 2, 3), num_free=5), "schedule")[0]
'A takes blocks 1, 2 and 3 from the head of the free queue.'
>>> _ = story.tell(RequestFinished("A", "length", num_output_tokens=4), "update")
>>> story.tell(BlocksFreed("A", 0, (3, 2, 1), num_free=8), "update")[0]
'A ends: blocks 3, 2 and 1 come back, tail first.'

vLLM has no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pagedlab.events import (
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    RequestFinished,
    RequestPreempted,
)
from pagedlab.scenes.block_pool_state import POOL_EVENTS, PoolReplay
from pagedlab.scenes.words import are, begin, blocks, counted, name, names

Caption = tuple[str, str]


class Story:
    """Takes events to a pool, and tells of each.

    Parameters
    ----------
    pool : PoolReplay
    """

    def __init__(self, pool: PoolReplay) -> None:
        self.pool = pool
        self.gone: dict[str, str] = {}  # who gives everything back, and why: "ends" …
        self.begin()

    def begin(self) -> None:
        """Begin to count anew."""
        self.tally: Counter[str] = Counter()  # how many blocks were taken, hit, given back …
        self._left: dict[str, str] = {}  # who has gone since

    def take(self, event: Event) -> None:
        """Take an event to the pool, and count what happens."""
        self.pool.apply(event)
        match event:
            case BlocksAllocated() | BlocksTouched():
                self.gone.pop(event.request_id, None)
            case RequestFinished(request_id=who, reason=reason):
                self.gone[who] = self._left[who] = "is withdrawn" if reason == "abort" else "ends"
            case RequestPreempted(request_id=who):
                self.gone[who] = self._left[who] = "is preempted"
            case _:
                pass
        if isinstance(event, POOL_EVENTS):
            self.tally[_DID[type(event)]] += len(event.block_ids)

    def tell(self, event: Event, beat: str | None) -> Caption:
        """Take an event to the pool and return what to say of it; nothing of one that does not change the pool."""
        match event:  # what is told best from how the pool is before it
            case BlocksTouched():
                caption = self._touched(event)
            case BlocksEvicted():
                caption = self._evicted(event)
            case _:
                caption = "", ""
        self.take(event)
        match event:
            case BlocksAllocated():
                return self._allocated(event)
            case BlocksCached():
                return self._cached(event, beat)
            case BlocksFreed():
                return self._freed(event)
            case _:
                return caption

    # --- one event ----------------------------------------------------------------------------------------

    def _allocated(self, event: BlocksAllocated) -> Caption:
        change = f"{name(event.request_id)} takes {blocks(event.block_ids)} from the head of the free queue."
        each = "Its reference count is 1." if len(event.block_ids) == 1 else "Each has the reference count 1."
        return change, f"{each} {self.next_to_go()}"

    def next_to_go(self) -> str:
        """Return which block is the head of the queue, as a sentence."""
        if not self.pool.queue:
            return "The queue is empty now: the next block has to be taken from somebody."
        head = self.pool.head(1)
        return f"The head is block {head[0]} now." if head else "Which is the head now, the trace has not told."

    def _touched(self, event: BlocksTouched) -> Caption:
        them = "it" if len(event.block_ids) == 1 else "them"
        change = f"{name(event.request_id)} hits {blocks(event.block_ids)}: it need not compute {them} again."
        shared = [block for block in event.block_ids if self.pool.ref_cnt(block)]
        free = [block for block in event.block_ids if block not in shared]
        told = []
        if free:
            they = f"{_was(free)} free and still remembered"
            told.append(f"{they}: out of the queue, from wherever {'it stands' if len(free) == 1 else 'they stand'}.")
        counts = {block: self.pool.ref_cnt(block) + 1 for block in shared}
        for count in sorted(set(counts.values())):
            those = [block for block in shared if counts[block] == count]
            holders = dict.fromkeys(who for block in those for who in self.pool.holders[block])
            its = "its reference count is" if len(those) == 1 else "their reference counts are"
            told.append(f"{_is(those)} held by {names(holders, limit=3)} already: {its} {count} now.")
        return change, " ".join(told)

    def _cached(self, event: BlocksCached, beat: str | None) -> Caption:
        one = len(event.block_ids) == 1
        it, they, them = ("it", "It", "it") if one else ("they", "They", "them")
        whose = f"{name(event.request_id)}’s {blocks(event.block_ids)}"
        change = f"{whose} get{'s' if one else ''} a hash: from now on {it} can be hit."
        detail = "A hash names the tokens of a block and all before them, so only a full block gets one."
        if beat == "schedule":
            detail += f" {they} will be computed in this very step, before anybody reads {them}."
        return change, detail

    def _evicted(self, event: BlocksEvicted) -> Caption:
        held = [block for block in event.block_ids if self.pool.ref_cnt(block)]
        one = len(event.block_ids) == 1
        lose = f"{begin(blocks(event.block_ids))} lose{'s its hash' if one else ' their hashes'}"
        if held:
            return f"{lose}.", f"What was to be computed in {'it' if one else 'them'} will not be: nobody may hit that."
        writers = list(dict.fromkeys(
            what.request_id for block in event.block_ids if (what := self.pool.remembered.get(block)) is not None
        ))  # fmt: skip
        filled = f", filled by {names(writers, limit=3)}," if writers else ""
        return (
            f"{lose}: somebody needs {'it' if one else 'them'} now.",
            f"{'It was' if one else 'They were'} free{filled} and could be hit until now. That is all an eviction is: "
            "nothing is copied or cleared.",
        )

    def _freed(self, event: BlocksFreed) -> Caption:
        why = self.gone.get(event.request_id, "")
        one = len(event.block_ids) == 1
        come = f"{blocks(event.block_ids)} come{'s' if one else ''} back"
        change = (
            f"{name(event.request_id)} {why}: {come}{'' if one else ', tail first'}."
            if why
            else f"{begin(blocks(event.block_ids))} fell out of {name(event.request_id)}’s window and "
            f"come{'s' if one else ''} back."
        )
        still = [block for block in event.block_ids if self.pool.ref_cnt(block)]
        free = [block for block in event.block_ids if self.pool.state(block) in ("free", "cached")]
        plain = [block for block in free if block not in self.pool.remembered]
        hashed = [block for block in free if block in self.pool.remembered]
        told = []
        if plain:
            goes = "goes to the head: it is" if len(plain) == 1 else "go to the head: they are"
            told.append(f"{begin(blocks(plain))}, without a hash, {goes} taken next.")
        if hashed:
            goes = "goes" if len(hashed) == 1 else "go"
            begins = ", where the text begins," if why and hashed[-1] == event.block_ids[-1] else ""
            last = "" if len(hashed) == 1 else f"; block {hashed[-1]}{begins} is taken last"
            told.append(f"{begin(blocks(hashed))}, with a hash, {goes} to the tail and can still be hit{last}.")
        if still:
            first, *others = still
            holders, count = names(self.pool.holders[first], limit=3), self.pool.ref_cnt(first)
            rest = f" ({counted(len(others), 'more block')} likewise.)" if others else ""
            told.append(f"Block {first} is still held by {holders}: its reference count falls to {count}.{rest}")
        return change, " ".join(told)

    # --- a whole step -------------------------------------------------------------------------------------

    def opening_caption(self, step: int) -> Caption:
        """Say how the step finds the pool."""
        counts = self.pool.counts
        total, free = self.pool.num_blocks - 1, self.pool.num_free
        told = "" if free is None else f", {free:,} free"
        change = f"Step {step} finds {counts['owned']:,} of {total:,} blocks in use{told}."
        if counts["unknown"]:
            return change, "The recording began later than the engine: of some blocks it has not told yet."
        detail = "Block 0 is the null block, which nobody gets."
        if counts["cached"]:
            remember = "remembers what it" if counts["cached"] == 1 else "remember what they"
            detail = f"{counts['cached']:,} of the free ones {remember} held, and can be hit."
        return change, f"{detail} {self.next_to_go()}"

    def step_caption(self, step: int) -> Caption:
        """Say what happened since counting began, in the step that has just ended, and begin anew."""
        tally, left = self.tally, self._left
        self.begin()
        parts = [f"{tally[did]:,} {did}" for did in _DID.values() if tally[did]]
        if not parts:
            change = f"Step {step}: no block changes hands."
        else:
            first, *rest = parts
            number, _, did = first.partition(" ")
            noun = "block is" if number == "1" else "blocks are"
            told = [f"{number} {noun} {did}", *rest]
            change = f"Step {step}: {', '.join(told)}."
        who = [f"{names(ids, 4)} {_plural(how, len(ids))}." for how, ids in _by_reason(left).items()]
        return change, " ".join([*who, self.next_to_go()])


_DID: dict[type[Event], str] = {
    BlocksAllocated: "taken",
    BlocksTouched: "hit",
    BlocksFreed: "given back",
    BlocksEvicted: "evicted",
    BlocksCached: "hashed",
}


def _by_reason(left: dict[str, str]) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for request_id, how in left.items():
        by_reason.setdefault(how, []).append(request_id)
    return by_reason


def _plural(how: str, count: int) -> str:
    if count == 1:
        return how
    return "end" if how == "ends" else how.replace("is ", "are ", 1)


def _is(block_ids: Sequence[int]) -> str:
    return f"{begin(blocks(block_ids))} {are(len(block_ids))}"


def _was(block_ids: Sequence[int]) -> str:
    return f"{begin(blocks(block_ids))} {'was' if len(block_ids) == 1 else 'were'}"
