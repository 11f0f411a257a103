"""The scene `paged_attention`: which blocks the queries of one step read, in which order, and what they see of them.

One small request goes block by block; the others read at once. Below stands what the kernel makes of it: programs that
read parts of a long request at the same time, whose results are merged.

vLLM counterpart of what is shown: ``vllm/v1/attention/ops/triton_unified_attention.py`` at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from pagedlab.config import require_int
from pagedlab.errors import TraceError
from pagedlab.events import ForwardFinished, InputsPrepared
from pagedlab.scenes import paged_attention_words as words
from pagedlab.scenes.assembling import assemble
from pagedlab.scenes.block_table_state import TableReplay, TableRow, blocks_per_kv_block, kernel_block_size
from pagedlab.scenes.paged_attention_bands import most_columns
from pagedlab.scenes.paged_attention_questions import questions_of_attention
from pagedlab.scenes.paged_attention_stage import AttentionStage
from pagedlab.scenes.paged_attention_state import AttentionStep, Reading
from pagedlab.scenes.replay import GROUP
from pagedlab.scenes.scene import Arrow, Frame, Scene, in_key_order
from pagedlab.scenes.step_state import WIDTH
from pagedlab.scenes.words import counted
from pagedlab.trace import Record, Trace

_ALL_ROWS, _SOME_ROWS = 6, 4
"""Up to so many rows are all shown in full; of more, so many."""

_MAX_COLUMNS = 6
"""A row with more blocks is not read block by block."""


def paged_attention(trace: Trace, step: int | None = None, *, processors: int | None = None) -> Scene:
    """Show which keys and values the queries of one step read.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        Which step; by default the first in which a decode whose blocks are not in the order of memory runs beside a
        prefill chunk, else the first of both kinds, of several rows, or at all.
    processors : int, optional
        Multiprocessors among which the kernel divides its work; by default those of the machine that recorded the
        trace, or those of an H200 where attention ran in torch.

    Returns
    -------
    Scene

    Raises
    ------
    TraceError
        If the trace has no such step, nothing attends in it, or it does not tell where the keys lie.
    ConfigError
        If ``processors`` is not a whole number of at least 1.
    """
    if processors is not None:
        require_int("processors", processors, 1)
    if step is None:
        step = _first_step(trace)
    walk = _Walk(AttentionStep(trace, step, processors))
    frames = tuple(walk.frames())
    return assemble(
        trace,
        trace.of_step(step),
        "paged_attention",
        "Paged attention",
        (WIDTH, walk.stage.height),
        frames,
        walk.step.state.replay.requests,
        {"ForwardFinished": "request"},
        lambda scene: questions_of_attention(scene, walk.step, walk.ends, walk.small, walk.cut),
    )


def _first_step(trace: Trace) -> int:
    """Return the first step in which a decode with scattered blocks and a chunk are together, or what comes nearest."""
    attended = {record.step for record in trace if isinstance(record.event, ForwardFinished)}
    table = TableReplay(GROUP, blocks_per_kv_block(trace))
    size = kernel_block_size(trace) or 1
    best: tuple[int, int] | None = None  # how near, and the step
    for record in trace:
        table.apply(record.event)
        event = record.event
        if not isinstance(event, InputsPrepared) or record.step not in attended or not event.positions:
            continue
        lengths = [stop - start for start, stop in pairwise(event.query_start_loc)]
        nearness = (len(lengths) > 1) + (1 in lengths and max(lengths) > 1)
        if nearness == 2:
            nearness += any(
                length == 1 and _is_scattered(table.rows.get(row, TableRow()).live[: -(-event.seq_lens[row] // size)])
                for row, length in enumerate(lengths)
            )
        if best is None or nearness > best[0]:
            best = nearness, record.step
        if nearness == 3:
            break
    if best is None:
        raise TraceError("no step of this trace has a forward pass: record an engine while it runs a request")
    return best[1]


def _is_scattered(blocks: tuple[int, ...]) -> bool:
    return len(blocks) <= _MAX_COLUMNS and any(first > second for first, second in pairwise(blocks))


class _Walk:
    """Lets the rows read, one after the other, and shows the stage after each part of it."""

    def __init__(self, step: AttentionStep) -> None:
        self.step = step
        self.small = self._small()
        self.shown = self._choose()
        most_cut = max(self.shown, key=self._num_splits)
        self.most_cut = most_cut if self._num_splits(most_cut) > 1 else None
        self.stage = AttentionStage(step, self.shown, self.small)
        self.done: set[int] = set()
        self.ends: dict[int, tuple[int, int]] = {}  # by row: the frame before it reads, and the one in which it has
        self.cut: tuple[Reading, int] | None = None  # whose keys are cut in most parts, and the frame that says so
        self.num_frames = 0

    def _small(self) -> Reading | None:
        """Choose who reads block by block: a decode, scattered in memory, of a few blocks."""
        most = min(_MAX_COLUMNS, most_columns(self.step.slots.block_size))
        few = [reading for reading in self.step.readings if len(reading.columns) <= most]
        return max(
            few,
            key=lambda it: (it.query_len == 1, it.is_scattered, len(it.columns) > 1, len(it.columns), -it.row),
            default=None,
        )

    def _choose(self) -> list[Reading]:
        """Choose whose rows are shown in full: all, or the small one, a chunk, the one cut most, a shared one."""
        readings, divisions = self.step.readings, self.step.divisions
        if len(readings) <= _ALL_ROWS:
            return readings
        chunks = sorted((it for it in readings if it.query_len > 1), key=lambda it: (it.num_keys, it.row))
        longest = max(readings, key=lambda it: (divisions[it.row].num_splits if divisions else 0, it.num_keys))
        wanted = [self.small, longest, *chunks[:1], *readings]
        chosen = dict.fromkeys(it.row for it in wanted if it is not None)
        rows = set(list(chosen)[:_SOME_ROWS])
        return [it for it in readings if it.row in rows]

    # --- frames -------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        """Walk: who asks; the small row block by block; the other rows; programs and merge; the sum."""
        yield self._frame(words.opening(self.step, len(self.shown)), ["batch"], record=self.step.prepared)
        if self.stage.overview is not None:
            yield self._frame(words.overview(self.step), ["overview"], record=self.step.prepared)
        if self.small is not None:
            yield from self._block_by_block(self.small)
        for reading in self.shown:
            if reading is not self.small:
                before = self.num_frames - 1
                yield self._at_once(reading)
                self.ends[reading.row] = before, self.num_frames - 1
        if (cut := self.most_cut) is not None:
            self.cut = cut, self.num_frames
            yield self._frame(
                words.cut(self.step, cut), ["programs"], current=cut, read=cut.columns, stage="read"
            )  # fmt: skip
            yield self._frame(
                words.merged(self.step, cut), ["programs"], current=cut, read=cut.columns, stage="merged",
                arrows=self.stage.programs.arrows(cut),
            )  # fmt: skip
        self.done = {reading.row for reading in self.step.readings}
        yield self._frame(words.total(self.step), ["batch"], lit_for=self.step.readings)

    def _num_splits(self, reading: Reading) -> int:
        division = self.step.divisions.get(reading.row)
        return division.num_splits if division else 1

    def _block_by_block(self, reading: Reading) -> Iterator[Frame]:
        before = self.num_frames
        queries = [key for key in self._keys_of(reading) if key.startswith("ask:")]
        yield self._frame(
            words.asks(self.step, reading), ["batch"], current=reading, record=self.step.committed, focus=queries
        )
        for column in reading.columns:
            yield self._frame(
                words.reads(self.step, reading, column), ["memory", "keys"], current=reading,
                read=range(reading.columns.start, column + 1), arrows=self.stage.way(reading, column),
                focus=(f"entry:{reading.row}:{column}", f"keys:{reading.row}:{column}", self._block(reading, column)),
            )  # fmt: skip
        self.done.add(reading.row)
        yield self._frame(
            words.result(self.step, reading), ["programs"], current=reading, read=reading.columns,
            stage=self._stage_of(reading), is_event=True, focus=(f"output:{reading.row}:0",),
        )  # fmt: skip
        self.ends[reading.row] = before, self.num_frames - 1

    def _stage_of(self, reading: Reading) -> str:
        """Show a row's programs, but keep those for later that have frames of their own."""
        return "" if reading is self.most_cut else "read"

    def _keys_of(self, reading: Reading) -> list[str]:
        return [f"ask:{reading.row}:{position}" for position in reading.queries]

    def _block(self, reading: Reading, column: int) -> str:
        slot = reading.row_blocks[column] * reading.size
        return f"block:{slot // self.step.state.block_size}"

    def _at_once(self, reading: Reading) -> Frame:
        self.done.add(reading.row)
        return self._frame(
            words.at_once(self.step, reading), ["memory", "keys"], current=reading, read=reading.columns,
            stage=self._stage_of(reading), is_event=True, focus=self._keys_of(reading),
        )  # fmt: skip

    def _frame(
        self,
        caption: words.Caption,
        bands: Collection[str],
        *,
        current: Reading | None = None,
        read: Collection[int] = (),
        stage: str = "",
        focus: Collection[str] = (),
        arrows: tuple[Arrow, ...] = (),
        record: tuple[int, Record] | None = None,
        is_event: bool = False,
        lit_for: Collection[Reading] = (),
    ) -> Frame:
        """Return the stage as it is now; lit are the slots that were read, or all of those ``lit_for`` some rows."""
        index, ran = record or self.step.finished
        lit = {slot for reading in lit_for for column in reading.columns for slot in reading.slots(column)}
        lit |= {slot for column in read for slot in current.slots(column)} if current else set()
        actors = in_key_order(self.stage.actors(bands, current, read, self.done, stage, lit))
        keys = {actor.key for actor in actors}
        self.num_frames += 1
        return Frame(
            id=str(self.num_frames - 1),
            actors=actors,
            change=caption[0],
            detail=caption[1],
            subtitle=f"step {self.step.step} · {counted(len(self.step.readings), 'row')} · "
            f"{counted(self.step.num_queries, 'query token')}",
            step=self.step.step,
            beat=ran.beat,
            event=ran.event.kind if is_event else None,
            source=(ran.source.function, ran.source.line) if ran.source else None,
            arrows=arrows,
            focus=tuple(key for key in focus if key in keys),
            record=index,
        )
