"""The captions of the scene `prefix_tree`, computed from what the trace tells.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagedlab.events import (
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    ForwardFinished,
    RequestAborted,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
)
from pagedlab.scenes.prefix_tree_stage import SHORT_HASH, Ask, TreeStage
from pagedlab.scenes.prefix_tree_state import TreeState
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.step_captions import ids_of
from pagedlab.scenes.words import are, begin, blocks, counted, either, finish, listed, name, names

Caption = tuple[str, str]


def opening(state: TreeState, step: int) -> Caption:
    """Say what the scene finds."""
    hashed = len(state.pool.remembered)
    held = sum(block in state.pool.holders for block in state.pool.remembered)
    rule = (
        "A node is a full block of KV memory. Its hash is made of its tokens and its parent’s hash, so the way from "
        "the root to a node is the beginning of a prompt."
    )
    if not hashed:
        return "The cache is empty: no block has a hash.", rule
    return f"Step {step} finds {counted(hashed, 'block')} with a hash, {held:,} of them held.", rule


# --- the lookup ---------------------------------------------------------------------------------------------


def asking(ask: Ask, state: TreeState, *, resumed: bool) -> Caption:
    """Say who is next and what is looked up."""
    who, tokens = name(ask.path.request_id), counted(ask.num_tokens, "token")
    back = "comes back: " if resumed else "is next: "
    change = f"{who} {back}how many of its {tokens} are in the cache already?"
    if not ask.num_blocks:
        return change, f"They do not fill a block of {state.block_size}: there is no hash to look up."
    rule = (
        "It has one full block, whose hash is looked up"
        if ask.num_blocks == 1
        else f"It has {ask.num_blocks:,} full blocks; their hashes are looked up one after the other"
    )
    return change, f"{rule}, beginning at the root."


def found(ask: Ask, column: int, block: int, stage: TreeStage, *, told: bool) -> Caption:
    """Say that one block of a prompt is there; ``told`` if it was said before that hits may come early."""
    state, who = stage.state, name(ask.path.request_id)
    content = _quoted(stage, state.tokens_of(ask.path, column))
    change = f"Block {column} of {who}, {content}, is there: it is block {block}."
    return change, f"{_made_of(ask, column, state)}{'' if told else _promise(state, [block])}"


def found_many(ask: Ask, found_blocks: Sequence[int], stage: TreeStage) -> Caption:
    """Say that many blocks of a prompt are there."""
    count = len(found_blocks)
    change = f"The first {count:,} blocks of {name(ask.path.request_id)} are there: {blocks(list(found_blocks))}."
    return change, f"One hash after the other is in the map.{_promise(stage.state, found_blocks)}"


def _made_of(ask: Ask, column: int, state: TreeState) -> str:
    own, before = state.hash_at(ask.path, column), state.hash_at(ask.path, column - 1) if column else None
    if own is None:
        return ""
    if not column:
        return f"Its hash, {own[:SHORT_HASH]}…, is made of its tokens alone: the root is before it."
    parent = f" {before[:SHORT_HASH]}…," if before else ""
    return f"Its hash, {own[:SHORT_HASH]}…, is made of{parent} the hash before it, and of its own tokens."


def _promise(state: TreeState, found_blocks: Sequence[int]) -> str:
    """Say that a hit is not computed yet."""
    early = [block for block in found_blocks if block in state.promised]
    if not early:
        return ""
    who = names(dict.fromkeys(request for block in early for request in state.pool.holders.get(block, ())))
    return (
        f" {begin(blocks(early))} {are(len(early))} not computed yet: {who} will do that in this very step, and a "
        "layer writes all keys and values before it reads any."
    )


def _quoted(stage: TreeStage, tokens: Sequence[int | None]) -> str:
    return f"“{stage.content(tokens, 40)}”"


def stopped(ask: Ask, num_found: int, why: str, stage: TreeStage) -> Caption:
    """Say where the lookup ends and why: ``miss``, ``spared``, ``end`` or ``limit``."""
    state, who = stage.state, name(ask.path.request_id)
    column, rest = num_found, ask.num_tokens - num_found * state.block_size
    total = f"{counted(num_found * state.block_size, 'token')} of {ask.num_tokens:,} found, {rest:,} to compute."
    content = _quoted(stage, state.tokens_of(ask.path, column)[: ask.num_tokens - column * state.block_size])
    if why == "miss":
        change = f"Block {column} of {who}, {content}, is not there: the lookup stops."
        behind = ask.num_blocks - column - 1
        more = (
            f" The {counted(behind, 'block')} behind it {are(behind)} not looked up: "
            f"{'its hash' if behind == 1 else 'their hashes'} would need this one as a parent."
            if behind
            else ""
        )
        return change, total + more
    if why == "spared":
        change = f"Block {column} of {who}, {content}, is there too, and is not taken."
        twin = blocks(state.blocks_with(state.hash_at(ask.path, column) or "")[:1])
        return change, (
            f"{begin(twin)} has its hash. But the last token must be computed, since its logits give the next one, "
            f"and hits end where a block ends: the whole block is computed again. {total}"
        )
    if why == "end":
        change = f"{who} has no other full block to look up."
        if not num_found and not ask.num_blocks:
            change = f"{who} has no full block to look up."
        if rest == state.block_size:  # the last token is never looked up
            return change, f"Its last token must be computed in any case, and with it its block. {total}"
        return change, f"Its last {counted(rest, 'token')} do{'es' if rest == 1 else ''} not fill one. {total}"
    return (
        f"The lookup of {who} ends here.",
        f"Another KV cache group has no longer hit, or its window is short. {total}",
    )


# --- blocks come and go ---------------------------------------------------------------------------------------


def touched(event: BlocksTouched, before: Mapping[int, tuple[str, ...]]) -> Caption:
    """Say that hits are held; ``before`` has who held them."""
    ids, who = list(event.block_ids), name(event.request_id)
    shared = [block for block in ids if before.get(block)]
    free = [block for block in ids if not before.get(block)]
    parts = []
    if shared:
        others = names(dict.fromkeys(holder for block in shared for holder in before[block]))
        parts.append(f"{begin(blocks(shared))} {are(len(shared))} shared with {others}: nothing is copied.")
    if free:
        were = either(len(free), "was free, and leaves", "were free, and leave")
        stood = either(len(free), "it stood", "they stood")
        parts.append(f"{begin(blocks(free))} {were} the free queue from where {stood}.")
    return f"{who} holds {blocks(ids)} from now on.", " ".join(parts)


def allocated(events: Sequence[Event], state: TreeState) -> Caption:
    """Say that blocks were taken from the head of the free queue, and what they forgot."""
    event = next(event for event in events if isinstance(event, BlocksAllocated) and event.group == GROUP)
    ids, evicted, who = list(event.block_ids), ids_of(events, BlocksEvicted), name(event.request_id)
    have = either(len(ids), "It has", "They have")
    if not evicted:
        return f"{who} takes {blocks(ids)} from the head of the free queue.", f"{have} no hash: nothing is forgotten."
    they = either(len(ids), "it", "they") if len(evicted) == len(ids) else blocks(evicted)
    return (
        f"{who} takes {blocks(ids)}, and what {they} held is forgotten.",
        f"No free block without a hash was left, so {blocks(evicted)}, free the longest, lost "
        f"{either(len(evicted), 'its hash', 'their hashes')}. {_leaves(state)}",
    )


def _leaves(state: TreeState) -> str:
    orphans = state.orphans
    if not orphans:
        return "Requests free their last block first, so leaves go first: every block left still has its parent."
    return f"Without {either(len(orphans), 'its parent', 'their parents')} {blocks(orphans)} cannot be found any more."


def cached(events: Sequence[Event], state: TreeState) -> Caption:
    """Say that blocks got their hashes, before they are computed."""
    given = [event for event in events if isinstance(event, BlocksCached) and event.group == GROUP]
    hashes = {block: h for event in given for block, h in zip(event.block_ids, event.block_hashes, strict=True)}
    ids, who = list(hashes), names(dict.fromkeys(event.request_id for event in given))
    change = (
        f"{begin(blocks(ids))} of {who} {either(len(ids), 'gets its hash', 'get their hashes')}, before "
        f"{either(len(ids), 'it is', 'they are')} computed."
    )
    twins = [(block, state.blocks_with(h)[0]) for block, h in hashes.items() if state.blocks_with(h)[0] != block]
    if twins:
        block, first = twins[-1]
        return change, (
            f"Block {first} has the same hash as block {block}: two blocks with one content. A lookup finds block "
            f"{first}, which got it first."
        )
    it = either(len(ids), "it", "them")
    return change, f"This step will fill {it}. A lookup finds {it} from now on, in this same step too."


def grown(events: Sequence[Event], state: TreeState) -> Caption:
    """Say what the running requests of one step took and filled."""
    taken = [event for event in events if isinstance(event, BlocksAllocated) and event.group == GROUP]
    full = ids_of(events, BlocksCached)
    if not taken:
        return cached(events, state)
    ids = [block for event in taken for block in event.block_ids]
    who = list(dict.fromkeys(event.request_id for event in taken))
    change = (
        f"{names(who)} {either(len(who), 'takes', 'take')} {blocks(ids)}: "
        f"{either(len(who), 'what it has is', 'what they have is')} full."
    )
    detail = f"{either(len(ids), 'It gets its hash', 'They get their hashes')} when the last token is there."
    if full:
        detail = (
            f"{begin(blocks(full))} will be full with this step’s tokens, and "
            f"{either(len(full), 'gets its hash', 'get their hashes')} now, before "
            f"{either(len(full), 'it is', 'they are')} computed."
        )
    return change, detail


def computed(event: ForwardFinished, promised: Sequence[int], early: Sequence[int]) -> Caption:
    """Say that the forward pass keeps what the hashes promised; ``early`` blocks were hit before."""
    ids = list(promised)
    return (
        f"The forward pass computes {counted(event.num_tokens, 'token')}: {blocks(ids)} now "
        f"{either(len(ids), 'holds what its hash', 'hold what their hashes')} promised.",
        f"{begin(blocks(list(early)))} {either(len(early), 'was', 'were')} hit before that: nobody has read what was "
        "not there."
        if early
        else "",
    )


def freed(events: Sequence[Event], state: TreeState) -> Caption:
    """Say who let go of which blocks, and where they go."""
    event = next(event for event in events if isinstance(event, BlocksFreed) and event.group == GROUP)
    ids, who = list(event.block_ids), name(event.request_id)
    order = "" if len(ids) == 1 else ", last first"
    kept = [block for block in ids if block in state.pool.holders]
    hashed = [block for block in ids if block not in kept and block in state.pool.remembered]
    bare = [block for block in ids if block not in kept and block not in state.pool.remembered]
    parts = []
    if bare:
        goes = either(len(bare), "has no hash and goes", "have no hash and go")
        parts.append(f"{begin(blocks(bare))} {goes} to the head of the queue, to be taken next.")
    if hashed:
        goes = either(
            len(hashed), "keeps its hash and goes to the end", "keep their hashes and go to the end in this order"
        )
        leaf = ": a leaf will be evicted before its parent" if len(hashed) > 1 else ""
        parts.append(f"{begin(blocks(hashed))} {goes}{leaf}.")
    if kept:
        others = names(dict.fromkeys(holder for block in kept for holder in state.pool.holders[block]))
        parts.append(f"{begin(blocks(kept))} {are(len(kept))} still held by {others}.")
    return f"{who} {_why_freed(events)}: it lets go of {blocks(ids)}{order}.", " ".join(parts)


def _why_freed(events: Sequence[Event]) -> str:
    if any(isinstance(event, RequestAborted) for event in events):
        return finish("abort")
    for event in events:
        match event:
            case RequestPreempted():
                return "is preempted"
            case RequestFinished(reason=reason):
                return finish(reason)
            case _:
                pass
    return "has moved on"  # blocks that fell out of a window


def forgotten(events: Sequence[Event]) -> Caption:
    """Say that blocks lost their hashes because they will not be computed."""
    ids = ids_of(events, BlocksEvicted)
    it = either(len(ids), "it", "them")
    return (
        f"{begin(blocks(ids))} {either(len(ids), 'loses its hash', 'lose their hashes')} again.",
        f"The request that was to compute {it} in this step is about to be preempted, so nobody may hit {it} "
        "(vLLM 0.25.1 leaves the hash).",
    )


def taken_at_once(events: Sequence[Event], state: TreeState) -> Caption:
    """Say all that an admission takes, in one frame."""
    grant = next(event for event in events if isinstance(event, RequestScheduled))
    hits, new = ids_of(events, BlocksTouched), ids_of(events, BlocksAllocated)
    evicted, hashed = ids_of(events, BlocksEvicted), ids_of(events, BlocksCached)
    held = [f"shares {counted(len(hits), 'block')}"] if hits else []
    held += [f"takes {counted(len(new), 'block')}"] if new else []
    does = "resumes" if grant.status == "resumed" else "is admitted"
    parts = []
    if evicted:
        parts.append(f"What {blocks(evicted)} held is forgotten. {_leaves(state)}")
    if hashed:
        parts.append(
            f"{counted(len(hashed), 'block')} {either(len(hashed), 'gets its hash', 'get their hashes')} before "
            f"{either(len(hashed), 'it is', 'they are')} computed."
        )
    return f"{name(grant.request_id)} {does}: it {listed(held or ['takes nothing'])}.", " ".join(parts)
