"""The live player: an anywidget around ``player.js``.

`Player` needs the extra ``lab``; import this module only where anywidget is installed. `pagedlab.widgets.play` is
the function that lessons call.

Each view of a player steps on its own, in the browser: showing one twice gives two independent players, and a step
asks nothing of the kernel.

vLLM has no counterpart.
"""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from pagedlab.scenes.scene import Question, Scene
from pagedlab.widgets.export import payload, resource


class Player(anywidget.AnyWidget):
    """Plays a scene, or asks a question about one, in a live notebook.

    Parameters
    ----------
    shown : Scene or Question

    Attributes
    ----------
    payload : dict
        What the browser gets: ``{"scene": …}``, with a ``"question"`` to ask.
    """

    _esm = resource("player.js")
    _css = resource("player.css")
    payload = traitlets.Dict().tag(sync=True)

    def __init__(self, shown: Scene | Question, **traits: Any) -> None:
        super().__init__(payload=payload(shown), **traits)

    def __repr__(self) -> str:
        scene = self.payload["scene"]
        return f"<Player of {scene['title']!r}, {len(scene['frames'])} frames>"
