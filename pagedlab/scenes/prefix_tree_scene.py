"""The scene `prefix_tree`: cached blocks as a tree of hashes; lookups walk down it, evictions take its leaves.

A frame shows the request that asks, its blocks above the columns of the tree, the tree, and the free queue. A lookup
stops at the first block that is not there. Blocks come into the tree when they are scheduled, before they are computed,
stay in it when they are freed, and leave it when somebody needs them.

vLLM counterpart of what is shown: ``vllm/v1/core/kv_cache_manager.py`` (``KVCacheManager.get_computed_blocks``,
``.allocate_slots``) and ``block_pool.py`` (``BlockPool``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pagedlab.errors import TraceError
from pagedlab.events import (
    BeatStarted,
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
    StepStarted,
)
from pagedlab.scenes import prefix_tree_words as words
from pagedlab.scenes.assembling import assemble, line_with
from pagedlab.scenes.block_pool_state import POOL_EVENTS, requests_of
from pagedlab.scenes.prefix_tree_layout import WIDTH, TreeLayout
from pagedlab.scenes.prefix_tree_questions import Lookup, questions_of_tree
from pagedlab.scenes.prefix_tree_stage import Ask, TreeStage
from pagedlab.scenes.prefix_tree_state import Place, TreeState
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.scene import Frame, Scene, in_key_order
from pagedlab.scenes.step_captions import ids_of
from pagedlab.scenes.words import TokenLabels, columns, counted
from pagedlab.trace import Record, Trace

_EVENT_NAMES = {
    "BlocksTouched": "hit",
    "BlocksAllocated": "new block",
    "BlocksCached": "hash",
    "BlocksEvicted": "eviction",
    "BlocksFreed": "release",
    "ForwardFinished": "forward pass",
}
_FEW = 12
"""Up to so many admissions are shown one thing after the other; in a longer scene each takes two frames."""

_ONE_BY_ONE = 3
"""Up to so many hits of a lookup are shown one by one."""


def prefix_tree(trace: Trace, first: int | None = None, last: int | None = None) -> Scene:
    """Show the prefix cache as a tree: lookups, hits, hashes given in advance, releases, evictions.

    Parameters
    ----------
    trace : Trace
    first, last : int, optional
        The steps that are shown, both ends included; all steps by default.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If no block gets a hash in the trace, or nothing happens to the cache in these steps.
    """
    if not any(isinstance(record.event, BlocksCached) and record.event.group == GROUP for record in trace):
        raise TraceError(
            "no block of this trace gets a hash: record an engine with CacheConfig(enable_prefix_caching=True), with "
            "prompts that fill a block"
        )
    steps = sorted({record.step for record in trace if record.step >= 0}) or [0]
    first, last = steps[0] if first is None else first, steps[-1] if last is None else last
    walk = _Walk(trace, first, last)
    frames = tuple(walk.frames())
    return assemble(
        trace,
        walk.records,
        "prefix_tree",
        "Prefix tree",
        (WIDTH, walk.stage.height),
        frames,
        walk.requests,
        _EVENT_NAMES,
        lambda scene: questions_of_tree(scene, trace, walk.lookups),
    )


@dataclass(frozen=True)
class Group:
    """Records that a frame, or the frames of one admission, are about; ``end`` is the index behind the last."""

    kind: str
    records: tuple[tuple[int, Record], ...]

    @property
    def events(self) -> list[Event]:
        return [record.event for _, record in self.records]

    @property
    def end(self) -> int:
        return self.records[-1][0] + 1

    @property
    def evicts(self) -> bool:
        """Whether a block loses its hash."""
        return any(isinstance(event, BlocksEvicted) for event in self.events)

    @property
    def grant(self) -> RequestScheduled | None:
        """Who is scheduled with it."""
        return next((event for event in self.events if isinstance(event, RequestScheduled)), None)


def groups_of(records: Sequence[tuple[int, Record]]) -> Iterator[Group]:
    """Put records together that belong into one frame: an admission, a round of decodes, a release."""
    pending: list[tuple[int, Record]] = []
    for index, record in records:
        match record.event:
            case BlocksAllocated() | BlocksTouched() | BlocksCached() | BlocksEvicted():
                if pending and _is_release(pending):
                    yield from _flush(pending)
                pending.append((index, record))
            case BlocksFreed():
                if pending and not _is_release(pending):
                    yield from _flush(pending)
                pending.append((index, record))
                yield from _flush(pending)
            case RequestScheduled() as event:
                kind = "run" if event.status == "running" else "admit"
                if pending or kind == "admit":
                    yield Group(kind, (*pending, (index, record)))
                pending.clear()
            case RequestPreempted() | RequestFinished() | RequestAborted():
                if pending and not _is_release(pending):
                    yield from _flush(pending)
                pending.append((index, record))
            case ForwardFinished():
                yield from _flush(pending)
                yield Group("forward", ((index, record),))
            case BeatStarted() | StepStarted():
                yield from _flush(pending)
            case _:
                pass
    yield from _flush(pending)


def _is_release(pending: Sequence[tuple[int, Record]]) -> bool:
    return isinstance(pending[0][1].event, (RequestPreempted, RequestFinished, RequestAborted, BlocksFreed))


def _flush(pending: list[tuple[int, Record]]) -> Iterator[Group]:
    """Give what is pending as a group, if it says anything of blocks; what was taken in vain is of a failed step."""
    kinds = {type(record.event) for _, record in pending}
    if BlocksFreed in kinds:
        yield Group("free", tuple(pending))
    elif kinds == {BlocksEvicted}:
        yield Group("forget", tuple(pending))
    elif kinds & set(POOL_EVENTS):
        yield Group("run", tuple(pending))
    pending.clear()


def _together(groups: Sequence[Group]) -> Iterator[Group]:
    """Join neighbouring decodes of a step, unless one evicts something."""
    joined: list[Group] = []
    for group in groups:
        plain = group.kind == "run" and not group.evicts
        if joined and plain and group.records[0][1].step == joined[0].records[0][1].step:
            joined.append(group)
            continue
        if joined:
            yield Group("run", tuple(item for part in joined for item in part.records))
        joined = [group] if plain else []
        if not plain:
            yield group
    if joined:
        yield Group("run", tuple(item for part in joined for item in part.records))


class _Walk:
    """Takes the tree through the steps, and shows the stage at each change."""

    def __init__(self, trace: Trace, first: int, last: int) -> None:
        self.trace = trace
        inside = [index for index, record in enumerate(trace.records) if first <= record.step <= last]
        if not inside:
            trace.of_step(first)  # says which steps there are
            raise TraceError(f"first is {first} and last is {last}: give the first and the last step to show")
        self.first = inside[0]
        self.records = trace.records[self.first : inside[-1] + 1]
        numbered = list(enumerate(self.records, self.first))
        self.groups = list(_together(list(groups_of(numbered))))
        if not any(isinstance(event, POOL_EVENTS) for group in self.groups for event in group.events):
            raise TraceError(f"nothing happens to the prefix cache in steps {first} to {last}")
        self.is_detailed = sum(group.kind == "admit" for group in self.groups) <= _FEW
        self.requests = tuple(requests_of(trace))
        self.state = TreeState(trace)
        for record in trace.records[: self.first]:
            self.state.apply(record.event)
        self.stage = TreeStage(self.state, self._layout(), self.requests)
        self.lookups: list[Lookup] = []
        self.at = self.first  # records before this one are applied
        self.shown: list[Frame] = []

    def _layout(self) -> TreeLayout:
        """Run ahead through the steps, and give everything that will be in the tree its place."""
        state = TreeState(self.trace)
        places: dict[Place, tuple[Place, int]] = {}
        twins: dict[Place, int] = {}
        weight: dict[Place, int] = {}
        contents: set[tuple[int | None, ...]] = set()
        blocks = [0]
        last: set[tuple[int, Place, str]] = set()
        for index, record in enumerate(self.trace.records[: self.first + len(self.records)]):
            state.apply(record.event)
            if index < self.first - 1 or not isinstance(record.event, (*POOL_EVENTS, ForwardFinished)):
                continue
            now = set()
            for node in state.nodes():
                places.setdefault(node.place, (node.parent, node.column))
                twins[node.place] = max(twins.get(node.place, 1), node.rank + 1)
                contents.add(node.tokens)
                blocks.append(node.block)
                now.add((node.block, node.place, node.state))
            for _, place, _ in now ^ last:
                weight[place] = weight.get(place, 0) + 1
            last = now
        labels = TokenLabels(self.trace.vocabulary)
        widest = max((_columns([labels.label(token) for token in tokens]) for tokens in contents), default=1)
        return TreeLayout(places, twins, widest, len(str(max(blocks))), weight)

    # --- frames -------------------------------------------------------------------------------------------

    def frames(self) -> list[Frame]:
        """Walk through the steps."""
        step = self.records[0].step if self.records[0].step >= 0 else 0
        self._show(words.opening(self.state, step))
        for group in self.groups:
            if group.kind == "forward":
                self._forward(group)
            elif group.kind == "admit":
                self._admit(group)
            elif group.kind == "run":
                self._run(group)
            else:
                self._release(group)
        return self.shown

    def _apply_to(self, end: int) -> None:
        for record in self.trace.records[self.at : end]:
            self.state.apply(record.event)
        self.at = max(self.at, end)

    def _about(self, request_id: str) -> None:
        """Let the stage be about a request that runs."""
        path = self.state.path(request_id)
        num_tokens = len(path.tokens)
        ask = self.stage.ask
        if ask is None or ask.path is not path or ask.is_lookup:
            self.stage.ask = Ask(path, num_tokens, num_tokens // self.state.block_size, is_lookup=False)
        else:
            ask.num_tokens, ask.num_blocks = num_tokens, num_tokens // self.state.block_size

    def _forward(self, group: Group) -> None:
        promised = sorted(self.state.promised)
        early = [block for block in promised if self.state.pool.ref_cnt(block) > 1]
        self._apply_to(group.end)
        event = group.events[0]
        if promised and isinstance(event, ForwardFinished):
            keys = tuple(f"block:{block}" for block in promised)
            self._show(words.computed(event, promised, early), group.records[-1], focus=keys)

    def _admit(self, group: Group) -> None:
        grant = group.grant
        if grant is None:
            return
        self._apply_to(group.records[0][0])
        self._look_up(group, grant)
        if self.is_detailed:
            self._take(group)
        elif any(isinstance(event, POOL_EVENTS) for event in group.events):
            self._apply_to(group.end)
            ids = [*ids_of(group.events, BlocksTouched), *ids_of(group.events, BlocksAllocated)]
            caption = words.taken_at_once(group.events, self.state)
            self._show(caption, self._telling(group), focus=tuple(f"block:{block}" for block in ids), end=group.end)
        self._apply_to(group.end)

    def _telling(self, group: Group) -> tuple[int, Record]:
        """Return the record of a group that its frame is named after: what was evicted, hit or taken."""
        for kind in (BlocksEvicted, BlocksTouched, BlocksAllocated, BlocksCached):
            for item in group.records:
                if isinstance(item[1].event, kind):
                    return item
        return group.records[-1]

    def _take(self, group: Group) -> None:
        """Show what an admission takes, one thing after the other."""
        shown = [item for item in group.records if isinstance(item[1].event, POOL_EVENTS)]
        of_group = [item for item in shown if getattr(item[1].event, "group", GROUP) == GROUP]
        for at, (index, record) in enumerate(of_group):
            end = group.end if at == len(of_group) - 1 else index + 1  # the last frame shows it running
            match record.event:
                case BlocksTouched() as event:
                    before = {block: tuple(self.state.pool.holders.get(block, ())) for block in event.block_ids}
                    self._apply_to(end)
                    caption = words.touched(event, before)
                case BlocksAllocated() as event:
                    self._apply_to(end)
                    caption = words.allocated(group.events, self.state)
                case BlocksCached() as event:
                    self._apply_to(end)
                    caption = words.cached([event], self.state)
                case _:
                    continue  # an eviction is told with what takes the blocks
            evicts = isinstance(record.event, BlocksAllocated) and group.evicts
            focus = tuple(f"block:{block}" for block in ids_of([record.event], type(record.event)))
            item = self._telling(group) if evicts else (index, record)
            self._show(caption, item, focus=focus, end=end)

    def _run(self, group: Group) -> None:
        self._apply_to(group.end)
        cached = [event for event in group.events if isinstance(event, BlocksCached) and event.group == GROUP]
        taken = [event for event in group.events if isinstance(event, BlocksAllocated) and event.group == GROUP]
        if not (told := cached or taken):
            return
        self._about(told[0].request_id)
        evicts = group.evicts and bool(taken)
        caption = words.allocated(group.events, self.state) if evicts else words.grown(group.events, self.state)
        ids = dict.fromkeys(ids_of([*taken, *cached], BlocksAllocated, BlocksCached))
        item = self._telling(group) if evicts or not cached else next(i for i in group.records if i[1].event in cached)
        self._show(caption, item, focus=tuple(f"block:{block}" for block in ids), end=group.end)

    def _release(self, group: Group) -> None:
        """Show that blocks are given back, or lose their hashes."""
        event = group.events[-1]
        if isinstance(event, BlocksFreed) and event.group == GROUP:
            self._apply_to(group.records[-1][0])
            self._about(event.request_id)
        self._apply_to(group.end)
        if isinstance(event, BlocksEvicted):
            focus = tuple(f"block:{block}" for block in event.block_ids)
            self._show(words.forgotten(group.events), group.records[-1], focus=focus)
        elif isinstance(event, BlocksFreed) and event.group == GROUP:
            gone = [block for block in event.block_ids if block not in self.state.pool.holders]
            focus = tuple(f"free:{block}" for block in gone)
            self._show(words.freed(group.events, self.state), group.records[-1], focus=focus)

    # --- the lookup ---------------------------------------------------------------------------------------

    def _look_up(self, group: Group, grant: RequestScheduled) -> None:
        """Show how the hashes of a request are looked up, before anything is taken."""
        state, path = self.state, self.state.path(grant.request_id)
        path.tokens.extend([None] * (grant.num_tokens - len(path.tokens)))
        ask = Ask(path, grant.num_tokens, grant.num_tokens // state.block_size, is_lookup=True)
        self.stage.ask = ask
        num_found = grant.num_computed_tokens // state.block_size
        hits = ids_of(group.events, BlocksTouched)[-num_found:] if num_found else []
        item = (self.at - 1, self._record_that_looks(group))
        ask_frame = len(self.shown)
        if self.is_detailed:
            self._show(words.asking(ask, state, resumed=grant.status == "resumed"), item, looks=True)
        found = list(zip(range(num_found - len(hits), num_found), hits, strict=True))
        if self.is_detailed and len(found) <= _ONE_BY_ONE:
            for column, block in found:
                ask.verdicts[column] = "found"
                told = any(earlier in state.promised for _, earlier in found[:column])
                self._look(words.found(ask, column, block, self.stage, told=told), item, [(column, block)])
        elif found:
            ask.verdicts.update(dict.fromkeys(range(num_found), "found"))
            if self.is_detailed:
                self._look(words.found_many(ask, hits, self.stage), item, found)
        why = self._why_stopped(ask, num_found)
        if why in ("miss", "spared"):
            ask.verdicts[num_found] = why
        spared = state.blocks_with(state.hash_at(path, num_found) or "")[:1] if why == "spared" else []
        shown = found if not self.is_detailed else []
        self.lookups.append(Lookup(self.at - 1, grant, num_found, why, ask_frame, len(self.shown)))
        caption = words.stopped(ask, num_found, why, self.stage)
        self._look(caption, item, [*shown, *((num_found, block) for block in spared)], stops_at=num_found)

    def _why_stopped(self, ask: Ask, num_found: int) -> str:
        state = self.state
        block_hash = state.hash_at(ask.path, num_found)
        is_there = block_hash is not None and bool(state.blocks_with(block_hash))
        most = (ask.num_tokens - 1) // state.block_size
        if num_found >= most:
            return "spared" if num_found < ask.num_blocks and is_there else "end"
        return "limit" if is_there else "miss"

    def _look(
        self,
        caption: words.Caption,
        item: tuple[int, Record],
        found: Sequence[tuple[int, int]],
        stops_at: int | None = None,
    ) -> None:
        columns_shown = [column for column, _ in found] + ([stops_at] if stops_at is not None else [])
        focus = [f"ask:{column}" for column in columns_shown] + [f"block:{block}" for _, block in found]
        self._show(caption, item, focus=tuple(focus), looks=True)

    def _record_that_looks(self, group: Group) -> Record:
        """Return a record whose source is the line of the scheduler that looks up, if the trace has its text."""
        record = next(record for _, record in group.records if isinstance(record.event, RequestScheduled))
        return replace(record, source=line_with(self.trace, record, ".get_computed_blocks("))

    def _show(
        self,
        caption: words.Caption,
        item: tuple[int, Record] | None = None,
        *,
        focus: tuple[str, ...] = (),
        looks: bool = False,
        end: int | None = None,
    ) -> None:
        """Add a frame; one that ``looks`` shows no event."""
        actors = in_key_order(self.stage.actors())
        keys = {actor.key for actor in actors}
        index, record = item if item is not None else (self.first - 1, None)
        shown = index if end is None else end - 1
        hashed = len(self.state.pool.remembered)
        free = sum(block not in self.state.pool.holders for block in self.state.pool.remembered)
        step = record.step if record is not None else max(0, self.records[0].step)
        source = record.source if record is not None else None
        frame = Frame(
            id=f"{len(self.shown)}:{shown}",
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {max(0, step)} · {counted(hashed, 'block')} with a hash, {free:,} of them free",
            step=step,
            event=record.event.kind if record is not None and not looks else None,
            source=(source.function, source.line) if source is not None else None,
            focus=tuple(key for key in focus if key in keys),
            record=shown,
        )
        self.shown.append(frame)


def _columns(labels: Sequence[str]) -> int:
    between = 0 if all(columns(label) == 1 for label in labels) else max(0, len(labels) - 1)
    return sum(map(columns, labels)) + between
