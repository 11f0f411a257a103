"""The exported page in a real browser, opened from disk, the network blocked."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import five_recorded_requests, record_quill
from traces import make_trace

from pagedlab import scenes, widgets
from pagedlab.scenes import Scene
from pagedlab.widgets import export

pytestmark = pytest.mark.browser


Window = Any
"""That of `conftest`."""


@pytest.fixture
def window(window: Window) -> Window:
    """Open pages that move, and ask for no data either."""
    window.motion, window.schemes = "no-preference", ("file:",)
    return window


@pytest.fixture(scope="module")
def scene() -> Scene:
    return scenes.condense(five_recorded_requests())


def frame(page: Any) -> int:
    return int(page.locator("[data-pagedlab-player]").get_attribute("data-frame"))


def caption(page: Any) -> str:
    return re.sub(r"\s+", " ", page.get_by_test_id("caption").inner_text()).strip()


def stage(page: Any) -> str:
    """All that is drawn, without what is just fading away."""
    return page.evaluate(
        """() => [...document.querySelectorAll('.pl-actor:not(.pl-leave)')].map((node) => {
            const copy = node.cloneNode(true);
            copy.classList.remove('pl-enter');
            return copy.outerHTML;
        }).join('\\n')"""
    )


def test_buttons_step_both_ways_and_the_caption_says_it_live(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    live = page.get_by_test_id("caption")
    assert (live.get_attribute("aria-live"), live.get_attribute("role")) == ("polite", "status")
    for action, expected in (("next", 1), ("next", 2), ("back", 1), ("last", len(scene) - 1), ("first", 0)):
        page.locator(f"[data-action={action}]").click()
        assert frame(page) == expected
        assert caption(page) == scene.frames[expected].caption
        assert page.get_by_test_id("count").inner_text() == f"frame {expected + 1} / {len(scene)}"


def test_keys_do_what_the_tooltips_say(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    assert page.locator("[data-action=next]").get_attribute("title") == "Next frame (→)"
    page.locator("[data-pagedlab-player]").focus()
    for key, expected in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", len(scene) - 1), ("Home", 0)):
        page.keyboard.press(key)
        assert frame(page) == expected
    page.keyboard.press("Space")
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Pause"
    page.keyboard.press("Space")
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Play"


def test_on_next_the_row_moves_and_back_restores_every_bit(window: Window, scene: Scene) -> None:
    move = scene.frame_of("RowMoved")
    page = window.open(scene)
    for _ in range(move - 1):
        page.locator("[data-action=next]").click()
    page.wait_for_timeout(450)
    row = page.locator('[data-key="row:E"]')
    before, drawn = row.evaluate("node => node.style.transform"), stage(page)
    page.locator("[data-action=next]").click()
    assert row.evaluate("node => node.style.transform") != before
    assert row.get_attribute("data-row") == "1"
    assert page.get_by_test_id("arrow").count() == 1
    halfway = row.evaluate("node => getComputedStyle(node).transitionDuration")
    assert "0.35s" in halfway
    page.locator("[data-action=back]").click()
    page.wait_for_timeout(450)
    assert stage(page) == drawn


def test_scrubbing_and_jumping_to_an_event(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    scrubber = page.locator("[data-action=scrub]")
    scrubber.fill("3")
    assert frame(page) == 3
    assert scrubber.get_attribute("aria-valuetext") == f"frame 4 of {len(scene)}: {scene.frames[3].change}"
    scrubber.fill("0")
    page.locator("[data-action=event-kind]").select_option("RowMoved")
    page.locator("[data-action=next-event]").click()
    assert frame(page) == scene.frame_of("RowMoved")
    marks = page.locator(".pl-marks i")
    assert marks.count() == sum(shown.event is not None for shown in scene.frames)


def test_playing_runs_to_the_end_and_stops(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    page.locator("[data-action=speed]").select_option("4")
    page.locator("[data-action=play]").click()
    page.wait_for_selector(f"[data-pagedlab-player][data-frame='{len(scene) - 1}']", timeout=20_000)
    assert page.locator("[data-action=play]").get_attribute("aria-label") == "Play"


def test_the_line_that_runs_is_lit_beside_its_counterpart(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    page.locator("[data-action=scrub]").fill(str(scene.frame_of("RowMoved")))
    shown = page.get_by_test_id("source-file").inner_text()
    found = re.fullmatch(r"(pagedlab/batch/input_batch\.py) · line (\d+)", shown)
    assert found, shown
    text = (Path(__file__).parents[2] / found[1]).read_text(encoding="utf-8").splitlines()[int(found[2]) - 1]
    assert "_move_row(" in text
    assert page.locator(".pl-line.is-now").inner_text().strip() == text.strip()
    assert "InputBatch.condense" in page.get_by_test_id("source-vllm").inner_text()
    page.set_viewport_size({"width": 600, "height": 900})
    assert not page.get_by_test_id("source").is_visible()


LONG = [
    "def schedule(self) -> SchedulerOutput:",
    '    """Share out one step\'s budget.',
    "",
    *("    More about it." for _ in range(30)),
    '    """',
    *("    index += 1" for _ in range(40)),
    "    if waiting:",
    "        if blocks:",
    '            self._grant(request, "resumed" if resumed else "new", num_new_tokens_of_it, budget, self.observer)',
    "            new_block_ids[request.request_id]=self.kv_cache_manager.get_block_ids(request.request_id_of_it)",
    *("    index += 1" for _ in range(40)),
]


IN_VIEW = """() => {
    const boxOf = (what) => document.querySelector(what).getBoundingClientRect();
    const [pane, line] = [boxOf('.pl-code'), boxOf('.pl-line.is-now')];
    return pane.top <= line.top && line.bottom <= pane.bottom;
}"""


@pytest.mark.parametrize("width", [900, 1200])
def test_a_long_line_of_source_is_wrapped_and_the_lit_one_is_all_in_view(
    window: Window, scene: Scene, width: int
) -> None:
    move = scene.frames[scene.frame_of("RowMoved")]
    assert move.source
    key, first = move.source[0], 100
    for text in LONG[-42:-40]:
        line = first + LONG.index(text)
        frames = tuple(replace(frame, source=(key, line) if frame.source else None) for frame in scene.frames)
        sources = {key: replace(scene.sources[key], first_line=first, lines=tuple(LONG))}
        page = window.open(replace(scene, frames=frames, sources=sources))
        page.set_viewport_size({"width": width, "height": 700})
        page.locator("[data-action=scrub]").fill(str(scene.frame_of("RowMoved")))
        pane, lit = page.get_by_test_id("source"), page.locator(".pl-line.is-now")
        assert lit.inner_text().strip() == text.strip()
        assert page.get_by_test_id("source-file").inner_text().endswith(f"line {line}")
        assert pane.evaluate("pane => pane.scrollWidth <= pane.clientWidth")
        page.wait_for_function(IN_VIEW)
        tops = lit.evaluate(
            """line => {
                const range = document.createRange();
                range.selectNodeContents(line);
                return [...range.getClientRects()].filter((box) => box.width > 1).map((box) => [box.top, box.left]);
            }"""
        )
        starts = [min(left for top, left in tops if abs(top - at) < 4) for at in sorted({top for top, _ in tops})]
        code = page.locator(".pl-line", has_text="if blocks:").locator(".pl-keyword").first.bounding_box()
        assert all(left > code["x"] for left in starts[1:]), "what goes on below stays inside its block"
        assert "More about it" not in pane.inner_text()


@pytest.mark.parametrize("width", [600, 1200])
def test_nothing_is_cut_off_and_no_text_is_small(window: Window, scene: Scene, width: int) -> None:
    page = window.open(scenes.step(five_recorded_requests(), 0))
    page.set_viewport_size({"width": width, "height": 900})
    page.locator("[data-action=last]").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "document.querySelector('.pl-stage-box').scrollWidth <= document.querySelector('.pl-stage-box').clientWidth"
    )
    smallest = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll('.pagedlab *')]
            .filter((node) => node.textContent.trim() && node.getClientRects().length)
            .map((node) => parseFloat(getComputedStyle(node).fontSize)))"""
    )
    assert smallest >= 13
    sizes = "buttons => buttons.map((button) => Math.min(button.offsetWidth, button.offsetHeight))"
    page.locator("[data-action=look]").click()
    page.locator("[data-action=save]").click()
    for size in page.locator(":is(.pl-button, .pl-beat, .pl-select, .pl-scrubber):visible").evaluate_all(sizes):
        assert size >= 32


CONTRASTS = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const linear = (value) => (value <= 10.3 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = (colour) => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
        return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    };
    const ratio = (a, b) => {
        const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
        return (light + 0.05) / (dark + 0.05);
    };
    const style = (selector) => getComputedStyle(document.querySelector(selector));
    const cells = [...document.querySelectorAll('.pl-cell')].map((cell) => ratio(
        getComputedStyle(cell.querySelector('text')).fill, getComputedStyle(cell.querySelector('.pl-face')).fill));
    return {
        caption: ratio(style('.pl-caption').color, style('.pagedlab').backgroundColor),
        subtitle: ratio(style('.pl-subtitle').color, style('.pl-head').backgroundColor),
        count: ratio(style('.pl-count').color, style('.pl-transport').backgroundColor),
        play: ratio(style('.pl-button.is-main').color, style('.pl-button.is-main').backgroundColor),
        cells: Math.min(...cells),
    };
}"""


def test_dark_and_light_differ_and_both_can_be_read(window: Window, scene: Scene) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page = window.open(scene, color_scheme=scheme)
        page.locator("[data-action=last]").click()
        seen.add(page.locator(".pagedlab").evaluate("node => getComputedStyle(node).backgroundColor"))
        assert {name: value for name, value in page.evaluate(CONTRASTS).items() if value < 4.5} == {}
    assert len(seen) == 2


def test_with_reduced_motion_it_cuts_and_the_arrow_stays(window: Window, scene: Scene) -> None:
    page = window.open(scene, reduced_motion="reduce")
    page.locator("[data-action=scrub]").fill(str(scene.frame_of("RowMoved") - 1))
    page.locator("[data-action=next]").click()
    row = page.locator('[data-key="row:E"]')
    assert row.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    box, track = row.bounding_box(), page.locator('[data-key="track:1"]').bounding_box()
    assert abs((box["y"] + box["height"] / 2) - (track["y"] + track["height"] / 2)) < 4, "it is there at once"
    assert page.get_by_test_id("arrow").count() == 1
    assert page.locator(".pl-leave").count() == 0


def test_names_from_the_trace_are_text(window: Window) -> None:
    hostile = "<img src=x onerror=\"document.title='broken'\">"
    page = window.open(scenes.step(make_trace({hostile: "<b>bold</b>", "B": "x"}, [2, 2]), 0))
    page.locator("[data-action=last]").click()
    assert page.locator(".pagedlab img, .pagedlab b").count() == 0
    assert "broken" not in page.title()
    assert any(hostile in tip for tip in page.locator("[data-testid=stage] title").all_text_contents())


def test_a_wrong_prediction_gets_its_reason_and_a_right_one_the_scene(window: Window, scene: Scene) -> None:
    question = scene.questions[0]
    page = window.open(question)
    assert frame(page) == question.ask_frame
    assert not page.locator(".pl-transport").is_visible()
    verdict = page.get_by_test_id("verdict")
    page.locator("[data-action=check]").click()
    assert verdict.inner_text().strip() == "Choose an answer first."
    wrong = next(choice for choice in question.choices if choice != question.answer)
    page.get_by_label(wrong, exact=True).check()
    page.locator("[data-action=check]").click()
    assert verdict.inner_text() == f"Not quite. {question.reasons[wrong]}"
    assert frame(page) == question.ask_frame
    page.keyboard.press("Tab")
    page.get_by_label(question.answer, exact=True).check()
    page.keyboard.press("Enter")
    assert verdict.inner_text() == f"Right. {question.explanation}"
    page.wait_for_selector(f"[data-pagedlab-player][data-frame='{question.frame}']")
    assert page.locator(".pl-transport").is_visible()
    page.locator("[data-action=ask-again]").click()
    assert frame(page) == question.ask_frame


def test_a_number_is_predicted_by_keyboard_alone(window: Window) -> None:
    trace = record_quill({"A": "To be, or not", "B": "Shall I compare thee"}, [2, 6], budget=24)
    question = scenes.step(trace, 0).questions[1]
    page = window.open(question)
    page.get_by_test_id("number").focus()
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    assert question.reasons["20"] in page.get_by_test_id("verdict").inner_text()
    page.keyboard.press("Control+a")
    page.keyboard.type(question.answer)
    page.keyboard.press("Enter")
    assert page.get_by_test_id("verdict").get_attribute("data-verdict") == "right"


def test_while_a_prediction_is_asked_nothing_leaves_its_frame(window: Window) -> None:
    question = scenes.step(five_recorded_requests(), 0).questions[0]
    page = window.open(question)
    page.locator(".pl-beat").last.focus()
    assert page.evaluate("document.activeElement.className") != "pl-beat"
    page.keyboard.press("Enter")
    for action in ("beat", "last", "next-event"):
        page.locator(f"[data-action={action}]").last.evaluate("button => button.click()")
    scrub = "input => { input.value = 3; input.dispatchEvent(new Event('input', { bubbles: true })); }"
    page.locator("[data-action=scrub]").evaluate(scrub)
    page.locator("[data-pagedlab-player]").focus()
    page.keyboard.press("End")
    assert frame(page) == question.ask_frame
    page.locator("[data-action=reveal]").click()
    page.locator(".pl-beat").last.click()
    assert frame(page) > question.frame


@pytest.mark.parametrize("taken", ["Home", "first", "scrub"])
def test_whoever_takes_the_scene_in_hand_ends_the_walk_to_the_answer(window: Window, taken: str) -> None:
    question = next(asked for asked in scenes.step(five_recorded_requests(), 0).questions if asked.frame > 3)
    page = window.open(question)
    page.locator("[data-action=reveal]").click()
    if taken == "Home":
        page.keyboard.press(taken)  # from where "Show me" has left the keyboard
    elif taken == "first":
        page.locator("[data-action=first]").evaluate("button => button.click()")
    else:
        page.locator("[data-action=scrub]").fill("0")
    page.wait_for_timeout(900)
    assert frame(page) == 0


def test_a_stage_that_scrolls_is_within_reach_of_the_keyboard(window: Window, scene: Scene) -> None:
    page = window.open(scene)
    box = page.locator(".pl-stage-box")
    assert box.get_attribute("tabindex") is None, "nothing to scroll: no stop for the tabulator"
    page.set_viewport_size({"width": 500, "height": 900})
    named = page.get_by_role("region", name="Stage")
    named.wait_for()
    named.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(400)
    assert box.evaluate("box => box.scrollLeft") > 0
    assert frame(page) == 0
    page.locator("[data-pagedlab-player]").focus()
    page.keyboard.press("ArrowRight")
    assert frame(page) == 1


def test_the_page_has_its_title_as_its_heading(window: Window, scene: Scene) -> None:
    for shown in (scene, scene.questions[0]):
        assert window.open(shown).get_by_role("heading", level=1).inner_text() == "Condense"


FRAMES = """async (source) => {
    for (let time = 0; time < 10; time += 1) {
        const frame = document.createElement('iframe');
        frame.srcdoc = source;
        document.body.append(frame);
        await new Promise((resolve) => frame.addEventListener('load', resolve));
        if (!frame.contentDocument.querySelector('[data-pagedlab-player]')) throw new Error('no player');
        document.body.dataset.jpThemeLight = String(time % 2 === 0);
        await Promise.resolve();
        const theme = frame.contentDocument.documentElement.dataset.jpThemeLight;
        if (theme !== document.body.dataset.jpThemeLight) throw new Error('the theme is not followed');
        frame.remove();
    }
}"""


def test_a_page_whose_frame_is_gone_is_forgotten(browser: Any, scene: Scene) -> None:
    page = browser.new_page()
    cdp = page.context.new_cdp_session(page)
    before = counters(cdp)
    page.evaluate(FRAMES, widgets.to_html(scene, alone=False))
    after = counters(cdp)
    page.close()
    assert after["documents"] - before["documents"] <= 1, (before, after)
    assert after["nodes"] - before["nodes"] < 500, (before, after)


def counters(cdp: Any) -> dict[str, int]:
    """How many documents and nodes a page holds when all garbage is gone."""
    for _ in range(3):
        cdp.send("HeapProfiler.collectGarbage")
    return cdp.send("Memory.getDOMCounters")


MOUNT = """async ([source, payload]) => {
    const player = await import('data:text/javascript;base64,' + source);
    const host = document.body.appendChild(document.createElement('div'));
    const model = { get: () => payload };
    for (let time = 0; time < 20; time += 1) {
        const clean = player.default.render({ model, el: host });
        host.querySelector('[data-action=next]').click();
        host.querySelector('[data-action=play]').click();
        clean();
    }
    const left = host.childElementCount;
    player.default.render({ model, el: host });
    player.default.render({ model, el: host });
    const [first, second] = host.children;
    first.querySelector('[data-action=next]').click();
    const ids = [...host.querySelectorAll('[id]')].map((node) => node.id);
    return { left, frames: [first.dataset.frame, second.dataset.frame], unique: new Set(ids).size === ids.length };
}"""


def test_views_share_a_cursor_and_no_identifier_and_leave_nothing_behind(browser: Any, scene: Scene) -> None:
    source = base64.b64encode(export.resource("player.js").encode()).decode()
    page = browser.new_page()
    seen = page.evaluate(MOUNT, [source, export.payload(scene)])
    page.close()
    assert seen == {"left": 0, "frames": ["1", "1"], "unique": True}
