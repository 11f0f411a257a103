"""`play` and `predict`: show a scene, or a question about it, in a notebook.

Two things are displayed, one above the other, and a style rule shows one of them:

- the whole player as text/html: a frame that holds the page that `export_html` writes;
- the live player, an anywidget.

While the live player is there, the frame stays hidden and unloaded. In a saved notebook that is opened without a
kernel the widget has no model; JupyterLab would say "Error displaying widget: model not found". Then that message is
hidden and the frame plays, with nothing but what is in the file. A notebook that is not trusted shows neither frame
nor style, and says so.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
import importlib.util
from typing import Any

from pagedlab.errors import LessonError
from pagedlab.scenes.scene import Question, Scene
from pagedlab.widgets.export import to_html

_OUTPUT = ".jp-OutputArea-child"
_STATIC = '[data-pagedlab-static="paired"]'
_LIVE = "[data-pagedlab-player]"
_WIDGET = ':is(:has([data-mime-type="application/vnd.jupyter.widget-view+json"]), :not(:has([data-mime-type])))'
# JupyterLab 4 marks every output with its MIME type, except a widget's.

_STYLE = f"""
{_OUTPUT}:has({_STATIC}):has(+ {_OUTPUT} {_LIVE}) {{ display: none !important; }}
{_OUTPUT}:has({_STATIC}) + {_OUTPUT}{_WIDGET}:not(:has({_LIVE})) {{ display: none !important; }}
.pagedlab-untrusted {{ display: none; }}
{_STATIC} {{ animation: pagedlab-wait 0.7s; }}
@keyframes pagedlab-wait {{ from, 99% {{ opacity: 0; max-height: 0; overflow: hidden; }} }}
@media print {{ {_STATIC} {{ animation: none; }} }}
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


def predict(asked: Scene | Question) -> None:
    """Ask a question: the scene stops, the learner predicts, the scene plays on to the answer.

    Parameters
    ----------
    asked : Scene or Question
        A question of `Scene.questions`; a scene asks all of its own, one below the other.

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
        _show(question)


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
    scene = shown if isinstance(shown, Scene) else shown.scene
    title = scene.title if scene else "Predict"
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
        f'<iframe srcdoc="{html.escape(to_html(shown, alone=False))}" title="{html.escape(title)}" loading="lazy" '
        f'style="width: 100%; height: {height}px; border: 0; display: block; color-scheme: auto"></iframe></div>'
    )


def _show(shown: Scene | Question) -> None:
    display = _notebook_display()
    if importlib.util.find_spec("anywidget") is None:
        note = "The live player needs anywidget: pip install 'pagedlab[lab]'. Until then, this page plays by itself."
        display({"text/html": static_html(shown, note=note), "text/plain": _plain(shown)}, raw=True)
        return
    from pagedlab.widgets.player import Player

    display({"text/html": static_html(shown, paired=True), "text/plain": _plain(shown)}, raw=True)
    display(Player(shown))


def _plain(shown: Scene | Question) -> str:
    if isinstance(shown, Question):
        return f"Predict: {shown.prompt}"
    return f"Scene {shown.title!r}, {len(shown)} frames"


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
