"""`play` and `predict`: show a scene, or a question about it, in a notebook.

Two things are displayed, one above the other, and a style rule shows one of them:

- the whole player as text/html: a frame that holds the page that `export_html` writes;
- the live player, an anywidget.

Where the live player is there or about to come, the frame is hidden and empty: its page waits in an attribute, and
builds no second player. (A browser loads a page of ``srcdoc`` at once, seen or not, whatever ``loading`` says.) In a
saved notebook that is opened without a kernel the widget has no model; JupyterLab would
say "Error displaying widget: model not found", or "Loading widget..." for ever. Then that message is hidden and the
frame plays, with nothing but what is in the file. A notebook that is not trusted shows neither frame nor style, and
says so.

Whoever runs a cell again gets new players; those of the cell's earlier run are closed, lest the kernel keep them all.

vLLM has no counterpart.
"""

from __future__ import annotations

import functools
import html
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pagedlab.errors import LessonError
from pagedlab.scenes.scene import Question, Scene
from pagedlab.widgets.export import encodable, pack, page_of, payload

if TYPE_CHECKING:
    from pagedlab.widgets.player import Player

_OUTPUT = ".jp-OutputArea-child"
_STATIC = '[data-pagedlab-static="paired"]'
_LIVE = "[data-pagedlab-player]"
_RENDERER = ".jp-OutputArea-output"
# What shows the widget: it holds the widget's node when there is one; is itself called a widget when it has failed.
_COMING = f"+ {_OUTPUT} > {_RENDERER} > .lm-Widget:not(.jupyter-widgets-error-widget)"
_FAILED = f"+ {_OUTPUT} > {_RENDERER}.jupyter-widgets"
_WIDGET = ':is(:has([data-mime-type="application/vnd.jupyter.widget-view+json"]), :not(:has([data-mime-type])))'
# JupyterLab 4 marks every output with its MIME type, except a widget's.

_STYLE = f"""
{_OUTPUT}:has({_STATIC}):is(:has(+ {_OUTPUT} {_LIVE}), :has({_COMING})) {{ display: none !important; }}
{_OUTPUT}:has({_STATIC}) + {_OUTPUT}{_WIDGET}:not(:has({_LIVE})) {{ display: none !important; }}
.pagedlab-untrusted {{ display: none; }}
{_STATIC} {{ animation: pagedlab-wait 3s; }}
{_OUTPUT}:has({_FAILED}) {_STATIC} {{ animation: none; }}
@keyframes pagedlab-wait {{ from, 99% {{ transform: translateX(-99999px); max-height: 0; overflow: hidden; }} }}
@media print {{ {_STATIC} {{ animation: none; }} }}
"""

# A frame that comes near the view gets its page, and loses it if the live player comes after all.
_SCRIPT = f"""
(() => {{
  const frame = document.currentScript.parentElement.querySelector("iframe");
  const live = () => frame.closest("{_OUTPUT}")?.nextElementSibling?.querySelector("{_LIVE}");
  const look = ([seen]) => {{
    if (seen.isIntersecting && !frame.srcdoc) frame.srcdoc = frame.dataset.page;
    else if (live()) frame.removeAttribute("srcdoc");
  }};
  new IntersectionObserver(look, {{ rootMargin: "1000px", scrollMargin: "1000px" }}).observe(frame);
}})();
"""


def play(scene: Scene) -> None:
    """Show a scene in the player.

    Parameters
    ----------
    scene : Scene

    Raises
    ------
    LessonError
        Outside a notebook; `export_html` works everywhere.
    """
    _show(scene)


def predict(asked: Scene | Question, answered: Callable[[Question, bool], object] | None = None) -> None:
    """Ask a question: the scene stops, the learner predicts, the scene plays on to the answer.

    Parameters
    ----------
    asked : Scene or Question
        A question of `Scene.questions`; a scene asks all of its own, one below the other.
    answered : callable, optional
        Called with the question, and whether the answer was right, each time the learner answers in the live player.

    Raises
    ------
    LessonError
        Outside a notebook, or if the scene has no question.
    """
    questions = asked.questions if isinstance(asked, Scene) else (asked,)
    if not questions:
        title = asked.title if isinstance(asked, Scene) else "it"
        raise LessonError(f"the scene {title!r} has no question to ask; play it, or choose another step")
    for question in questions:
        player = _show(question)
        if player is not None and answered is not None:
            player.on_answer(functools.partial(answered, question))


def static_html(shown: Scene | Question, *, paired: bool = False, note: str = "") -> str:
    """Return the player as an HTML fragment that needs no kernel.

    Parameters
    ----------
    shown : Scene or Question
    paired : bool
        Whether the live player is displayed right after it.
    note : str
        A line of text to show above.
    """
    return _static_html(shown, pack(payload(shown)), paired=paired, note=note)


def _static_html(shown: Scene | Question, packed: dict[str, Any], *, paired: bool = False, note: str = "") -> str:
    scene = shown if isinstance(shown, Scene) else shown.scene
    title = encodable(scene.title if scene else "Predict")
    frames = len(scene) if scene else 0
    # The stage at its largest, the source below it, the caption, and the transport or the question.
    height = int((scene.height if scene else 300) * 1.22) + 176 + (190 if isinstance(shown, Scene) else 330)
    about = (
        f"Here is the scene “{title}”, {frames} frames. This notebook is not trusted yet: trust it, and it plays here."
    )
    return (
        f'<div data-pagedlab-static="{"paired" if paired else "alone"}"><style>{_STYLE}</style>'
        + (f"<p>{html.escape(note)}</p>" if note else "")
        + f'<p class="pagedlab-untrusted">{html.escape(about)}</p>'
        f'<iframe data-page="{html.escape(page_of(shown, packed, alone=False))}" title="{html.escape(title)}" '
        f'style="width: 100%; height: {height}px; border: 0; display: block; color-scheme: auto"></iframe>'
        f"<script>{_SCRIPT}</script></div>"
    )


def _show(shown: Scene | Question) -> Player | None:
    """Display a scene or a question; return the live player, if there can be one."""
    display = _notebook_display()
    packed = pack(payload(shown))
    if importlib.util.find_spec("anywidget") is None:
        note = "The live player needs anywidget: pip install 'pagedlab[lab]'. Until then, this page plays by itself."
        display({"text/html": _static_html(shown, packed, note=note), "text/plain": _plain(shown)}, raw=True)
        return None
    from pagedlab.widgets.player import Player

    display({"text/html": _static_html(shown, packed, paired=True), "text/plain": _plain(shown)}, raw=True)
    player = Player(shown, payload=packed)
    _close_those_of_earlier_runs(player, *_running())
    display(player)
    return player


_players: dict[str, tuple[str, list[Player]]] = {}
"""By cell: its last run, and the players which that run has made."""


def _close_those_of_earlier_runs(player: Player, cell: str | None, run: str) -> None:
    """Remember a player of this run of a cell; close what an earlier run of the cell has left.

    A re-run has taken the earlier players out of the cell's output, and out of each further view of that output.
    Where one is shown after all (by another notebook with the same kernel and a copy of the cell), the frame above it
    takes over.
    """
    if cell is None:
        return
    last_run, players = _players.get(cell, ("", []))
    if last_run != run:
        for earlier in players:
            earlier.close()
        players = []
    _players[cell] = (run, [*players, player])


def _running() -> tuple[str | None, str]:
    """Which cell runs, as JupyterLab and VS Code tell the kernel, and a name for this run; no cell if nobody says."""
    from IPython import get_ipython  # type: ignore[attr-defined,unused-ignore]

    shell = get_ipython()
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = request.get("metadata", {}).get("cellId")
    return cell, request.get("header", {}).get("msg_id", "")


def _plain(shown: Scene | Question) -> str:
    if isinstance(shown, Question):
        return f"Predict: {encodable(shown.prompt)}"
    return f"Scene {encodable(shown.title)!r}, {len(shown)} frames"


def _notebook_display() -> Any:
    try:
        from IPython import get_ipython  # type: ignore[attr-defined,unused-ignore]
        from IPython.display import display
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if shell is None:
        raise LessonError(
            "a scene plays in a notebook; here there is none. Write it as a page instead: "
            "pagedlab.widgets.export_html(scene, 'scene.html')"
        )
    return display
