"""What a lesson's cells use to talk: text with computed numbers, and a knob to turn.

>>> say(f"Seven times six is **{7 * 6}**.")
Seven times six is 42.

In a notebook `say` shows Markdown, `play` and `predict` show the player, `knob` shows sliders. In plain Python (a
lesson that runs without Jupyter) they print the same in words, and `knob` runs its function once, with its defaults.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from pagedlab import widgets
from pagedlab.errors import LessonError, PagedlabError
from pagedlab.scenes import Question, Scene


def in_notebook() -> bool:
    """Whether the code runs in an IPython session, such as a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def say(markdown: str) -> None:
    """Show ``markdown``; in plain Python, print it without its marks."""
    if in_notebook():
        from IPython.display import Markdown, display

        display(Markdown(markdown))
    else:
        print(re.sub(r"\*\*|`|\[([^]]*)\]\([^)]*\)", r"\1", markdown))


def show_source(code: Callable[..., object] | str) -> None:
    """Show a function's source, or a source text, without its docstring: the lines that run."""
    source = _without_docstring(code if isinstance(code, str) else textwrap.dedent(inspect.getsource(code)))
    if in_notebook():
        from IPython.display import Code, display

        display(Code(source, language="python"))
    else:
        print(source)


def _without_docstring(source: str) -> str:
    function = ast.parse(source).body[0]
    lines = source.splitlines()
    if isinstance(function, ast.FunctionDef) and ast.get_docstring(function) is not None:
        docstring = function.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(lines)


def play(scene: Scene) -> None:
    """Show a scene in the player; in plain Python, tell it frame by frame."""
    if in_notebook():
        widgets.play(scene)
        return
    print(scene.title)
    for number, frame in enumerate(scene.frames, start=1):
        print(f"{number:>3}. {frame.caption}")


def predict(question: Question) -> None:
    """Ask a question and reveal the answer when the learner has given theirs; in plain Python, below the question."""
    if in_notebook():
        widgets.predict(question, _count)
        return
    print(f"Predict: {question.prompt}")
    for choice in question.choices:
        print(f"  - {choice}")
    print(f"It is {question.answer}. {question.explanation}")


def _count(question: Question, right: bool) -> None:
    """Keep what the learner answered. Where progress cannot be kept, an answer is just an answer."""
    from pagedlab.teaching.exercises.progress import ProgressBook

    with contextlib.suppress(PagedlabError):
        scene = question.scene.title if question.scene is not None else "a scene"
        ProgressBook().count_prediction(f"{scene}: {question.prompt}", right=right)


def knob(function: Callable[..., object], **choices: Any) -> None:
    """Call ``function`` now, and again whenever the learner turns a knob.

    Parameters
    ----------
    function : callable
        Takes one keyword argument for each knob; each has a default, which is where the knob starts.
    **choices : list or tuple
        For each knob what `ipywidgets.interactive` takes: ``(lowest, highest, step)`` makes a slider, a list a menu.

    Notes
    -----
    What ``function`` shows is ordinary output of the cell, so a saved notebook holds it. Each turn replaces it, thing
    by thing: a call may show fewer things than the first one did, but not more.
    """
    if not in_notebook() or find_spec("ipywidgets") is None:
        function()
        return
    from IPython.display import Markdown, display
    from ipywidgets import VBox, interactive

    controls = {}
    for name, choice in choices.items():
        control = interactive.widget_from_abbrev(choice, inspect.signature(function).parameters[name].default)
        control.description = name
        control.style.description_width = "initial"
        if hasattr(control, "continuous_update"):
            control.continuous_update = False  # run once the slider is let go, not on the way
        controls[name] = control
    display(VBox(list(controls.values())))
    display(Markdown("*No knobs here? They need a running kernel: run this cell.*"))
    handles = [display(bundle, raw=True, display_id=True) for bundle in _shown_by(function)]

    def turned(_: object) -> None:
        try:
            bundles = _shown_by(function, **{name: control.value for name, control in controls.items()})
            if len(bundles) > len(handles):
                raise LessonError(f"{len(bundles)} things to show; the first call showed {len(handles)}")
        except Exception as error:  # a callback has no cell in which it could fail
            bundles = [{"text/plain": f"{type(error).__name__}: {error}"}]
        for index, handle in enumerate(handles):
            handle.update(bundles[index] if index < len(bundles) else {"text/plain": ""}, raw=True)

    for control in controls.values():
        control.observe(turned, names="value")


def _shown_by(function: Callable[..., object], **values: Any) -> list[dict[str, Any]]:
    """Call ``function`` and return what it displays as MIME bundles; what it prints comes first."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        function(**values)
    printed = [{"text/plain": captured.stdout}] if captured.stdout else []
    return printed + [output.data for output in captured.outputs]
