"""The exported page and what a notebook stores: self-contained, escaped, honest without anywidget."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import five_recorded_requests
from traces import make_trace

from pagedlab import scenes, widgets
from pagedlab.errors import LessonError
from pagedlab.scenes import Scene
from pagedlab.widgets import display

_ROOT = Path(__file__).parents[2]


def _data(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="pagedlab-data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_holds_the_whole_scene() -> None:
    scene = scenes.condense(five_recorded_requests())
    assert Scene.from_json(_data(widgets.to_html(scene))["scene"]) == scene


def test_a_question_brings_its_scene() -> None:
    question = scenes.condense(five_recorded_requests()).questions[0]
    data = _data(widgets.to_html(question))
    assert data["question"]["answer"] == question.answer
    assert len(data["scene"]["frames"]) == len(question.scene.frames)


def test_a_question_without_its_scene_says_where_to_get_one() -> None:
    bare = scenes.condense(five_recorded_requests()).asked[0]
    with pytest.raises(ValueError, match=r"scene\.questions"):
        widgets.to_html(bare)


def test_data_cannot_break_out_of_its_element() -> None:
    trace = make_trace({"</script><script>alert(1)</script>": "<!-- </script>", "b": "x"}, [2, 2])
    page = widgets.to_html(scenes.step(trace, 0))
    assert page.count("</script>") == 2
    assert "<!--" not in page.split("<script", 1)[1]
    assert "alert(1)</script>" not in page


def test_the_page_needs_no_network_and_forbids_it() -> None:
    page = widgets.to_html(scenes.step(five_recorded_requests(), 0))
    assert "default-src &#x27;none&#x27;" in page
    assert re.findall(r"img-src ([^;]*);", page) == ["data:"], "pictures that are made here, none that is fetched"
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}


def test_export_writes_the_file_and_returns_its_path(tmp_path: Path) -> None:
    path = widgets.export_html(scenes.step(five_recorded_requests(), 0), tmp_path / "step.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_request_id_that_no_encoding_can_hold_is_spelled_out(tmp_path: Path, shown: list) -> None:
    trace = make_trace(dict(zip(("a\ud800", "a\ud801", "🙂"), ("abc", "def", "ghi"), strict=True)), [2, 2, 2])
    scene = scenes.step(trace, 0)
    path = widgets.export_html(scene, tmp_path / "step.html")
    assert _data(path.read_text(encoding="utf-8"))["scene"]["requests"] == ["a\\ud800", "a\\ud801", "🙂"]
    widgets.play(scene)
    for sent in (shown[0], shown[1].payload):
        json.dumps(sent, ensure_ascii=False).encode()


def test_a_page_that_cannot_be_made_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step.html"
    path.write_text("mine", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        widgets.export_html(scenes.step(five_recorded_requests(), 0), path)
    assert [(file, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [(path, "mine")]


def test_export_needs_no_anywidget(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['anywidget'] = sys.modules['ipywidgets'] = sys.modules['IPython'] = None\n"
        "from pagedlab import scenes, widgets\n"
        "scene = scenes.Scene('a', 'A', 9, 9, (scenes.Frame('0', scenes.Actor('a', 0, 0), 'x'),))\n"
        f"widgets.export_html(scene, {str(tmp_path / 'a.html')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)
    assert (tmp_path / "a.html").stat().st_size > 10_000


def test_the_engine_does_not_need_widgets() -> None:
    code = "import sys, pagedlab, pagedlab.engine; print('pagedlab.widgets' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_ROOT)
    assert done.stdout.strip() == "False"


def test_outside_a_notebook_play_says_what_works_there() -> None:
    with pytest.raises(LessonError, match="export_html"):
        widgets.play(scenes.step(five_recorded_requests(), 0))


def test_a_scene_without_a_question_cannot_be_asked() -> None:
    with pytest.raises(LessonError, match="no question"):
        widgets.predict(scenes.Scene("a", "A", 9, 9, ()))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list:
    out: list = []
    monkeypatch.setattr(display, "_notebook_display", lambda: lambda value, raw=False: out.append(value))
    return out


def test_a_notebook_gets_the_page_and_the_live_player(shown: list) -> None:
    widgets.play(scenes.condense(five_recorded_requests()))
    static, live = shown
    assert 'data-pagedlab-static="paired"' in static["text/html"]
    assert "<iframe data-page=" in static["text/html"], "the page waits: no second player is built"
    assert static["text/plain"] == "Scene 'Condense', 6 frames"
    assert isinstance(live, widgets.Player)
    assert repr(live) == "<Player of 'Condense', 6 frames>"


def players_in_the_kernel() -> list:
    from ipywidgets.widgets import widget

    return [one for one in widget._instances.values() if isinstance(one, widgets.Player)]


def test_a_cell_that_runs_again_closes_the_players_of_its_last_run(
    shown: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "_players", {})
    scene = scenes.condense(five_recorded_requests())

    def run(cell: str | None, nth: int) -> list:
        monkeypatch.setattr(display, "_running", lambda: (cell, f"{cell}-{nth}"))
        widgets.play(scene)
        widgets.predict(scene.questions[0])
        return [shown[-3], shown[-1]]

    before = players_in_the_kernel()
    runs = [run("a", nth) for nth in range(20)]
    other = run("b", 0)
    assert [one for one in players_in_the_kernel() if one not in before] == [*runs[-1], *other]
    unknown = run(None, 0) + run(None, 1)
    assert [one for one in players_in_the_kernel() if one not in before] == [*runs[-1], *other, *unknown]
    for player in (*runs[-1], *other, *unknown):
        player.close()


def test_which_cell_runs_is_what_the_notebook_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    class Shell:
        def get_parent(self) -> dict:
            return {"header": {"msg_id": "m"}, "metadata": {"cellId": "c"}}

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    assert display._running() == ("c", "m")
    monkeypatch.setattr(IPython, "get_ipython", object)
    assert display._running() == (None, "")


def test_without_anywidget_the_page_plays_and_says_what_to_install(
    shown: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display.importlib.util, "find_spec", lambda name: None)
    widgets.predict(scenes.condense(five_recorded_requests()))
    (static,) = shown
    assert "pip install &#x27;pagedlab[lab]&#x27;" in static["text/html"]
    assert 'data-pagedlab-static="alone"' in static["text/html"]


def test_the_frame_in_a_notebook_holds_the_same_page() -> None:
    scene = scenes.condense(five_recorded_requests())
    found = re.search(r'data-page="(.*?)" title', widgets.static_html(scene), re.DOTALL)
    assert found
    assert html.unescape(found[1]) == widgets.to_html(scene, alone=False)
