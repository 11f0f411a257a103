"""Make docs/scenes.md and its pictures: every scene at a telling moment of a real run (`make images`).

The words are the scenes' own: the first sentence of the function, and the caption of the frame that is shown.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pagedlab import scenes, widgets
from pagedlab.scenes import Scene
from pagedlab.scheduling import StaticBatchScheduler
from pagedlab.teaching import PEOPLE, serve

DOCS = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]


@functools.cache
def shown() -> dict[str, tuple[Callable[..., Scene], Scene, int]]:
    """Return each scene by name, with the frame that is shown."""
    people, chunked = serve().trace, serve(budget=16).trace
    static = serve(scheduler_cls=StaticBatchScheduler).trace
    tight = serve(num_blocks=19).trace
    same_words = {"A": PEOPLE["A"], "B": (PEOPLE["A"][0] + "to be", 6), "C": (PEOPLE["A"][0], 5)}
    cached = serve(same_words, seats=1, prefix_caching=True).trace
    made = {
        "step": (scenes.step, scenes.step(chunked, step=4), "SlotsComputed"),
        "timeline": (scenes.timeline, scenes.timeline(static, people), ""),
        "block_pool": (scenes.block_pool, scenes.block_pool(people, step=3), "BlocksFreed"),
        "block_table": (scenes.block_table, scenes.block_table(people, step=3), "BlockTableCommitted"),
        "slot_mapping": (scenes.slot_mapping, scenes.slot_mapping(chunked, step=4), "SlotsComputed"),
        "condense": (scenes.condense, scenes.condense(people), "RowMoved"),
        "paged_attention": (scenes.paged_attention, scenes.paged_attention(chunked, step=4), ""),
        "preemption": (scenes.preemption, scenes.preemption(tight), "RequestPreempted"),
        "prefix_tree": (scenes.prefix_tree, scenes.prefix_tree(cached), ""),
    }
    return {name: (make, scene, _frame(scene, event)) for name, (make, scene, event) in made.items()}


def _frame(scene: Scene, event: str) -> int:
    """Return the first frame of an event, the middle one if none is named."""
    frames = [at for at, frame in enumerate(scene.frames) if frame.event == event]
    return frames[0] if event and frames else len(scene.frames) // 2


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# The scenes",
        "",
        "Each is one line, `scenes.NAME(trace)`, of the trace of a real run; `widgets.export_html` writes it into a",
        "file that plays without a network. `make images` takes these pictures and makes this page.",
        "",
    ]
    for name, (make, scene, at) in shown().items():
        about = (make.__doc__ or "").strip().split("\n\n")[0]
        lines += [f"## `{name}`", "", " ".join(about.split()), ""]
        lines += [f"![{scene.frames[at].caption}](images/scene-{name}.png)", ""]
    return "\n".join(lines)


def save_images() -> None:
    """Take a picture of each scene with Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        tab = browser.new_page(viewport={"width": 1000, "height": 1600}, reduced_motion="reduce")
        for name, (_, scene, at) in shown().items():
            tab.goto(widgets.export_html(scene, Path(folder) / f"{name}.html").as_uri())
            tab.wait_for_selector("[data-pagedlab-player]")
            for _ in range(at):
                tab.locator("[data-action=next]").click()
            tab.locator("[data-pagedlab-player]").first.screenshot(path=DOCS / "images" / f"scene-{name}.png")
        browser.close()


if __name__ == "__main__":
    (DOCS / "scenes.md").write_text(page(), encoding="utf-8")
    save_images()
