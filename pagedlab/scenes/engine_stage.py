"""The stage of the scene `step`: four bands, one below the other, and the tokens that travel over them.

The scheduler with its queues and budget on top, the rows of the persistent batch, the flat inputs of the forward
pass, the KV cache below. `pagedlab.scenes.engine_step` walks it through the events.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pagedlab.scenes.batch_band import ROW_CELL_H, BatchBand
from pagedlab.scenes.inputs_band import InputsBand
from pagedlab.scenes.kv_cache_band import KVCacheBand
from pagedlab.scenes.marks import Gap, cell, gap, text
from pagedlab.scenes.scene import Actor, Arrow, Part
from pagedlab.scenes.scheduler_band import SchedulerBand
from pagedlab.scenes.step_state import BAND_W, BAND_X, CELL_H, StepState, first_of
from pagedlab.scenes.words import name

_BETWEEN = 6

Band = SchedulerBand | BatchBand | InputsBand | KVCacheBand


class EngineStage:
    """Lays a step's bands out, and draws its state as it is now.

    Parameters
    ----------
    state : StepState
    """

    def __init__(self, state: StepState) -> None:
        self.state = state
        self.scheduler = SchedulerBand(state, 6.0)
        self.batch = BatchBand(state, self.scheduler.top + self.scheduler.height + _BETWEEN)
        self.inputs = InputsBand(state, self.batch.top + self.batch.height + _BETWEEN)
        self.kv_cache = KVCacheBand(state, self.inputs.top + self.inputs.height + _BETWEEN)
        self.height = self.kv_cache.top + self.kv_cache.height + 4

    def actors(self, now: str | None) -> Iterator[Actor]:
        """Give all that is on the stage; ``now`` names the band where something happens."""
        bands: Mapping[str, tuple[str, Band]] = {
            "scheduler": ("Scheduler", self.scheduler),
            "batch": ("Persistent batch", self.batch),
            "inputs": ("Inputs of one forward pass", self.inputs),
            "kv": ("KV cache", self.kv_cache),
        }
        for key, (title, band) in bands.items():
            parts = [
                Part("box", 0, 0, BAND_W, band.height, style="band-now" if key == now else "band"),
                text(8, 13, title, "head"),
                *([band.head] if isinstance(band, BatchBand) else []),
            ]
            if band.fact:
                parts.append(text(BAND_W - 8, 13, band.fact, "muted right mono" if key == "inputs" else "muted right"))
            yield Actor(f"band:{key}", BAND_X, band.top, BAND_W, band.height, tuple(parts), layer=0)
            yield from band.actors()
        yield from self._travellers()
        yield from self._samples()

    def slot_arrow(self, request_id: str, position: int) -> tuple[Arrow, ...]:
        """Return the arrow from a token of the flat batch to its slot; nothing if one of them is not drawn."""
        start, end = self.inputs.token_xy(request_id, position), self.kv_cache.token_xy(request_id, position)
        if start is None or end is None:
            return ()
        bottom = self.inputs.top + self.inputs.height - 4
        return (
            Arrow(start[0] + self.state.cell_w / 2 - 1, bottom, end[0] + self.kv_cache.cell_w / 2, end[1] - 1),
        )  # fmt: skip

    # --- tokens on their way ------------------------------------------------------------------------------------

    def _travellers(self) -> Iterator[Actor]:
        """Give the tokens of this step, each on its way from the queue to its slot."""
        state = self.state
        bar, _ = state.line(state.bar_order)
        for request_id, items in state.plan.items():
            place = state.places.get(request_id)
            if place is None:
                continue
            chip = self.scheduler.chip_xy(request_id)
            origin = (chip[0] + self.scheduler.chip_w / 2, chip[1]) if chip and place == "bar" else None
            for item in items:
                start = first_of(item)
                if isinstance(item, Gap) and place in ("row", "kv"):
                    continue  # a row counts its own, and in the cache there is nothing between two slots
                spot: tuple[float, float] | None
                if place == "bar":
                    spot = (bar[request_id, start], self.scheduler.budget_y)
                elif place == "row":
                    spot = self.batch.token_xy(request_id, start)
                elif place == "flat":
                    spot = self.inputs.token_xy(request_id, start)
                else:
                    spot = self.kv_cache.token_xy(request_id, start)
                if spot is not None:
                    yield self._traveller(request_id, item, place, spot, origin)

    def _traveller(
        self,
        request_id: str,
        item: int | Gap,
        place: str,
        spot: tuple[float, float],
        origin: tuple[float, float] | None,
    ) -> Actor:
        state = self.state
        w: float
        w, h = {"kv": (self.kv_cache.cell_w + 1, self.kv_cache.cell_h), "row": (state.cell_w, ROW_CELL_H)}.get(
            place, (state.cell_w, CELL_H)
        )
        data: dict[str, str | int] = {"request": request_id}
        if isinstance(item, Gap):
            w = 2 * w
            part = gap(0, 0, w, h, item.count)
        else:
            request = state.replay.request(request_id)
            token = request.tokens[item] if item < len(request.tokens) else None
            words = "" if self.kv_cache.tiny and place == "kv" else state.labels.label(token)
            part = cell(0, 0, w, h, words, request.index, "live", state.labels.title(token, item, request_id))
            data |= {"position": item, "place": place}
            w -= 2
        return Actor(f"tok:{request_id}:{first_of(item)}", *spot, w, h, (part,), 2, data, origin)

    def _samples(self) -> Iterator[Actor]:
        """Give the sampled tokens, on their way from the logits to the row and to the request."""
        state = self.state
        for request_id, event in state.sampled.items():
            place = state.sample_places.get(request_id)
            window = state.grants.get(request_id)
            if place is None or window is None:
                continue
            spot: tuple[float, float] | None
            if place == "flat":
                spot = self.inputs.token_xy(request_id, window.stop - 1)
            elif place == "row":
                spot = self.batch.token_xy(request_id, window.stop)
            else:
                spot = self.scheduler.sample_xy(request_id)
            if spot is None:
                continue
            owner = state.replay.request(request_id).index
            style = "dropped" if event.discarded else "live new"
            why = ": dropped, it is in the middle of the prompt" if event.discarded else ""
            h = ROW_CELL_H if place == "row" else CELL_H
            title = f"sampled for {name(request_id)}{why}"
            part = cell(0, 0, state.cell_w, h, state.labels.label(event.token_id), owner, style, title)
            data: dict[str, str | int] = {"request": request_id, "token": event.token_id, "place": place}
            yield Actor(f"new:{request_id}", *spot, state.cell_w - 2, h, (part,), 2, data)
