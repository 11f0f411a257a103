"""The band of the scene `step` that shows the persistent batch: its rows, their tokens and block-table rows."""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.scenes.marks import Gap, cell, chip_width, chips, elide, gap, text
from pagedlab.scenes.replay import RowState
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.step_state import BAND_X, HEAD, RIGHT, WIDTH, StepState, first_of, width_of
from pagedlab.scenes.words import counted, label, name

ROW_CELL_H = 23
_PITCH, _ROW_H, _GAP_H = 30, 27, 18
_ROW_X, _ROW_W = 30, RIGHT - 28
_TOKENS_X, _TOKENS_END, _BLOCKS_X = 124, 411, 418


class BatchBand:
    """The rows; ``top`` is where the band begins."""

    fact = ""

    def __init__(self, state: StepState, top: float) -> None:
        self.state = state
        self.top = top
        self.row_y: dict[int, float] = {}
        y = top + HEAD
        for item in state.rows:
            if not isinstance(item, Gap):
                self.row_y[item] = y
            y += _GAP_H if isinstance(item, Gap) else _PITCH
        self.height = max(y - top, HEAD + _PITCH) + 2
        self.room = int((_TOKENS_END - _TOKENS_X) // state.cell_w)

    @property
    def head(self) -> Part:
        """The head of the second column."""
        return text(_BLOCKS_X - BAND_X, 13, "block table", "muted")

    def token_xy(self, request_id: str, position: int) -> tuple[float, float] | None:
        """Return where a token lies in its row, or where it is counted; None if the row is not drawn."""
        row = self.state.replay.req_id_to_index.get(request_id)
        return (self._token_x(request_id, position), self.row_y[row] + 2) if row in self.row_y else None

    def _token_x(self, request_id: str, position: int) -> float:
        x = float(_TOKENS_X)
        for item in self._items(request_id):
            if isinstance(item, Gap):
                if position < item.stop:
                    return x + self.state.cell_w / 2
            elif item >= position:
                return x
            x += self.state.cell_w * width_of(item)
        return x

    def _items(self, request_id: str) -> list[int | Gap]:
        """Which columns of a request's row are drawn: the same in all frames of the step."""
        total = len(self.state.end.request(request_id).tokens)
        window = self.state.grants.get(request_id)
        focus = range(window.start, total) if window and window.start < total else None
        return elide(total, self.room, focus)

    def actors(self) -> Iterator[Actor]:
        top = self.top + HEAD
        parts: list[Part] = []
        for item in self.state.rows:
            if isinstance(item, Gap):
                parts.append(text(_TOKENS_X - 90, top + 9, f"⋯ {counted(item.count, 'row')} more", "muted"))
                top += _GAP_H
                continue
            top += _PITCH
            yield self._track(item)
            if (request_id := self.state.replay.rows.get(item, RowState()).request_id) is not None:
                yield self._row(item, request_id)
        if not self.state.rows:
            parts.append(text(14, top + 13, "no rows yet", "muted"))
        if parts:
            yield Actor("rows", 0, 0, WIDTH, 10, tuple(parts), layer=0)

    def _track(self, row: int) -> Actor:
        """The row as a place, and what is stale in a hole."""
        state = self.state.replay.rows.get(row, RowState())
        live = state.request_id is not None
        style = "track" if live else "hole" if row < self.state.replay.num_rows else "free"
        parts = [
            text(-10, _ROW_H / 2, str(row), "index middle mono"),
            Part("box", 0, 0, _ROW_W, _ROW_H, style=style, title=f"row {row}"),
        ]
        if not live:
            parts.append(text(8, _ROW_H / 2, style, "muted"))
            parts += self._stale(state)
        data: dict[str, str | int] = {"row": row, "state": "live" if live else style}
        return Actor(f"track:{row}", _ROW_X, self.row_y[row], _ROW_W, _ROW_H, tuple(parts), layer=0, data=data)

    def _stale(self, row: RowState) -> Iterator[Part]:
        labels, cell_w = self.state.labels, self.state.cell_w
        x = float(_TOKENS_X - _ROW_X)
        for item in elide(len(row.memory), self.room):
            if isinstance(item, Gap):
                yield gap(x, 2, 2 * cell_w, ROW_CELL_H, item.count)
            else:
                token, writer = row.memory[item]
                title = labels.title(token, item, writer) + " (stale)"
                owner = self.state.replay.request(writer).index
                yield cell(x, 2, cell_w, ROW_CELL_H, labels.label(token), owner, "stale", title)
            x += cell_w * width_of(item)

    def _row(self, row: int, request_id: str) -> Actor:
        """The request in the row."""
        state = self.state.replay.rows[row]
        owner = self.state.replay.request(request_id).index
        ids = [str(block) for block in state.block_ids]
        chip_w = chip_width(state.block_ids)
        parts = (
            Part("swatch", 7, _ROW_H / 2 - 7, 14, 14, owner=owner),
            text(27, _ROW_H / 2, label(request_id, 7), "strong mono", name(request_id, 200)),
            *self._tokens(state, request_id, owner),
            *chips(_BLOCKS_X - _ROW_X, 3, RIGHT - _BLOCKS_X - 4, chip_w, _ROW_H - 6, ids, owner, "live"),
        )
        data: dict[str, str | int] = {"row": row, "request": request_id, "tokens": state.num_tokens}
        return Actor(f"row:{request_id}", _ROW_X, self.row_y[row], _ROW_W, _ROW_H, parts, layer=1, data=data)

    def _tokens(self, row: RowState, request_id: str, owner: int) -> Iterator[Part]:
        labels, cell_w = self.state.labels, self.state.cell_w
        window = self.state.grants.get(request_id, range(0))
        travels = (
            self.state.places.get(request_id) == "row"
        )  # then this step's tokens stand out, drawn in the row or not
        known = window.start if window else self.state.replay.request(request_id).num_computed_tokens
        x = float(_TOKENS_X - _ROW_X)
        for item in self._items(request_id):
            start = first_of(item)
            if start >= row.num_tokens:
                break
            if isinstance(item, Gap):
                yield gap(x, 2, 2 * cell_w, ROW_CELL_H, min(item.stop, row.num_tokens) - start)
            else:
                token, writer = row.memory[item]
                computed = item < known or (item < window.stop and self.state.forward_is_over)
                title = labels.title(token, item, writer) + ("" if computed else " (not computed yet)")
                style = "live" if computed or (travels and item in window) else "next"
                yield cell(x, 2, cell_w, ROW_CELL_H, labels.label(token), owner, style, title)
            x += cell_w * width_of(item)
