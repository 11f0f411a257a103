"""Every scene in the real JupyterLab and in the real Notebook 7: it shows what the trace says, and a reader can use it.

One notebook has a player of each scene, and a question of each. It runs once in each application, and all tests look at
the page of that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import trace_says
from axe_playwright_python.sync_playwright import Axe
from lab_pages import choose_theme
from lit_actors import lit_for
from notebook_server import Jupyter
from ranks import recorded_ranks

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, scenes
from pagedlab.scenes import Question, Scene
from pagedlab.trace import Trace

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

NAMES = (
    "condense", "block_pool", "block_table", "slot_mapping", "timeline", "step", "preemption", "prefix_tree",
    "context_parallel", "paged_attention",
)  # fmt: skip
FILES = ("run.jsonl", "rank0.jsonl", "rank1.jsonl")
SETUP = f"""
from pathlib import Path
from pagedlab import scenes, widgets
from pagedlab.trace import Trace

run, *ranks = (Trace.loads(Path(name).read_text(encoding="utf-8")) for name in {FILES})
shown = {{}}
"""
PLAYED = ".jp-OutputArea [data-pagedlab-player]:not(:has([data-pagedlab-question]))"


# --- what is shown, and where -------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Recorded:
    """What the engine did, and what it held when each step was over."""

    run: Trace
    held: dict[int, trace_says.Held]
    ranks: tuple[Trace, ...]

    def traces(self, name: str) -> tuple[Trace, ...]:
        return self.ranks if name == "context_parallel" else (self.run,)

    def scene(self, name: str) -> Scene:
        return scenes.context_parallel(self.ranks) if name == "context_parallel" else getattr(scenes, name)(self.run)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Chunks, waits, hits, evictions, preemptions and a hole that is filled; and a request that two ranks share."""
    engine = LLMEngine(
        "quill",
        scheduler_config=SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=11),
        max_model_len=96,
        device="cpu",
    )
    prompts = {"A": "To be, or n", "B": "not to", "C": "To be, that", "D": "he ques", "E": "tion:"}
    lengths = (9, 3, 8, 3, 9)
    run, held = trace_says.run_and_look(engine, [
        (name, prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
        for (name, prompt), length in zip(prompts.items(), lengths, strict=True)
    ])  # fmt: skip
    return Recorded(run, held, recorded_ranks(2))


@dataclass(repr=False)
class Notebook:
    """The notebook in an application, run; and what its page asked of others."""

    page: Any
    recorded: Recorded
    scenes: dict[str, Scene]
    questions: dict[str, int]
    errors: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    to_kernel: list[str | bytes] = field(default_factory=list)
    walks: dict[str, Any] = field(default_factory=dict)

    def player(self, name: str) -> Any:
        return self.page.locator(f"{PLAYED}[data-pagedlab-player={name}]")

    def asking(self, name: str) -> Any:
        return self.page.locator(f"[data-pagedlab-player={name}]:has([data-pagedlab-question])")

    def question(self, name: str) -> Question:
        return self.scenes[name].questions[self.questions[name]]

    def go(self, name: str, frame: int) -> None:
        self.player(name).evaluate(GO, frame)

    def walk(self, name: str) -> Any:
        """What is seen on the way to the last frame and back, one frame at a time."""
        if name not in self.walks:
            self.walks[name] = self.player(name).evaluate(WALK)
        return self.walks[name]

    def told_to_widgets(self) -> int:
        """How many messages of a view have gone to its widget in the kernel."""
        self.page.wait_for_timeout(50)
        return sum(b"comm_msg" in (sent.encode() if isinstance(sent, str) else sent) for sent in self.to_kernel)


def nearest(scene: Scene) -> int:
    """Which question of a scene has its answer nearest by."""
    return min(range(len(scene.asked)), key=lambda at: scene.asked[at].frame - scene.asked[at].ask_frame)


@pytest.fixture(scope="module")
def questions(recorded: Recorded) -> dict[str, int]:
    return {name: nearest(recorded.scene(name)) for name in NAMES}


@pytest.fixture(scope="module")
def server(
    browser: Any, recorded: Recorded, questions: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jupyter]:
    """One server for both: JupyterLab and Notebook are two applications of it."""
    folder = tmp_path_factory.mktemp("notebooks")
    for name, trace in zip(FILES, (recorded.run, *recorded.ranks), strict=True):
        (folder / name).write_text(trace.dumps(), encoding="utf-8")
    played = [
        f"shown[{name!r}] = scenes.{name}({'ranks' if name == 'context_parallel' else 'run'})\n"
        f"widgets.play(shown[{name!r}])"
        for name in NAMES
    ]
    asked = [f"widgets.predict(shown[{name!r}].questions[{at}])" for name, at in questions.items()]
    jupyter = Jupyter(folder, tmp_path_factory.mktemp("home"), [SETUP, *played, *asked])
    yield jupyter
    jupyter.stop()


@pytest.fixture(scope="module", params=["lab", pytest.param("notebook", marks=pytest.mark.thorough)])
def notebook(
    request: pytest.FixtureRequest, browser: Any, server: Jupyter, recorded: Recorded, questions: dict[str, int]
) -> Iterator[Notebook]:
    page = server.new_page(browser)
    page.emulate_media(reduced_motion="reduce")
    opened = Notebook(page, recorded, {name: recorded.scene(name) for name in NAMES}, questions)
    own = (f"{server.origin}/", f"{server.origin.replace('http', 'ws', 1)}/", "data:", "blob:")
    page.on("request", lambda sent: None if sent.url.startswith(own) else opened.stray.append(sent.url))
    page.on("websocket", lambda socket: socket.on("framesent", lambda sent: opened.to_kernel.append(sent)))
    server.app = request.param
    server.visit(page)
    page.on("pageerror", lambda error: opened.errors.append(error.stack))  # from here on it may be the player's
    server.run_all(page)
    for name in NAMES:
        opened.player(name).wait_for(state="attached")
        opened.asking(name).wait_for(state="attached")
    yield opened
    page.context.close()


every_scene = pytest.mark.parametrize("name", NAMES)


GO = """(root, to) => {
    const scrubber = root.querySelector('[data-action=scrub]');
    scrubber.value = to;
    scrubber.dispatchEvent(new Event('input', { bubbles: true }));
}"""
WALK = """(root) => {
    const click = (action) => root.querySelector(`[data-action=${action}]`).click();
    const caption = root.querySelector('[data-testid=caption]');
    const drawn = () => {
        const copy = document.createElement('div');
        for (const node of root.querySelectorAll('.pl-stage > g, .pl-caption, .pl-count, .pl-subtitle')) {
            copy.append(node.cloneNode(true));
        }
        copy.querySelector('.pl-caption').removeAttribute('aria-live'); // it says who leads
        return copy;
    };
    const seen = () => ({
        frame: Number(root.dataset.frame),
        caption: caption.textContent.replace(/\\s+/g, ' ').trim(),
        live: [caption.getAttribute('role'), caption.getAttribute('aria-live')],
        actors: Object.fromEntries([...root.querySelectorAll('.pl-actor')].map((node) => {
            const { key, ...facts } = node.dataset;
            return [key, { facts, texts: [...node.querySelectorAll('text')].map((text) => text.textContent) }];
        })),
    });
    const scrubber = root.querySelector('[data-action=scrub]');
    const last = Number(scrubber.max);
    click('link'); // the others need not come along
    click('next');
    click('first'); // whoever leads is read out
    const frames = [seen()], before = [drawn()];
    while (frames.length <= last) {
        click('next');
        frames.push(seen());
        before.push(drawn());
    }
    const back = [], jumped = [];
    for (let at = last - 1; at >= 0; at -= 1) {
        click('back');
        if (!drawn().isEqualNode(before[at])) back.push(at);
    }
    for (const at of [last, 0, last >> 1, last - 1, 1]) {
        scrubber.value = at;
        scrubber.dispatchEvent(new Event('input', { bubbles: true }));
        if (!drawn().isEqualNode(before[at])) jumped.push(at);
    }
    click('first');
    click('link');
    const still = before.flatMap((one, at) => (at && one.isEqualNode(before[at - 1]) ? [at] : []));
    return { frames, back, jumped, still };
}"""


# --- what is seen -------------------------------------------------------------------------------------------------


def test_the_engine_held_what_its_events_say(recorded: Recorded) -> None:
    assert len(recorded.held) == recorded.run.num_steps > 10
    for record, held in recorded.held.items():
        now = trace_says.moment(recorded.run, record)
        assert tuple(request for _, request in sorted(now.rows.items())) == held.rows
        assert {request: now.table[request] for request in held.rows} == held.table
        assert now.free(recorded.run.settings["num_blocks"]) == sorted(held.free_queue)


@every_scene
def test_each_frame_shows_what_the_trace_says(notebook: Notebook, name: str) -> None:
    scene, traces = notebook.scenes[name], notebook.recorded.traces(name)
    walk = notebook.walk(name)
    assert len(walk["frames"]) == len(scene) > 5
    for frame, seen in zip(scene.frames, walk["frames"], strict=True):
        claim = trace_says.claim(name, traces, frame.record)
        assert claim
        shown = {key: actor["facts"] for key, actor in seen["actors"].items()}
        assert [*trace_says.wrong(claim, shown)] == [], f"frame {seen['frame']}"


@pytest.mark.parametrize("name", ["block_pool", "preemption", "prefix_tree"])
def test_the_free_queue_is_in_the_engines_own_order(notebook: Notebook, name: str) -> None:
    compared = 0
    for frame, seen in zip(notebook.scenes[name].frames, notebook.walk(name)["frames"], strict=True):
        # The record that ends a step is the last one, and changes nothing.
        ends = [notebook.recorded.held.get(record) for record in (frame.record, frame.record + 1)]
        for held in filter(None, ends):
            actors = seen["actors"]
            if name == "block_pool":
                place = {key: actor.x for key, actor in frame.stage.items()}
                queue = [actors[key]["facts"]["block"] for key in sorted(place, key=place.__getitem__)
                         if key.startswith("queued:")]  # fmt: skip
            else:
                queue = actors["queue"]["facts"]["queue"].split()
            assert queue == [str(block) for block in held.free_queue]
            compared += 1
    assert compared


@every_scene
def test_each_frame_is_drawn_and_said(notebook: Notebook, name: str) -> None:
    for at, (frame, seen) in enumerate(zip(notebook.scenes[name].frames, notebook.walk(name)["frames"], strict=True)):
        assert seen["frame"] == at
        assert seen["caption"] == " ".join(frame.caption.split())
        assert seen["live"] == ["status", "polite"]
        words = {
            key: [part.text for part in actor.parts if part.kind in ("cell", "chip", "text")]
            for key, actor in frame.stage.items()
        }
        assert {key: actor["texts"] for key, actor in seen["actors"].items()} == words


@every_scene
def test_back_after_next_restores_stage_and_caption_exactly(notebook: Notebook, name: str) -> None:
    walk = notebook.walk(name)
    assert (walk["back"], walk["jumped"], walk["still"]) == ([], [], [])


def test_stepping_tells_the_kernel_nothing(notebook: Notebook) -> None:
    before = notebook.told_to_widgets()
    for name in NAMES:
        notebook.go(name, 1)
    assert notebook.told_to_widgets() == before


# --- what a reader does -------------------------------------------------------------------------------------------


CELLS = """() => [...document.querySelectorAll('.jp-Cell')].map((cell) => cell.classList.contains('jp-mod-active'))"""


@every_scene
def test_keys_step_and_play_and_the_notebook_does_not_take_them(notebook: Notebook, name: str) -> None:
    page, player, last = notebook.page, notebook.player(name), len(notebook.scenes[name]) - 1
    notebook.go(name, 0)
    player.focus()
    cells = page.evaluate(CELLS)
    page.keyboard.press("l")
    assert player.locator("[data-action=link]").get_attribute("aria-pressed") == "false"
    keys = (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("ArrowLeft", last - 1), ("Home", 0))
    for key, frame in keys:
        page.keyboard.press(key)
        assert player.get_attribute("data-frame") == str(frame), key
    play = player.locator("[data-action=play]")
    page.keyboard.press("Space")
    assert (play.get_attribute("aria-label"), player.get_attribute("data-frame")) == ("Pause", "1")
    page.keyboard.press("Space")
    assert play.get_attribute("aria-label") == "Play"
    page.keyboard.press("Home")
    page.keyboard.press("l")
    assert player.locator("[data-action=link]").get_attribute("aria-pressed") == "true"
    assert page.evaluate(CELLS) == cells


WHERE = """(root, request) => {
    for (const node of root.querySelectorAll('.pl-actor.is-object')) {
        if (node.dataset.request !== request) continue;
        for (const text of node.querySelectorAll('text')) {
            if (!text.textContent.trim()) continue;
            text.scrollIntoView({ block: 'center' });
            const { left, top, width, height } = text.getBoundingClientRect();
            const [x, y] = [left + width / 2, top + height / 2];
            if (document.elementFromPoint(x, y)?.closest('.pl-actor') === node) return { key: node.dataset.key, x, y };
        }
    }
    return null;
}"""
LIT = """(names) => names.map((name) => {
    const root = document.querySelector(`[data-pagedlab-player=${name}]:not(:has([data-pagedlab-question]))`);
    const lit = [...root.querySelectorAll('.pl-glow')].map((glow) => glow.parentNode.dataset.key);
    return [Number(root.dataset.frame), lit];
})"""


@every_scene
def test_a_request_that_is_selected_lights_in_every_scene(notebook: Notebook, name: str) -> None:
    page, player = notebook.page, notebook.player(name)
    notebook.go(name, 2)
    place = player.evaluate(WHERE, "A")
    assert place, "A is on the stage"
    page.mouse.click(place["x"], place["y"])
    assert player.get_by_test_id("object").is_visible()
    for each, (frame, keys) in zip(NAMES, page.evaluate(LIT, NAMES), strict=True):
        lit = lit_for(notebook.scenes[each], frame, request="A")
        assert set(keys) == lit | ({place["key"]} if each == name else set()), each
    page.keyboard.press("Escape")
    assert [keys for _, keys in page.evaluate(LIT, NAMES)] == [[] for _ in NAMES]


def answer(form: Any, question: Question, given: str) -> None:
    if question.kind == "choice":
        form.get_by_label(given, exact=True).check()
    else:
        form.get_by_test_id("number").fill(given)
    form.locator("[data-action=check]").click()


@every_scene
def test_a_wrong_prediction_gets_its_reason_and_a_right_one_plays_on(notebook: Notebook, name: str) -> None:
    question, asking = notebook.question(name), notebook.asking(name)
    form, verdict = asking.locator("form"), asking.get_by_test_id("verdict")
    told = notebook.told_to_widgets()
    assert asking.get_by_test_id("prompt").text_content().split() == ["Predict", *question.prompt.split()]
    wrong = next(given for given in question.reasons if given != question.answer)
    answer(form, question, wrong)
    assert verdict.inner_text() == f"Not quite. {question.reasons[wrong]}"
    assert asking.get_attribute("data-frame") == str(question.ask_frame)
    answer(form, question, question.answer)
    assert verdict.inner_text() == f"Right. {question.explanation}"
    assert verdict.get_attribute("aria-live") == "polite"
    for _ in range(60):
        if notebook.told_to_widgets() >= told + 2:
            break
    assert notebook.told_to_widgets() == told + 2, "the kernel hears of both answers"
    notebook.page.wait_for_function(
        "([root, frame]) => root.dataset.frame === frame", arg=[asking.element_handle(), str(question.frame)]
    )


def first_change(scene: Scene) -> tuple[int, str]:
    """The first frame to which an actor moves, else the first in which one enters, and the actor."""
    moves, enters = [], []
    for at in range(1, len(scene)):
        before, after = scene.frames[at - 1].stage, scene.frames[at].stage
        enters += [(at, key) for key in after if key not in before]
        moves += [
            (at, key)
            for key in before.keys() & after.keys()
            if abs(before[key].x - after[key].x) + abs(before[key].y - after[key].y) > 5
        ]
    return min(moves or enters)


STEP_TO = """([root, frame, key]) => {
    const scrubber = root.querySelector('[data-action=scrub]');
    scrubber.value = frame - 1;
    scrubber.dispatchEvent(new Event('input', { bubbles: true }));
    root.querySelector('[data-action=next]').click();
    const node = [...root.querySelectorAll('.pl-actor:not(.pl-leave)')].find((one) => one.dataset.key === key);
    const { transitionDuration, animationDuration } = getComputedStyle(node);
    const times = `${transitionDuration}, ${animationDuration}`.split(', ').map(parseFloat);
    const place = node.getBoundingClientRect();
    return new Promise((done) => setTimeout(() => {
        const later = node.getBoundingClientRect();
        const leaving = root.querySelectorAll('.pl-leave').length;
        done({ seconds: Math.max(...times), stays: place.x === later.x && place.y === later.y, leaving });
    }, 60));
}"""


@every_scene
def test_what_changes_moves_unless_motion_is_to_be_reduced(notebook: Notebook, name: str) -> None:
    frame, key = first_change(notebook.scenes[name])
    what = [notebook.player(name).element_handle(), frame, key]
    notebook.page.emulate_media(reduced_motion="no-preference")
    assert notebook.page.evaluate(STEP_TO, what)["seconds"] == 0.35
    notebook.page.emulate_media(reduced_motion="reduce")
    assert notebook.page.evaluate(STEP_TO, what) == {"seconds": 0, "stays": True, "leaving": 0}


# --- how it looks -------------------------------------------------------------------------------------------------

LOOK = """(root) => {
    const pen = document.createElement('canvas').getContext('2d');
    const grey = (colour) => {
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
        return (r + g + b) / 3;
    };
    const { backgroundColor, color } = getComputedStyle(root);
    const text = root.querySelector('.pl-stage text');
    return [grey(backgroundColor), grey(color), grey(getComputedStyle(text).fill)];
}"""


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_all_scenes_follow_the_theme_and_axe_finds_nothing_serious(notebook: Notebook, theme: str) -> None:
    page = notebook.page
    choose_theme(page, f"JupyterLab {theme}")
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'Light').lower()}'")
    for name in NAMES:
        for shown in (notebook.player(name), notebook.asking(name)):
            ground, ink, drawn = shown.evaluate(LOOK)
            assert (ground > 200 and ink < 100 and drawn < 130) if theme == "Light" else (ground < 60 and ink > 180)
            assert abs(ground - drawn) > 100
    where, what = {"include": [[PLAYED], [".pl-question"]]}, {"resultTypes": ["violations"]}
    found = Axe().run(page, context=where, options=what).response
    assert len(found["passes"]) > 10
    assert [
        f"{one['id']}: {node['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ] == []


def test_the_page_has_asked_nothing_of_another_machine_and_no_script_has_failed(notebook: Notebook) -> None:
    assert (notebook.stray, notebook.errors) == ([], [])
