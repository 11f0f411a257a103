"""How far a learner is: as text, as HTML, and as a widget that can be brought up to date, or reset.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pagedlab.teaching.exercises.progress import ExerciseProgress, Progress, ProgressBook
from pagedlab.teaching.exercises.registry import all_exercises

_STYLE = """
.pagedlab-progress { border-collapse: collapse; font-size: 14px; color: var(--jp-ui-font-color1, inherit); }
.pagedlab-progress :is(th, td) { text-align: left !important; padding: 3px 12px; font-weight: normal;
  border-bottom: 1px solid var(--jp-border-color2, #ddd); }
.pagedlab-progress :is(code, td:nth-child(n+4)) { font-family: var(--jp-code-font-family, monospace); font-size: 13px; }
.pagedlab-progress tr[data-state="passed"] td:first-child { color: var(--jp-success-color0, #0a6b3d); }
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One exercise: ``state`` is ``"passed"``, ``"tried"`` or ``"new"``."""

    name: str
    title: str
    lesson: str
    state: str
    tries: int
    hints: int

    @property
    def mark(self) -> str:
        """A sign for the state that needs no colour."""
        return {"passed": "\N{CHECK MARK}", "tried": "\N{HORIZONTAL ELLIPSIS}", "new": ""}[self.state]


def rows(progress: Progress) -> Iterator[Row]:
    """Yield all exercises in the order of the lessons; a folder that is broken has no row."""
    for entry in all_exercises(broken=[]):
        done = progress.exercises.get(entry.name, ExerciseProgress())
        state = "passed" if done.passed else "tried" if done.tries else "new"
        yield Row(entry.name, entry.exercise.title, entry.exercise.lesson, state, done.tries, done.hints)


def summary(progress: Progress) -> str:
    """Say it in one sentence.

    >>> summary(Progress({"gone": ExerciseProgress(tries=2, hints=1)}))
    '0 exercises passed, 1 tried, 1 hint used; 0 of 0 predictions right at the first go.'
    """
    exercises, predictions = progress.exercises.values(), progress.predictions.values()
    passed = sum(item.passed for item in exercises)
    tried = sum(item.tries > 0 for item in exercises)
    hints = sum(item.hints for item in exercises)
    right = sum(item.right_at_first for item in predictions)
    return (
        f"{_counted(passed, 'exercise')} passed, {tried} tried, {_counted(hints, 'hint')} used; "
        f"{right} of {_counted(len(predictions), 'prediction')} right at the first go."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def as_text(progress: Progress) -> str:
    """Return it as lines."""
    lines = []
    for row in rows(progress):
        numbers = f"{row.tries} tried, {_counted(row.hints, 'hint')}" if row.tries or row.hints else ""
        lines.append(f"{row.mark:<2}{row.name:<24}{row.title:<44}{numbers}".rstrip())
    return "\n".join([*lines, "", summary(progress)])


def as_html(progress: Progress) -> str:
    """Return it as an HTML table."""
    lines = [f'<table class="pagedlab-progress"><style>{_STYLE}</style>']
    lines.append("<tr><th></th><th>exercise</th><th>lesson</th><th>tries</th><th>hints</th></tr>")
    for row in rows(progress):
        title = f"{html.escape(row.title)} <code>{row.name}</code>"
        numbers = [str(number or "") for number in (row.tries, row.hints)]
        cells = "".join(f"<td>{cell}</td>" for cell in (row.mark, title, html.escape(row.lesson), *numbers))
        lines.append(f'<tr data-state="{row.state}">{cells}</tr>')
    return "\n".join([*lines, f"</table><p>{summary(progress)}</p>"])


def show_progress() -> None:
    """Show it: in a notebook as a table, with buttons where there are widgets; elsewhere as text."""
    from pagedlab.teaching.telling import in_notebook

    progress = ProgressBook().read()
    if not in_notebook():
        print(as_text(progress))
        return
    from IPython.display import display

    handle = display({"text/html": as_html(progress), "text/plain": as_text(progress)}, raw=True, display_id=True)
    if find_spec("ipywidgets") is not None:
        display(_buttons(handle))


def _buttons(handle: Any) -> Any:
    """Return buttons that bring the table up to date, and, asked twice, forget everything."""
    import ipywidgets

    refresh = ipywidgets.Button(description="Bring up to date", layout={"width": "auto"})
    reset = ipywidgets.Button(description="Forget everything", layout={"width": "auto"})
    sure = ipywidgets.Button(
        description="Yes, forget it", button_style="danger", layout={"width": "auto", "display": "none"}
    )

    def show(_: object = None) -> None:
        progress = ProgressBook().read()
        handle.update({"text/html": as_html(progress), "text/plain": as_text(progress)}, raw=True)

    def ask(_: object) -> None:
        sure.layout.display = None

    def forget(_: object) -> None:
        ProgressBook().reset()
        sure.layout.display = "none"
        show()

    refresh.on_click(show)
    reset.on_click(ask)
    sure.on_click(forget)
    return ipywidgets.HBox([refresh, reset, sure])
