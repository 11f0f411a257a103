"""Lessons as pages: the scenes play, the charts are drawn, predictions are judged, and no kernel is needed.

    pagedlab pages --to pages             # all lessons, and pages/index.html
    pagedlab pages --to pages 01 02       # two of them; other pages that are there stay

Each lesson runs once, headless; what its cells showed is in its page, with the player. The pages ask nothing of the
network: what they need stands in them, and plotly.js, for the charts, in one file beside them.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pagedlab.errors import LessonError
from pagedlab.teaching.execution import CellRun, run_lesson
from pagedlab.teaching.exercises.progress import PATH_VARIABLE
from pagedlab.teaching.lessons import COURSE, Lesson, find_lesson
from pagedlab.teaching.page_cells import DRAWS, for_page
from pagedlab.widgets.export import resource

PLOTLY = "plotly.min.js"
"""The file beside the pages that draws the charts."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a lesson: its name in the folder, and its text."""

    lesson: Lesson
    text: str

    @property
    def name(self) -> str:
        return _name(self.lesson)


class LessonFailedError(LessonError):
    """A lesson of which a page was wanted has failed; ``run`` is its last cell."""

    def __init__(self, lesson: Lesson, run: CellRun) -> None:
        super().__init__(f"lesson {lesson.name} failed in code cell {run.cell.number}: no page was written")
        self.lesson, self.run = lesson, run


def lessons_called(names: Sequence[str]) -> list[Lesson]:
    """Return the lessons of the course with these names, in its order; all that are written if there are no names.

    Raises
    ------
    LessonError
        If one of them is no lesson of the course.
    """
    wanted = {find_lesson(name).resolve(): name for name in names}
    found = [lesson for lesson in COURSE if lesson.exists and (not names or lesson.path.resolve() in wanted)]
    for path, name in wanted.items():
        if path not in {lesson.path.resolve() for lesson in found}:
            raise LessonError(f"{name} is no lesson of the course: pages are made of those")
    return found


def write_pages(
    folder: Path, lessons: Sequence[Lesson], *, timeout: float, told: Callable[[Page, float], None] = lambda *_: None
) -> list[Path]:
    """Run lessons and write a page of each, and an index of all pages in the folder.

    Parameters
    ----------
    folder : Path
        Is made if it does not exist. Pages of other lessons that are in it stay, and are linked.
    lessons : sequence of Lesson
    timeout : float
        Seconds that one cell may take.
    told : callable
        Called with each page when it is made, and the seconds that its lesson took.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    LessonError
        If Jupyter is not installed, or a lesson fails (`LessonFailedError`). Nothing has been written.
    """
    if missing := [module for module in ("ipykernel", "nbclient", "nbconvert", "plotly") if find_spec(module) is None]:
        raise LessonError(f'pages need {", ".join(missing)}: pip install "pagedlab[lab]"')
    there = [lesson for lesson in COURSE if lesson in lessons or (folder / _name(lesson)).is_file()]
    pages = []
    for lesson in lessons:
        notebook, seconds = _run(lesson, timeout)
        pages.append(Page(lesson, page_of(notebook, lesson, there)))
        told(pages[-1], seconds)
    from plotly.offline import get_plotlyjs

    folder.mkdir(parents=True, exist_ok=True)
    texts = {page.name: page.text for page in pages} | {"index.html": index_of(there), PLOTLY: get_plotlyjs()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in texts]


def _run(lesson: Lesson, timeout: float) -> tuple[dict[str, Any], float]:
    """Return a lesson's notebook with what its cells showed, and the seconds that they took."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / lesson.path.name
        # An exercise of a lesson is tried when it runs: not by whoever makes the pages.
        elsewhere = {PATH_VARIABLE: str(Path(folder) / "progress.json")}
        report = run_lesson(
            lesson.path, timeout=timeout, progress=lambda _: None, output=output, jupyter=True, environment=elsewhere
        )
        if report.failed is not None:
            raise LessonFailedError(lesson, report.failed)
        notebook: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return notebook, report.seconds


def page_of(notebook: dict[str, Any], lesson: Lesson, pages: Sequence[Lesson]) -> str:
    """Return the page of a lesson.

    Parameters
    ----------
    notebook : dict
        The JSON of its notebook after it has run.
    lesson : Lesson
    pages : sequence of Lesson
        Those that have a page, in order: it links to them.
    """
    import nbformat
    from jinja2 import DictLoader
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        extra_loaders=[DictLoader({"lesson.html.j2": _static("lesson.html.j2")})],
        template_file="lesson.html.j2",
        exclude_anchor_links=True,
    )
    number = f"{lesson.number:02d}"
    text = json.dumps(for_page(notebook, number))
    node = nbformat.reads(text, as_version=4)  # joins what is a list of lines
    at = pages.index(lesson)
    page = {
        "lesson": lesson,
        "number": number,
        "style": resource("player.css") + _style(),
        "script": resource("player.js") + _static("pages.js"),
        "earlier": pages[at - 1] if at > 0 else None,
        "later": pages[at + 1] if at + 1 < len(pages) else None,
        "plotly": PLOTLY,
        "draws": DRAWS in text,
    }
    body: str = exporter.from_notebook_node(node, resources={"page": page})[0]
    return _linked(body, pages)


def _linked(page: str, pages: Iterable[Lesson]) -> str:
    """Let links to notebooks lead to pages; what leads to a lesson without a page is a link no more."""
    names = {f"{lesson.name}.ipynb": _name(lesson) for lesson in pages}

    def link(found: re.Match[str]) -> str:
        name = names.get(found["to"])
        return found["text"] if name is None else f'<a href="{name}">{found["text"]}</a>'

    return re.sub(r'<a href="(?P<to>[\w-]+\.ipynb)">(?P<text>.*?)</a>', link, page)


def index_of(pages: Iterable[Lesson]) -> str:
    """Return the page that lists the pages of lessons, with a line on each."""
    entries = "\n".join(
        f'<li><a href="{_name(lesson)}">{lesson.number:02d} · {html.escape(lesson.title)}</a>'
        f"<span>{html.escape(lesson.about)}</span></li>"
        for lesson in pages
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="pagedlab">
<title>The lessons · pagedlab</title>
<style>{_style()}</style>
</head>
<body>
<main>
<h1>How vLLM keeps a GPU busy</h1>
<p>The lessons of pagedlab, as they ran. The scenes play here and your predictions are judged; to turn the knobs and to
write the exercises, open a lesson as a notebook: <code>pagedlab lab</code>.</p>
<ul class="page-index">
{entries}
</ul>
</main>
</body>
</html>
"""


def _name(lesson: Lesson) -> str:
    return f"{lesson.name}.html"


def _static(name: str) -> str:
    return files("pagedlab.teaching").joinpath("static", name).read_text(encoding="utf-8")


def _style() -> str:
    """Return the style of the pages, with colours of code that can be read well on light and on dark."""
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("xcode", "lightbulb"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{_static('pages.css')}"
