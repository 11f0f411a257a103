"""Predict, then reveal: questions about a scene whose answers were computed from the trace.

A scene makes its own questions (`Scene.questions`); the functions here build one each. Every wrong choice has a
reason, in words made of the trace's own values.

>>> from pagedlab.scenes.scene import Question
>>> Question("How many?", "number", "8", (), {"13": "All of A's prompt, but the budget has 8."}, "8.", 0, 1).answer
'8'

vLLM has no counterpart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from pagedlab.errors import TraceError
from pagedlab.events import (
    InputsPrepared,
    RequestFinished,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    SlotsComputed,
    StepFinished,
)
from pagedlab.scenes.admission import is_static, why_passed_over, why_waits
from pagedlab.scenes.replay import GROUP, Replay
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import TokenLabels, counted, name, names
from pagedlab.trace import Record, Trace


def questions_of_step(scene: Scene, trace: Trace, step: int) -> Iterator[Question]:
    """Give the questions of a step scene: who runs, how many tokens somebody gets, which slot a token gets."""
    scheduled = _decided(trace, step).scheduled
    if not scheduled:
        return
    yield who_runs(scene, trace, step)
    cut = [e for e in scheduled if e.num_computed_tokens + e.num_scheduled_tokens < e.num_tokens]
    yield tokens_granted(scene, trace, step, (cut or scheduled)[-1].request_id)
    if any(frame.event == "SlotsComputed" for frame in scene.frames):
        yield slot_of_token(scene, trace, step)


def _before(trace: Trace, step: int) -> Replay:
    """The state as the step begins."""
    before: Iterator[Record] = takewhile(lambda record: record.step != step, trace)
    return Replay.of(before)


def _decided(trace: Trace, step: int) -> Replay:
    """The state when the step's scheduler is done: who was granted tokens and then lost them again is not in it."""
    return Replay.of(
        record
        for record in trace
        if record.step < step or (record.step == step and record.beat in (None, "schedule"))
        if not (record.step == step and isinstance(record.event, StepFinished))
    )


def _who(request_ids: Sequence[str]) -> str:
    return names(request_ids, limit=8) if request_ids else "Nobody"


def who_runs(scene: Scene, trace: Trace, step: int) -> Question:
    """Ask which requests run in a step, and who decides it."""
    before, decided = _before(trace, step), _decided(trace, step)
    running = [event.request_id for event in decided.scheduled]
    right = f"{_who(running)}: the scheduler decides, before the model is called"
    reasons = {
        f"{_who(running)}: the model decides, as it runs": (
            f"The right requests, but not the model: when it is called, it gets one flat batch of "
            f"{counted(sum(event.num_scheduled_tokens for event in decided.scheduled), 'token')} and knows nothing of "
            "queues. Scheduler.schedule chose them before."
        ),
        **_wrong_sets(trace, step, before, decided),
    }
    # The answer does not always stand in the same place, but always in the same for the same trace.
    choices = in_place(right, list(reasons))
    return Question(
        f"Step {step} begins. Which requests run in it, and who decides?",
        "choice",
        right,
        choices,
        reasons,
        f"Scheduler.schedule gave {names(running)} a share of the budget. The model comes after schedule and prepare.",
        0,
        _decided_frame(scene),
    )


def _wrong_sets(trace: Trace, step: int, before: Replay, decided: Replay) -> dict[str, str]:
    """Give wrong ideas of who runs, each with the reason why it is wrong in this step."""
    budget, seats = trace.settings.get("max_num_batched_tokens"), trace.settings.get("max_num_seqs")
    running = [event.request_id for event in decided.scheduled]
    queued = [*before.running, *before.waiting]
    why = _why_left_out(trace, step, before, decided)
    reasons: dict[str, str] = {}
    if any(request_id not in running for request_id in queued):
        reasons[f"{_who(queued)}: whoever is in a queue runs in every step"] = why
    elif seats != 1:
        reasons[f"Only {_who(queued[:1])}: one request at a time"] = (
            f"The budget{f' of {budget:,} tokens' if isinstance(budget, int) else ''} is shared: "
            f"all {len(running)} fit, so they run together in one forward pass."
            if len(running) > 1
            else "It does run, but not because only one may"
            + (f": there are {seats} seats." if isinstance(seats, int) else ".")
        )
    if before.running and before.waiting:
        if is_static(trace.settings):
            free = max(0, seats - len(before.running)) if isinstance(seats, int) else 0
            if 0 < free < len(before.waiting):
                joined = [*before.running, *before.waiting[:free]]
                reasons[f"{_who(joined)}: a free seat is filled at once"] = (
                    f"That is continuous batching. This engine batches statically: {counted(free, 'seat')} "
                    f"stay{'s' if free == 1 else ''} empty until all of the batch have ended."
                )
        else:
            reasons[f"Only {_who(before.running)}: a new request waits until the batch is empty"] = (
                f"These do run, but not for that reason, which is static batching. {why}"
                if set(running) == set(before.running)
                else "That is static batching. Here a waiting request is admitted as soon as budget, seats and blocks "
                "allow."
            )
    return reasons


def _why_left_out(trace: Trace, step: int, before: Replay, decided: Replay) -> str:
    """Say who is queued and does not run, and why: those that lost their blocks, those not reached, those who wait."""
    running = {event.request_id for event in decided.scheduled}
    lost = decided.preempted
    passed = [item for item in before.running if item not in running and item not in lost]
    finished = next((r.event for r in trace.of_step(step) if isinstance(r.event, StepFinished)), None)
    order = finished.waiting if finished else decided.waiting
    waiting = [item for item in order if item in decided.waiting and item not in lost]
    parts = []
    if lost:
        parts.append(f"{names(lost)} {'is' if len(lost) == 1 else 'are'} preempted: too few blocks are free")
    if passed:
        parts.append(f"{_stay_out(passed)}: {why_passed_over(decided)}")
    if waiting:
        parts.append(f"{_stay_out(waiting)}: {why_waits(trace.settings, before.running, waiting, decided)}")
    return "; ".join(parts) + "." if parts else ""


def _stay_out(request_ids: Sequence[str]) -> str:
    return f"{names(request_ids)} {'stays' if len(request_ids) == 1 else 'stay'} out"


def _decided_frame(scene: Scene) -> int:
    grants = [index for index, frame in enumerate(scene.frames) if frame.event == "RequestScheduled"]
    return min(grants[-1] + 1, len(scene.frames) - 1)


def tokens_granted(scene: Scene, trace: Trace, step: int, request_id: str) -> Question:
    """Ask how many tokens a request gets in a step.

    Raises
    ------
    TraceError
        If it gets none.
    """
    found = [
        (index, record.event)
        for index, record in enumerate(trace.records)
        if record.step == step and isinstance(record.event, RequestScheduled) and record.event.request_id == request_id
    ]
    if not found:
        raise TraceError(f"request {request_id!r} gets no tokens in step {step}, so there is nothing to ask")
    index, event = found[0]
    who, budget = name(request_id), trace.settings.get("max_num_batched_tokens")
    had = event.budget_left + event.num_scheduled_tokens
    todo = event.num_tokens - event.num_computed_tokens
    capped = event.num_scheduled_tokens < min(todo, had)  # long_prefill_token_threshold
    cap = f"no request gets more than {event.num_scheduled_tokens} tokens in one step (long_prefill_token_threshold)"
    short = f"{cap}." if capped else f"only {had} tokens of the budget are left for it."
    begun = f"{event.num_computed_tokens} are computed already." if event.num_computed_tokens else short
    shared = f"{budget} is the whole budget; all requests of the step share it."
    too_many = cap if capped else f"{who} has only {counted(todo, 'token')} to compute"
    offers = [
        (event.num_tokens, f"{who} holds {event.num_tokens} tokens, but {begun}"),
        (
            todo,
            f"{who} wants {todo}, but {cap if capped else f'only {had} of the budget are left'}: it is cut into "
            "chunks.",
        ),
        (1, f"One token is what a request gets that only writes on. {who} still has {todo} to compute."),
        (0, f"It is its turn and {counted(had, 'token')} of the budget are left, so it gets some."),
        *([(budget, shared)] if isinstance(budget, int) else []),
        (had, f"{had} would be there for it, but {too_many}."),
    ]
    frame = next(
        at for at, shown in enumerate(scene.frames) if shown.record >= index and shown.event == "RequestScheduled"
    )
    most = f", {event.num_scheduled_tokens} at most in one step" if capped else ""
    limits = f"min({todo} not computed yet, {had} left of the budget{most}) = {event.num_scheduled_tokens}."
    rest = todo - event.num_scheduled_tokens
    later = f" The other {rest} come in later steps." if rest > 1 else " The last one comes in the next step."
    return Question(
        f"{who} has {counted(todo, 'token')} to compute. How many does it get in step {step}"
        + (f", out of a budget of {budget:,}?" if isinstance(budget, int) else "?"),
        "number",
        str(event.num_scheduled_tokens),
        (),
        reasons_but(event.num_scheduled_tokens, offers),
        limits + (later if rest else ""),
        0,  # before anybody got anything: what is left would give the answer away
        frame,
    )


def slot_of_token(
    scene: Scene, trace: Trace, step: int, request_id: str | None = None, position: int | None = None
) -> Question:
    """Ask which slot of the KV cache a token gets; by default the last one of the row whose positions go furthest.

    Raises
    ------
    TraceError
        If that token is not computed in the step.
    """
    replay = Replay()
    inputs: InputsPrepared | None = None
    slots: SlotsComputed | None = None
    for record in trace:
        if record.step > step:
            break
        replay.apply(record.event)
        if record.step == step and isinstance(record.event, InputsPrepared):
            inputs = record.event
        if record.step == step and isinstance(record.event, SlotsComputed) and record.event.group == GROUP:
            slots = record.event
        if inputs and slots:
            break
    if inputs is None or slots is None:
        raise TraceError(f"step {step} computes no slots: nothing runs in it")
    if request_id is None:
        row = max(range(len(inputs.seq_lens)), key=lambda at: inputs.seq_lens[at])
        request_id = inputs.request_ids[row]
    if request_id not in inputs.request_ids:
        raise TraceError(f"request {request_id!r} does not run in step {step}; {names(inputs.request_ids)} do")
    row = inputs.request_ids.index(request_id)
    window = range(inputs.query_start_loc[row], inputs.query_start_loc[row + 1])
    at = next((at for at in reversed(window) if position is None or inputs.positions[at] == position), None)
    if at is None:
        raise TraceError(f"step {step} does not compute position {position} of request {request_id!r}")
    position, slot, size = inputs.positions[at], slots.slot_mapping[at], slots.block_size
    table = [str(block) for block in replay.rows[row].block_ids]
    block, offset, column = slot // size, position % size, position // size
    who = name(request_id)
    reasons = _slot_reasons(slot, position, size, at, column, block, who)
    frame = scene.frame_of("SlotsComputed")
    token = f"“{TokenLabels(trace.vocabulary).label(inputs.input_ids[at])}”"
    shown = table if len(table) <= 12 else [*table[: max(0, column - 1)][:3], "…", *table[column:][:3]]
    return Question(
        f"{who}’s token {token} has position {position}. Its block-table row is [{', '.join(shown)}], a block holds "
        f"{counted(size, 'token')}. Which slot does it get?",
        "number",
        str(slot),
        (),
        reasons,
        f"Column {position} // {size} = {column} says block {block}; offset {position} % {size} = {offset}; "
        f"slot = {block}·{size} + {offset} = {slot}.",
        max(0, frame - 1),
        frame,
    )


def _slot_reasons(slot: int, position: int, size: int, at: int, column: int, block: int, who: str) -> Mapping[str, str]:
    offers = (
        (position, f"{position} is the position in {who}. Where its K and V lie is up to the block table."),
        (at, f"{at} is the token’s place in the flat batch. That changes from step to step; a slot does not."),
        (
            column * size + position % size,
            f"That takes column {column} for the block. The row says block {block} there.",
        ),
        (block, f"{block} is the block. The slot is the block times {size}, plus the offset in it."),
        (block * size, f"That is where block {block} begins. The token’s offset in it is {position % size}."),
        (block * size + position, f"The offset is {position} % {size} = {position % size}, not the position itself."),
        (slot + 1, "One too far: offsets count from 0."),
        (slot - 1, f"One short: the offset is {position % size}, and offsets count from 0."),
    )
    return reasons_but(slot, offers)


def row_moves(scene: Scene, trace: Trace, step: int) -> Iterator[Question]:
    """Ask, for the first move of a condense scene, which row moves where. Nothing if no row moves."""
    moves = [record.event for record in trace.of_step(step) if isinstance(record.event, RowMoved)]
    if not moves:
        return
    move = moves[0]
    replay, finished = _before(trace, step), set[str]()
    for record in trace:
        if record.step > step:
            break
        if isinstance(record.event, RequestFinished):
            finished.add(record.event.request_id)
    for record in trace.of_step(step):
        if isinstance(record.event, RowMoved):
            break
        if isinstance(record.event, (RowRemoved, RowAdded)):
            replay.apply(record.event)
    live = {row: request_id for request_id, row in replay.req_id_to_index.items()}
    right = f"{name(move.request_id)}: row {move.source} → row {move.target}"
    reasons: dict[str, str] = {}
    behind = [row for row in sorted(live) if row > move.target and row != move.source]
    if behind:
        wrong = f"{name(live[behind[0]])}: row {behind[0]} → row {move.target}, and all behind it shift up"
        reasons[wrong] = (
            f"Shifting keeps the order but copies {len(behind) + 1} rows. Order does not matter here: "
            f"one copy, of row {move.source}, makes the batch dense."
        )
    higher = [hole for hole in sorted(replay.holes) if move.target < hole < move.source]
    if higher:
        reasons[f"{name(move.request_id)}: row {move.source} → row {higher[-1]}"] = (
            f"Row {higher[-1]} is a hole too, but the lowest is row {move.target}: filled from below, "
            "the holes that remain end up behind the last row."
        )
    inner = [row for row in behind if row < move.source]
    if inner:
        reasons[f"{name(live[inner[-1]])}: row {inner[-1]} → row {move.target}"] = (
            f"Then row {inner[-1]} would be a hole itself, with {name(move.request_id)} behind it in row {move.source}."
        )
    reasons["No row moves: the holes wait for new requests"] = (
        "The kernels run over rows 0 to n-1. A hole among them would be computed too, with stale tokens."
    )
    frame = scene.frame_of("RowMoved")
    yield Question(
        f"{_holes(sorted(replay.holes))} What does condense do first?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        f"The highest live row ({move.source}) drops into the lowest hole ({move.target}): "
        f"{counted(len(moves), 'copy', 'copies')} in all.",
        max(0, frame - 2),
        frame,
    )


def _holes(holes: list[int]) -> str:
    if len(holes) == 1:
        return f"Row {holes[0]} is a hole."
    return f"Rows {', '.join(map(str, holes[:-1]))} and {holes[-1]} are holes."


def reasons_but(right: int, offers: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Return why each number that was offered is wrong, but for the right one; of several reasons the first.

    >>> reasons_but(3, [(4, "One too far."), (3, "It is."), (4, "Offsets count from 0.")])
    {'4': 'One too far.'}
    """
    reasons: dict[str, str] = {}
    for number, reason in offers:
        if number != right:
            reasons.setdefault(str(number), reason)
    return reasons


def in_place(right: str, wrong: list[str]) -> tuple[str, ...]:
    """Put the answer among the wrong choices: always in the same place, but a place that follows no rule."""
    at = zlib.crc32(" ".join([right, *wrong]).encode()) % (len(wrong) + 1)
    return (*wrong[:at], right, *wrong[at:])
