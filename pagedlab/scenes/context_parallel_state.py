"""Where the tokens of one request lie on the ranks that share it, rebuilt from one trace a rank.

A rank's trace says which rank it is of, in `Trace.settings`, and which slots that rank computed. The rule that deals
tokens is written down here once more, to be shown; where a trace disagrees with it, there is no scene.

>>> sharing = Sharing(world_size=2, interleave=2, block_size=4)
>>> [sharing.rank_of(position) for position in range(8)], sharing.offset_of(5)
([0, 0, 1, 1, 0, 0, 1, 1], 3)

vLLM counterpart of what is rebuilt: ``_compute_slot_mapping_kernel`` in ``vllm/v1/worker/block_table.py`` and
``get_dcp_local_seq_lens`` in ``vllm/v1/attention/backends/utils.py`` at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pagedlab.errors import TraceError
from pagedlab.events import ForwardFinished, InputsPrepared, SlotsComputed
from pagedlab.scenes.block_table_state import TableReplay, TableRow, blocks_per_kv_block, kernel_block_size
from pagedlab.scenes.block_table_words import numbered
from pagedlab.scenes.replay import GROUP, PAD_SLOT, Replay, group_settings
from pagedlab.scenes.words import listed, names
from pagedlab.trace import Record, Trace


def told_by_rank(counts: Sequence[int], verb: str, verbs: str) -> str:
    """Say what each rank does; neighbours of one count are told together.

    >>> told_by_rank([4, 4, 4, 3], "keeps", "keep")
    'ranks 0 to 2 keep 4 each and rank 3 keeps 3'
    """
    parts = []
    for count, run in groupby(range(len(counts)), key=lambda rank: counts[rank]):
        ranks = list(run)
        each = f"{verb} {count:,}" if len(ranks) == 1 else f"{verbs} {count:,} each"
        parts.append(f"{numbered('rank', ranks)} {each}")
    return listed(parts, limit=8)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the tokens of a request are dealt: runs of ``interleave`` tokens go to the ranks in turn.

    ``block_size`` counts the tokens of a block on one rank.
    """

    world_size: int
    interleave: int
    block_size: int

    @property
    def span(self) -> int:
        """How many tokens of the request a column of the block table stands for."""
        return self.block_size * self.world_size

    def run_of(self, position: int) -> int:
        """Return the run that a token is of; runs are dealt like cards."""
        return position // self.interleave

    def rank_of(self, position: int) -> int:
        """Return the rank that keeps a token."""
        return self.run_of(position) % self.world_size

    def rule(self, position: int | str) -> str:
        """Return how a position gives its rank, as it is written; of a number with what comes out.

        >>> Sharing(2, 4, 16).rule("position"), Sharing(2, 4, 16).rule(9), Sharing(2, 1, 16).rule(9)
        ('position // 4 % 2', '9 // 4 % 2 = 0', '9 % 2 = 1')
        """
        run = f"{position}" if self.interleave == 1 else f"{position} // {self.interleave}"
        rank = "" if isinstance(position, str) else f" = {self.rank_of(position)}"
        return f"{run} % {self.world_size}{rank}"

    def column_of(self, position: int) -> int:
        """Return the column of the block table that says a token's block."""
        return position // self.span

    def offset_of(self, position: int) -> int:
        """Return a token's place in its block, on its rank."""
        rounds = position % self.span // (self.interleave * self.world_size)
        return rounds * self.interleave + position % self.interleave

    def num_local(self, rank: int, seq_len: int) -> int:
        """Return how many of a request's first ``seq_len`` tokens a rank keeps."""
        stripe = self.interleave * self.world_size
        rest = seq_len % stripe - rank * self.interleave
        return seq_len // stripe * self.interleave + min(max(rest, 0), self.interleave)


@dataclass(frozen=True)
class RankState:
    """What one rank's trace says of the step: its own block-table row of the request, and its slots.

    Attributes
    ----------
    rank : int
    trace : Trace
    block_ids : tuple of int
        The row of the request in this rank's table.
    slots : dict of int to int
        Of the request's tokens in this step, by position; PAD for those of other ranks.
    computed, finished : (int, Record)
        The record, and its index, in which the slots were computed, and that of the forward pass (or the same).
    """

    rank: int
    trace: Trace
    block_ids: tuple[int, ...]
    slots: dict[int, int]
    computed: tuple[int, Record]
    finished: tuple[int, Record]


class SharedRequest:
    """One request in one step, on all ranks.

    Parameters
    ----------
    traces : sequence of Trace, or Trace
        One of each rank, in any order; of a single rank it may stand alone.
    step : int or None
    request_id : str or None

    Attributes
    ----------
    sharing : Sharing
    ranks : list of RankState
        In the order of ranks.
    inputs : InputsPrepared
        The same on all ranks.
    replay : Replay
        The engine when the slots of the step are there.

    Raises
    ------
    TraceError
        If the traces are not one of each rank of one run, or do not hold what is asked for.
    """

    def __init__(self, traces: Sequence[Trace] | Trace, step: int | None, request_id: str | None) -> None:
        self.traces, self.sharing = _in_rank_order(traces)
        self.step, self.request_id = _choose(self.traces[0], step, request_id)
        self.inputs = _inputs_of(self.traces[0], self.step)
        self.row = self.inputs.request_ids.index(self.request_id)
        self.ranks = [self._rank(rank, trace) for rank, trace in enumerate(self.traces)]
        self.replay = Replay.of(self.traces[0].records[: self.ranks[0].computed[0] + 1], self.sharing.block_size)
        _, begin, end = self._window()
        self.positions = range(self.inputs.positions[begin], self.inputs.positions[end - 1] + 1)
        self._check_slots()

    @property
    def seq_len(self) -> int:
        """The request's tokens after this step."""
        return self.inputs.seq_lens[self.row]

    @property
    def tokens(self) -> list[int | None]:
        """The request's token ids, as far as the step computes them."""
        known = self.replay.request(self.request_id).tokens[: self.seq_len]
        return [*known, *[None] * (self.seq_len - len(known))]

    @property
    def owner(self) -> int:
        """The request's place among all, which gives its colour."""
        return self.replay.request(self.request_id).index

    def num_local(self, rank: int) -> int:
        """Return how many of the request's tokens a rank keeps."""
        return self.sharing.num_local(rank, self.seq_len)

    def slot_of(self, position: int) -> int:
        """Return the slot of a token on the rank that keeps it."""
        rank = self.ranks[self.sharing.rank_of(position)]
        block = rank.block_ids[self.sharing.column_of(position)]
        return block * self.sharing.block_size + self.sharing.offset_of(position)

    def _window(self) -> tuple[int, int, int]:
        """The row of the request, and where its tokens begin and end in the flat batch."""
        starts = self.inputs.query_start_loc
        return self.row, starts[self.row], starts[self.row + 1]

    def _rank(self, rank: int, trace: Trace) -> RankState:
        if _inputs_of(trace, self.step) != self.inputs:
            raise TraceError(
                f"rank {rank} prepared other inputs in step {self.step} than rank 0: give the traces of one run"
            )
        row, begin, end = self._window()
        index, record, event = _slots_of(trace, self.step)
        table = TableReplay(GROUP, blocks_per_kv_block(trace))
        for earlier in trace.records[:index]:
            table.apply(earlier.event)
        slots = dict(zip(self.inputs.positions[begin:end], event.slot_mapping[begin:end], strict=True))
        passes = ((at, item) for at, item, _ in trace.in_step(self.step, ForwardFinished))
        forward = next(passes, (index, record))
        return RankState(rank, trace, table.rows.get(row, TableRow()).live, slots, (index, record), forward)

    def _check_slots(self) -> None:
        """Raise `TraceError` unless every slot of the step is where the rule puts it."""
        columns = self.sharing.column_of(self.seq_len - 1) + 1
        for rank in self.ranks:
            if len(rank.block_ids) < columns:
                raise TraceError(
                    f"the trace of rank {rank.rank} does not tell the whole block-table row of request "
                    f"{self.request_id!r}: record from before the request is added"
                )
            for position, slot in rank.slots.items():
                wanted = self.slot_of(position) if self.sharing.rank_of(position) == rank.rank else PAD_SLOT
                if slot != wanted:
                    raise TraceError(
                        f"rank {rank.rank} computed slot {slot} for position {position} of request "
                        f"{self.request_id!r}, and {self.sharing.world_size} ranks with runs of "
                        f"{self.sharing.interleave} give {wanted}: the settings of this trace are not its own"
                    )


def _in_rank_order(traces: Sequence[Trace] | Trace) -> tuple[list[Trace], Sharing]:
    """Return the traces by rank, and how they share; `TraceError` unless there is one of each rank."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces or not all(isinstance(trace, Trace) for trace in traces):
        raise TraceError("give a list of traces, one of each rank")
    by_rank: dict[int, Trace] = {}
    found: list[tuple[int, int, int]] = []
    for at, trace in enumerate(traces):
        world_size, rank, interleave = (_fact(trace, at, name) for name in ("world_size", "rank", "interleave"))
        found.append((world_size, interleave, _block_size(trace)))
        by_rank[rank] = trace
    if len(set(found)) > 1:
        told = "; ".join(f"{w} ranks, runs of {i}, blocks of {b}" for w, i, b in dict.fromkeys(found))
        raise TraceError(f"these traces are not of one run, their settings differ ({told})")
    sharing = Sharing(*found[0])
    if len(traces) != sharing.world_size or sorted(by_rank) != list(range(sharing.world_size)):
        given = ", ".join(str(_fact(trace, at, "rank")) for at, trace in enumerate(traces))
        raise TraceError(
            f"the request is shared by {sharing.world_size} ranks, and these are traces of rank {given}: give one of "
            f"each, 0 to {sharing.world_size - 1}"
        )
    return [by_rank[rank] for rank in sorted(by_rank)], sharing


def _fact(trace: Trace, at: int, name: str) -> int:
    """Return a number of context parallelism from a trace's settings."""
    facts = group_settings(trace).get("context_parallel")
    value = facts.get(name) if isinstance(facts, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < (name != "rank"):
        raise TraceError(
            f"trace {at} does not say which rank it is of: its settings need kv_cache_groups with context_parallel, as "
            "describe_runner gives them"
        )
    return value


def _block_size(trace: Trace) -> int:
    size = kernel_block_size(trace)
    if not size:
        raise TraceError("no step of this trace computes slots: record a rank while it runs a request")
    return size


def _choose(trace: Trace, step: int | None, request_id: str | None) -> tuple[int, str]:
    """Return the step and the request: those asked for, else the first step that fits, and its longest query."""
    if step is not None:
        trace.of_step(step)  # or it is not there
    prepared = [
        (record.step, record.event)
        for record in trace
        if isinstance(record.event, InputsPrepared) and record.event.positions and step in (None, record.step)
    ]
    if not prepared:
        where = "this trace" if step is None else f"step {step}"
        raise TraceError(f"nothing runs in {where}: there is nothing to share")
    for at, event in prepared:
        starts = event.query_start_loc
        lengths = {who: starts[row + 1] - starts[row] for row, who in enumerate(event.request_ids)}
        if request_id is None:
            return at, max(lengths, key=lambda who: lengths[who])
        if lengths.get(request_id):
            return at, request_id
    where = "any step" if step is None else f"step {step}; those that run: {names(prepared[0][1].request_ids)}"
    raise TraceError(f"request {request_id!r} has no tokens in {where}")


def _inputs_of(trace: Trace, step: int) -> InputsPrepared:
    for _, _, inputs in trace.in_step(step, InputsPrepared):
        return inputs
    raise TraceError(f"nothing runs in step {step}: there is nothing to share")


def _slots_of(trace: Trace, step: int) -> tuple[int, Record, SlotsComputed]:
    for index, record, slots in trace.in_step(step, SlotsComputed):
        if slots.group == GROUP:
            return index, record, slots
    raise TraceError(f"step {step} of this trace computes no slots")
