"""Questions about the flat batch of a step: where a request's tokens stand in it, and who keeps a token.

    predict(place_in_batch(scene, trace, step=4))   # the scheduler said B, C, D, E; the rows are E, B, C, D

vLLM has no counterpart.
"""

from __future__ import annotations

from pagedlab.errors import TraceError
from pagedlab.events import InputsPrepared, RequestScheduled
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import name, names
from pagedlab.trace import Trace


def place_in_batch(scene: Scene, trace: Trace, step: int) -> Question:
    """Ask at which place of the flat batch a request's first token stands.

    Parameters
    ----------
    scene : Scene
        Of `pagedlab.scenes.step`, of the same step.
    trace : Trace
    step : int

    Raises
    ------
    TraceError
        If no inputs are prepared in the step.
    """
    inputs = _prepared(trace, step)
    granted = {
        record.event.request_id: record.event.num_scheduled_tokens
        for record in trace.of_step(step)
        if isinstance(record.event, RequestScheduled) and record.event.request_id in inputs.request_ids
    }
    by_schedule, total = {}, 0
    for request_id, count in granted.items():
        by_schedule[request_id], total = total, total + count
    starts = dict(zip(inputs.request_ids, inputs.query_start_loc, strict=False))
    # The one for whom the order of scheduling leads furthest astray.
    asked = max(granted, key=lambda request_id: abs(by_schedule[request_id] - starts[request_id]))
    row, right = inputs.request_ids.index(asked), starts[asked]
    before = [(request_id, granted[request_id]) for request_id in inputs.request_ids[:row]]
    counts = " + ".join(str(count) for _, count in before) or "0"
    offers = (
        (by_schedule[asked], "That is its place in the order of scheduling. The batch is read row by row."),
        (row, f"{row} is its row. Rows before it may have more than one token in this step."),
        (sum(inputs.seq_lens[:row]), "Only the tokens of this step are in the batch, not those in memory already."),
    )
    frame = scene.frame_of("InputsPrepared")
    return Question(
        f"The scheduler granted {_told(granted)}. The rows of the batch are "
        f"{', '.join(map(name, inputs.request_ids))}. At which place of the flat list does {name(asked)}’s first token "
        "stand? (The first place is 0.)",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{name(asked)} is in row {row}; the rows before it have {counts} tokens in this step, so it begins at "
        f"{right}. query_start_loc says so: {list(inputs.query_start_loc)}.",
        max(0, frame - 1),
        frame,
        scene,
    )


def who_keeps_a_token(scene: Scene, trace: Trace, step: int) -> Question:
    """Ask whose sampled token is kept.

    Parameters
    ----------
    scene : Scene
        Of `pagedlab.scenes.step`, of the same step.
    trace : Trace
    step : int

    Raises
    ------
    TraceError
        If no inputs are prepared in the step.
    """
    inputs = _prepared(trace, step)
    rows = range(len(inputs.request_ids))
    kept = [inputs.request_ids[row] for row in rows if not inputs.discard[row]]
    dropped = [inputs.request_ids[row] for row in rows if inputs.discard[row]]
    decodes = [
        inputs.request_ids[row]
        for row in rows
        if inputs.query_start_loc[row + 1] - inputs.query_start_loc[row] == 1 and not inputs.discard[row]
    ]
    right = _group(kept)
    reasons: dict[str, str] = {}
    for group, reason in (
        (
            list(inputs.request_ids),
            f"A token is sampled for each row, but {name(dropped[0])} has more of its prompt to come: what follows is "
            "known."
            if dropped
            else "",
        ),
        (decodes, "Whoever reads the rest of its prompt in this step reaches its end, and gets its first token."),
        (dropped, "It is the other way round: these have not reached the end of what they have."),
        ([], "Somebody reaches the end of what it has, so the model has something to say."),
    ):
        label = _group(group)
        if label != right and reason:
            reasons.setdefault(label, reason)
    frame = scene.frame_of("TokenSampled")
    tokens = ", ".join(
        f"{name(request_id)} has {length} tokens in memory after it"
        for request_id, length in zip(inputs.request_ids, inputs.seq_lens, strict=True)
    )
    return Question(
        f"The model has run: {tokens}. Whose new token is kept?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        (
            f"{names(dropped)} did not reach the end of what it has, so its token is dropped. "
            if len(dropped) == 1
            else ""
        )
        + f"Kept: {right}.",
        max(0, frame - 1),
        frame,
        scene,
    )


def _prepared(trace: Trace, step: int) -> InputsPrepared:
    for _, _, inputs in trace.in_step(step, InputsPrepared):
        return inputs
    raise TraceError(f"no inputs are prepared in step {step}: choose a step in which somebody runs")


def _told(granted: dict[str, int]) -> str:
    return ", ".join(f"{name(request_id)} {count}" for request_id, count in granted.items())


def _group(request_ids: list[str]) -> str:
    return names(request_ids) if request_ids else "Nobody’s"
