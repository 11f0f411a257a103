"""The tree of cached blocks at any record of a trace, rebuilt from the events alone.

>>> from pagedlab.events import BlocksAllocated, BlocksCached, RequestAdded
>>> from pagedlab.trace import Record, Trace
>>> events = [
...     RequestAdded("A", (5, 6, 7), max_tokens=1),
...     BlocksAllocated("A", 0, (1, 2), num_free=1),
...     BlocksCached("A", 0, (1,), ("5c0f",)),
... ]
>>> trace = Trace(tuple(Record(0, None, event, None) for event in events), settings={"block_size": 2, "num_blocks": 4})
>>> tree = TreeState(trace)
>>> for event in events:
...     tree.apply(event)
>>> [(node.block, node.block_hash, node.tokens, node.holders) for node in tree.nodes()]
[(1, '5c0f', (5, 6), ('A',)), (2, None, (7,), ('A',))]

A hash stands for a block's tokens and everything before them, so each full block has one parent: the block that the
hash before it names. Blocks that are held and have no hash (their last token is not there yet) hang at the end of their
request's path. One KV cache group is shown.

vLLM counterpart of what is replayed: ``vllm/v1/core/kv_cache_utils.py`` (``hash_block_tokens``) and ``block_pool.py``
(``BlockHashToBlockMap``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pagedlab.events import (
    BeatStarted,
    BlocksAllocated,
    BlocksCached,
    BlocksEvicted,
    BlocksFreed,
    BlocksTouched,
    Event,
    ForwardFinished,
    RequestAdded,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    StepStarted,
    TokenAccepted,
)
from pagedlab.scenes.block_pool_state import PoolReplay, replay_of
from pagedlab.scenes.block_table_state import kernel_block_size
from pagedlab.scenes.preemption_queues import Queues
from pagedlab.scenes.replay import GROUP, after_free
from pagedlab.trace import Trace

ROOT = ""
"""Stands for the parent of every first block."""

UNKNOWN = "?"
"""Stands for a hash that the trace does not tell: the block was hashed before the recording began."""

Place = str
"""Where a block hangs in the tree: its hash, or for a block without one its request's life and column."""


@dataclass
class Path:
    """One request, from its arrival to its end: its tokens, and its blocks in their order.

    ``life`` tells apart the requests that had one id after each other. A block that fell out of a window is None.
    """

    request_id: str
    life: int
    tokens: list[int | None] = field(default_factory=list)
    blocks: list[int | None] = field(default_factory=list)
    num_prompt_tokens: int = 0

    @property
    def name(self) -> str:
        """What tells this life of the request from others."""
        return f"{self.life}:{self.request_id}"


@dataclass(frozen=True, slots=True)
class Node:
    """A block in the tree.

    ``state`` is ``promised`` (hashed in this step and not computed yet), ``held``, ``cached`` (free, and can be hit) or
    ``open`` (held, without a hash). ``rank`` counts the blocks with one hash from the one that lookups find, 0.
    """

    block: int
    place: Place
    parent: Place
    column: int
    block_hash: str | None
    tokens: tuple[int | None, ...]
    state: str
    holders: tuple[str, ...]
    rank: int


class TreeState:
    """Paths, hashes and the pool; `apply` takes events in order.

    Parameters
    ----------
    trace : Trace
        Looked through once, for the hashes that each request's blocks will have.

    Attributes
    ----------
    paths : dict of str to Path
        The live request, or the last one, of each id.
    promised : set of int
        Blocks with a hash whose tokens this step has yet to compute.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.block_size = block_size_of(trace)
        self.pool: PoolReplay = replay_of(trace)
        self._ahead = _Ahead.of(trace, self.block_size)
        self.paths: dict[str, Path] = {}
        self.promised: set[int] = set()
        self._queues = Queues(trace)
        self.num_asked_tokens = 0
        self.num_found_tokens = 0
        self._num_lives: dict[str, int] = {}
        self._groups: dict[int, int] = {}  # of the hashed blocks
        self._contents: dict[str, tuple[Place, int, tuple[int | None, ...]]] = {}  # by hash: parent, column, tokens
        self._in_step = False
        self._index: dict[str, list[int]] | None = None  # blocks by hash; made when it is asked for

    # --- what is so now -----------------------------------------------------------------------------------

    @property
    def running(self) -> list[str]:
        """Who runs."""
        return self._queues.running

    @property
    def waiting(self) -> list[str]:
        """Who waits, next first."""
        return self._queues.waiting

    def path(self, request_id: str) -> Path:
        """Return the path of a request; one that the trace never saw arrive is begun empty."""
        if request_id not in self.paths:
            path = self._begin_path(request_id, ())
            path.blocks = [None] * self._ahead.num_held_before.get(request_id, 0)
        return self.paths[request_id]

    def _begin_path(self, request_id: str, tokens: Sequence[int | None]) -> Path:
        life = self._num_lives[request_id] = self._num_lives.get(request_id, -1) + 1
        self.paths[request_id] = path = Path(request_id, life, list(tokens), [], len(tokens))
        return path

    def blocks_with(self, block_hash: str) -> list[int]:
        """Return the blocks with a hash, the one that lookups find first."""
        return self._by_hash().get(block_hash, [])

    def _by_hash(self) -> dict[str, list[int]]:
        if self._index is None:
            self._index = self._make_index()
        return self._index

    def _make_index(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for block, remembered in self.pool.remembered.items():
            if self._groups.get(block, GROUP) == GROUP:
                found.setdefault(remembered.block_hash or f"{UNKNOWN}{block}", []).append(block)
        return found

    def tokens_of(self, path: Path, column: int) -> tuple[int | None, ...]:
        """Return the tokens of a request that belong into a block of this column."""
        return tuple(path.tokens[column * self.block_size : (column + 1) * self.block_size])

    def hash_at(self, path: Path, column: int) -> str | None:
        """Return the hash that a request's block of this column has or will have; None if the trace never tells."""
        return self._ahead.hashes.get((path.name, column))

    def place_of(self, path: Path, column: int) -> Place:
        """Return where a request's block of this column hangs or will hang."""
        return self.hash_at(path, column) or f"open:{path.name}:{column}"

    def nodes(self) -> Iterator[Node]:
        """Give all blocks of the tree: those with a hash, then those that are held without one."""
        for block_hash, blocks in self._by_hash().items():
            parent, column, tokens = self._contents.get(block_hash, (ROOT, 0, ()))
            for rank, block in enumerate(blocks):
                holders = tuple(self.pool.holders.get(block, ()))
                state = "promised" if block in self.promised else "held" if holders else "cached"
                yield Node(block, block_hash, parent, column, block_hash, tokens, state, holders, rank)
        yield from self._open_nodes()

    def _open_nodes(self) -> Iterator[Node]:
        ranks: dict[Place, int] = {}
        for path in self.paths.values():
            for column, block in enumerate(path.blocks):
                if block is None or block in self.pool.remembered:
                    continue
                place = self.place_of(path, column)
                rank = ranks.setdefault(place, len(self.blocks_with(place)))
                ranks[place] += 1
                yield Node(
                    block, place, self._parent(path, column), column, None, self.tokens_of(path, column), "open",
                    (path.request_id,), rank,
                )  # fmt: skip

    def _parent(self, path: Path, column: int) -> Place:
        if column == 0:
            return ROOT
        before = path.blocks[column - 1] if column <= len(path.blocks) else None
        remembered = self.pool.remembered.get(before) if before is not None else None
        if remembered is not None:
            return remembered.block_hash or f"{UNKNOWN}{before}"
        return self.place_of(path, column - 1)

    @property
    def orphans(self) -> list[int]:
        """The cached blocks whose parent is not cached any more, so that no lookup gets to them."""
        known = self._by_hash()
        return [
            block
            for block_hash, blocks in known.items()
            if (parent := self._contents.get(block_hash, (ROOT, 0, ()))[0]) != ROOT and parent not in known
            for block in blocks
        ]

    # --- what happens -------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event."""
        if (request_id := request_of(event)) is not None and not isinstance(event, RequestAdded):
            self.path(request_id)
        match event:
            case StepStarted():
                self._start_step()
            case StepFinished():
                self._in_step = False
            case RequestAdded():
                self._begin_path(event.request_id, event.prompt_token_ids)
            case RequestScheduled():
                self._schedule(event)
            case TokenAccepted():
                tokens = self.path(event.request_id).tokens
                tokens.extend([None] * (event.position - len(tokens)))
                tokens.append(event.token_id)
            case BlocksAllocated(group=group) | BlocksTouched(group=group) if group == GROUP:
                self._hold(event)
            case BlocksFreed(group=group) if group == GROUP:
                self._free(event)
            case BlocksCached():
                self._cache(event)
            case BlocksEvicted(block_ids=ids):
                self.promised.difference_update(ids)
            case ForwardFinished() | BeatStarted(beat="update"):  # the latter for a scheduler without a model
                self.promised.clear()
            case _:
                pass
        self.pool.apply(event)
        self._queues.apply(event)
        self._index = None

    def _start_step(self) -> None:
        if self._in_step:  # the step before failed, and was taken back: everybody begins anew
            for path in self.paths.values():
                path.blocks.clear()
        self.promised.clear()
        self._in_step = True

    def _schedule(self, event: RequestScheduled) -> None:
        tokens = self.path(event.request_id).tokens
        tokens.extend([None] * (event.num_tokens - len(tokens)))
        if event.status == "new":
            self.num_asked_tokens += event.num_tokens
            self.num_found_tokens += event.num_computed_tokens

    def _hold(self, event: BlocksAllocated | BlocksTouched) -> None:
        path = self.path(event.request_id)
        for block in event.block_ids:
            path.blocks.append(block)
            if isinstance(event, BlocksTouched) and block not in self.pool.remembered:
                column = len(path.blocks) - 1  # it was hashed before the recording began
                known = self._parent(path, column), column, self.tokens_of(path, column)
                self._contents.setdefault(f"{UNKNOWN}{block}", known)

    def _free(self, event: BlocksFreed) -> None:
        path = self.path(event.request_id)
        path.blocks = after_free(path.blocks, event.block_ids, None)

    def _cache(self, event: BlocksCached) -> None:
        path = self.path(event.request_id)
        for block, block_hash in zip(event.block_ids, event.block_hashes, strict=True):
            self._groups[block] = event.group
            if event.group != GROUP:
                continue
            self.promised.add(block)
            if block in path.blocks:
                column = path.blocks.index(block)
                known = self._parent(path, column), column, self.tokens_of(path, column)
                self._contents.setdefault(block_hash, known)


def block_size_of(trace: Trace) -> int:
    """Return the tokens of a block: as the settings say, or the slots."""
    size = trace.settings.get("block_size")
    return size if isinstance(size, int) else kernel_block_size(trace) or 16


@dataclass
class _Ahead:
    """What all of a trace tells of each request, by its life: the hash of each column, and the blocks it began with."""

    hashes: dict[tuple[str, int], str] = field(default_factory=dict)
    num_held_before: dict[str, int] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _blocks: dict[str, list[int]] = field(default_factory=dict)
    _known: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, block_size: int) -> _Ahead:
        """Look through a trace, twice: columns count from the blocks that a request held before the recording."""
        ahead = cls()
        ahead._find_earlier_blocks(trace, block_size)
        for record in trace:
            ahead._apply(record.event)
        return ahead

    def _find_earlier_blocks(self, trace: Trace, block_size: int) -> None:
        """Find who ran before the recording began, and the blocks it held: those that its first grant does not take."""
        num_taken: dict[str, int] = {}
        met: set[str] = set()
        for record in trace:
            match record.event:
                case RequestAdded(request_id=request_id) | RequestPreempted(request_id=request_id):
                    met.add(request_id)
                case BlocksAllocated(request_id=request_id, group=group, block_ids=ids) if group == GROUP:
                    num_taken[request_id] = num_taken.get(request_id, 0) + len(ids)
                case RequestScheduled(request_id=request_id, status="running") as event if request_id not in met:
                    needed = -(-(event.num_computed_tokens + event.num_scheduled_tokens) // block_size)
                    self.num_held_before[request_id] = max(0, needed - num_taken.get(request_id, 0))
                    met.add(request_id)
                case RequestScheduled(request_id=request_id):
                    met.add(request_id)
                case _:
                    pass

    def _apply(self, event: Event) -> None:
        if isinstance(event, RequestAdded):
            self._lives[event.request_id] = self._lives.get(event.request_id, -1) + 1
            self._blocks[event.request_id] = []
        elif (request_id := request_of(event)) is not None and request_id not in self._lives:
            self._lives[request_id] = 0
            self._blocks[request_id] = [-1] * self.num_held_before.get(request_id, 0)
        if getattr(event, "group", None) != GROUP:
            return
        match event:
            case BlocksAllocated(request_id=request_id, block_ids=ids):
                self._blocks[request_id].extend(ids)
            case BlocksTouched(request_id=request_id, block_ids=ids):
                self._blocks[request_id].extend(ids)
                self._learn(request_id, [(block, self._known.get(block)) for block in ids])
            case BlocksCached(request_id=request_id, block_ids=ids, block_hashes=hashes):
                self._known.update(zip(ids, hashes, strict=True))
                self._learn(request_id, [*zip(ids, hashes, strict=True)])
            case BlocksFreed(request_id=request_id, block_ids=ids):
                self._blocks[request_id] = after_free(self._blocks[request_id], ids, -1)
            case _:
                pass

    def _learn(self, request_id: str, hashed: Sequence[tuple[int, str | None]]) -> None:
        row, name = self._blocks[request_id], f"{self._lives[request_id]}:{request_id}"
        for block, block_hash in hashed:
            if block_hash is not None and block in row:
                self.hashes[name, row.index(block)] = block_hash


def request_of(event: Event) -> str | None:
    """Return the one request that an event is about, None if there is none or there are several."""
    request_id = getattr(event, "request_id", None)
    return request_id if isinstance(request_id, str) else None
