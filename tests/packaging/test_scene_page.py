"""docs/scenes.md shows every scene, in words of the trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pagedlab import scenes

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_every_scene_of_one_trace_in_its_own_words(script: Callable[[Path], ModuleType]) -> None:
    builder = script(DOCS / "build_scenes.py")
    assert (DOCS / "scenes.md").read_text(encoding="utf-8") == builder.page(), "run: make images"
    made = builder.shown()
    for name in made:
        assert (DOCS / "images" / f"scene-{name}.png").stat().st_size > 10_000
    of_a_trace = {
        name
        for name in scenes.__all__
        if inspect.isfunction(getattr(scenes, name))
        and next(iter(inspect.signature(getattr(scenes, name)).parameters)) == "trace"
    }
    assert of_a_trace == set(made)
