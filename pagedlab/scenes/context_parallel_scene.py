"""The scene `context_parallel`: the tokens of one request are dealt to ranks, and attention over all of them is merged.

Each rank has a trace of its own, for each has its own block table, slots and KV memory. A few tokens go to their ranks
one after the other, then all; then each rank attends to the keys it has, and the results become one.

vLLM counterpart of what is shown: ``_compute_slot_mapping_kernel`` in ``vllm/v1/worker/block_table.py`` (with the ranks
of DCP and PCP) and the log-sum-exp correction of ``vllm/v1/attention/ops/common.py`` at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pagedlab.scenes.assembling import assemble, digest
from pagedlab.scenes.context_parallel_questions import length_kept, rank_of_token, slot_on_rank, states_merged
from pagedlab.scenes.context_parallel_stage import RanksStage
from pagedlab.scenes.context_parallel_state import SharedRequest, told_by_rank
from pagedlab.scenes.replay import PAD_SLOT
from pagedlab.scenes.scene import Arrow, Frame, Question, Scene, in_key_order
from pagedlab.scenes.step_state import WIDTH
from pagedlab.scenes.words import are, begin, counted, listed, name
from pagedlab.trace import Trace

_MAX_PICKED = 4
"""So many tokens go to their ranks one by one; the others follow at once."""

Caption = tuple[str, str]


def context_parallel(traces: Sequence[Trace] | Trace, step: int | None = None, request_id: str | None = None) -> Scene:
    """Show how ranks share one request: who keeps which token in which slot, and how their attention is merged.

    Parameters
    ----------
    traces : sequence of Trace, or Trace
        One of each rank of one run, in any order; of a single rank it may stand alone. Each says in its settings which
        rank it is of.
    step : int, optional
        Which step; by default the first in which the request (or anybody) has tokens.
    request_id : str, optional
        Whose tokens; by default those of the request that has most in the step.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If there is not a trace of each rank, they are not of one run, or nothing of the request runs in the step.
    """
    shared = SharedRequest(traces, step, request_id)
    walk = _Walk(shared)
    frames = tuple(walk.frames())
    first = shared.traces[0]
    scene = assemble(
        first,
        first.of_step(shared.step),
        "context_parallel",
        "Context parallelism",
        (WIDTH, walk.stage.height),
        frames,
        shared.replay.requests,
        {"SlotsComputed": "slots", "ForwardFinished": "merge"},
        walk.questions,
    )
    return replace(scene, traces=(*scene.traces, *map(digest, shared.traces[1:])))


class _Walk:
    """Deals the tokens, lets the ranks attend, and shows the stage after each part of it."""

    def __init__(self, shared: SharedRequest) -> None:
        self.shared = shared
        self.sharing = shared.sharing
        self.who = name(shared.request_id)
        self.stage = RanksStage(shared)
        self.dealt = set(range(shared.positions.start))
        self.known: set[int] = set()
        self.picked = self._pick()
        self.arrivals: dict[int, int] = {}  # the frame in which a token lies on its rank, by position
        self.counted_frame = self.merged_frame = 0
        self.num_frames = 0

    def _pick(self) -> list[int]:
        """Choose who goes first: tokens that show something new, a rank, a second run on it, another block."""
        seen: set[tuple[str, int]] = set()
        picked: list[int] = []
        for position in self.stage.tokens.drawn:
            if position not in self.shared.positions:
                continue
            rank, run = self.sharing.rank_of(position), self.sharing.run_of(position)
            news = {("rank", min(rank, 1)), ("column", self.sharing.column_of(position))}
            if ("rank", rank) in seen and ("run", run) not in seen:
                news.add(("again", 0))
            if not news <= seen and self.stage.way(position):
                picked.append(position)
            seen |= news | {("rank", rank), ("run", run)}
        return picked[:_MAX_PICKED]

    # --- frames -------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        """Walk: the tokens, some of them to their ranks (the first in small steps), all slots; then attention."""
        yield self._frame(self._opening(), "tokens")
        for at, position in enumerate(self.picked):
            if at == 0:
                yield self._looked_up(position)
            yield self._arrived(position)
        self.dealt = set(range(self.shared.seq_len))
        self.known = set(self.shared.positions)
        yield self._frame(self._all_slots(), "tokens", event="SlotsComputed")
        self.counted_frame = self.num_frames
        yield self._frame(self._lengths(), "", counts=True, focus=[f"rank:{rank}" for rank in self.stage.ranks])
        yield from self._attention()

    def _opening(self) -> Caption:
        shared, sharing = self.shared, self.sharing
        new = len(shared.positions)
        change = (
            f"{self.who}’s {counted(shared.seq_len, 'token')} {are(shared.seq_len)} shared by "
            f"{counted(sharing.world_size, 'rank')}"
        )
        change += "." if new == shared.seq_len else f"; {new} {are(new)} new in this step."
        runs = "one by one" if sharing.interleave == 1 else f"in runs of {sharing.interleave}"
        detail = (
            f"Every rank prepares the same step, and keeps the K and V of its own tokens. They are dealt {runs}: "
            f"a position’s rank is {sharing.rule('position')}."
        )
        if (others := len(shared.inputs.request_ids) - 1) > 0:
            them = "is shared in the same way" if others == 1 else "are shared in the same way"
            detail += f" {counted(others, 'other request')} {them}."
        return change, detail

    def _spoken(self, position: int) -> str:
        return f"token “{self.stage.labels.label(self.shared.tokens[position])}” at position {position}"

    def _looked_up(self, position: int) -> Frame:
        sharing = self.sharing
        rank, column = sharing.rank_of(position), sharing.column_of(position)
        change = f"{self.who}’s {self._spoken(position)} is rank {rank}’s: {sharing.rule(position)}."
        spans = f"a column stands for {counted(sharing.span, 'token')}" + (
            "" if sharing.world_size == 1 else f", {sharing.block_size} on each rank"
        )
        detail = (
            f"Its row says which block: {spans}. Column {position} // {sharing.span} = {column} says block "
            f"{self._block(position)}."
        )
        return self._frame(
            (change, detail), "tokens", rank=rank, lit=column, focus=[f"tok:{position}", f"block:{rank}:{column}"]
        )

    def _block(self, position: int) -> int:
        return self.shared.slot_of(position) // self.sharing.block_size

    def _arrived(self, position: int) -> Frame:
        sharing = self.sharing
        rank, column = sharing.rank_of(position), sharing.column_of(position)
        offset, slot, block = sharing.offset_of(position), self.shared.slot_of(position), self._block(position)
        self.dealt.add(position)
        self.known.add(position)
        first = position == self.picked[0]
        sum_up = f"{block} · {sharing.block_size} + {offset} = {slot}"
        if first:
            change = f"It gets slot {slot} on rank {rank}."
            detail = f"Offset {offset} in block {block}: {sum_up}."
            if sharing.world_size > 1:
                detail += f" {begin(_others(sharing.world_size - 1))} {PAD_SLOT} (PAD): nothing to write."
        else:
            change = f"The {self._spoken(position)} gets slot {slot} on rank {rank}."
            detail = f"{sharing.rule(position)}. Column {column} says block {block}, offset {offset}: {sum_up}."
            if offset != position % sharing.block_size:
                detail += " Offsets count a rank’s own tokens only."
        self.arrivals[position] = self.num_frames
        return self._frame(
            (change, detail), "tokens", rank=rank, lit=column, arrows=self.stage.way(position),
            focus=[f"tok:{position}", f"slot:{rank}:{position}"],
        )  # fmt: skip

    def _all_slots(self) -> Caption:
        count, world_size = len(self.shared.positions), self.sharing.world_size
        if world_size == 1:
            return f"All {counted(count, 'token')} have a slot.", "One rank keeps them all: nothing is PAD."
        if count == 1:
            rank = self.sharing.rank_of(self.shared.positions.start)
            change = f"The new token has a slot on rank {rank}, and on no other."
            return change, f"All ran the same kernel on the same inputs; {_others(world_size - 1)} {PAD_SLOT} (PAD)."
        here = [sum(slot != PAD_SLOT for slot in rank.slots.values()) for rank in self.shared.ranks]
        told = told_by_rank(here, "writes", "write")
        return (
            f"All {count} tokens have a slot, each on one rank.",
            f"Of them {told}. A rank’s slot for what it does not keep is {PAD_SLOT} (PAD).",
        )

    def _lengths(self) -> Caption:
        shared, sharing = self.shared, self.sharing
        counts = [shared.num_local(rank) for rank in range(sharing.world_size)]
        told = told_by_rank(counts, "keeps", "keep")
        change = f"R{told[1:]} of {counted(shared.seq_len, 'token')}."
        columns = sharing.column_of(shared.seq_len - 1) + 1
        one = -(-shared.seq_len // sharing.block_size)
        size = counted(sharing.block_size, "token")
        detail = f"Each holds {counted(columns, 'block')} of {size}." + (
            f" One rank alone would need {counted(one, 'block')}." if one != columns else ""
        )
        if sharing.world_size > 1 and len(set(counts)) > 1:
            detail += " Runs are dealt in turn, so no rank is ahead of another by more than a run."
        return change, detail

    # --- attention ----------------------------------------------------------------------------------------

    def _attention(self) -> Iterator[Frame]:
        shared = self.shared
        last, ranks = shared.seq_len - 1, self.stage.ranks
        keys = [shared.num_local(rank) for rank in range(self.sharing.world_size)]
        num_states = sum(count > 0 for count in keys)
        where = "every rank" if len(keys) > 1 else "the rank"
        yield self._frame(
            (
                f"The query of the {self._spoken(last)} goes to {where}.",
                f"It looks at all {counted(shared.seq_len, 'key')} up to its own, and no rank has them all."
                if num_states > 1
                else f"It looks at all {counted(shared.seq_len, 'key')} up to its own.",
            ),
            "merge", counts=True, attention="query", focus=[f"query:{rank}" for rank in ranks], beat=True,
        )  # fmt: skip
        empty = keys.count(0)
        yield self._frame(
            (
                f"Each rank attends to the keys it has: {listed([str(count) for count in keys], limit=8)}.",
                "That gives an output o, the mean of values weighted by a softmax over these keys alone, and lse, the "
                "logarithm of the sum of their exponentiated scores."
                + (f" Without keys lse is −∞: {counted(empty, 'rank')} will count nothing." if empty else ""),
            ),
            "merge", counts=True, attention="states", focus=[f"state:{rank}" for rank in ranks], beat=True,
        )  # fmt: skip
        self.merged_frame = self.num_frames
        change = (
            f"The {num_states} states become one: attention over all {counted(shared.seq_len, 'key')}."
            if num_states > 1
            else f"One state is all there is: attention over {counted(shared.seq_len, 'key')}."
        )
        detail = (
            "Rank r counts with exp(lseᵣ − lse), its share of the whole sum, where lse is that of all ranks together. "
            "How high its scores are decides, not how many keys it has. Nothing is lost: one rank would have got the "
            "same."
            if num_states > 1
            else "Its share of the whole sum is 1."
        )
        event = shared.ranks[0].finished[1].event.kind
        yield self._frame(
            (change, detail), "merge", counts=True, attention="merged", focus=["merged"], beat=True,
            arrows=self.stage.merge.arrows(), event=event if event == "ForwardFinished" else None,
        )  # fmt: skip

    # --- one frame ----------------------------------------------------------------------------------------

    def _frame(
        self,
        caption: Caption,
        bands: str,
        *,
        rank: int = 0,
        lit: int | None = None,
        counts: bool = False,
        attention: str = "",
        focus: Collection[str] = (),
        arrows: tuple[Arrow, ...] = (),
        event: str | None = None,
        beat: bool = False,
    ) -> Frame:
        """Return the stage as it is now; ``beat``: the forward pass has begun, and its line runs."""
        shared = self.shared
        actors = in_key_order(
            self.stage.actors(
                bands.split(), dealt=self.dealt, known=self.known, counts=counts, lit=lit, attention=attention
            )
        )
        keys = {actor.key for actor in actors}
        state = shared.ranks[rank]
        index, record = state.finished if beat else state.computed
        self.num_frames += 1
        runs = counted(self.sharing.interleave, "token")
        return Frame(
            id=str(self.num_frames - 1),
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {shared.step} · {counted(self.sharing.world_size, 'rank')} · runs of {runs}",
            step=shared.step,
            beat=record.beat,
            event=event,
            source=(record.source.function, record.source.line) if record.source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=index if event or beat or self.dealt.issuperset(shared.positions) else index - 1,
            trace=rank,
        )

    # --- questions ----------------------------------------------------------------------------------------

    def questions(self, scene: Scene) -> Iterator[Question]:
        """Ask who keeps a token, in which slot another lies, how many a rank has, and how results are merged."""
        shared = self.shared
        asked = [position for position in self.picked if position != self.picked[0]]
        if asked and self.sharing.world_size > 1:
            at = self.arrivals[asked[0]]
            yield replace(rank_of_token(shared, asked[0]), ask_frame=at - 1, frame=at)
        if len(asked) > 1 or (self.picked and not asked):
            position = (asked or self.picked)[-1]
            at = self.arrivals[position]
            yield replace(slot_on_rank(shared, position), ask_frame=at - (1 if asked else 2), frame=at)
        if self.sharing.world_size > 1:
            yield replace(length_kept(shared), ask_frame=self.counted_frame - 1, frame=self.counted_frame)
        if sum(shared.num_local(rank) > 0 for rank in range(self.sharing.world_size)) > 1:
            yield replace(states_merged(shared), ask_frame=self.merged_frame - 1, frame=self.merged_frame)


def _others(count: int) -> str:
    return "the other rank computes" if count == 1 else f"the {count} other ranks compute"
