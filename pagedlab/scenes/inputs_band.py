"""The band of the scene `step` that shows the flat inputs of the forward pass: tokens, positions, slots."""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.scenes.marks import Gap, cell, text
from pagedlab.scenes.scene import Actor, Part
from pagedlab.scenes.step_state import CELL_H, HEAD, WIDTH, StepState, first_of, width_of
from pagedlab.scenes.words import vector


class InputsBand:
    """The flat batch; ``top`` is where the band begins."""

    def __init__(self, state: StepState, top: float) -> None:
        self.state = state
        self.top = top
        slots = state.end.slots.slot_mapping if state.end.slots else ()
        digits = max((len(str(slot)) for slot in slots), default=1)
        spots = max((len(str(window.stop)) for window in state.grants.values()), default=1)
        # Numbers wider than a cell stand on two lines in turn.
        self.stagger = 8 * max(digits, spots) > state.cell_w - 1
        self.line_h = 28 if self.stagger else 16
        self.height = HEAD + CELL_H + 12 + 2 * self.line_h + 4

    @property
    def fact(self) -> str:
        """What the band's head says at its right."""
        inputs = self.state.replay.inputs if self.state.has_inputs else None
        return f"query_start_loc {vector(inputs.query_start_loc)}" if inputs else ""

    @property
    def tokens_y(self) -> float:
        """Where the tokens of the flat batch lie."""
        return self.top + HEAD

    def token_xy(self, request_id: str, position: int) -> tuple[float, float] | None:
        """Return where a token of this step lies; None if it is not drawn."""
        x = self.state.line(self.state.flat_order)[0].get((request_id, position))
        return None if x is None else (x, self.tokens_y)

    def actors(self) -> Iterator[Actor]:
        state = self.state
        inputs = state.replay.inputs if state.has_inputs else None
        if inputs is None:
            hint = text(14, HEAD + 12, "filled in the prepare beat", "muted")
            yield Actor("inputs", 0, self.top, WIDTH, 10, (hint,), layer=0)
            return
        position_y = HEAD + CELL_H + 8 + self.line_h / 2
        parts = [
            text(14, HEAD + 12, "input_ids", "muted mono"),
            text(14, position_y, "position", "muted mono"),
            *([text(14, position_y + self.line_h, "slot", "muted mono")] if state.has_slots else []),
            *self._columns(position_y),
        ]
        if state.left_out:
            _, end = state.line(state.flat_order)
            parts.append(text(end + 4, HEAD + 12, f"+{len(state.left_out):,} req.", "muted"))
        data: dict[str, str | int] = {"tokens": len(inputs.input_ids), "slots": int(state.has_slots)}
        yield Actor("inputs", 0, self.top, WIDTH, 10, tuple(parts), layer=0, data=data)

    def _columns(self, position_y: float) -> Iterator[Part]:
        """Give a column for each token: its place, its position, its slot."""
        state, inputs, slots = self.state, self.state.replay.inputs, self.state.replay.slots
        if inputs is None:
            return
        xs, _ = state.line(state.flat_order)
        place = 0
        for row, request_id in enumerate(inputs.request_ids):
            owner = state.replay.request(request_id).index
            first = state.grants.get(request_id, range(0)).start
            for item in state.plan.get(request_id, []):
                x, wide = xs[request_id, first_of(item)], state.cell_w * width_of(item)
                yield Part("line", x, HEAD + CELL_H + 4, wide - 2, 0, style="owner", owner=owner)
                if isinstance(item, Gap):
                    yield text(x + wide / 2 - 1, position_y, "…", "muted middle")
                    continue
                yield cell(x, HEAD, state.cell_w, CELL_H, "", None, "free")
                shift = (place % 2 * 13 - 6.5) if self.stagger else 0
                place += 1
                middle = x + state.cell_w / 2 - 1
                yield text(middle, position_y + shift, str(item), "middle mono")
                if state.has_slots and slots is not None:
                    slot = slots.slot_mapping[inputs.query_start_loc[row] + item - first]
                    yield text(middle, position_y + self.line_h + shift, str(slot), "middle mono accent")
