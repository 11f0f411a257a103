"""What tests of the player share: `traces`, the scenes' stand-in for the engine; all scenes; players on one page."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record, scenes
from pagedlab.scenes import Question, Scene
from pagedlab.trace import Trace
from pagedlab.widgets import export, export_html

for folder in ("scenes", "widgets"):  # what tests share stands beside them
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes ``make_scene`` each function that makes a scene of a trace."""
    if "make_scene" in metafunc.fixturenames:
        public = [getattr(scenes, name) for name in scenes.__all__]
        makers = [
            made
            for made in public
            if inspect.isfunction(made) and str(inspect.signature(made).return_annotation).endswith("Scene")
        ]
        assert len(makers) >= 5, makers
        metafunc.parametrize("make_scene", makers, ids=lambda made: made.__name__)


def _record_events(*names: str) -> Trace:
    """Record what every scene has something to show of: chunks, waits, hits, preemptions, holes that are filled."""
    engine = LLMEngine(
        "quill",
        scheduler_config=SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=11),
        max_model_len=96,
        device="cpu",
    )
    recorder = record(engine)
    prompts = ("To be, or n", "not to", "To be, that", "he ques", "tion:")
    for name, prompt, length in zip(names, prompts, (9, 3, 8, 3, 9), strict=True):
        engine.add_request(name, prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.stop()


@pytest.fixture(scope="session")
def eventful_trace() -> Trace:
    """Return the trace of a run in which much happens, to requests A to E."""
    return _record_events(*"ABCDE")


@pytest.fixture(scope="session")
def hostile_names() -> list[str]:
    return ["<img src=x onerror=\"document.title='broken'\">", "x" * 10_000, "\u202eשלום عالم", "👩‍🚀🧵🏳️‍🌈", ""]


@pytest.fixture(scope="session")
def hostile_trace(hostile_names: list[str]) -> Trace:
    """Return the trace of such a run, of requests with names that nobody can trust; one of them no engine takes."""
    text = _record_events(*(f"hostile {at}" for at in range(5))).dumps()
    for at, name in enumerate(hostile_names):
        text = text.replace(f'"hostile {at}"', json.dumps(name))
    return Trace.loads(text)


class Window:
    """Exported pages in a browser, opened from disk, the network blocked.

    A page that asks the network for something, or errs, fails the test.

    Attributes
    ----------
    motion : str
        What Playwright's ``reduced_motion`` is, unless `open` is told otherwise.
    schemes : tuple of str
        How the addresses begin that a page may ask for.
    """

    def __init__(self, browser: Any, folder: Path) -> None:
        self._browser, self._folder = browser, folder
        self._contexts: list[Any] = []
        self._errors: list[str] = []
        self._requests: list[str] = []
        self.motion = "reduce"
        self.schemes: tuple[str, ...] = ("file:", "data:", "blob:")

    def open(self, shown: Scene | Question, *, width: int = 1200, height: int = 900, **options: Any) -> Any:
        """Open a scene or a question; ``options`` are those of a Playwright context."""
        settings = {"viewport": {"width": width, "height": height}, "offline": True, "reduced_motion": self.motion}
        context = self._browser.new_context(**settings | options)
        self._contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self._requests.append(request.url))
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.on("console", lambda message: self._errors.append(message.text) if message.type == "error" else None)
        page.goto(export_html(shown, self._folder / "page.html").as_uri())
        page.wait_for_selector("[data-pagedlab-player]")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        assert [url for url in self._requests if not url.startswith(self.schemes)] == []
        assert self._errors == []


@pytest.fixture
def window(browser: Any, tmp_path: Path) -> Iterator[Window]:
    opened = Window(browser, tmp_path)
    yield opened
    opened.close()


_MOUNT = """async ([source, style, payloads]) => {
    document.documentElement.lang = 'en';
    document.head.appendChild(document.createElement('style')).textContent = style;
    // Each widget of a notebook evaluates a copy of its own of the module.
    window.copyOfPlayer = (mark) => import('data:text/javascript,' + encodeURIComponent(`${source}// ${mark}`));
    window.views = [];
    for (const payload of payloads) {
        const player = await window.copyOfPlayer(window.views.length);
        window.views.push(player.mount(document.body.appendChild(document.createElement('div')), payload));
    }
}"""


@pytest.fixture
def together(browser: Any) -> Iterator[Callable[..., Any]]:
    """Show several scenes or questions on one page, as a live notebook does; the page may not err."""
    contexts: list[Any] = []
    errors: list[str] = []

    def show(*shown: Scene | Question, **options: Any) -> Any:
        settings = {"viewport": {"width": 1200, "height": 900}, "offline": True, "reduced_motion": "reduce"} | options
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        sources = [export.resource("player.js"), export.resource("player.css")]
        page.evaluate(_MOUNT, [*sources, [export.payload(item) for item in shown]])
        return page

    yield show
    for context in contexts:
        context.close()
    assert errors == []
