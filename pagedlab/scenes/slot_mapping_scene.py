"""The scene `slot_mapping`: from a token's position, through the block table, to the slot of its K and V.

A few tokens go the way one after the other; then the slots of all stand there, and which program of the kernel computes
which.

vLLM counterpart of what is shown: ``BlockTable.compute_slot_mapping`` and ``_compute_slot_mapping_kernel``,
``vllm/v1/worker/block_table.py`` at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from pagedlab.errors import TraceError
from pagedlab.events import InputsPrepared, SlotsComputed
from pagedlab.scenes.assembling import assemble
from pagedlab.scenes.block_table_state import tables_of
from pagedlab.scenes.questions import slot_of_token
from pagedlab.scenes.replay import GROUP, PAD_SLOT
from pagedlab.scenes.scene import Arrow, Frame, Question, Scene, in_key_order
from pagedlab.scenes.slot_mapping_stage import SlotStage, Token
from pagedlab.scenes.step_state import WIDTH, StepState
from pagedlab.scenes.words import are, counted, name, vector
from pagedlab.trace import Record, Trace

_MAX_TOKENS = 4
"""So many tokens go the way; the slots of the others appear at once."""

_TIERS = {"numpy": "NumPy", "interpreter": "Triton’s interpreter", "cuda": "the Triton kernel on the GPU"}


def slot_mapping(trace: Trace, step: int | None = None) -> Scene:
    """Show how the tokens of one step get their slots in the KV cache.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        Which step; by default the first that computes slots for several requests, else the first that computes any.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such step, or no slots are computed in it.
    """
    if step is None:
        step = _first_step(trace)
    records = trace.of_step(step)
    walk = _Walk(trace, step)
    frames = tuple(walk.frames())
    return assemble(
        trace,
        records,
        "slot_mapping",
        "Slot mapping",
        (WIDTH, walk.stage.height),
        frames,
        walk.state.replay.requests,
        {"SlotsComputed": "slots"},
        walk.questions,
    )


def _first_step(trace: Trace) -> int:
    steps = [r.step for r in trace if isinstance(r.event, SlotsComputed) and r.event.slot_mapping]
    several = {r.step for r in trace if isinstance(r.event, InputsPrepared) and len(r.event.request_ids) > 1}
    step = next((step for step in steps if step in several), next(iter(steps), None))
    if step is None:
        raise TraceError("no step of this trace computes slots: record an engine while it runs a request")
    return step


class _Walk:
    """Takes a few tokens of one step to their slots, and shows the stage after each part of the way."""

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.step = step
        self.state = StepState(trace, step)
        self.slots, self.inputs, self.record, self.index = self._find()
        tables = tables_of(trace)
        self.table = tables[0]
        for record in trace.records[: self.index]:
            self.table.apply(record.event)
        done = {id(self.slots), id(self.inputs)}
        for _, record in self.state.records:
            self.state.replay.apply(record.event)
            done.discard(id(record.event))
            if not done:
                break
        self.state.has_inputs = True
        self.num_groups = len(tables)
        self.tokens = self._choose()
        self.stage = SlotStage(self.state, self.table, self.tokens, self.inputs, self.slots)
        self.shown: set[int] = set()
        self.ends: dict[int, int] = {}  # the frame in which a token's slot appears, by its place
        self.num_frames = 0

    def _find(self) -> tuple[SlotsComputed, InputsPrepared, Record, int]:
        """Find the events that the scene is about, and the record (and its index) of the slots."""
        found: tuple[SlotsComputed, Record, int] | None = None
        inputs: InputsPrepared | None = None
        for index, record in self.state.records:
            match record.event:
                case SlotsComputed() as event if event.group == GROUP and found is None:
                    found = event, record, index
                case InputsPrepared() as event if inputs is None:
                    inputs = event
                case _:
                    pass
        if found is None or inputs is None or not inputs.positions:
            raise TraceError(f"step {self.step} computes no slots: nothing runs in it")
        return found[0], inputs, found[1], found[2]

    def _token(self, row: int, at: int) -> Token | None:
        """Return the token at a place of the flat batch; None if it does not get its slot by the plain rule."""
        position, slot, size = self.inputs.positions[at], self.slots.slot_mapping[at], self.slots.block_size
        live = self.table.rows[row].live if row in self.table.rows else ()
        token = Token(at, row, self.inputs.request_ids[row], position, slot, size)
        plain = slot != PAD_SLOT and token.column < len(live) and live[token.column] * size + token.offset == slot
        return token if plain else None

    def _choose(self) -> list[Token]:
        """Choose who goes the way: two neighbours in different blocks, if there are, then the last tokens of rows."""
        ends: list[Token] = []
        pairs: list[tuple[Token, Token]] = []
        starts = self.inputs.query_start_loc
        for row, request_id in enumerate(self.inputs.request_ids):
            drawn = {item for item in self.state.plan.get(request_id, ()) if isinstance(item, int)}
            places = [at for at in range(starts[row], starts[row + 1]) if self.inputs.positions[at] in drawn]
            tokens = [token for at in places if (token := self._token(row, at)) is not None]
            pairs += [(a, b) for a, b in pairwise(tokens) if a.at + 1 == b.at and a.column != b.column]
            ends += tokens[-1:]
        pair = next((pair for pair in pairs if pair[1].slot - pair[0].slot != 1), next(iter(pairs), ()))
        chosen = list({token.at: token for token in (*pair, *ends)}.values())[:_MAX_TOKENS]
        return sorted(chosen, key=lambda token: token.at)

    # --- frames -------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        """Walk: the flat batch, some tokens (the first of them in small steps), all slots, the programs."""
        yield self._opening()
        for at, token in enumerate(self.tokens):
            yield from self._first(token) if at == 0 else [self._arrived(token, again=True)]
        yield self._all_slots()
        yield self._programs()

    def _opening(self) -> Frame:
        count, rows = len(self.inputs.positions), len(self.inputs.request_ids)
        size = self.slots.block_size
        manager = self.trace.settings.get("block_size")
        detail = f"Each has its position in its request. Its K and V go into a block of {counted(size, 'token')}."
        if isinstance(manager, int) and manager != size:
            detail += f" (The kernel’s blocks; those of the manager hold {manager}.)"
        if self.num_groups > 1:
            detail += f" Shown is KV cache group {GROUP} of {self.num_groups}."
        return self._frame(
            (f"{counted(count, 'token')} of {counted(rows, 'request')} need a slot.", detail), "inputs", is_event=False
        )

    def _first(self, token: Token) -> Iterator[Frame]:
        who, spoken = name(token.request_id), self._spoken(token)
        key = f"tok:{token.request_id}:{token.position}"
        begin = self.inputs.query_start_loc[token.row]
        yield self._frame(
            (
                f"{who}’s {spoken} stands at place {token.at}: row {token.row}, position {token.position}.",
                f"query_start_loc is {vector(self.inputs.query_start_loc)}: row {token.row} begins at place {begin}, "
                f"the last row that begins at or before place {token.at}.",
            ),
            "inputs", token=token, focus=(key, f"row:{token.row}"), is_event=False,
        )  # fmt: skip
        entry = f"entry:{token.row}:{token.column}"
        lit = ((token.row, token.column),)
        yield self._frame(
            (
                f"Position {token.position} lies in column {token.position} // {token.size} = {token.column}, "
                f"which says block {token.block}.",
                f"A column of row {token.row} stands for {counted(token.size, 'position')}.",
            ),
            "table sum", token=token, known=1, lit=lit, focus=(entry,), is_event=False,
        )  # fmt: skip
        yield self._arrived(token, again=False)

    def _arrived(self, token: Token, *, again: bool) -> Frame:
        self.shown.add(token.at)
        self.state.targets.add(token.slot)
        who, spoken = name(token.request_id), self._spoken(token)
        sum_up = f"{token.block} · {token.size} + {token.offset} = {token.slot}"
        if again:
            change = f"{who}’s {spoken} at position {token.position} gets slot {token.slot}."
            detail = (
                f"Column {token.position} // {token.size} = {token.column} says block {token.block}, "
                f"offset {token.position} % {token.size} = {token.offset}: {sum_up}."
            )
            if (before := self._neighbour(token)) is not None:
                far = token.slot - before.slot
                detail += (
                    f" It follows position {before.position}, which has slot {before.slot}: "
                    + ("the blocks happen to lie side by side." if far == 1 else f"{abs(far):,} slots away.")
                )  # fmt: skip
        else:
            change = (
                f"Offset {token.position} % {token.size} = {token.offset} in block {token.block}: slot {token.slot}."
            )
            detail = f"{sum_up}. There, in the KV cache, the execute beat will write its K and V."
        self.ends[token.at] = self.num_frames
        slot_key = f"slot:{token.request_id}:{token.position}"
        return self._frame(
            (change, detail), "sum kv", token=token, known=3, lit=((token.row, token.column),), is_event=False,
            focus=(f"entry:{token.row}:{token.column}", slot_key, f"block:{self._manager_block(token)}"),
        )  # fmt: skip

    def _manager_block(self, token: Token) -> int:
        return token.slot // self.state.block_size

    def _neighbour(self, token: Token) -> Token | None:
        """The token right before this one in its request, if it went the way and lies in another block."""
        for other in self.tokens:
            if other.at + 1 == token.at and other.row == token.row and other.column != token.column:
                return other
        return None

    def _spoken(self, token: Token) -> str:
        return f"token “{self.state.labels.label(self.inputs.input_ids[token.at])}”"

    def _all_slots(self) -> Frame:
        slots = self.slots.slot_mapping
        self.shown = set(range(len(slots)))
        self.state.targets = set(slots) - {PAD_SLOT}
        blocks = {slot // self.slots.block_size for slot in slots if slot != PAD_SLOT}
        padded = sum(slot == PAD_SLOT for slot in slots)
        tier = _TIERS.get(self.slots.backend, self.slots.backend)
        if not padded:
            have = f"All {len(slots)} tokens have" if len(slots) != 1 else "The token has"
            change = f"{have} a slot, in {counted(len(blocks), 'block')}."
            detail = f"Computed by {tier}. No two tokens share a slot, and only these slots are written in this step."
        else:
            change = f"{len(slots) - padded} of {counted(len(slots), 'token')} have a slot here."
            detail = (
                f"Computed by {tier}. {padded} {are(padded)} kept by another rank: {PAD_SLOT} (PAD). "
                f"The others lie in {counted(len(blocks), 'block')}."
            )
        return self._frame((change, detail), "kv")

    def _programs(self) -> Frame:
        band = self.stage.programs
        longest = max(b - a for a, b in pairwise(self.inputs.query_start_loc))
        rows, on_gpu = len(self.inputs.request_ids), "On a GPU a" if self.slots.backend == "numpy" else "A"
        change = f"{on_gpu} program takes a tile of {band.tile} tokens: {counted(band.num_tiles, 'program')}."
        detail = (
            f"vLLM 0.25.1 starts {rows + 1}: one a request, the longest with {counted(longest, 'token')}, and one that "
            f"pads. In tiles no program has more than {band.tile}; each token finds its row in query_start_loc."
        )
        if self.slots.backend == "numpy":
            detail += " Here NumPy did it, without programs."
        return self._frame((change, detail), "programs", is_event=False)

    def _frame(
        self,
        caption: tuple[str, str],
        bands: str,
        *,
        token: Token | None = None,
        known: int = 0,
        lit: tuple[tuple[int, int], ...] = (),
        focus: tuple[str, ...] = (),
        is_event: bool = True,
    ) -> Frame:
        after = is_event or bands == "programs"
        actors = in_key_order(self.stage.actors(bands.split(), shown=self.shown, lit=lit, token=token, known=known))
        keys = {actor.key for actor in actors}
        arrows: tuple[Arrow, ...] = self.stage.arrows(token, known) if token is not None else ()
        self.num_frames += 1
        source = self.record.source
        return Frame(
            id=str(self.num_frames - 1),
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {self.step} · {len(self.shown):,} of {counted(len(self.inputs.positions), 'slot')} known",
            step=self.step,
            beat=self.record.beat,
            event=self.record.event.kind if is_event else None,
            source=(source.function, source.line) if source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=self.index if after else self.index - 1,
        )

    # --- questions ----------------------------------------------------------------------------------------

    def questions(self, scene: Scene) -> Iterator[Question]:
        """Ask for the slot of the last token that goes the way, before it does."""
        # What a trace says of a request's blocks is the manager's; the question would show those.
        if self.tokens and self.table.blocks_per_kv_block == 1:
            token = self.tokens[-1]
            frame = self.ends[token.at]
            question = slot_of_token(scene, self.trace, self.step, token.request_id, token.position)
            yield replace(question, ask_frame=frame - (3 if len(self.tokens) == 1 else 1), frame=frame)
