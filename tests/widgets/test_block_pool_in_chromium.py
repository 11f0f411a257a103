"""The scene `block_pool` in a real browser: cards and canvas show the trace, by mouse, by keyboard, and fast enough."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from pools import Modelless, busy, run, three_requests
from traces import make_trace

from pagedlab import scenes, widgets
from pagedlab.scenes import Actor, Frame, Part, Scene
from pagedlab.widgets import export

pytestmark = pytest.mark.browser

Window = Any
"""That of `conftest`."""

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def scene() -> Scene:
    """300 blocks, half of which are held, hit, evicted or still remembered."""
    engine = Modelless(300, block_size=4, budget=64, seats=6)
    alike = [(f"r{at}", [*range(20), *range(100 * at, 100 * at + 60)], 30, 3 * at) for at in range(9)]
    trace = run(engine, [(HOSTILE, range(5000, 5040), 80, 0), *alike])
    return scenes.block_pool(trace, steps=range(32, 58))


def frame(page: Any) -> int:
    return int(page.locator("[data-pagedlab-player]").get_attribute("data-frame"))


def told(scene: Scene, at: int, block: int) -> str:
    """What is to be said of a block in a frame."""
    look = scene.cells_at(at)[block]
    whose = "" if look.owner is None else f" of {scene.requests[look.owner]}"
    return f"block {block}{whose}: {look.title}"


# The dots of each cell, as a text, and the canvas as a whole.
CELLS = """() => {
    const canvas = document.querySelector('.pl-field canvas');
    const field = document.querySelector('.pl-field');
    const columns = Number(field.getAttribute('aria-colcount'));
    const size = canvas.height / Number(field.getAttribute('aria-rowcount'));
    const pen = canvas.getContext('2d');
    const left = (cell) => (cell % columns) * size, top = (cell) => Math.floor(cell / columns) * size;
    const count = Number(field.getAttribute('aria-label').match(/^\\d+/)[0]);
    return Array.from({ length: count }, (_, cell) => pen.getImageData(left(cell), top(cell), size, size).data.join());
}"""
CANVAS = "() => document.querySelector('.pl-field canvas').toDataURL()"
FIRST_DOT = """() => {
    const canvas = document.querySelector('.pl-field canvas');
    return [...canvas.getContext('2d').getImageData(canvas.width - 1, canvas.height - 1, 1, 1).data].slice(0, 3);
}"""
BACKGROUND = """() => {
    const pen = document.createElement('canvas').getContext('2d');
    pen.fillStyle = getComputedStyle(document.querySelector('.pagedlab')).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_an_entry_travels_from_the_queue_to_its_card(window: Window) -> None:
    page = window.open(scenes.block_pool(three_requests(), 0), reduced_motion="no-preference")
    entry = page.locator('[data-key="queued:1"]')
    before = entry.bounding_box()
    page.locator("[data-action=next]").click()
    assert "0.35s" in entry.evaluate("node => getComputedStyle(node).transitionDuration")
    page.wait_for_timeout(500)
    after, card = entry.bounding_box(), page.locator('[data-key="block:1"]').bounding_box()
    assert after["y"] > before["y"] + 20
    assert abs(after["y"] - card["y"]) < 8


def test_cells_of_one_look_are_drawn_alike_and_those_of_another_otherwise(window: Window, scene: Scene) -> None:
    page = window.open(scene, width=480)  # too narrow for numbers in the cells
    looks = scene.cells_at(0)
    assert {look.style for look in looks} >= {"owned", "owned shared", "cached", "free", "null"}
    drawn: dict[tuple[str, int | None], set[str]] = {}
    for look, dots in zip(looks, page.evaluate(CELLS), strict=True):
        drawn.setdefault((look.style, look.owner), set()).add(dots)
    assert {len(tiles) for tiles in drawn.values()} == {1}, "one look is one tile"
    assert len({tile for tiles in drawn.values() for tile in tiles}) == len(drawn), "two looks are two tiles"


def test_every_frame_of_the_canvas_is_the_trace_and_back_restores_every_dot(window: Window, scene: Scene) -> None:
    page = window.open(scene, width=480)
    tile = {}
    for look, dots in zip(scene.cells_at(0), page.evaluate(CELLS), strict=True):
        tile[look.style, look.owner] = dots
    columns = int(page.get_by_test_id("grid").get_attribute("aria-colcount"))
    seen = [page.evaluate(CANVAS)]
    for at in range(1, 8):
        page.locator("[data-action=next]").click()
        seen.append(page.evaluate(CANVAS))
        # What has the ring reaches into its neighbours; all others are the tiles of their looks.
        ringed = {
            cell + across + down * columns
            for cell in scene.frames[at].cells
            for across in (-1, 0, 1)
            for down in (-1, 0, 1)
        }
        for cell, (look, dots) in enumerate(zip(scene.cells_at(at), page.evaluate(CELLS), strict=True)):
            if cell not in ringed and cell != 0:
                assert dots == tile.setdefault((look.style, look.owner), dots), f"frame {at}, block {cell}"
    assert len(set(seen)) > 5
    for at in reversed(range(7)):
        page.locator("[data-action=back]").click()
        assert page.evaluate(CANVAS) == seen[at]
    page.locator("[data-action=scrub]").fill("7")
    assert page.evaluate(CANVAS) == seen[7]


def test_the_field_says_how_many_blocks_are_in_which_state(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    for at in (0, 5, len(scene) - 1):
        page.locator("[data-action=scrub]").fill(str(at))
        styles = [look.style.split(" ") for look in scene.cells_at(at)]
        words = {"in use": "owned", "shared": "shared", "cached": "cached", "empty": "free", "null": "null"}
        counts = {word: sum(kind in style for style in styles) for word, kind in words.items()}
        expected = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        assert page.get_by_test_id("grid").get_attribute("aria-label") == f"300 blocks: {expected}"


# --- by keyboard and by mouse -----------------------------------------------------------------------------------------


def test_the_cursor_tells_of_each_block_and_leaves_the_frame_alone(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    field, said, cell = (page.get_by_test_id(name) for name in ("grid", "grid-said", "grid-cell"))
    assert (field.get_attribute("role"), said.get_attribute("aria-live")) == ("grid", "polite")
    assert field.get_attribute("aria-activedescendant") == cell.get_attribute("id")
    columns = int(field.get_attribute("aria-colcount"))
    field.focus()
    moves = [("ArrowRight", 1), ("ArrowDown", 1 + columns), ("Home", columns), ("End", 2 * columns - 1)]
    for key, block in [*moves, ("Control+End", 299), ("ArrowRight", 299), ("Control+Home", 0), ("ArrowLeft", 0)]:
        page.keyboard.press(key)
        assert said.inner_text() == cell.inner_text() == told(scene, 0, block)
        assert (cell.get_attribute("aria-colindex"), page.locator("[role=row]").get_attribute("aria-rowindex")) == (
            str(block % columns + 1), str(block // columns + 1)
        )  # fmt: skip
    assert frame(page) == 0
    for block in range(1, 120):
        page.keyboard.press("ArrowRight")
        assert said.inner_text() == told(scene, 0, block)
    page.locator("[data-pagedlab-player]").focus()
    page.keyboard.press("ArrowRight")
    assert frame(page) == 1
    assert cell.inner_text() == told(scene, 1, 119)


def test_zoom_by_keys_buttons_and_wheel_and_all_is_as_before(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    whole = page.evaluate(CANVAS)
    field = page.get_by_test_id("grid")
    everything = page.locator("[data-grid=all]")
    assert everything.get_attribute("aria-disabled") == "true"
    page.locator("[data-grid=in]").click()
    assert page.evaluate(CANVAS) != whole
    assert everything.get_attribute("aria-disabled") == "false"
    everything.click()
    assert page.evaluate(CANVAS) == whole
    field.focus()
    focused = page.evaluate(CANVAS)
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("-")
    assert page.evaluate(CANVAS) != focused
    page.keyboard.press("0")
    assert page.evaluate(CANVAS) == focused
    box = field.bounding_box()
    x, y = box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.6
    page.mouse.move(x, y)
    under = page.get_by_test_id("grid-tip").inner_text()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.mouse.move(x + 1, y)
    assert page.evaluate(CANVAS) != focused
    assert page.get_by_test_id("grid-tip").inner_text() == under, "what is under the pointer stays there"
    page.mouse.down()
    page.mouse.move(x - 90, y, steps=4)
    page.mouse.up()
    page.mouse.move(x, y)
    assert page.get_by_test_id("grid-tip").inner_text() != under, "it was panned"
    page.mouse.wheel(0, 200)
    assert frame(page) == 0


def test_a_tip_tells_of_the_block_under_the_pointer(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    field, tip = page.get_by_test_id("grid"), page.get_by_test_id("grid-tip")
    columns, rows = (int(field.get_attribute(name)) for name in ("aria-colcount", "aria-rowcount"))
    box = page.get_by_test_id("grid-canvas").bounding_box()
    size = box["height"] / rows
    for block in (0, columns - 1, columns, 150, 299):
        page.mouse.move(box["x"] + (block % columns + 0.5) * size, box["y"] + (block // columns + 0.5) * size)
        assert tip.inner_text() == told(scene, 0, block)
        around = field.bounding_box()
        assert tip.bounding_box()["x"] + tip.bounding_box()["width"] <= around["x"] + around["width"] + 1
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_a_block_can_be_gone_to_by_its_number(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    find, said = page.locator("[data-grid=find]"), page.get_by_test_id("grid-said")
    find.fill("217")
    find.press("Enter")
    assert said.inner_text() == told(scene, 0, 217)
    assert page.evaluate("document.activeElement.getAttribute('role')") == "grid"
    find.fill("300")
    find.press("Enter")
    assert said.inner_text() == "There is no block 300: they go from 0 to 299."
    assert frame(page) == 0


def test_a_chosen_block_is_told_of_and_lit_wherever_it_is(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    first = next(
        actor.data["block"] for key, actor in sorted(scene.frames[0].stage.items()) if key.startswith("queued:")
    )
    before = page.evaluate(CANVAS)
    page.locator(f'[data-key="queued:{first}"]').click()
    assert page.evaluate(CANVAS) != before, "its cell has a ring, too"
    page.keyboard.press("Escape")
    assert page.evaluate(CANVAS) == before
    page.locator("[data-grid=find]").fill(str(first))
    page.locator("[data-grid=find]").press("Enter")
    page.keyboard.press("Enter")
    facts = page.get_by_test_id("facts").inner_text()
    assert re.search(rf"block\s+{first}\b", facts)
    assert page.locator(f'[data-key="queued:{first}"] .pl-glow').count() == 1
    history = page.get_by_test_id("history").locator("button")
    changes = [at for at, shown in enumerate(scene.frames) if first in shown.cells]
    assert [int(to) - 0 for to in history.evaluate_all("all => all.map(one => one.dataset.to)")] == changes


def test_names_from_the_trace_are_text(window: Window, scene: Scene) -> None:
    assert HOSTILE in scene.requests
    owned = next(at for at, look in enumerate(scene.cells_at(0)) if look.owner == scene.requests.index(HOSTILE))
    page = window.open(scene)
    page.locator("[data-grid=find]").fill(str(owned))
    page.locator("[data-grid=find]").press("Enter")
    assert HOSTILE in page.get_by_test_id("grid-said").inner_text()
    page.keyboard.press("Enter")
    assert page.locator(".pagedlab img").count() == 0
    for shown in (
        scenes.block_pool(
            make_trace({HOSTILE: "abcdefgh", "x" * 10_000: "abc", "שלום": "ab"}, [3, 3, 3], num_blocks=90)
        ),
        scenes.block_pool(make_trace({HOSTILE: "abcdefgh", "x" * 10_000: "abc", "": "ab"}, [3, 3, 3], num_blocks=20)),
    ):
        page = window.open(shown)
        page.locator("[data-action=last]").click()
        assert page.locator(".pagedlab img").count() == 0


# --- predict, then reveal ---------------------------------------------------------------------------------------------


def test_a_card_is_clicked_to_answer(window: Window) -> None:
    question = scenes.block_pool(three_requests(), 4).questions[0]
    assert question.kind == "pick"
    page = window.open(question)
    verdict = page.get_by_test_id("verdict")
    page.locator("[data-action=check]").click()
    assert verdict.inner_text().strip() == "Click a block first, or type which."
    page.locator('[data-key="block:3"]').click()
    assert page.get_by_test_id("number").input_value() == "3"
    page.locator("[data-action=check]").click()
    assert verdict.inner_text() == f"Not quite. {question.reasons['3']}"
    assert frame(page) == question.ask_frame
    page.locator(f'[data-key="queued:{question.answer}"]').click()
    page.locator("[data-action=check]").click()
    assert verdict.inner_text() == f"Right. {question.explanation}"
    page.wait_for_selector(f"[data-pagedlab-player][data-frame='{question.frame}']")
    page.locator('[data-key="block:3"]').click()
    assert page.get_by_test_id("number").input_value() == question.answer, "it is answered"


def test_a_cell_is_chosen_by_keyboard_to_answer(window: Window, scene: Scene) -> None:
    question = next(asked for asked in scene.questions if asked.kind == "pick")
    page = window.open(question)
    wrong = next(int(block) for block in question.reasons if block != "0")
    page.get_by_test_id("grid").focus()
    for block in (wrong, int(question.answer)):
        page.locator("[data-grid=find]").fill(str(block))
        page.locator("[data-grid=find]").press("Enter")
        page.keyboard.press("Enter")
        assert page.get_by_test_id("number").input_value() == str(block)
        page.get_by_test_id("number").press("Enter")
        reason = question.reasons.get(str(block), question.explanation)
        assert page.get_by_test_id("verdict").inner_text().endswith(reason)
    assert page.get_by_test_id("verdict").get_attribute("data-verdict") == "right"


# --- how it looks -----------------------------------------------------------------------------------------------------


def test_the_canvas_follows_the_theme_and_paper_is_white(window: Window, scene: Scene) -> None:
    page = window.open(scene, color_scheme="light")
    seen = []
    for media in ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"color_scheme": "light"}):
        page.emulate_media(**media)
        page.wait_for_timeout(150)
        seen.append(page.evaluate(CANVAS))
        assert page.evaluate(FIRST_DOT) == page.evaluate(BACKGROUND)
    assert seen[0] == seen[2] != seen[1]
    page.emulate_media(color_scheme="dark", media="print")
    page.wait_for_timeout(150)
    assert page.evaluate(FIRST_DOT) == [255, 255, 255]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_in_use_has_an_edge_that_can_be_seen_on_the_ground(window: Window, scene: Scene, scheme: str) -> None:
    page = window.open(scene, color_scheme=scheme)
    owners = {look.owner: cell for cell, look in enumerate(scene.cells_at(0)) if look.style == "owned"}
    assert len(owners) >= 4
    edges = page.evaluate(
        """(cells) => {
            const canvas = document.querySelector('.pl-field canvas'), field = document.querySelector('.pl-field');
            const columns = Number(field.getAttribute('aria-colcount'));
            const size = canvas.height / Number(field.getAttribute('aria-rowcount'));
            const at = (x, y) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3);
            const middle = (cell) => (Math.floor(cell / columns) + 0.5) * size;
            return cells.map((cell) => at((cell % columns) * size, Math.floor(middle(cell))));
        }""",
        list(owners.values()),
    )
    ground = page.evaluate(BACKGROUND)
    assert min(_contrast(edge, ground) for edge in edges) >= 3


def _contrast(one: list[int], other: list[int]) -> float:
    def luminance(colour: list[int]) -> float:
        parts = [value / 3294.6 if value <= 10.3 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_around_the_canvas(window: Window, scene: Scene, scheme: str) -> None:
    question = next(asked for asked in scene.questions if asked.kind == "pick")
    for shown in (scene, question):
        page = window.open(shown, color_scheme=scheme)
        page.get_by_test_id("grid").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("width", [360, 480, 900, 1400])
def test_the_field_fits_any_window_and_fine_screens(window: Window, scene: Scene, width: int) -> None:
    page = window.open(scene, width=width, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    canvas, field = page.get_by_test_id("grid-canvas"), page.get_by_test_id("grid")
    assert canvas.bounding_box()["width"] <= field.bounding_box()["width"]
    assert canvas.evaluate("canvas => canvas.width") == round(2 * canvas.bounding_box()["width"])
    assert canvas.bounding_box()["height"] <= 420
    page.set_viewport_size({"width": width - 60, "height": 900})
    page.wait_for_timeout(200)
    assert canvas.bounding_box()["width"] <= field.bounding_box()["width"]


# --- how fast it is ---------------------------------------------------------------------------------------------------
# The goals are a first paint within 1 s, a step within 16 ms (median), no block over 100 ms while scrubbing, and 60
# pictures a second in motion. A test machine may be busy with other things: more than that is allowed here.

PATIENCE = 3
STEPS = """async (times) => {
    const next = document.querySelector('[data-action=next]'), taken = [];
    for (let time = 0; time < times; time += 1) {
        const start = performance.now();
        next.click();
        next.getBoundingClientRect();
        taken.push(performance.now() - start);
        await new Promise(requestAnimationFrame);
    }
    return taken.sort((a, b) => a - b)[times >> 1];
}"""
SCRUBS = """async (times) => {
    const scrubber = document.querySelector('[data-action=scrub]'), taken = [];
    for (let time = 0; time < times; time += 1) {
        const start = performance.now();
        scrubber.value = Math.round(Number(scrubber.max) * ((time * 37) % 101) / 100);
        scrubber.dispatchEvent(new Event('input', { bubbles: true }));
        scrubber.getBoundingClientRect();
        taken.push(performance.now() - start);
        await new Promise(requestAnimationFrame);
    }
    return taken;
}"""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@pytest.fixture(scope="module")
def long_run() -> Scene:
    """256 rows, 4,096 blocks, 1,000 steps."""
    trace = busy(4_096, 256, 1_000)
    return scenes.block_pool(trace, steps=range(1_000))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_long_run_is_painted_soon_and_scrubbing_never_waits(window: Window, long_run: Scene) -> None:
    assert (len(long_run), long_run.grid.count) == (1_001, 4_096)
    paints, scrubs = [], []
    for _ in range(3):
        page = window.open(long_run)
        page.wait_for_timeout(200)
        paints.append(page.evaluate(FIRST_PAINT))
        scrubs.append(page.evaluate(SCRUBS, 101))
        page.context.close()
    print(f"first paint, ms: {sorted(paints)[1]:,.0f}")
    longest = max(map(min, zip(*scrubs, strict=True)))  # what is slow by itself is slow each time it is done
    print(f"longest scrub, ms: {longest:,.0f}")
    assert sorted(paints)[1] < 1_000 * PATIENCE
    assert longest < 100 * 2


def chips(count: int, num_frames: int, *, every: int) -> Scene:
    """A scene of so many actors, of which in each frame one of ``every`` moves."""
    part = Part("chip", 0, 0, 12, 14, "7")

    def actor(one: int, at: int) -> Actor:
        moved = at % 7 if one % every == at % every else 0
        return Actor(f"{one:04}", 14.0 * (one % 40) + moved, 16.0 * (one // 40), 12, 14, (part,))

    frames = [Frame(str(at), tuple(actor(one, at) for one in range(count)), f"Frame {at}.") for at in range(num_frames)]
    return Scene("many", "Many", 584, 420, tuple(frames))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_step_is_quick_with_a_large_grid_and_with_a_thousand_actors(window: Window) -> None:
    grid = scenes.block_pool(busy(16_384, 256, 150, 700, 150), steps=range(150))
    assert grid.grid.count == 16_384
    for name, shown in (("grid", grid), ("actors", chips(1_000, 80, every=50))):
        median = window.open(shown, reduced_motion="no-preference").evaluate(STEPS, 70)
        print(f"step with many {name}, ms: {median:,.0f}")
        assert median < 16 * PATIENCE, name


PICTURES = """async (steps) => {
    const next = document.querySelector('[data-action=next]'), gaps = [];
    for (let step = 0; step < steps; step += 1) {
        next.click();
        const start = await new Promise(requestAnimationFrame);
        for (let last = start; last - start < 330;) {
            const now = await new Promise(requestAnimationFrame);
            gaps.push(now - last);
            last = now;
        }
    }
    return gaps;
}"""


@pytest.mark.slow
@pytest.mark.thorough
def test_two_hundred_actors_move_at_sixty_pictures_a_second(window: Window) -> None:
    page = window.open(chips(200, 40, every=1), reduced_motion="no-preference")
    shares = []
    for _ in range(3):  # a busy machine drops pictures: the best of three goes counts
        gaps = page.evaluate(PICTURES, 10)
        shares.append(sum(gap < 17.5 for gap in gaps) / len(gaps))
    print(f"pictures within 17 ms: {', '.join(f'{share:.0%}' for share in shares)}")
    assert max(shares) > 0.5


RENDER = """async ([source, payload]) => {
    const player = await import('data:text/javascript;base64,' + source);
    const host = document.body.appendChild(document.createElement('div'));
    const clean = await player.default.render({ model: { get: () => payload, send() {} }, el: host });
    const { frames } = host.querySelector('[data-pagedlab-player]').dataset;
    const label = host.querySelector('.pl-field').ariaLabel;
    clean();
    return [frames, label, host.childElementCount];
}"""


def test_a_large_scene_comes_compressed_and_is_shown_and_leaves_nothing_behind(
    browser: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_LARGE", 1_000)
    payload = export.pack(export.payload(scene))
    assert list(payload) == ["packed"]
    source = base64.b64encode(export.resource("player.js").encode()).decode()
    page = browser.new_page()
    frames, label, left = page.evaluate(RENDER, [source, payload])
    page.close()
    assert (frames, left) == (str(len(scene)), 0)
    assert label.startswith("300 blocks: ")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_notebook_with_a_long_run_is_below_two_megabytes(long_run: Scene) -> None:
    """All of the file: the frame that plays without a kernel, and the live player's state."""
    player = widgets.Player(long_run)
    state = {name: player.get_state()[name] for name in ("payload", "_esm", "_css")}
    cell = nbformat.v4.new_code_cell("widgets.play(scene)")
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": widgets.static_html(long_run, paired=True)})]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": {"player": {"state": state}}}
    }
    size = len(nbformat.writes(notebook).encode())
    print(f"saved notebook, bytes: {size:,.0f}")
    assert size < 2_000_000
    assert "packed" in state["payload"]
    assert len(json.dumps(export.payload(replace(long_run, frames=long_run.frames[:1])))) < 40_000
    player.close()
