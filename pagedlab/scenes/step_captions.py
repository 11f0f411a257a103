"""The captions of the scene `step`: for each thing that happens, what changed and what there is to say about it.

Each function returns the change, which is shown in bold, and the detail. All of it is made of the trace's own values.

>>> from pagedlab.events import RequestFinished
>>> finished(RequestFinished("A", "length", 3), free=[2, 1], kept=[], cached=[])[0]
'A is finished after 3 output tokens: it reached its length limit.'

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pagedlab.errors import TraceError
from pagedlab.events import (
    BatchUpdated,
    BlocksAllocated,
    BlocksAppended,
    BlocksCached,
    BlocksEvicted,
    BlocksTouched,
    BlockTableCommitted,
    Event,
    ForwardFinished,
    InputsPrepared,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    TokenAccepted,
    TokenAppended,
    TokenSampled,
)
from pagedlab.scenes.admission import batch_is_closed, why_passed_over, why_waits
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.step_state import StepState
from pagedlab.scenes.words import TokenLabels, are, blocks, counted, finish, listed, name, names, vector

Caption = tuple[str, str]


# --- schedule -------------------------------------------------------------------------------------------------


def opening(state: StepState) -> Caption:
    """Say what the scheduler will find."""
    running, waiting = state.running_before, state.waiting
    who = [
        *([f"{counted(len(running), 'request')} already run{'s' if len(running) == 1 else ''}"] if running else []),
        *([f"{counted(len(waiting), 'request')} wait{'s' if len(waiting) == 1 else ''}"] if waiting else []),
    ]
    budget = "the token budget" if state.budget is None else f"a budget of {counted(state.budget, 'token')}"
    by_priority = state.trace.settings.get("policy") == "priority"
    then = (
        "among the running requests; static batching admits nobody before they have all ended"
        if batch_is_closed(state.trace.settings, running)
        else f"running requests first, then waiting ones {'by priority' if by_priority else 'in order'}"
    )
    return (
        f"Step {state.step} begins: {listed(who) if who else 'nothing to do'}.",
        f"First the scheduler decides, without asking the model: it shares out {budget}, {then}.",
    )


def ids_of(events: Iterable[Event], *kinds: type[Event]) -> list[int]:
    """Return the blocks of the events of these kinds, of the group that is shown."""
    return [
        block
        for event in events
        if isinstance(event, kinds) and getattr(event, "group", GROUP) == GROUP
        for block in getattr(event, "block_ids", ())
    ]


def granted(events: Sequence[Event], state: StepState) -> Caption:
    """Say who gets tokens: one request with its blocks, or several that only decode."""
    grants = [event for event in events if isinstance(event, RequestScheduled)]
    last = grants[-1]
    hashed = ids_of(events, BlocksCached)
    notes = [f"{counted(last.budget_left, 'token')} of the budget {are(last.budget_left)} left."]
    if hashed:
        notes.append(
            f"{blocks(hashed).capitalize()} will be full, and {'gets its hash' if len(hashed) == 1 else 'get hashes'} "
            f"(#) already now: later prompts can find {'it' if len(hashed) == 1 else 'them'}."
        )
    if len(grants) > 1:
        change = f"{names([event.request_id for event in grants])} get one token each."
        notes.insert(0, "Each has one token that is not computed yet: the one it sampled last.")
        return change, " ".join(notes)
    if evicted := ids_of(events, BlocksEvicted):
        notes.insert(0, f"What the cache still had in {blocks(evicted)} is forgotten.")
    notes.insert(0, _why_so_many(last, ids_of(events, BlocksTouched), state))
    return _grant(last, ids_of(events, BlocksAllocated)), " ".join(notes)


def _grant(event: RequestScheduled, allocated: Sequence[int]) -> str:
    who, tokens = name(event.request_id), counted(event.num_scheduled_tokens, "token")
    them = "it" if event.num_scheduled_tokens == 1 else "them"
    room = f", and {blocks(allocated)} to keep {them} in" if allocated else ""
    begins = {"new": "is admitted: it gets", "resumed": "resumes: it gets"}.get(event.status, "gets")
    return f"{who} {begins} {tokens}{room}."


def _why_so_many(event: RequestScheduled, hits: Sequence[int], state: StepState) -> str:
    todo = event.num_tokens - event.num_computed_tokens
    computed = event.num_computed_tokens
    if hits:
        others = [item for item in state.replay.holders.get(hits[-1], ()) if item != event.request_id]
        how = f"it shares {blocks(hits)} with {names(others)}" if others else f"it takes {blocks(hits)} as they are"
        if len(hits) == 1 and not others:
            how = f"it takes {blocks(hits)} as it is"
        return f"Its first {counted(computed, 'token')} {are(computed)} in the cache: {how}, and computes what follows."
    held = f"Of its {counted(event.num_tokens, 'token')} {computed} {are(computed)} computed"
    if event.num_scheduled_tokens < todo:
        cut = (
            "the budget cuts"
            if event.budget_left == 0
            else f"no request gets more than {event.num_scheduled_tokens} in one step, which cuts"
        )
        if computed:
            return f"{held}; {todo} are wanted, but {cut} them to a chunk of {event.num_scheduled_tokens}."
        if event.status == "resumed":
            return f"Its {todo} tokens do not fit at once: {cut} them to a chunk. The rest runs in later steps."
        return f"Its prompt of {todo} does not fit whole: {cut} it to a chunk. The rest runs in later steps."
    if todo == 1 and event.status == "running":
        return "Only its newest token is not computed yet."
    if event.status == "resumed":
        return f"{held}: all the other {todo} fit." if computed else f"All its {todo} are computed again, at one go."
    return f"{held}: all the other {todo} fit." if computed else f"Its whole prompt of {todo} fits."


def preempted(
    event: RequestPreempted,
    state: StepState,
    *,
    freed: Sequence[int],
    had_free: int | None,
    had_tokens: int,
    needed_by: str,
) -> Caption:
    """Say who loses its blocks, for whom, and what is lost.

    Parameters
    ----------
    event : RequestPreempted
    state : StepState
    freed : sequence of int
        The blocks that it gave up.
    had_free : int or None
        The free blocks before.
    had_tokens : int
        What it had been granted in this very step.
    needed_by : str
        Who needed them: the request that gets tokens next, or the victim itself.
    """
    by_priority = state.trace.settings.get("policy") == "priority"
    rank = "has the largest (priority, arrival time) of all that run" if by_priority else "is the last of the running"
    who = name(event.request_id)
    whom = (
        f"{who} needs room itself, but" if needed_by == event.request_id else f"{name(needed_by)} needs room, and {who}"
    )
    back = "goes back to its place in the priority queue" if by_priority else "goes to the head of the waiting queue"
    kept = [block for block in freed if block in state.replay.holders]
    computed = event.num_computed_tokens
    again = (
        f"Its {counted(computed, 'computed token')} must be computed again"
        + (", but for what is still in the cache by then." if state.replay.cached & set(freed) else ".")
        if computed
        else "Nothing of it was computed yet."
    )
    return (
        f"{who} is preempted: " + ("the pool has run dry." if had_free == 0 else "too few blocks are free."),
        f"{whom} {rank}: it gives up {blocks(freed) if freed else 'its blocks'}"
        + (f" ({blocks(kept)} {'stays' if len(kept) == 1 else 'stay'} with others)" if kept else "")
        + f" and {back}. {again}"
        + (f" The budget gets its {counted(had_tokens, 'token')} of this step back." if had_tokens else ""),
    )


def decided(state: StepState) -> Caption:
    """Say who runs, and why the others do not."""
    total, waiting = sum(len(window) for window in state.grants.values()), state.waiting
    change = f"The scheduler is done: {counted(total, 'token')} of {counted(len(state.grants), 'request')} will run."
    if not state.grants:
        change = "The scheduler is done: nothing can run in this step."
    passed = [item for item in state.replay.running if item not in state.grants]
    notes = []
    if passed:
        get = "gets" if len(passed) == 1 else "get"
        notes.append(f"{names(passed)} {get} nothing: {why_passed_over(state.replay)}.")
    if waiting:
        why = why_waits(state.trace.settings, state.running_before, waiting, state.replay)
        notes.append(f"{names(waiting)} {'waits' if len(waiting) == 1 else 'wait'}: {why}.")
    return change, " ".join(notes) or (
        "Prompt tokens and output tokens come out of one budget: there is no prefill step and no decode step."
    )


# --- prepare --------------------------------------------------------------------------------------------------


def rows_kept(request_ids: Sequence[str], rows: Sequence[int]) -> Caption:
    """Say who stays in its row."""
    where = listed([str(row) for row in rows])
    return (
        f"{names(request_ids)} {'keeps its row' if len(rows) == 1 else 'keep their rows'} {where}.",
        "The batch is persistent: what was written there in earlier steps stays, and nothing is copied again.",
    )


def rows_changed(events: Sequence[Event], grants: Mapping[str, range]) -> Caption:
    """Say what happens to rows; several events are of one kind."""
    event, many = events[0], len(events) > 1
    who = [getattr(item, "request_id", "") for item in events]
    match event:
        case RowRemoved():
            return (
                f"{names(who)} leave their rows: holes."
                if many
                else f"{name(event.request_id)} leaves row {event.row}: a hole.",
                f"{'They do' if many else 'It does'} not run in this step. "
                f"What {'they' if many else 'it'} wrote stays in memory, stale.",
            )
        case RowAdded():
            if many:
                return f"{names(who)} are written into the batch.", "Each takes the lowest free row."
            part = grants.get(event.request_id)
            some = (
                f" Only {len(part)} of them run{'s' if len(part) == 1 else ''} now."
                if part and len(part) < event.num_tokens
                else ""
            )
            return (
                f"{name(event.request_id)} is written into row {event.row}, the lowest free one.",
                f"All its {counted(event.num_tokens, 'token')} and its block ids are copied once, and stay there "
                f"while it runs.{some}",
            )
        case RowMoved():
            return (
                f"{name(event.request_id)} moves from row {event.source} to row {event.target}.",
                "condense: the highest live row drops into the lowest hole, so that rows stay dense.",
            )
        case RowsSwapped():
            return (
                f"{name(event.first_request_id)} and {name(event.second_request_id)} exchange rows.",
                "Requests that decode go first.",
            )
        case BlocksAppended():
            grown, who = ids_of(events, BlocksAppended), list(dict.fromkeys(who))
            return (
                f"{names(who)} {'grows' if len(who) == 1 else 'grow'}: {blocks(grown)} "
                f"{'joins' if len(grown) == 1 else 'join'} the block table.",
                "The tokens of this step need room that the blocks held so far do not have.",
            )
        case BatchUpdated(batch_size=size, added=added, removed=removed, moved=moved):
            told = [
                f"{word}: {len(part)}"
                for part, word in ((added, "added"), (removed, "removed"), (moved, "moved"))
                if part
            ]
            return (
                f"The batch is ready: {counted(size, 'row')}, no hole.",
                f"Rows {', '.join(told)}; logits processors, with state by row, are told."
                if told
                else "Nothing moved: the rows are those of the step before.",
            )
        case _:
            raise TraceError(f"the step scene does not show {event.kind}")


def inputs_prepared(inputs: InputsPrepared, grants: Mapping[str, range]) -> Caption:
    """Say what the flat batch is."""
    order = "" if list(inputs.request_ids) == list(grants) else " They stand in the order of rows, not of grants."
    return (
        f"{counted(len(inputs.input_ids), 'token')} of {counted(len(inputs.request_ids), 'request')} "
        f"become{'s' if len(inputs.input_ids) == 1 else ''} one flat batch.",
        f"query_start_loc {vector(inputs.query_start_loc, room=60)} says where each row begins; each token keeps "
        f"its position in its request.{order}",
    )


def table_committed(event: BlockTableCommitted) -> Caption:
    """Say what of the block table is sent."""
    if event.mode == "full":
        what = counted(event.num_rows, "row")
        one = event.num_rows == 1
    else:
        num_cells = sum(len(entries) for _, _, entries in event.changed)
        if num_cells == 0:
            return (
                "Nothing in the block table has changed, so nothing of it is sent.",
                "The device has what kernels will read: which blocks hold a request's tokens.",
            )
        what, one = counted(num_cells, "changed cell"), num_cells == 1
    return (
        f"{what} of the block table {'goes' if one else 'go'} to the device: {counted(event.num_bytes, 'byte')}.",
        "Kernels will read there which blocks hold a request's tokens.",
    )


def slots_computed(request_id: str, token: str, position: int, slot: int, size: int) -> Caption:
    """Say what a slot is, by the example of one token."""
    column, offset = divmod(position, size)
    return (
        "Each token gets its slot in the KV cache.",
        f"{name(request_id)}’s “{token}” has position {position}: column {position} // {size} = {column} of "
        f"its block-table row says block {slot // size}, offset {position} % {size} = {offset}, "
        f"so slot {slot // size}·{size} + {offset} = {slot}.",
    )


# --- execute --------------------------------------------------------------------------------------------------


def forward_finished(event: ForwardFinished) -> Caption:
    """Say what the model did."""
    return (
        f"The model runs once over {counted(event.num_tokens, 'token')} of {counted(event.num_reqs, 'request')}: "
        f"{1000 * event.seconds:,.1f} ms.",
        "Each token’s K and V are written into its slot; to attend, each reads the blocks of its own request.",
    )


def tokens_sampled(events: Sequence[TokenSampled], grants: Mapping[str, range], labels: TokenLabels) -> Caption:
    """Say which token each row gave, and what is dropped."""
    pairs = [f"{name(event.request_id)} → {labels.quoted(event.token_id)}" for event in events if not event.discarded]
    dropped = [event.request_id for event in events if event.discarded]
    change = (
        f"The last token of each row gives the next one: {listed(pairs)}."
        if pairs
        else "Nothing that is sampled counts yet."
    )
    if dropped:
        return change, (
            f"{names(dropped)} {are(len(dropped))} in the middle of the prompt: "
            f"what {'is' if len(dropped) == 1 else 'was'} sampled there is dropped."
        )
    if len(grants) < sum(len(window) for window in grants.values()):
        return change, "logits_indices picks these positions; the others were computed only for their K and V."
    return change, "In a step that only decodes, each row has one token in and one token out."


def tokens_appended(events: Sequence[TokenAppended]) -> Caption:
    """Say where the new tokens are written."""
    where = (
        "token is written at the end of its row" if len(events) == 1 else "tokens are written at the end of their rows"
    )
    return (
        f"The new {where}.",
        "Known, but not computed: K and V of a new token are written when it runs, in the next step.",
    )


# --- update ---------------------------------------------------------------------------------------------------


def tokens_accepted(events: Sequence[TokenAccepted]) -> Caption:
    """Say which requests are one token longer."""
    who = names([event.request_id for event in events])
    return (
        f"The scheduler takes in {counted(len(events), 'new token')}: of {who}.",
        "A request is its tokens, and is one longer now. Whether it has reached its end is checked at once.",
    )


def finished(event: RequestFinished, *, free: Sequence[int], kept: Sequence[int], cached: Sequence[int]) -> Caption:
    """Say how a request ended; of its blocks some are free now, some others still hold, some can still be found."""
    return (
        f"{name(event.request_id)} is finished after {counted(event.num_output_tokens, 'output token')}: "
        f"it {finish(event.reason)}.",
        (f"{blocks(free).capitalize()} {are(len(free))} free at once, tail first. " if free else "")
        + (f"{blocks(kept).capitalize()} {'stays' if len(kept) == 1 else 'stay'} with others. " if kept else "")
        + (f"What {blocks(cached)} hold{'s' if len(cached) == 1 else ''} can still be found. " if cached else "")
        + "Its row in the batch stays until the next step removes it.",
    )


def closing(state: StepState) -> Caption:
    """Say what the next step will find."""
    running, waiting = len(state.replay.running), len(state.replay.waiting)
    free = state.replay.num_free_blocks or 0
    return (
        f"Step {state.step} is over: {counted(running, 'request')} running, {waiting:,} waiting.",
        f"{counted(free, 'block')} {are(free)} free. The next step starts from here: rows and blocks stay.",
    )
