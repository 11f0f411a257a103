"""`show` puts the words below a figure, and in a browser the figure follows the theme of a JupyterLab page."""

from __future__ import annotations

import html
import json
from typing import Any

import plotly.graph_objects as go
import plotly.offline
import pytest

from pagedlab import charts
from pagedlab.charts import showing
from pagedlab.charts.template import DARK, LIGHT

MIME = "application/vnd.plotly.v1+json"


@pytest.fixture
def figure(calm) -> go.Figure:
    return charts.budget(calm.trace, by="request")


@pytest.fixture
def shown(figure: go.Figure, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(showing, "_in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: bundles.append(data))
    charts.show(figure, plain="numbers")
    return bundles


def test_a_notebook_gets_the_figure_and_below_it_the_same_in_words(
    shown: list[dict[str, Any]], figure: go.Figure
) -> None:
    drawn, words = shown
    assert drawn[MIME]["data"] == figure.to_plotly_json()["data"]
    assert drawn["text/plain"] == "numbers"
    assert words["text/plain"] == charts.summary(figure)
    assert html.escape(charts.summary(figure)) in words["text/html"]


def test_outside_a_notebook_the_words_are_printed(figure: go.Figure, capsys: pytest.CaptureFixture[str]) -> None:
    charts.show(figure)
    assert capsys.readouterr().out == charts.summary(figure) + "\n"
    charts.show(figure, plain="numbers")
    assert capsys.readouterr().out == "numbers\n"


PAGE = """<!doctype html><meta charset="utf-8"><script>{plotly}</script>
<body data-jp-theme-light="true" style="background: {ground}">
<div class="jp-OutputArea">
<div class="jp-OutputArea-child"><div class="jp-OutputArea-output" id="ours"></div></div>
<div class="jp-OutputArea-child"><div class="jp-OutputArea-output">{words}</div></div>
<div class="jp-OutputArea-child"><div class="jp-OutputArea-output" id="learners"></div></div>
</div>
<script>const figure = {figure};
for (const id of ["ours", "learners"]) Plotly.newPlot(id, structuredClone(figure.data), structuredClone(figure.layout));
</script>"""


@pytest.fixture
def page(browser: Any, shown: list[dict[str, Any]]):
    """A page built as JupyterLab builds its output: the figure, its words, and a figure that somebody else shows."""
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    figure = json.dumps(shown[0][MIME]).replace("</", "<\\/")
    words = shown[1]["text/html"]
    page.set_content(PAGE.format(plotly=plotly.offline.get_plotlyjs(), ground="white", words=words, figure=figure))
    page.wait_for_selector("#learners .main-svg")
    yield page
    page.close()
    assert errors == []


def colors(page: Any, figure: str) -> dict[str, str]:
    """What the browser draws in the end."""
    found: dict[str, str] = page.evaluate(
        """id => { const root = document.getElementById(id), of = (css, what) => getComputedStyle(
            root.querySelector(css))[what]; return {
            title: of('.gtitle', 'fill'), ticks: of('.xtick text', 'fill'), grid: of('.ygrid', 'stroke'),
            budget: of('.shapelayer path', 'stroke'), outline: of('.bars .point path', 'stroke'),
            ground: of('.main-svg', 'backgroundColor'), inside: of('.bartext', 'fill'), heading: of('.annotation text',
            'fill') }; }""",
        figure,
    )
    return found


def rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"


@pytest.mark.browser
def test_the_figure_changes_its_colours_with_the_theme_of_the_page_and_no_other_figure_does(page: Any) -> None:
    for is_light, theme in (("true", LIGHT), ("false", DARK), ("true", LIGHT)):
        page.evaluate("light => document.body.dataset.jpThemeLight = light", is_light)
        ours = colors(page, "ours")
        inside = ours.pop("inside")
        assert ours == {
            "title": rgb(theme.ink),
            "ticks": rgb(theme.muted),
            "grid": rgb(theme.grid),
            "budget": rgb(theme.ink),
            "outline": rgb(theme.ink),
            "heading": rgb(theme.muted),
            "ground": "rgba(0, 0, 0, 0)",  # the page's own
        }
        assert inside in ("rgb(255, 255, 255)", "rgb(0, 0, 0)")  # as the bar needs it, whatever the theme
        others = colors(page, "learners")
        assert (others["title"], others["ground"]) == (rgb(LIGHT.ink), rgb(LIGHT.ground))
        words = page.locator("[data-pagedlab-chart]").evaluate("words => getComputedStyle(words).color")
        assert words == rgb(theme.muted)


@pytest.mark.browser
def test_what_is_written_beside_the_pointer_can_be_read_in_both_themes(page: Any) -> None:
    for is_light, theme in (("true", LIGHT), ("false", DARK)):
        page.evaluate("light => document.body.dataset.jpThemeLight = light", is_light)
        page.locator("#ours .nsewdrag.drag").first.hover(position={"x": 30, "y": 150})
        page.wait_for_selector("#ours .hovertext")
        box, text = page.evaluate(
            """() => ['path', 'text'].map(css => getComputedStyle(
                document.querySelector(`#ours .hovertext ${css}`)).fill)"""
        )
        assert (box, text) == (rgb(theme.ground), rgb(theme.ink))
        page.mouse.move(5, 5)
        page.wait_for_selector("#ours .hovertext", state="detached")
