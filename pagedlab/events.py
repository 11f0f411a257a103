"""What can happen in the engine: small frozen records, the lowest layer of the library.

The engine, the block pool and the persistent batch call an *observer* if there is one. An observer is any
callable that takes one event:

>>> seen = []
>>> observer = seen.append
>>> observer(RowMoved(source=4, target=1, request_id="C", num_tokens=9))
>>> seen[0].kind, seen[0].target
('RowMoved', 1)

**The source line of an event.** An event is emitted inside the method that did the thing, so the line that
*asked* for it is the line of that method's caller: ``self._move_row(last, hole)`` in ``InputBatch.condense``,
say. That is the line a scene lights up, and `pagedlab.trace.Recorder` reads it from the call stack.

vLLM has no counterpart: it logs statistics per step (`vllm/v1/metrics/stats.py`), not what moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

BEATS = ("schedule", "prepare", "execute", "update")
"""The four beats of one step, in order. Each is a value in, a value out (`LLMEngine.step`)."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. Fields are plain ints, floats, bools, strings and tuples of them: JSON keeps them."""

    @property
    def kind(self) -> str:
        """The name of the event's class, as written to a trace."""
        return type(self).__name__


# --- the loop -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestAdded(Event):
    """A request entered the waiting queue."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RequestAborted(Event):
    """A request was withdrawn by its user before it finished."""

    request_id: str


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    """`LLMEngine.step` begins. ``index`` counts from 0."""

    index: int


@dataclass(frozen=True, slots=True)
class BeatStarted(Event):
    """One of the four beats of the step begins (`BEATS`)."""

    beat: str


@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """`LLMEngine.step` ends; the queues and the free blocks are as the next step will find them."""

    index: int
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    num_free_blocks: int


# --- scheduling -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestScheduled(Event):
    """A request got tokens of this step's budget.

    ``num_computed_tokens`` is what it had before this step; ``num_tokens`` is all it holds, prompt and output,
    so that ``num_computed_tokens + num_scheduled_tokens < num_tokens`` marks a partial prefill.
    ``status`` is ``"running"``, ``"new"`` or ``"resumed"``; ``budget_left`` is what remains for the others.
    """

    request_id: str
    status: str
    num_scheduled_tokens: int
    num_computed_tokens: int
    num_tokens: int
    budget_left: int


@dataclass(frozen=True, slots=True)
class RequestPreempted(Event):
    """A running request lost its blocks and went back to the head of the waiting queue."""

    request_id: str
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class TokenAccepted(Event):
    """A sampled token was appended to its request by ``update_from_output``."""

    request_id: str
    token_id: int
    position: int


@dataclass(frozen=True, slots=True)
class RequestFinished(Event):
    """A request ended: ``reason`` is ``"stop"``, ``"length"`` or ``"abort"``."""

    request_id: str
    reason: str
    num_output_tokens: int


# --- KV blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlocksAllocated(Event):
    """Blocks left the head of the free queue for a request. ``num_free`` counts what is left."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    num_free: int


@dataclass(frozen=True, slots=True)
class BlocksTouched(Event):
    """Cached blocks were hit and are held (once more) by a request."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    num_free: int


@dataclass(frozen=True, slots=True)
class BlocksCached(Event):
    """Full blocks of a request got a hash: from now on they can be hit. ``block_hashes`` are hexadecimal."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    block_hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlocksEvicted(Event):
    """Free blocks lost their hash because somebody needs them."""

    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksFreed(Event):
    """A request gave blocks back, tail first (the order of ``block_ids``): all of them, or those out of its window."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    num_free: int


# --- the persistent batch -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowAdded(Event):
    """A request was written into a row. ``block_ids`` has one tuple per KV cache group."""

    row: int
    request_id: str
    num_tokens: int
    num_computed_tokens: int
    block_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RowRemoved(Event):
    """A row became a hole. Its numbers stay in memory, stale, until something is written over them."""

    row: int
    request_id: str


@dataclass(frozen=True, slots=True)
class RowMoved(Event):
    """``condense`` moved the highest live row into the lowest hole."""

    source: int
    target: int
    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RowsSwapped(Event):
    """Two rows exchanged everything (reordering: decodes first)."""

    first: int
    second: int
    first_request_id: str
    second_request_id: str


@dataclass(frozen=True, slots=True)
class BlocksAppended(Event):
    """A row of the block table grew."""

    row: int
    request_id: str
    group: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenAppended(Event):
    """A sampled token was written at the end of its row."""

    row: int
    request_id: str
    token_id: int


@dataclass(frozen=True, slots=True)
class BatchUpdated(Event):
    """What changed in the batch this step, as logits processors are told (vLLM's ``BatchUpdate``).

    ``removed`` descends; ``moved`` holds ``(from, to, "move" | "swap")``.
    """

    batch_size: int
    removed: tuple[int, ...]
    added: tuple[int, ...]
    moved: tuple[tuple[int, int, str], ...]


# --- inputs and forward pass ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputsPrepared(Event):
    """The tensors of one forward pass. Everything is in batch order (``request_ids``)."""

    request_ids: tuple[str, ...]
    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    query_start_loc: tuple[int, ...]
    seq_lens: tuple[int, ...]
    logits_indices: tuple[int, ...]
    discard: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class BlockTableCommitted(Event):
    """A block table was brought up to date on the device; ``num_bytes`` crossed the bus.

    ``mode`` is ``"full"`` (all of the first ``num_rows`` rows were sent) or ``"changed"``: then ``changed`` holds what
    was sent, ``(row, first column, entries)``.
    """

    group: int
    num_rows: int
    num_bytes: int
    mode: str
    changed: tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SlotsComputed(Event):
    """Where each token's K and V go. ``backend`` is ``"cuda"``, ``"interpreter"`` or ``"numpy"``."""

    group: int
    slot_mapping: tuple[int, ...]
    block_size: int
    backend: str


@dataclass(frozen=True, slots=True)
class ForwardFinished(Event):
    """The model ran once over all scheduled tokens."""

    num_tokens: int
    num_reqs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TokenSampled(Event):
    """The sampler chose a token for a row. ``discarded``: the row is a partial prefill, the token is dropped."""

    row: int
    request_id: str
    token_id: int
    discarded: bool


Observer = Callable[[Event], None]


_BY_NAME: Mapping[str, type[Event]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return ``event`` as a JSON-ready dict whose ``"kind"`` names its class."""
    return {"kind": event.kind, **asdict(event)}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Return the event that `event_to_dict` wrote; lists become tuples again.

    Raises
    ------
    ValueError
        If ``kind`` is missing or unknown, or the fields are not those of its class, by name and type.
    """
    values = {name: _freeze(value) for name, value in data.items()}
    kind = values.pop("kind", None)
    if kind not in _BY_NAME:
        raise ValueError(f"unknown event kind {kind!r}; known: {', '.join(sorted(_BY_NAME))}")
    wanted = _field_types(kind)
    if values.keys() != wanted.keys():
        raise ValueError(f"event {kind} has the fields {', '.join(wanted)}; given: {', '.join(values)}")
    for name, value in values.items():
        if not _matches(value, wanted[name]):
            raise ValueError(f"event {kind}: {name} is {value!r}, which is not {wanted[name]}")
    return _BY_NAME[kind](**values)


@functools.cache
def _field_types(kind: str) -> Mapping[str, Any]:
    hints = get_type_hints(_BY_NAME[kind])
    return {field.name: hints[field.name] for field in fields(_BY_NAME[kind])}


def _matches(value: Any, wanted: Any) -> bool:
    """Whether a frozen JSON value is of an event field's type: a plain type, or tuples of them."""
    if get_origin(wanted) is tuple:
        parts = get_args(wanted)
        if not isinstance(value, tuple):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_matches(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_matches, value, parts))
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is wanted


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value
