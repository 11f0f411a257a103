"""What the scene `paged_attention` draws, band below band; the layout is the same in all frames.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pagedlab.scenes.marks import text
from pagedlab.scenes.paged_attention_bands import BatchBand, KeysBand, MemoryBand, OverviewBand, ProgramsBand
from pagedlab.scenes.paged_attention_state import AttentionStep, Reading
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.step_state import BAND_W, BAND_X

_BETWEEN = 6


class AttentionStage:
    """Lays the bands out, and draws one moment.

    Parameters
    ----------
    step : AttentionStep
    shown : sequence of Reading
        The rows that are drawn in full. If there are others, all rows are drawn as bars, too.
    small : Reading or None
        The one of them that reads block by block: all of its blocks must be drawn.
    """

    def __init__(self, step: AttentionStep, shown: Sequence[Reading], small: Reading | None) -> None:
        self.step = step
        top = 6.0
        self.overview: OverviewBand | None = None
        if len(shown) < len(step.readings):
            self.overview = OverviewBand(step, top)
            top += self.overview.height + _BETWEEN
        self.batch = BatchBand(step, shown, small, top)
        top += self.batch.height + _BETWEEN
        self.memory = MemoryBand(step, shown, small, top, lines=2 if self.overview else 3)
        self.keys = KeysBand(step, shown, self.memory, self.memory.top + self.memory.height + _BETWEEN)
        self.programs = ProgramsBand(step, shown, self.keys.top + self.keys.height + _BETWEEN)
        self.height = self.programs.top + self.programs.height + 4

    def actors(
        self,
        now: Collection[str],
        current: Reading | None,
        read: Collection[int],
        done: Collection[int],
        stage: str,
        lit: Collection[int],
    ) -> Iterator[Actor]:
        """Give all that is on the stage.

        Parameters
        ----------
        now : collection of str
            The bands that are lit: ``overview``, ``batch``, ``memory``, ``keys``, ``programs``.
        current : Reading or None
            Whose queries read now.
        read, done : collections of int
            The columns that they have read, and the rows that are done.
        stage : {"", "read", "merged"}
            How far the programs have come.
        lit : collection of int
            The slots of the KV cache that have been read.
        """
        bands: list[tuple[str, str, str, BatchBand | MemoryBand | KeysBand | ProgramsBand | OverviewBand]] = [
            ("batch", "Batch: queries and block table", self.batch.fact(done), self.batch),
            ("memory", "KV cache", self.memory.fact, self.memory),
            ("keys", "Keys in the order of the row", self.keys.fact(current), self.keys),
            ("programs", "Programs", self.programs.fact, self.programs),
        ]
        if self.overview is not None:
            bands.insert(0, ("overview", "Keys that each row reads", self.overview.fact, self.overview))
        for key, title, fact, band in bands:
            parts = [
                Part("box", 0, 0, BAND_W, band.height, style="band-now" if key in now else "band"),
                text(8, 13, title, "head"),
                *([text(BAND_W - 8, 13, fact, "muted right")] if fact else []),
            ]
            yield Actor(f"band:{key}", BAND_X, band.top, BAND_W, band.height, tuple(parts), layer=0)
        if self.overview is not None:
            yield from self.overview.actors(current)
        self.step.state.targets = set(lit)
        yield from self.batch.actors(current, read, done)
        yield from self.memory.actors()
        yield from self.keys.actors(current, read)
        yield from self.programs.actors(current, stage)

    def way(self, reading: Reading, column: int) -> tuple[Arrow, ...]:
        """Return the way of a block: from its entry of the table to memory, and from there among the keys."""
        entry = self.batch.entry_xy(reading.row, column)
        block = self.memory.kernel_block_xy(reading, column)
        keys = self.keys.column_xy(reading, column)
        ways = []
        if entry is not None and block is not None:
            x, y = entry[0] + self.batch.chip_w / 2 - 1, entry[1] + 24
            ways.append(Arrow(x, y, block[0] + self.memory.cell_w / 2, block[1] - 1))
        if block is not None and keys is not None:
            ways.append(Arrow(block[0] + self.memory.cell_w, block[1] + self.memory.cell_h + 1, keys[0], keys[1] - 2))
        return tuple(ways)
