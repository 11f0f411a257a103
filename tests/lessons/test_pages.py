"""Lessons as pages: what a page shows of a notebook, and which pages are written. (In a browser: ``tests/browser``.)"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pagedlab import cli
from pagedlab.errors import LessonError
from pagedlab.scenes import Actor, Frame, Scene
from pagedlab.teaching import COURSE, lessons
from pagedlab.teaching.page_cells import for_page, payloads_in
from pagedlab.teaching.pages import index_of, lessons_called, page_of, write_pages
from pagedlab.widgets.display import static_html

SCENE = Scene("tiny", "Tiny", 120, 40, (Frame("0", Actor("a", 0, 0), change="</script><b>not markup</b>"),))
WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}, "text/plain": "VBox(...)"}
FIGURE = {
    "application/vnd.plotly.v1+json": {"data": [], "layout": {"title": {"text": "<b>Two</b> bars"}, "height": 300}}
}


def notebook(*cells: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a notebook that has run: for each cell its source, and the MIME bundles that it showed."""
    body = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {},
            "execution_count": 1,
            "source": source,
            "outputs": [{"output_type": "display_data", "metadata": {}, "data": bundle} for bundle in bundles],
        }
        for number, (source, bundles) in enumerate(cells)
    ]
    return {"cells": body, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def shown(source: str, *bundles: dict[str, Any]) -> list[str]:
    """Return what a page shows of a cell."""
    (cell,) = for_page(notebook((source, list(bundles))), "01")["cells"]
    return ["".join(next(iter(output["data"].values()))) for output in cell["outputs"]]


def test_a_player_becomes_what_it_plays_and_its_widget_goes() -> None:
    fragment = static_html(SCENE, paired=True)
    (payload,) = payloads_in(fragment)
    assert payload == {"scene": SCENE.to_json()}
    (place,) = shown("play(scene)", {"text/html": fragment}, WIDGET)
    assert place.startswith("<div data-pagedlab-plays>")
    assert place.count("</script>") == 1, "a caption ends no script"


def test_a_figure_keeps_its_height_and_its_title_in_words() -> None:
    (place,) = shown("charts.show(figure)", FIGURE)
    assert 'aria-label=" Two  bars"' in place
    assert 'style="height: 300px"' in place


def test_knobs_are_told_with_their_ranges_and_where_they_start() -> None:
    source = 'def f(n=4, names=("A",), k=2):\n    say(n)\n\n\nknob(f, n=(1, 8, 1), names=[("A",), ("B",)], k=[1, 2])'
    explanation, result = {"text/markdown": "*No knobs here?*"}, {"text/markdown": "4"}
    assert shown(source, WIDGET, explanation, result) == [
        "**Here the notebook has knobs:** `n` (1 to 8), `names` and `k` (1 or 2). They need a running kernel: "
        "`pagedlab lab 01`. This is what there is to see at `n = 4`, `names = ('A',)` and `k = 2`:",
        "4",
    ]


def test_the_verdict_on_a_starter_gives_way_to_how_to_check_it() -> None:
    (told,) = shown('@exercise("condense")\ndef condense(): ...', {"text/html": "not yet"}, WIDGET)
    assert "`pagedlab check condense condense.py`" in told


def test_what_a_notebook_holds_is_not_changed() -> None:
    ran = notebook(("play(scene)", [{"text/html": static_html(SCENE, paired=True)}, WIDGET]))
    before = json.dumps(ran)
    for_page(ran, "01")
    assert json.dumps(ran) == before


def test_a_page_links_to_its_neighbours_and_to_no_lesson_that_has_no_page() -> None:
    links = "[one](01-batching.ipynb), [two](02-paged-memory.ipynb), [three](03-block-table.ipynb)"
    first, _, third = COURSE[1:4]
    page = page_of(notebook(("say(links)", [{"text/markdown": links}])), first, [first, third])
    assert '<a href="01-batching.html">one</a>, two, <a href="03-block-table.html">three</a>' in page
    assert re.findall(r'<a (?=[^>]*rel="next")[^>]*href="([^"]*)"', page) == ["03-block-table.html"] * 2
    assert 'rel="prev"' not in page
    assert "plotly" not in page.partition("</head>")[0], "what draws no chart loads none"


def test_pages_refer_to_nothing_on_the_network() -> None:
    page = page_of(notebook(("charts.show(figure)", [FIGURE])), COURSE[1], COURSE[1:2])
    assert 'src="plotly.min.js"' in page
    for text in (page, index_of(COURSE[:2])):
        assert not re.search(r'(src|href)="(https?:)?//|@import', text)


def test_lessons_come_in_the_order_of_the_course_all_of_them_unless_some_are_named() -> None:
    assert [lesson.number for lesson in lessons_called(["03", "1", "block-table"])] == [1, 3]
    assert lessons_called([]) == [lesson for lesson in COURSE if lesson.exists]


def test_a_notebook_that_is_no_lesson_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.ipynb"
    path.write_text("{}")
    with pytest.raises(LessonError, match=r"mine\.ipynb is no lesson of the course"):
        lessons_called([str(path)])


@pytest.fixture
def two_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of two: the first runs, the second fails."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for lesson, source in zip(COURSE, ("print('it ran')", "x = 1\n1 / 0"), strict=False):
        (folder / f"{lesson.name}.ipynb").write_text(json.dumps(notebook((source, []))), encoding="utf-8")
    monkeypatch.setattr(lessons, "lessons_directory", lambda: folder)
    return tmp_path / "pages"


def test_pages_of_other_lessons_stay_and_are_linked(two_lessons: Path) -> None:
    two_lessons.mkdir()
    (two_lessons / "01-batching.html").write_text("made before")
    written = write_pages(two_lessons, COURSE[:1], timeout=60)
    assert [path.name for path in written] == ["00-one-step.html", "index.html", "plotly.min.js"]
    assert "it ran" in written[0].read_text(encoding="utf-8")
    assert all('href="01-batching.html"' in path.read_text(encoding="utf-8") for path in written[:2])
    assert (two_lessons / "01-batching.html").read_text() == "made before"


def test_where_a_lesson_fails_nothing_is_written(two_lessons: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pages", "--to", str(two_lessons)]) == 1
    said = capsys.readouterr().out
    assert "--> " in said
    assert "ZeroDivisionError" in said
    assert "lesson 01-batching failed in code cell 1: no page was written" in said
    assert not two_lessons.exists()
