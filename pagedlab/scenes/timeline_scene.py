"""The scene `timeline`: requests × steps, and in each step the budget and who has a seat; several engines on one axis.

    scene = timeline(trace)                              # one engine
    scene = timeline(static, continuous)                 # two, one above the other
    scene = timeline(whole, chunked, axis="ms")          # on the clock of a modelled GPU
    scene.to_plotly()                                    # the same as one plotly figure
    scene.summary                                        # and as text

vLLM counterpart of what is shown: ``vllm/v1/core/sched/scheduler.py`` (``Scheduler.schedule`` and
``update_from_output``) at 0.25.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from pagedlab.errors import TraceError
from pagedlab.events import StepFinished, StepStarted
from pagedlab.scenes import timeline_captions as captions
from pagedlab.scenes.assembling import digest
from pagedlab.scenes.counterparts import sources_of
from pagedlab.scenes.marks import text
from pagedlab.scenes.scene import Actor, Frame, Part, Scene, Source, in_key_order, names_of_events
from pagedlab.scenes.timeline_axis import HEIGHT, WIDTH, Axis
from pagedlab.scenes.timeline_lane import Lane
from pagedlab.scenes.timeline_questions import questions_of_timeline
from pagedlab.scenes.timeline_runs import Moment, Run
from pagedlab.trace import Trace
from pagedlab.trace.time_model import GPU, GPUS, MODELS, ModelShape
from pagedlab.trace.time_model import timeline as modelled

if TYPE_CHECKING:
    import plotly.graph_objects as go

AXES = ("steps", "ms")

_EVENT_NAMES = {
    "RequestScheduled": "grant",
    "RequestAdded": "arrival",
    "RequestPreempted": "preemption",
    "RequestFinished": "end",
    "RequestAborted": "withdrawal",
}
_MOST_ROWS = {1: 10, 2: 7}
_FEW_ROWS = 5
_BETWEEN = 12.0
_LEGEND = 26.0


@dataclass(frozen=True)
class TimelineScene(Scene):
    """A `Scene` that knows the runs it shows, and gives them as a plotly figure too.

    Attributes
    ----------
    runs : tuple of Run
    titles : tuple of str
        What each engine is called.
    edges : tuple of tuple of float
        For each engine when its steps begin, and when the last one ends, in the unit of the axis.
    unit : str
        What the axis counts: ``"step"``, or the milliseconds of which model.
    """

    runs: tuple[Run, ...] = field(default=(), repr=False, compare=False)
    titles: tuple[str, ...] = field(default=(), compare=False)
    edges: tuple[tuple[float, ...], ...] = field(default=(), repr=False, compare=False)
    unit: str = field(default="step", compare=False)

    @property
    def summary(self) -> str:
        """What each engine's run came to, one sentence each."""
        ends = None if self.unit == "step" else [edges[-1] for edges in self.edges]
        return "\n".join(captions.summary(self.runs, self.titles, ends))

    def to_plotly(self) -> go.Figure:
        """Return the whole run as one plotly figure; its text summary is in ``figure.layout.meta["summary"]``.

        Raises
        ------
        ImportError
            Without plotly: ``pip install 'pagedlab[lab]'``.
        """
        from pagedlab.scenes.timeline_chart import figure

        return figure(self.runs, self.titles, self.edges, self.unit, self.requests, self.summary)


def timeline(
    trace: Trace,
    *more_traces: Trace,
    axis: str = "steps",
    gpu: GPU = GPUS["H200"],
    model: ModelShape = MODELS["Llama-3-8B"],
) -> TimelineScene:
    """Show who gets how many tokens in which step: prefill chunks and decodes, the budget, seats, arrivals, ends.

    Parameters
    ----------
    trace, *more_traces : Trace
        One for each engine; two runs of the same requests show what a setting changes. At most four.
    axis : {"steps", "ms"}
        All engines share it. In ``"ms"`` a step is as wide as `pagedlab.trace.time_model` says that it takes.
    gpu, model : GPU, ModelShape
        For ``axis="ms"``: on what the steps are timed. The scheduler's decisions are those of the trace.

    Returns
    -------
    TimelineScene
        A `Scene` with `TimelineScene.to_plotly` and `TimelineScene.summary`.

    Raises
    ------
    TraceError
        If a trace has no step, the axis is neither of the two, or there are more than four traces.
    """
    traces = (trace, *more_traces)
    if axis not in AXES:
        raise TraceError(f"axis is {axis!r}: give 'steps', or 'ms' for modelled milliseconds")
    if len(traces) > 4:
        raise TraceError(f"{len(traces)} traces are too many for one stage: give four at most")
    runs = [Run(item) for item in traces]
    titles = captions.titles([item.settings for item in traces])
    edges = [_edges(run, axis, gpu, model) for run in runs]
    unit = "step" if axis == "steps" else f"ms, modelled: {model.name} on {gpu.name}"
    stage = _Stage(runs, titles, Axis(edges, axis, runs[0].columns[0].step))
    frames = tuple(stage.frames(axis, None if axis == "steps" else [times[-1] for times in edges]))
    scene = TimelineScene(
        "timeline",
        "Timeline" if axis == "steps" else f"Timeline: {model.name} on {gpu.name}, modelled",
        WIDTH,
        stage.height,
        frames,
        tuple(stage.owners),
        stage.sources,
        names_of_events(_EVENT_NAMES, frames),
        traces=tuple(map(digest, traces)),
        runs=tuple(runs),
        titles=tuple(titles),
        edges=tuple(map(tuple, edges)),
        unit=unit,
    )
    return replace(scene, asked=tuple(questions_of_timeline(scene, runs, titles, stage.moments)))


def _edges(run: Run, axis: str, gpu: GPU, model: ModelShape) -> list[float]:
    if axis == "steps":
        return [float(at) for at in range(run.num_steps + 1)]
    steps = [step.milliseconds for step in modelled(run.trace, gpu, model).steps]
    # A recording may have begun in the middle of a step, whose time it does not show.
    begun = takewhile(lambda record: not isinstance(record.event, StepStarted), run.trace)
    steps = steps[sum(isinstance(record.event, StepFinished) for record in begun) :]
    # A recording may have stopped in the middle of its last step: nobody knows how long that took.
    steps += (steps[-1:] or [1.0]) * (run.num_steps - len(steps))
    return [0.0, *accumulate(steps[: run.num_steps])]


class _Stage:
    """All engines, and the order in which things happen in them."""

    def __init__(self, runs: Sequence[Run], titles: Sequence[str], axis: Axis) -> None:
        self.runs, self.titles, self.axis = runs, titles, axis
        self.owners: dict[str, int] = {}
        for run in runs:
            for request_id in run.requests:
                self.owners.setdefault(request_id, len(self.owners))
        most_rows = _MOST_ROWS.get(len(runs), _FEW_ROWS)
        self.lanes: list[Lane] = []
        top = HEIGHT
        for number, (run, title) in enumerate(zip(runs, titles, strict=True)):
            self.lanes.append(Lane(number, run, title, axis, self.owners, top, most_rows))
            top += self.lanes[-1].height + _BETWEEN
        self.legend_y = top - _BETWEEN + 6
        self.overview_y = self.legend_y + _LEGEND
        self.height = self.overview_y + (22 if axis.has_pages else 0)
        self.sources, self._source_keys = _sources(runs)
        self.moments: list[tuple[int, Moment] | None] = []
        """For each frame the engine and the moment that it shows."""

    def _in_order(self) -> list[tuple[float, int, Moment]]:
        """All engines' moments by time; at one instant all ends, then arrivals, then what the next step grants."""
        ordered = []
        for number, run in enumerate(self.runs):
            edges, latest = self.axis.edges[number], (0.0, 0)
            for at, moment in enumerate(run.moments):
                latest = max(latest, (edges[min(moment.column, len(edges) - 1)], moment.phase))
                ordered.append((*latest, number, at, moment))
        return [(time, number, moment) for time, _, number, _, moment in sorted(ordered, key=lambda item: item[:4])]

    def frames(self, axis: str, ends: Sequence[float] | None) -> Iterator[Frame]:
        """Give the opening, each moment and what it all came to."""
        change, detail = captions.opening(self.runs, self.titles, axis)
        yield self._frame("open", change, detail, None)
        ordered = self._in_order()
        at = 0
        while at < len(ordered):
            now, number, moment = ordered[at]
            self.lanes[number].apply(moment)
            together = [number]
            for time, other, same in ordered[at + 1 : at + len(self.runs)]:
                if time > now or not _is_the_same(moment, same):
                    break
                self.lanes[other].apply(same)
                together.append(other)
            at += len(together)
            lanes = [self.lanes[lane] for lane in together]
            spoken = f"{self.titles[number]}: " if len(self.runs) > 1 and len(together) == 1 else ""
            key = f"{number}:{moment.index}{'' if moment.kind else '+'}"
            yield self._frame(key, spoken + moment.change, moment.detail, (number, moment), lanes)
        first, *rest = captions.summary(self.runs, self.titles, ends)
        yield self._frame("close", first, " ".join(rest), None)

    def _frame(
        self, key: str, change: str, detail: str, shown: tuple[int, Moment] | None, lanes: Sequence[Lane] = ()
    ) -> Frame:
        start = max(self.axis.page_of(lane.end) for lane in self.lanes)
        actors = in_key_order(self._actors(start))
        keys = {actor.key for actor in actors}
        self.moments.append(shown)
        if shown is None:
            last = len(self.runs[0].trace) - 1 if key == "close" else -1
            step = self.runs[0].columns[-1].step if key == "close" else -1
            return Frame(key, actors, change, detail, self._subtitle(), step, record=last)
        number, moment = shown
        columns = self.runs[number].columns
        source = moment.record.source if moment.record else None
        return Frame(
            id=key,
            actors=actors,
            change=change,
            detail=detail,
            subtitle=self._subtitle(),
            step=columns[min(moment.column, len(columns) - 1)].step,
            event=moment.kind,
            source=(self._source_keys[number][source.function], source.line)
            if source and source.function in self._source_keys[number]
            else None,
            focus=tuple(key for lane in lanes for key in lane.focus(moment) if key in keys),
            record=moment.index,
            trace=number,
        )

    def _subtitle(self) -> str:
        steps = [f"step {lane.current.step}" if lane.now >= 0 else "before the first step" for lane in self.lanes]
        if self.axis.unit == "ms":
            at = max((self.axis.edges[lane.number][max(lane.now, 0)] for lane in self.lanes), default=0.0)
            return f"{steps[0] if len(steps) == 1 else ' / '.join(steps)} · {at:,.1f} ms"
        return steps[0] if len(set(steps)) == 1 else " / ".join(steps)

    def _actors(self, start: float) -> Iterator[Actor]:
        yield self.axis.ruler(start)
        for lane in self.lanes:
            yield from lane.actors(start)
        yield _legend(self.legend_y)
        if self.axis.has_pages:
            yield self.axis.overview(start, self.overview_y)


def _is_the_same(moment: Moment, other: Moment) -> bool:
    """Whether the same requests come to several engines at once."""
    return bool(moment.arrived) and (moment.arrived, moment.change) == (other.arrived, other.change)


def _sources(runs: Sequence[Run]) -> tuple[dict[str, Source], list[Mapping[str, str]]]:
    """Return all engines' functions; and for each engine the key of each of its functions."""
    sources: dict[str, Source] = {}
    keys: list[Mapping[str, str]] = []
    for number, run in enumerate(runs):
        own = sources_of(run.trace, [moment.record for moment in run.moments if moment.record])
        # Traces of two versions of the library hold two texts of one function.
        mine = {key: key if sources.get(key, source) == source else f"{number}:{key}" for key, source in own.items()}
        sources.update({mine[key]: source for key, source in own.items()})
        keys.append(mine)
    return sources, keys


def _legend(y: float) -> Actor:
    parts = (
        Part("line", 15, 4, 0, 14),
        text(22, 11, "comes, ends", "muted"),
        Part("line", 108, 11, 20, 0),
        text(133, 11, "waits", "muted"),
        Part("cell", 180, 2, 20, 18, "8", style="live"),
        text(205, 11, "prefill chunk", "muted"),
        Part("cell", 302, 8, 20, 6, style="live"),
        text(327, 11, "decode", "muted"),
        Part("box", 388, 8, 20, 6, style="hole"),
        text(413, 11, "idle seat", "muted"),
        text(489, 11, "×", "accent middle"),
        text(498, 11, "preempted", "muted"),
    )
    return Actor("legend", 0, y, WIDTH, 22, parts, layer=0)
