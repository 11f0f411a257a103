"""The captions of the scene `paged_attention`, computed from what the trace tells.

>>> span(range(4, 7)), span(range(4, 6)), span(range(4, 5))
('positions 4 to 6', 'positions 4 and 5', 'position 4')

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagedlab.scenes.paged_attention_state import PROCESSORS, AttentionStep, Reading
from pagedlab.scenes.words import are, blocks, counted, listed, name, names

Caption = tuple[str, str]


def span(positions: range, noun: str = "position") -> str:
    """Return ``"position 4"``, ``"positions 4 to 6"``."""
    if len(positions) == 1:
        return f"{noun} {positions.start:,}"
    if len(positions) == 2:
        return f"{noun}s {positions.start:,} and {positions.stop - 1:,}"
    return f"{noun}s {positions.start:,} to {positions.stop - 1:,}"


def spoken(step: AttentionStep, reading: Reading) -> str:
    """Return a reading's query tokens, as a caption says them."""
    if reading.query_len > 1:
        return f"{reading.query_len:,} query tokens, {span(reading.queries)},"
    position = reading.queries.start
    tokens = step.state.replay.request(reading.request_id).tokens
    token = tokens[position] if position < len(tokens) else None
    return f"token “{step.state.labels.label(token)}” at position {position:,}"


def bytes_of(step: AttentionStep, num_keys: int) -> str:
    """Return what so many keys and values take; empty if the trace does not tell the shape of the model."""
    shape = step.shape
    if shape is None:
        return ""
    return (
        f"{num_keys:,} · 2 (K and V) · {counted(shape.num_kv_heads, 'KV head')} · {shape.head_dim} · "
        f"{shape.itemsize} bytes = {num_keys * shape.bytes_in_layer:,} bytes"
    )


def opening(step: AttentionStep, num_shown: int) -> Caption:
    """Say who asks."""
    count = len(step.readings)
    change = (
        f"{counted(count, 'row')} {'asks' if count == 1 else 'ask'} with {counted(step.num_queries, 'query token')}."
    )
    detail = (
        "A query token looks at the keys and values of its own request, its own among them and none behind it. In "
        f"which blocks of {counted(step.slots.block_size, 'token')} they lie, its row of the block table says."
    )
    if step.window:
        detail += f" It sees {counted(step.window, 'key')} at most: the window."
    if num_shown < count:
        detail += f" {num_shown} rows are shown in full."
    if step.num_unknown:
        detail += f" (Of {counted(step.num_unknown, 'row')} more the trace does not tell the blocks.)"
    return change, detail


def overview(step: AttentionStep) -> Caption:
    """Say how unlike the rows of a large batch are."""
    longest = max(step.readings, key=lambda reading: reading.num_keys)
    shortest = min(step.readings, key=lambda reading: reading.num_keys)
    num_blocks = sum(len(reading.columns) for reading in step.readings)
    different = len({block for reading in step.readings for block in reading.blocks})
    change = f"They read {counted(step.num_keys, 'key')}, in {counted(num_blocks, 'block')}."
    detail = (
        f"{name(longest.request_id)} (row {longest.row}) reads {longest.num_keys:,}, {name(shortest.request_id)} (row "
        f"{shortest.row}) {shortest.num_keys:,}: how much attention has to read is up to the length of each request."
    )
    if different < num_blocks:
        detail += f" Only {different:,} of the blocks are different: the others are shared."
    return change, detail


def asks(step: AttentionStep, reading: Reading) -> Caption:
    """Say what the queries of a row look at, before anything is read."""
    who = name(reading.request_id)
    look = "looks" if reading.query_len == 1 else "look"
    change = f"{who}’s {spoken(step, reading)} {look} at {counted(reading.num_keys, 'key')}: {span(reading.keys)}."
    skipped = reading.columns.start
    say = "says" if len(reading.columns) == 1 else "say"
    columns = span(reading.columns, "column").capitalize()
    detail = f"{columns} of row {reading.row} {say} where: {blocks(reading.blocks)}."
    if reading.keys.start:
        detail += f" What lies further back than {counted(step.window, 'token')} is out of its window" + (
            f": {span(range(skipped), 'column')} {are(skipped)} not seen." if skipped else "."
        )
        detail += _given_up(step, reading)
    return change, detail


def reads(step: AttentionStep, reading: Reading, column: int) -> Caption:
    """Say what a column makes the queries read."""
    block, offsets = reading.row_blocks[column], reading.offsets(column)
    whole = len(offsets) == reading.size
    if whole:
        change = f"Column {column} says block {block}: its {counted(len(offsets), 'key')} are read."
    else:
        verb = "is" if len(offsets) == 1 else "are"
        change = f"Column {column} says block {block}: {span(offsets, 'offset')} {verb} read."
    details = [f"{span(reading.positions(column)).capitalize()} {'lies' if len(offsets) == 1 else 'lie'} there."]
    if offsets.start:
        lie = "lies" if offsets.start == 1 else "lie"
        details.append(f"{span(range(offsets.start), 'offset').capitalize()} {lie} before the window: not seen.")
    if offsets.stop < reading.size:
        rest = range(offsets.stop, reading.size)
        details.append(
            f"{span(rest, 'offset').capitalize()} {'has' if len(rest) == 1 else 'have'} no token of "
            f"{name(reading.request_id)} yet: masked, whatever lies there." + _left_by(step, reading, column)
        )
    if column > reading.columns.start and (before := reading.row_blocks[column - 1]) != block - 1:
        where = "before" if block < before else "behind"
        details.append(f"In memory it lies {where} block {before}; the row gives the order, not memory.")
    if sharers := step.sharers(reading, block):
        verb = "reads" if len(sharers) == 1 else "read"
        details.append(f"{names(sharers)} {verb} it too: the same tokens, the same keys.")
    if column == reading.columns.start:
        details.append(_heads(step))
    return change, " ".join(details)


def _given_up(step: AttentionStep, reading: Reading) -> str:
    """Say which blocks before the window belong to others by now, though the row still names them."""
    ratio = step.state.block_size // reading.size or 1
    holders = step.state.replay.holders
    taken = {
        block: other
        for block in reading.row_blocks[: reading.columns.start]
        for other in holders.get(block // ratio, ())[:1]
        if reading.request_id not in holders[block // ratio]
    }
    if not taken:
        return ""
    whose = names(list(dict.fromkeys(taken.values())))
    return f" (The row still names {blocks(list(taken))}, by now in the hands of {whose}.)"


def _left_by(step: AttentionStep, reading: Reading, column: int) -> str:
    """Say whose keys still lie behind those that are read."""
    first = reading.row_blocks[column] * reading.size
    slots = range(first + reading.offsets(column).stop, first + reading.size)
    writers = dict.fromkeys(step.state.replay.kv[slot][1] for slot in slots if slot in step.state.replay.kv)
    return f" (Keys of {names(writers)} do, left from before.)" if writers else ""


def _heads(step: AttentionStep) -> str:
    """Say how query heads share what is read."""
    shape = step.shape
    if shape is None:
        return "A key is read once for all query heads that share its KV head."
    if shape.group == 1:
        return f"Each of the {counted(shape.num_heads, 'query head')} has a KV head of its own."
    return (
        f"{shape.num_heads} query heads share {counted(shape.num_kv_heads, 'KV head')}: what is read once serves "
        f"{shape.group} of them."
    )


def result(step: AttentionStep, reading: Reading) -> Caption:
    """Say what comes of the keys that were read one by one."""
    scores = counted(reading.num_keys, "score")
    change = f"In each head, a softmax over {scores} weights as many values: that is the output."
    count = counted(len(reading.columns), "block")
    detail = f"{name(reading.request_id)} read {counted(reading.num_keys, 'key')} in {count}."
    if said := bytes_of(step, reading.num_keys):
        detail += f" {said} in a layer."
    return change, detail


def at_once(step: AttentionStep, reading: Reading) -> Caption:
    """Say in one caption what a row reads."""
    who, columns = name(reading.request_id), reading.columns
    read = "reads" if reading.query_len == 1 else "read"
    change = f"{who}’s {spoken(step, reading)} {read} {counted(reading.num_keys, 'key')} in {blocks(reading.blocks)}."
    details = []
    if reading.query_len > 1:
        first, last = reading.seen_by(reading.queries.start), reading.seen_by(reading.queries.stop - 1)
        details.append(
            f"The first of them sees {counted(len(first), 'key')}, the last {len(last):,}: no query sees what comes "
            "behind it (the causal mask), though all their keys are in the cache already."
        )
    elif (stop := reading.offsets(columns.stop - 1).stop) < reading.size:
        details.append(f"Of block {reading.blocks[-1]} it sees {span(range(stop), 'offset')}; the rest is masked.")
    if columns.start:
        details.append(f"{span(range(columns.start), 'column').capitalize()} {are(columns.start)} before its window.")
    shared = [block for block in reading.blocks if step.sharers(reading, block)]
    if shared:
        others = list(dict.fromkeys(other for block in shared for other in step.sharers(reading, block)))
        details.append(f"It shares {blocks(shared)} with {names(others)}.")
    return change, " ".join(details)


def cut(step: AttentionStep, reading: Reading) -> Caption:
    """Say how the kernel divides a row's keys, and why in so many parts."""
    division = step.divisions[reading.row]
    tiles, n = division.tiles, division.num_splits
    who = name(reading.request_id)
    head = "" if not step.is_torch else "On a GPU, "
    change = f"{head}{who}’s keys are cut in {n}: {n} programs read at the same time."
    kind = "long queries" if division.is_long else "short queries"
    detail = (
        f"A tile is {tiles.keys} keys. The step’s {kind} have {counted(division.num_tiles, 'tile')} for "
        f"{tiles.workers} workers: a share of {division.share}. {who} has {division.key_tiles}, so it gets {n} programs"
    )
    if division.query_tiles > 1:
        detail += f" for each of its {division.query_tiles} tiles of {tiles.queries} queries"
    detail += "; else one program would still read when all others are done."
    if step.is_torch:
        processors = counted(step.processors, "multiprocessor")
        whose = f"{processors} are an H200’s" if step.processors == PROCESSORS else f"the GPU would have {processors}"
        detail += f" (Here torch attended, in one piece; {whose}.)"
    return change, detail


def merged(step: AttentionStep, reading: Reading) -> Caption:
    """Say how the parts become one."""
    division = step.divisions[reading.row]
    n = division.num_splits
    change = f"The {n} partial results are merged into one."
    if division.query_tiles > 1:
        change = f"The {n} partial results of each tile are merged into one."
    return change, (
        "Each program has its output and lse, the logarithm of its sum of exponentiated scores. It counts with "
        f"exp(lse − lse of all); the result is that of one softmax over all {reading.num_keys:,} keys."
    )


def total(step: AttentionStep) -> Caption:
    """Say what the step has read."""
    count = step.num_keys
    change = f"The step has read {counted(count, 'key')} and as many values."
    if step.shape is not None:
        change = f"{change[:-1]}: {count * step.shape.bytes_per_token:,} bytes."
    details = []
    if step.shape is not None:
        details.append(f"{bytes_of(step, count)}, in each of {counted(step.shape.num_layers, 'layer')}.")
    decodes = [reading for reading in step.readings if reading.query_len == 1]
    chunks = [reading for reading in step.readings if reading.query_len > 1]
    told: Sequence[str] = [
        f"{counted(len(rows), noun)} read {sum(reading.num_keys for reading in rows):,} for "
        f"{counted(sum(reading.query_len for reading in rows), 'query token')}"
        for rows, noun in ((decodes, "decode"), (chunks, "prefill chunk"))
        if rows
    ]
    details.append(f"{listed(told)}.")
    if decodes and chunks:
        details.append("A chunk’s queries use each key many times, a decode’s once.")
    return change, " ".join(details)
