"""Questions about what a step reads: in which order, how far into the last block, how much, in how many parts.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pagedlab.scenes.paged_attention_state import AttentionStep, Reading
from pagedlab.scenes.paged_attention_words import span
from pagedlab.scenes.paged_attention_work import ModelShape
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.scene import Question, Scene
from pagedlab.scenes.words import counted, listed, name, vector


def questions_of_attention(
    scene: Scene,
    step: AttentionStep,
    ends: Mapping[int, tuple[int, int]],
    small: Reading | None,
    cut: tuple[Reading, int] | None,
) -> Iterator[Question]:
    """Give the questions of a scene.

    Parameters
    ----------
    scene : Scene
    step : AttentionStep
    ends : mapping of int to (int, int)
        By row: the frame that comes before it reads (of the small one, its first), and the one in which it has read.
    small : Reading or None
        The row that reads block by block.
    cut : (Reading, int) or None
        The row whose keys are cut in most parts, and the frame that says so.
    """
    if small is not None:
        first, after = ends[small.row]
        yield blocks_read(step, small, first - 1, first)
        if len(small.offsets(small.columns.stop - 1)) < small.size:
            yield offsets_read(small, after - 2, after - 1)
    chunks = [reading for reading in step.readings if reading.query_len > 1 and reading.row in ends]
    if chunks:
        yield keys_seen(chunks[0], *ends[chunks[0].row])
    if cut is not None:
        reading, frame = cut
        yield parts_of(step, reading, frame - 1, frame)
    if step.shape is not None:
        yield bytes_read(step, step.shape, len(scene.frames) - 2, len(scene.frames) - 1)


def blocks_read(step: AttentionStep, reading: Reading, ask_frame: int, frame: int) -> Question:
    """Ask which blocks a query reads, in which order."""
    held, read = reading.row_blocks[: reading.columns.stop], reading.blocks
    right = _in_order(read)
    reasons: dict[str, str] = {}
    offers = (
        (tuple(sorted(read)), "That is their order in memory. The row of the block table says whose turn it is."),
        (
            held,
            f"The window begins in column {reading.columns.start}: no query sees what lies before it.",
        ),
        (
            read[-1:],
            f"There lies its own key. It looks at all {reading.num_keys:,} keys up to its own, in "
            f"{counted(len(read), 'block')}.",
        ),
        (read[::-1], "Columns are read from left to right: the first one holds the first tokens."),
    )
    for order, reason in offers:
        if _in_order(order) != right and len(reasons) < 2:
            reasons.setdefault(_in_order(order), reason)
    others = sorted({block for other in step.readings for block in other.blocks} - set(read))
    if others:
        reasons[f"All blocks that are held: also {listed([str(block) for block in others])}"] = (
            "Those hold the keys of other requests. Attention looks at its own request alone."
        )
    reasons.setdefault(
        "None: its keys are in the flat batch",
        f"Of {counted(reading.seq_len, 'token')} the flat batch has {reading.query_len}. The keys of earlier steps are "
        "in the KV cache only.",
    )
    who = name(reading.request_id)
    look = "query is" if reading.query_len == 1 else "queries are"
    return Question(
        f"{who}’s {look} at {span(reading.queries)}; its row of the block table is {vector(held)}, a block holds "
        f"{counted(reading.size, 'token')}" + (f", the window {step.window}" if step.window else "") + ". "
        "Which blocks are read, in which order?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        f"Keys {reading.keys.start} to {reading.keys.stop - 1} lie in {span(reading.columns, 'column')}. They are read "
        "from left to right, wherever in memory the blocks are.",
        ask_frame,
        frame,
    )


def _in_order(blocks: tuple[int, ...]) -> str:
    return f"Block {blocks[0]}" if len(blocks) == 1 else f"Blocks {', '.join(map(str, blocks))}"


def offsets_read(reading: Reading, ask_frame: int, frame: int) -> Question:
    """Ask how many keys are read of the last block."""
    column = reading.columns.stop - 1
    block, right, size = reading.row_blocks[column], len(reading.offsets(column)), reading.size
    last = reading.seq_len - 1
    offers = (
        (size, f"A block has room for so many. {name(reading.request_id)} has not written all of them yet."),
        (
            last % size,
            f"That is the offset of its own key, {last} % {size}. Offsets count from 0, and its own key is read too.",
        ),
        (1, "Its own key is in this block, but earlier ones are, too."),
        (reading.num_keys, "So many in all its blocks together."),
        (size - right, "So many are masked: they are not written yet."),
    )
    return Question(
        f"The last block of {name(reading.request_id)} is block {block}, with room for {counted(size, 'token')}. The "
        f"last query is at position {last:,}. How many keys of this block are read?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"Position {last:,} is at offset {last} % {size} = {last % size}: {span(reading.offsets(column), 'offset')} "
        f"{'is' if right == 1 else 'are'} read, what lies behind is masked.",
        ask_frame,
        frame,
    )


def keys_seen(reading: Reading, ask_frame: int, frame: int) -> Question:
    """Ask how many keys the first query of a prefill chunk sees."""
    first = reading.queries.start
    seen = reading.seen_by(first)
    right = len(seen)
    last = len(reading.seen_by(reading.seq_len - 1))
    offers = (
        (last, "So many does the last query see. The first one does not look at those behind it."),
        (reading.num_keys, "So many do all queries of the chunk see together."),
        (first, f"{first} come before it. It sees its own key, too."),
        (reading.query_len, "So many queries are in the chunk. A query sees the keys before it, computed earlier too."),
        (1, f"Its own, and also the {first} before it: they are in the KV cache."),
        (reading.seq_len, "All of the request. What comes behind a query is masked."),
        (first + 1, "So many up to its own, but the window is shorter."),
    )
    window = f" Its window is {reading.window} tokens." if reading.window else ""
    return Question(
        f"{name(reading.request_id)} computes {span(reading.queries)} in this step, and their keys are written before "
        f"attention reads.{window} How many keys does its first query, at position {first}, see?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{span(seen).capitalize()}: {counted(right, 'key')}. The mask hides what comes behind it; the last query sees "
        f"{last}.",
        ask_frame,
        frame,
    )


def parts_of(step: AttentionStep, reading: Reading, ask_frame: int, frame: int) -> Question:
    """Ask in how many parts the kernel cuts a row's keys."""
    division = step.divisions[reading.row]
    tiles, share, right = division.key_tiles, division.share, division.num_splits
    size, workers, who = division.tiles.keys, division.tiles.workers, name(reading.request_id)
    offers = (
        (1, "Then one program would read them all, and most of the machine would wait for it."),
        (
            workers,
            f"So many programs share the whole step. {who} has {counted(tiles, 'tile')} of {division.num_tiles:,}.",
        ),
        (tiles, f"So many tiles. A worker’s share is {share} of them: fewer parts are enough."),
        (tiles // share, "A last part that is longer than a quarter of a share is worth a program of its own."),
        (
            -(-tiles // share),
            "What is longer by a quarter of a share or less stays whole: to cut it would cost a merge.",
        ),
        (
            reading.num_keys // size,
            f"{reading.num_keys:,} // {size}: but the last tile is read too, though it is not full.",
        ),
        (len(reading.columns), "So many blocks. The kernel counts in tiles of its own, whatever the size of a block."),
    )
    return Question(
        f"{who} reads {counted(reading.num_keys, 'key')}, in tiles of {size}. All such rows together have "
        f"{counted(division.num_tiles, 'tile')} for {workers} workers: a share of {share} each. In how many parts are "
        f"the keys of {who} cut?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{counted(tiles, 'tile')}, a share of {share}: ceil({tiles} / {share} − 1/4) = {right}.",
        ask_frame,
        frame,
    )


def bytes_read(step: AttentionStep, shape: ModelShape, ask_frame: int, frame: int) -> Question:
    """Ask how many bytes of keys and values the step reads."""
    keys, right = step.num_keys, step.num_keys * shape.bytes_per_token
    offers = (
        (right // 2, "That is the keys alone. The values are read as well."),
        (keys * shape.bytes_in_layer, f"That is one layer. The model has {shape.num_layers}, each with its own cache."),
        (
            right * shape.group,
            f"{shape.num_heads} query heads share {shape.num_kv_heads} KV heads: only those are kept, and read.",
        ),
        (right // shape.itemsize, f"So many numbers. Each takes {shape.itemsize} bytes."),
        (
            step.num_queries * shape.bytes_per_token,
            f"So much do the {step.num_queries} new tokens write. A query reads all keys up to its own.",
        ),
    )
    return Question(
        f"The step reads {counted(keys, 'key')} and as many values. The model has "
        f"{counted(shape.num_layers, 'layer')}, {counted(shape.num_heads, 'query head')} and "
        f"{counted(shape.num_kv_heads, 'KV head')} of {shape.head_dim} numbers, {shape.itemsize} bytes each. How many "
        "bytes is that?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{keys:,} · 2 · {shape.num_kv_heads} · {shape.head_dim} · {shape.itemsize} · {shape.num_layers} = {right:,} "
        "bytes.",
        ask_frame,
        frame,
    )
