"""Questions about the prefix tree: how much is found, what a full hit computes, what is evicted.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagedlab.events import BlocksAllocated, BlocksEvicted, RequestScheduled
from pagedlab.scenes.prefix_tree_state import TreeState, block_size_of
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import are, begin, blocks, counted, either, name
from pagedlab.trace import Trace


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a lookup found, and where it is shown.

    Attributes
    ----------
    record : int
        The last record before it.
    grant : RequestScheduled
        The admission that it belongs to.
    num_found : int
        Blocks.
    why : str
        Why it stopped: ``"miss"``, ``"spared"`` (all are there, the last is computed again), ``"end"``, ``"limit"``.
    ask_frame, frame : int
        The frames of its beginning and of its end.
    """

    record: int
    grant: RequestScheduled
    num_found: int
    why: str
    ask_frame: int
    frame: int


def questions_of_tree(scene: Scene, trace: Trace, lookups: Sequence[Lookup]) -> Iterator[Question]:
    """Give the questions of a prefix tree scene: one about a hit, one about a full hit, one about an eviction."""
    partial = [lookup for lookup in lookups if lookup.num_found and lookup.why in ("miss", "end")]
    full = [lookup for lookup in lookups if lookup.why == "spared"]
    evictions = [at for at, frame in enumerate(scene.frames) if frame.event == "BlocksEvicted"]
    for lookup in partial[:1]:
        yield tokens_found(trace, lookup)
    for lookup in full[:1]:
        yield tokens_of_full_hit(trace, lookup)
    for at in evictions:
        if (question := blocks_evicted(scene, trace, at)) is not None:
            yield question
            break


def tokens_found(trace: Trace, lookup: Lookup) -> Question:
    """Ask how many tokens of a request are found in the cache."""
    state = _state_at(trace, lookup.record)
    size, total, who = state.block_size, lookup.grant.num_tokens, name(lookup.grant.request_id)
    right = lookup.num_found * size
    alike, other = _most_alike(state, lookup.grant.request_id, total)
    offers = [
        (
            alike,
            f"So many tokens are the same as {name(other)}’s. But only full blocks have a hash, and a block holds "
            f"{size} tokens: {counted(lookup.num_found, 'block')}.",
        ),
        (lookup.num_found, f"That is the number of blocks. Each holds {counted(size, 'token')}."),
        (total, "Then nothing would be left to compute, and no logits to choose the next token by."),
        (total // size * size, f"So many are in full blocks. Block {lookup.num_found} is not in the cache, though."),
        (0, "Full blocks get their hashes when they are scheduled, and keep them when they are freed: some are there."),
        (total - right, "That is what is left to compute."),
    ]
    return Question(
        f"{who} has {counted(total, 'token')}, in blocks of {size}. How many of them are found in the cache?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{counted(lookup.num_found, 'block')} of {size}: the longest chain from the root that is all there.",
        lookup.ask_frame,
        lookup.frame,
    )


def _most_alike(state: TreeState, request_id: str, num_tokens: int) -> tuple[int, str]:
    """Return how many tokens at the beginning are the same as another request's, and whose."""
    mine = state.path(request_id).tokens[:num_tokens]
    best = (0, request_id)
    for other, path in state.paths.items():
        same = 0
        for one, two in zip(mine, path.tokens, strict=False):
            if one is None or one != two:
                break
            same += 1
        if other != request_id and same > best[0]:
            best = (same, other)
    return best


def tokens_of_full_hit(trace: Trace, lookup: Lookup) -> Question:
    """Ask how much a request computes all of whose blocks are in the cache."""
    size = block_size_of(trace)
    total, who = lookup.grant.num_tokens, name(lookup.grant.request_id)
    right = total - lookup.num_found * size
    offers = [
        (
            0,
            "Something must be computed: the cache has no logits, and those of the last token give the next one.",
        ),
        (
            1,
            f"One would do for its logits, but hits end where a block ends: the last block is computed whole, {size}.",
        ),
        (total, f"{counted(lookup.num_found, 'block')} {are(lookup.num_found)} taken from the cache."),
        (total - right, "So many are taken from the cache. The rest is computed."),
    ]
    return Question(
        f"{who} has {counted(total, 'token')}, and every one of its {total // size} blocks of {size} is in the cache. "
        "How many tokens are left to compute?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"The last block, {counted(size, 'token')}: the last token must be computed for its logits, and a hit ends "
        "where a block ends.",
        lookup.ask_frame,
        lookup.frame,
    )


def blocks_evicted(scene: Scene, trace: Trace, frame: int) -> Question | None:
    """Ask which blocks lose their hashes when somebody needs some; None if it could not be answered."""
    queue = str(scene.frames[frame - 1].stage["queue"].data["queue"]).split()
    taken, evicted, who = _taken(trace, scene.frames[frame - 1].record + 1, scene.frames[frame].record)
    if who is None or "?" in queue or not evicted:
        return None
    count = len(taken)
    free = [int(block) for block in queue]
    right = begin(blocks(evicted))
    reasons = {
        "None: it waits until blocks without a hash are free": "A free block is free, whether it has a hash or not."
    }
    last = free[-len(evicted) :]
    if set(last).isdisjoint(evicted):
        reasons[f"{begin(blocks(last))}, the end of the queue"] = (
            "New blocks come from the head. At the end stand those that were freed last, and of a prompt those that it "
            "begins with: the likeliest to be hit again."
        )
    held = [int(a.data["block"]) for k, a in scene.frames[frame - 1].stage.items() if k.startswith("block:")
            and a.data["state"] == "held" and a.data["hash"]][: len(evicted)]  # fmt: skip
    if held:
        reasons[f"{begin(blocks(held))}, which {'is' if len(held) == 1 else 'are'} held"] = (
            "What somebody holds is never evicted: only free blocks are taken."
        )
    bare = count - len(evicted)
    first = f" The first {counted(bare, 'block')} there {either(bare, 'has', 'have')} no hash." if bare else ""
    return Question(
        f"{name(who)} needs {counted(count, 'new block')}. The free queue is [{', '.join(_short(queue))}], head first. "
        "Which blocks lose their hashes?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        f"New blocks come from the head of the queue.{first} What was freed first goes first, and of a request "
        "its last block.",
        frame - 1,
        frame,
    )


def _taken(trace: Trace, start: int, end: int) -> tuple[list[int], list[int], str | None]:
    """Return the blocks that some records take from the queue, those that were evicted for it, and who takes them."""
    taken: list[int] = []
    evicted: list[int] = []
    who: str | None = None
    for record in trace.records[start : end + 1]:
        match record.event:
            case BlocksEvicted(block_ids=ids):
                evicted += ids
            case BlocksAllocated(request_id=request_id, block_ids=ids):
                taken += ids
                who = who or request_id
            case _:
                pass
    return taken, evicted, who if set(evicted) <= set(taken) else None


def _short(queue: Sequence[str]) -> list[str]:
    return list(queue) if len(queue) <= 10 else [*queue[:7], "…", *queue[-2:]]


def _state_at(trace: Trace, record: int) -> TreeState:
    state = TreeState(trace)
    for item in trace.records[: record + 1]:
        state.apply(item.event)
    return state
