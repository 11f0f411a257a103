"""All figures have one look: readable on both grounds, the same as in the player, and in the theme of the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from pagedlab import charts, scenes
from pagedlab.bench.recorded import recorded_kernels
from pagedlab.charts import template as look
from pagedlab.charts.labels import spots
from pagedlab.charts.template import COLORS, DARK, FONT, GREYS, LIGHT, LINES, PATTERNS, Theme, new_figure

PLAYER = Path(charts.__file__).parents[1] / "widgets" / "player.js"
DATA = recorded_kernels()
JUPYTERLAB = {LIGHT: ["#ffffff"], DARK: ["#111111", "#212121"]}
"""The grounds of a notebook in JupyterLab's themes (``--jp-layout-color0`` and ``1``)."""


@pytest.fixture(scope="module")
def figures(calm, crowded, static) -> dict[str, go.Figure]:
    slots = [row for row in DATA["rows"] if row["kernel"] == "slot_mapping"]
    decodes = [row for row in DATA["rows"] if row["kernel"] == "paged_attention" and "gb_per_s" in row]
    rows = [{"n": n, "y": n**0.5, "z": 2} for n in range(1, 9)]
    return {
        "memory": charts.memory(crowded.trace),
        "budget": charts.budget(crowded.trace),
        "by request": charts.budget(calm.trace, by="request"),
        "latency": charts.latency(static.trace, calm.trace),
        "sweep": charts.sweep(rows, x="n", y=["y", "z"]),
        "kernels": charts.kernel_bars(slots),
        "speeds": charts.kernel_bars(decodes, measure="gb_per_s"),
        "parts": charts.step_parts({"graphs": DATA["engine"]["graphs"]["step_us"]}),
        "timeline": scenes.timeline(static.trace, crowded.trace).to_plotly(),
    }


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def blended(over: str, color: str) -> str:
    """Lay a colour ``rgba(...)`` over another."""
    *layer, share = (float(part) for part in re.findall(r"[\d.]+", over))
    below = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in zip(layer, below, strict=True))


# --- colours -----------------------------------------------------------------------------------------------------


def test_a_request_looks_as_in_the_player() -> None:
    lists = dict(re.findall(r"^const (COLOURS|PATTERNS) = \[(.*)\];", PLAYER.read_text(encoding="utf-8"), re.MULTILINE))
    names = {"": "plain", "/": "hatched", ".": "dotted", "x": "crossed", "|": "striped"}
    assert re.findall(r'"(.*?)"', lists["COLOURS"]) == list(COLORS)
    assert re.findall(r'"(.*?)"', lists["PATTERNS"]) == [names[pattern] for pattern in PATTERNS]
    assert len({look.look(at) for at in range(35)}) == 35


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_text_can_be_read_and_lines_can_be_seen_on_the_ground_of_a_theme(theme: Theme) -> None:
    for ground in (theme.ground, *JUPYTERLAB[theme]):
        assert contrast(theme.ink, ground) >= 7
        assert contrast(theme.muted, ground) >= 4.5
        assert contrast(theme.axis, ground) >= 3


@pytest.mark.parametrize("color", [*LINES, *GREYS])
def test_what_has_no_outline_is_seen_on_both_grounds(color: str) -> None:
    for ground in (LIGHT.ground, DARK.ground, *JUPYTERLAB[LIGHT], *JUPYTERLAB[DARK]):
        assert contrast(color, ground) >= 3


@pytest.mark.parametrize("color", [*COLORS, *GREYS])
def test_text_on_a_bar_can_be_read_on_its_colour_and_on_its_pattern(color: str) -> None:
    text = look.font_on(color)["color"]
    assert contrast(text, color) >= 4.5
    assert contrast(text, blended(look.pattern(color, "/")["fgcolor"], color)) >= 4.5
    assert look.contrast(text, color) == pytest.approx(contrast(text, color))


# --- the template ------------------------------------------------------------------------------------------------


def fonts(part: Any, inside: bool = False) -> Iterator[float]:
    """All sizes of fonts in a figure's JSON."""
    if isinstance(part, dict):
        for key, value in part.items():
            if inside and key == "size":
                yield value
            yield from fonts(value, key.endswith("font"))
    elif isinstance(part, list | tuple):
        for value in part:
            yield from fonts(value, inside)


def each(figures: dict[str, go.Figure], check: Callable[[go.Figure], None]) -> None:
    for name, figure in figures.items():
        try:
            check(figure)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_no_figure_has_text_smaller_than_13_pixels(figures: dict[str, go.Figure]) -> None:
    def check(figure: go.Figure) -> None:
        sizes = list(fonts(figure.to_plotly_json()))
        assert len(sizes) > 5
        assert min(sizes) >= FONT == 13

    each(figures, check)


def test_every_figure_has_its_finding_as_title_and_says_in_words_what_it_shows(figures: dict[str, go.Figure]) -> None:
    def check(figure: go.Figure) -> None:
        assert re.search(r"\d", figure.layout.title.text)
        assert len(charts.summary(figure)) > 40
        assert figure.layout.meta == {"summary": charts.summary(figure)}
        assert max(map(len, figure.layout.title.text.split("<br>"))) <= 84

    each(figures, check)


def test_a_figure_names_no_colour_of_a_ground_so_that_the_template_can_change_it(
    figures: dict[str, go.Figure],
) -> None:
    def check(figure: go.Figure) -> None:
        parts = figure.to_plotly_json()
        assert parts["layout"].pop("template")["layout"]["paper_bgcolor"] == LIGHT.ground
        named = set(re.findall(r"#[0-9a-f]{6}", json.dumps(parts)))
        of_themes = {
            getattr(theme, role) for theme in (LIGHT, DARK) for role in ("ink", "muted", "grid", "axis", "ground")
        }
        # White is also a colour of text on dark bars, whatever the ground.
        assert named & of_themes <= {"#ffffff"}

    each(figures, check)


def test_plotly_knows_both_templates_by_name(figures: dict[str, go.Figure]) -> None:
    assert pio.templates["pagedlab"] == look.plotly_template()
    dark = go.Figure(figures["memory"]).update_layout(template="pagedlab_dark")
    assert dark.layout.template.layout.font.color == DARK.ink
    assert dark.layout.template.layout.paper_bgcolor == DARK.ground
    assert pio.templates.default == "plotly"  # the learner's own figures stay as they are


def test_titles_break_at_a_semicolon_and_text_is_no_markup() -> None:
    figure = new_figure("a" * 40 + ", " + "b" * 30 + "; " + "<i>" * 12, "<u>", "s")
    assert figure.layout.title.text == "a" * 40 + ", " + "b" * 30 + ";<br>" + "&lt;i&gt;" * 12
    assert figure.layout.annotations[0].text == "&lt;u&gt;"
    assert figure.layout.margin.t - new_figure("one line", "", "s").layout.margin.t == 21


def test_names_stand_in_layers_that_have_room_for_them() -> None:
    high, low = [10.0] * 20, [0.5] * 20
    first, second = spots([high, low], most=20, size=(700, 200), widths=[100, 100])
    assert first is not None
    assert first.level == 5
    assert second is None  # 5 pixels high
    (narrow,) = spots([[0.0] * 9 + [20.0] + [0.0] * 10], most=20, size=(700, 200), widths=[100])
    assert narrow is None


def test_no_chart_loads_plotly_before_it_is_drawn_and_says_how_to_get_it() -> None:
    code = (
        "import sys\n"
        "from pagedlab import charts\n"
        "assert 'plotly' not in sys.modules, 'loaded too early'\n"
        "sys.modules['plotly.graph_objects'] = None\n"
        "try:\n"
        "    charts.sweep([{'n': 1, 'y': 2}], x='n', y='y')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pagedlab[lab]'" in done.stdout
