"""Scenes of one page: what is selected in one lights in all; scenes of one trace share a cursor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from lit_actors import lit_for
from recorded import five_recorded_requests
from traces import five_requests, make_trace

from pagedlab import scenes
from pagedlab.scenes import Scene
from pagedlab.scenes.assembling import digest
from pagedlab.trace import Trace
from pagedlab.widgets import export

Together = Callable[..., Any]


# --- what a scene says of its trace ---------------------------------------------------------------------------


def test_every_scene_names_the_trace_that_it_shows(make_scene: Callable[[Trace], Scene], eventful_trace: Trace) -> None:
    scene = make_scene(eventful_trace)
    assert scene.traces == (digest(eventful_trace),)
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))).traces == scene.traces


def test_every_frame_says_where_in_its_trace_it_is(make_scene: Callable[[Trace], Scene], eventful_trace: Trace) -> None:
    scene = make_scene(eventful_trace)
    records = [frame.record for frame in scene.frames]
    assert -1 <= min(records) < records[-1] == max(records) < len(eventful_trace)


def test_of_a_timeline_of_two_each_frame_says_in_which_trace_it_is() -> None:
    few, many = (make_trace({"A": "abcd", "B": "xyz"}, [3, 3], seats=seats) for seats in (1, 2))
    scene = scenes.timeline(few, many)
    assert scene.traces == (digest(few), digest(many))
    assert {frame.trace for frame in scene.frames} == {0, 1}
    for frame in scene.frames:
        assert frame.record < len((few, many)[frame.trace])
    assert Scene.from_json(scene.to_json()).frames[-2].trace == scene.frames[-2].trace


def test_a_trace_is_known_by_what_is_in_it() -> None:
    trace = five_requests()
    assert digest(trace) == digest(five_requests()) == digest(Trace.loads(trace.dumps()))
    assert digest(trace) != digest(Trace(trace.records[:-1], trace.sources, trace.vocabulary, trace.settings))


# --- one selection --------------------------------------------------------------------------------------------


def frames(page: Any) -> list[int]:
    return page.locator("[data-pagedlab-player]").evaluate_all("players => players.map(p => Number(p.dataset.frame))")


def lit(page: Any) -> list[list[str]]:
    """For each player the keys of the actors that are lit."""
    return page.locator("[data-pagedlab-player]").evaluate_all(
        """players => players.map(
            (player) => [...player.querySelectorAll('.pl-glow')].map((glow) => glow.parentNode.dataset.key).sort())"""
    )


def player(page: Any, at: int) -> Any:
    return page.locator("[data-pagedlab-player]").nth(at)


def pick(page: Any, at: int, key: str) -> None:
    """Click on an actor, where it shows a text."""
    player(page, at).locator(f'.pl-actor[data-key="{key}"] text').first.click()


def expected(scene: Scene, frame: int, **thing: str | int) -> list[str]:
    """The actors of a frame that say that they are of a thing."""
    found = lit_for(scene, frame, **thing)
    assert found
    return sorted(found)


@pytest.mark.browser
def test_a_request_that_is_selected_lights_in_every_scene_and_escape_clears(together: Together) -> None:
    trace = five_recorded_requests()
    shown = [scenes.step(trace, 3), scenes.block_table(trace), scenes.condense(five_requests())]
    page = together(*shown)
    pick(page, 0, "row:A")
    assert lit(page) == [expected(scene, 0, request="A") for scene in shown], "whatever engine it ran in"
    said = player(page, 0).get_by_test_id("said").inner_text()
    assert said.startswith("row · A.")
    assert f"{len(lit(page)[0])} objects of request A lit here and in 2 other scenes." in said
    player(page, 2).focus()
    page.keyboard.press("Escape")
    assert lit(page) == [[], [], []]
    assert page.get_by_test_id("object").locator("visible=true").count() == 0


@pytest.mark.browser
def test_a_block_is_the_same_only_in_scenes_of_its_trace(together: Together) -> None:
    trace = five_recorded_requests()
    shown = [scenes.step(trace, 3), scenes.block_table(trace), scenes.step(five_requests(), 3)]
    page = together(*shown)
    pick(page, 0, "block:2")
    assert lit(page) == [expected(shown[0], 0, block=2), expected(shown[1], 0, block=2), []]


@pytest.mark.browser
def test_what_is_lit_stays_lit_in_later_frames_and_in_scenes_that_come_later(together: Together) -> None:
    scene = scenes.condense(five_recorded_requests())
    page = together(scene)
    pick(page, 0, "row:E")
    for at in range(1, len(scene)):
        page.keyboard.press("ArrowRight")
        assert lit(page) == [expected(scene, at, request="E")]
    later = "async (payload) => (await copyOfPlayer('later')).mount(document.body, payload).index"
    assert page.evaluate(later, export.payload(scene)) == 0
    assert lit(page)[1] == expected(scene, 0, request="E")


@pytest.mark.browser
def test_another_fact_of_the_object_can_be_lit_instead(together: Together) -> None:
    trace = five_recorded_requests()
    shown = [scenes.condense(trace), scenes.block_table(trace)]
    page = together(*shown)
    pick(page, 0, "row:A")
    facts = player(page, 0).get_by_test_id("facts")
    row = facts.get_by_role("button", name="row 0")
    assert (row.get_attribute("aria-pressed"), facts.get_by_role("button", pressed=True).count()) == ("false", 1)
    row.click()
    assert facts.get_by_role("button", pressed=True).inner_text() == "row 0"
    assert [set(keys) for keys in lit(page)] == [
        {*expected(shown[0], 0, row=0), "row:A"},
        set(expected(shown[1], 0, row=0)),
    ]


# --- one cursor -----------------------------------------------------------------------------------------------


def nearest(scene: Scene, record: int) -> int:
    return max((at for at, frame in enumerate(scene.frames) if frame.record <= record), default=0)


@pytest.mark.browser
def test_moving_one_moves_the_others_to_their_nearest_frame_at_or_before_it(together: Together) -> None:
    trace = five_recorded_requests()
    shown = [scenes.step(trace, 3), scenes.condense(trace), scenes.timeline(trace), scenes.step(trace, 0)]
    page = together(*shown)
    assert frames(page) == [0, 0, 0, 0]
    for at, action in [(0, "next")] * 9 + [(1, "back"), (2, "next"), (2, "first"), (3, "next"), (0, "last")]:
        player(page, at).locator(f"[data-action={action}]").click()
        now = frames(page)
        record = shown[at].frames[now[at]].record
        assert now == [index if i == at else nearest(shown[i], record) for i, index in enumerate(now)]


@pytest.mark.browser
def test_who_follows_is_not_read_out(together: Together) -> None:
    trace = five_recorded_requests()
    page = together(scenes.step(trace, 3), scenes.condense(trace))
    player(page, 0).locator("[data-action=last]").click()
    live = [player(page, at).get_by_test_id("caption").get_attribute("aria-live") for at in (0, 1)]
    assert live == ["polite", "off"]
    player(page, 1).locator("[data-action=back]").click()
    live = [player(page, at).get_by_test_id("caption").get_attribute("aria-live") for at in (0, 1)]
    assert live == ["off", "polite"]


@pytest.mark.browser
def test_the_toggle_is_there_for_scenes_of_one_trace_and_lets_one_go_alone(together: Together) -> None:
    trace = five_recorded_requests()
    page = together(scenes.condense(trace), scenes.condense(trace), scenes.condense(five_requests()))
    toggles = [player(page, at).locator("[data-action=link]") for at in (0, 1, 2)]
    assert [toggle.is_visible() for toggle in toggles] == [True, True, False]
    assert toggles[0].get_attribute("aria-pressed") == "true"
    assert toggles[0].get_attribute("title") == "Go with the other scene of this run (L)"
    player(page, 0).focus()
    page.keyboard.press("l")
    assert toggles[0].get_attribute("aria-pressed") == "false"
    player(page, 0).locator("[data-action=last]").click()
    player(page, 1).locator("[data-action=next]").click()
    assert frames(page) == [5, 1, 0]
    toggles[0].click()
    assert frames(page) == [5, 5, 0], "who joins again leads"
    page.evaluate("views[1].destroy()")
    assert not toggles[0].is_visible()


@pytest.mark.browser
def test_a_scene_that_waits_for_an_answer_neither_follows_nor_leads(together: Together) -> None:
    scene = scenes.condense(five_recorded_requests())
    question = scene.questions[0]
    page = together(question, scene)
    player(page, 1).locator("[data-action=last]").click()
    assert frames(page) == [question.ask_frame, len(scene) - 1]
    player(page, 0).locator("[data-action=reveal]").click()
    page.wait_for_selector(f"[data-pagedlab-question]:has-text('{question.explanation[:20]}')")
    page.wait_for_function(f"views[0].player.index === {question.frame}")
    assert frames(page) == [question.frame, question.frame], "then it leads"


# --- nothing is left behind -----------------------------------------------------------------------------------

_TIMES = """async ([payload, times, isTidy]) => {
    const hosts = document.querySelector('#hosts') ?? document.body.appendChild(document.createElement('div'));
    hosts.id = 'hosts';
    const copy = await window.copyOfPlayer('run');
    for (let time = 0; time < times; time += 1) {
        const cleans = [1, 2].map(() => {
            const el = hosts.appendChild(document.createElement('div'));
            return copy.default.render({ model: { get: () => payload }, el });
        });
        const one = hosts.querySelector('[data-action=speed]');
        one.value = 4;
        one.dispatchEvent(new Event('change', { bubbles: true }));
        const click = (action) => hosts.querySelector(`[data-action=${action}]`).click();
        ['next', 'loop-from', 'look', 'next', 'play'].forEach(click);
        if (isTidy) for (const clean of cleans) clean();
        hosts.replaceChildren();
    }
    // A frame is read in 1.75 s at most at this speed; then one that plays sees that it is not on the page.
    await new Promise((resolve) => setTimeout(resolve, 2000));
}"""


@pytest.mark.browser
@pytest.mark.parametrize(("is_tidy", "times"), [(True, 20), (False, 8)], ids=["cleaned up", "torn out"])
def test_shown_twice_and_run_twenty_times_nothing_is_left(together: Together, is_tidy: bool, times: int) -> None:
    scene = scenes.condense(five_recorded_requests())
    page = together(scene)
    run = [export.payload(scene), times, is_tidy]
    page.evaluate(_TIMES, run)
    cdp = page.context.new_cdp_session(page)
    before = _counters(cdp)
    page.evaluate(_TIMES, run)
    after = _counters(cdp)
    assert page.evaluate("document[Symbol.for('pagedlab.page')].players.length") == 1
    one_player = page.evaluate("document.querySelectorAll('[data-pagedlab-player] *').length")
    assert after["nodes"] - before["nodes"] < one_player / 2, (before, after)
    assert after["jsEventListeners"] - before["jsEventListeners"] <= 4, (before, after)
    assert not page.locator("[data-action=link]").is_visible() or not is_tidy


def _counters(cdp: Any) -> dict[str, int]:
    for _ in range(4):
        cdp.send("HeapProfiler.collectGarbage")
    return cdp.send("Memory.getDOMCounters")
