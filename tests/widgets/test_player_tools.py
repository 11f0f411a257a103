"""The player's tools in a real browser: loop a range, look at an object, save a picture, keep the foot in view."""

from __future__ import annotations

import base64
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import five_recorded_requests
from traces import five_requests, make_trace

from pagedlab import scenes
from pagedlab.scenes import Scene

pytestmark = pytest.mark.browser

Together = Callable[..., Any]
Window = Any
"""That of `conftest`."""


def frame(page: Any) -> int:
    return int(page.locator("[data-pagedlab-player]").first.get_attribute("data-frame"))


def press(page: Any, *actions: str) -> None:
    for action in actions:
        page.locator(f"[data-action={action}]").first.click()


def said(page: Any) -> str:
    return page.get_by_test_id("said").first.inner_text().strip()


@pytest.fixture(scope="module")
def scene() -> Scene:
    return scenes.step(five_recorded_requests(), 3)


# --- loop a range ---------------------------------------------------------------------------------------------


def test_a_range_is_looped_by_keys_and_shown_on_the_scrubber(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.locator("[data-pagedlab-player]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("a")
    assert said(page) == f"Loop: frames 2 to {len(scene)}."
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("B")
    assert said(page) == "Loop: frames 2 to 4."
    band = page.get_by_test_id("range").bounding_box()
    track = page.locator("[data-action=scrub]").bounding_box()
    ends = [track["x"] + 9 + (track["width"] - 18) * at / (len(scene) - 1) for at in (1, 3)]
    assert band["x"] == pytest.approx(ends[0], abs=4)
    assert band["x"] + band["width"] == pytest.approx(ends[1], abs=4)
    page.keyboard.press("c")
    assert said(page) == "No loop."
    assert not page.get_by_test_id("range").is_visible()


def test_playing_goes_round_in_the_loop_until_it_is_cleared(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.clock.install()
    press(page, "next", "loop-from", "next", "next", "loop-to", "play")
    assert frame(page) == 1, "from the end of the loop to its start"
    seen = [frame(page)]
    for _ in range(7):
        page.clock.run_for(7000)
        seen.append(frame(page))
    assert set(seen) == {1, 2, 3}
    press(page, "loop-off")
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Pause", "it plays on"
    for _ in range(len(scene)):
        page.clock.run_for(7000)
    assert frame(page) == len(scene) - 1
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Play"


def test_a_loop_that_ends_with_the_last_frame_goes_round_too(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.clock.install()
    press(page, "last", "back", "loop-from", "play")
    assert frame(page) == len(scene) - 1
    page.clock.run_for(7000)
    assert frame(page) == len(scene) - 2
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Pause"


def test_a_loop_that_cannot_be_is_refused_in_words(together: Together, scene: Scene) -> None:
    page = together(scene)
    press(page, "loop-to")
    assert said(page) == "A loop cannot end with the first frame."
    press(page, "last", "loop-from")
    assert said(page) == "A loop cannot begin with the last frame."
    assert not page.get_by_test_id("range").is_visible()
    assert page.locator("[data-action=loop-off]").get_attribute("aria-disabled") == "true"


# --- look at an object ----------------------------------------------------------------------------------------


def happens_to(scene: Scene, key: str) -> list[int]:
    """The frames in which an actor comes, changes, moves, is ringed or goes."""
    found, before = [], None
    for at, shown in enumerate(scene.frames):
        now = shown.stage.get(key)
        if now != before or key in shown.focus:
            found.append(at)
        before = now
    return found


def test_an_object_that_is_clicked_says_what_it_is_and_what_happens_to_it(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.locator('.pl-actor[data-key="row:E"] text').first.click()
    panel = page.get_by_test_id("object")
    assert panel.locator("select").input_value() == "row:E"
    facts = scene.frames[0].stage["row:E"].data
    assert panel.get_by_test_id("facts").locator("li").all_inner_texts() == [f"{k} {v}" for k, v in facts.items()]
    moments = panel.get_by_test_id("history").get_by_role("button")
    expected = happens_to(scene, "row:E")
    assert 1 < len(expected) < len(scene)
    assert [text.split("\n")[-1] for text in moments.all_inner_texts()] == [scene.frames[at].change for at in expected]
    for nth, at in enumerate(expected):
        moments.nth(nth).click()
        assert frame(page) == at
        assert moments.nth(nth).get_attribute("aria-current") == "step"
        assert panel.get_by_test_id("facts").locator("li").all_inner_texts() == [
            f"{k} {v}" for k, v in scene.frames[at].stage["row:E"].data.items()
        ]


def test_the_part_that_was_clicked_says_what_it_is(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.locator('.pl-actor[data-key="row:E"] .pl-cell text').nth(2).click()
    assert page.get_by_test_id("spot").inner_text().startswith("E, position 2: “o”")


def test_objects_are_reached_by_keyboard_alone(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.locator("[data-pagedlab-player]").focus()
    page.keyboard.press("o")
    chooser = page.get_by_test_id("object").locator("select")
    assert chooser.evaluate("node => node === document.activeElement")
    offered = chooser.locator("option").evaluate_all("options => options.map(option => option.value)")
    assert set(offered) == {key for key, actor in scene.frames[0].stage.items() if actor.data}
    chooser.select_option("row:E")
    assert said(page).startswith("row · E. ")
    for stop in ("Close", "row 4", "request E", f"1 {scene.frames[0].change}"):
        page.keyboard.press("Tab")
        name = "[document.activeElement].map(one => one.ariaLabel ?? one.innerText.replace(/\\s+/g, ' '))[0]"
        assert page.evaluate(name) == stop
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert frame(page) == happens_to(scene, "row:E")[1]
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "step"
    page.keyboard.press("Escape")
    assert not page.get_by_test_id("object").is_visible()
    assert page.evaluate("document.activeElement.dataset.pagedlabPlayer") == "step", "the keyboard is not lost"
    assert page.locator(".pl-glow").count() == 0


def test_an_object_that_has_left_the_stage_is_said_to_have_left(together: Together, scene: Scene) -> None:
    page = together(scene)
    leaves = next(key for key in scene.frames[0].stage if key.startswith("row:") and key not in scene.frames[-1].stage)
    page.locator(f'.pl-actor[data-key="{leaves}"] text').first.click()
    press(page, "last")
    assert page.get_by_test_id("spot").inner_text() == "Not on the stage in this frame."
    assert page.get_by_test_id("facts").locator("li").count() == 0
    page.get_by_test_id("history").get_by_role("button").first.click()
    assert frame(page) == 0
    assert page.get_by_test_id("facts").locator("li").count() > 0


def test_while_a_prediction_is_asked_no_history_tells_the_answer(together: Together) -> None:
    question = next(asked for asked in scenes.step(five_recorded_requests(), 3).questions if asked.frame > 3)
    page = together(question)
    actor = page.locator(".pl-actor.is-object text").first
    actor.click()
    told = (
        page.get_by_test_id("history").get_by_role("button").evaluate_all("all => all.map(b => Number(b.dataset.to))")
    )
    assert told
    assert max(told) <= question.ask_frame
    page.get_by_test_id("history").get_by_role("button").first.click()
    assert frame(page) == question.ask_frame


# --- save a picture -------------------------------------------------------------------------------------------


def save(page: Any, kind: str, folder: Path) -> Path:
    press(page, "save")
    with page.expect_download() as download:
        page.locator(f"[data-action=save-{kind}]").first.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


@pytest.fixture
def window(window: Window) -> Window:
    """Open pages that move."""
    window.motion = "no-preference"
    return window


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_saved_svg_stands_alone_and_holds_all_that_is_seen(
    window: Window, scene: Scene, tmp_path: Path, scheme: str
) -> None:
    page = window.open(scene, color_scheme=scheme)
    press(page, *["next"] * 4)
    path = save(page, "svg", tmp_path)
    assert path.name == "pagedlab-step-frame-5.svg"
    text = path.read_text(encoding="utf-8")
    assert not re.search(r'class=|style=|var\(|color\(|color-mix|light-dark|currentColor|href="(?!data:)', text)
    root = ET.fromstring(text)
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    drawn = page.locator(".pl-actor:not(.pl-leave) text").evaluate_all("all => all.map(node => node.textContent)")
    assert sorted(word for word in words if word in drawn) == sorted(drawn)
    plain = re.sub(r"\s+", " ", " ".join(words))
    for expected in (scene.title, scene.frames[4].subtitle, scene.frames[4].caption):
        assert expected in plain
    paper = root[0].get("fill")
    assert paper == {"light": "#ffffff", "dark": "#14171b"}[scheme]


_SAMPLE = """async ([url, places]) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    return places.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data]);
}"""


def test_a_saved_png_has_twice_the_size_and_the_colours_of_the_requests(
    window: Window, tmp_path: Path, together: Together
) -> None:
    scene = scenes.condense(five_recorded_requests())
    page = window.open(scene, color_scheme="light")
    root = ET.fromstring(save(page, "svg", tmp_path).read_text(encoding="utf-8"))
    png = save(page, "png", tmp_path).read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (2 * int(root.get("width")), 2 * int(root.get("height")))
    # The middle of each plain swatch of a row, as the scene places it in the stage, which lies below the title.
    group = next(node for node in root if node.tag.endswith("}g"))
    left, top = map(float, re.findall(r"[\d.]+", group.get("transform")))
    rows = [actor for key, actor in scene.frames[0].stage.items() if key.startswith("row:")]
    row, swatch = next((row, part) for row in rows for part in row.parts if (part.kind, part.owner) == ("swatch", 0))
    middle = [left + row.x + swatch.x + swatch.w / 2, top + row.y + swatch.y + swatch.h / 2]
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    places = [[int(2 * at) for at in middle], [3, 3]]
    assert together().evaluate(_SAMPLE, [url, places]) == [[0x00, 0x72, 0xB2, 255], [255, 255, 255, 255]]


_COLOURS = """async ([url, top, bottom]) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    return new Set(new Uint32Array(pen.getImageData(0, top, image.width, bottom - top).data.buffer)).size;
}"""


def test_the_cells_of_a_grid_are_in_the_picture(window: Window, tmp_path: Path, together: Together) -> None:
    scene = scenes.block_pool(make_trace({"A": "abcdefgh", "B": "xyz"}, [4, 4], num_blocks=400))
    assert scene.grid is not None
    page = window.open(scene)
    press(page, "last")
    root = ET.fromstring(save(page, "svg", tmp_path).read_text(encoding="utf-8"))
    *legend, field = root.iter("{http://www.w3.org/2000/svg}image")
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    shown = page.locator(".pl-legend li:visible").all_inner_texts()
    assert len(shown) == len(legend) > 2
    assert set(shown) <= set(words)
    top, height = float(field.get("y")), float(field.get("height"))
    caption = min(
        float(node.get("y")) for node in root.findall("{*}text") if scene.frames[-1].change[:9] in node[0].text
    )
    assert top + height <= caption
    png = "data:image/png;base64," + base64.b64encode(save(page, "png", tmp_path).read_bytes()).decode()
    assert together().evaluate(_COLOURS, [png, int(2 * top), int(2 * (top + height))]) > 8


def test_a_picture_survives_names_that_xml_cannot_hold(window: Window, tmp_path: Path) -> None:
    trace = make_trace({"\x00\x08<b>&": "abc", "\u202eרב": "d", "🙂": "e", "\ufffe": "f"}, [2, 2, 2, 2])
    page = window.open(scenes.step(trace, 0))
    press(page, "last")
    root = ET.fromstring(save(page, "svg", tmp_path).read_text(encoding="utf-8"))
    assert "\ufffd\ufffd<b>&" in "".join(root.itertext())
    assert save(page, "png", tmp_path).stat().st_size > 10_000


# --- the foot stays in view -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [scenes.step, scenes.timeline, scenes.slot_mapping])
def test_at_1000_by_800_stepping_needs_no_scrolling(window: Window, make: Callable[..., Scene]) -> None:
    page = window.open(make(five_requests()))
    page.set_viewport_size({"width": 1000, "height": 800})
    foot = page.locator(".pl-foot")
    page.wait_for_function("document.querySelector('.is-in-view')")
    for where in (0, 60, 10_000):
        page.evaluate(f"scrollTo(0, {where})")
        box = foot.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800
    for control in page.locator(".pl-transport :is(button, select, input):visible").all():
        inside = control.bounding_box()
        assert inside["y"] + inside["height"] <= 800
    page.evaluate("scrollTo(0, 0)")
    page.locator("[data-action=next]").click()
    assert (frame(page), page.evaluate("scrollY")) == (1, 0)


def test_the_foot_of_a_player_that_only_peeps_in_does_not_cover_its_head(together: Together, scene: Scene) -> None:
    page = together(scene, scene)
    second = page.locator("[data-pagedlab-player]").nth(1)
    top = second.bounding_box()["y"]
    page.evaluate(f"scrollTo(0, {top} - innerHeight + 160)")
    page.wait_for_timeout(200)
    head, foot = second.locator(".pl-head").bounding_box(), second.locator(".pl-foot").bounding_box()
    assert foot["y"] > head["y"] + head["height"]
    assert foot["y"] > 900


def test_on_paper_nothing_covers_the_stage(together: Together, scene: Scene) -> None:
    page = together(scene)
    page.locator('.pl-actor[data-key="row:E"] text').first.click()
    page.emulate_media(media="print")
    stage, caption = (page.locator(which).bounding_box() for which in (".pl-stage", ".pl-caption"))
    assert caption["y"] >= stage["y"] + stage["height"]
    assert not page.locator(".pl-transport").is_visible()
    assert not page.get_by_test_id("object").is_visible()
