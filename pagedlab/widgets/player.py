"""The live player: an anywidget around ``player.js``.

`Player` needs the extra ``lab``; import this module only where anywidget is installed. `pagedlab.widgets.play` is
the function that lessons call.

Each view of a player steps in the browser: a step asks nothing of the kernel. All views on a page share what is
selected, and those of one trace a cursor, until a reader unlinks one.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from pagedlab.scenes.scene import Question, Scene
from pagedlab.widgets.export import encodable, pack, payload, resource


class Player(anywidget.AnyWidget):
    """Plays a scene, or asks a question about one, in a live notebook.

    Parameters
    ----------
    shown : Scene or Question

    Attributes
    ----------
    payload : dict
        What the browser gets: ``{"scene": …}``, with a ``"question"`` to ask; if it is large, compressed.
    """

    _esm = resource("player.js")
    _css = resource("player.css")
    payload = traitlets.Dict().tag(sync=True)

    def __init__(self, shown: Scene | Question, **traits: Any) -> None:
        if "payload" not in traits:  # else whoever made the page of it has packed it already
            traits["payload"] = pack(payload(shown))
        scene = shown if isinstance(shown, Scene) else shown.scene
        assert scene is not None  # `payload` has seen to it
        self._told = f"{encodable(scene.title)!r}, {len(scene)} frames"
        super().__init__(**traits)

    def on_answer(self, answered: Callable[[bool], object]) -> None:
        """Call ``answered`` whenever the learner has answered the question, with whether that was right."""

        def received(_: Player, content: Any, __: object) -> None:
            if isinstance(content, dict) and isinstance(content.get("answered"), bool):
                answered(content["answered"])

        self.on_msg(received)

    def __repr__(self) -> str:
        return f"<Player of {self._told}>"
