"""The player: scenes in a notebook, or as one offline page; predict, then reveal.

    widgets.play(scene)                       # in a notebook
    widgets.predict(scene.questions[0])       # stop, ask, reveal
    widgets.export_html(scene, "step.html")   # anywhere: one file, no network

`export_html` needs nothing beyond the core; the live player needs the extra ``lab`` (anywidget).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagedlab.widgets.display import play, predict, static_html
from pagedlab.widgets.export import export_html, to_html

if TYPE_CHECKING:
    from pagedlab.widgets.player import Player

__all__ = ["Player", "export_html", "play", "predict", "static_html", "to_html"]


def __getattr__(name: str) -> Any:
    if name != "Player":
        raise AttributeError(f"module 'pagedlab.widgets' has no attribute {name!r}")
    from pagedlab.widgets.player import Player

    return Player
