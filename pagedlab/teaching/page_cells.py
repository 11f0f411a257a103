r"""A lesson that has run, in a form that a page without a kernel can show.

>>> cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": "@exercise('condense')\ndef condense(): ..."}
>>> (output,) = for_page({"cells": [cell]}, "05")["cells"][0]["outputs"]
>>> "`pagedlab check condense condense.py`" in output["data"]["text/markdown"]
True

A player becomes what it plays, a figure what it draws; the page has one script for all of them. Knobs need the kernel:
a sentence says which there are, and where they start. The cell of an exercise says how to check it.

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
import copy
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_WIDGET = "application/vnd.jupyter.widget-view+json"
_FIGURE = "application/vnd.plotly.v1+json"
_FIGURE_HEIGHT = 450
"""Plotly's own, for a figure that asks for none."""

PLAYS, DRAWS = "data-pagedlab-plays", "data-pagedlab-draws"
"""What marks the places of players and of figures."""


def for_page(notebook: Mapping[str, Any], lesson: str) -> dict[str, Any]:
    """Return a notebook that has run as a page shows it.

    Parameters
    ----------
    notebook : mapping
        Its JSON; it is not changed.
    lesson : str
        What the commands of `pagedlab` call it: ``"05"``.
    """
    page = copy.deepcopy(dict(notebook))
    functions: dict[str, ast.FunctionDef] = {}
    for cell in page["cells"]:
        if cell["cell_type"] != "code":
            continue
        nodes = list(ast.walk(ast.parse("".join(cell["source"]))))
        functions |= {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        exercises, knobs = _calls(nodes, "exercise"), _calls(nodes, "knob")
        if exercises:
            cell["outputs"] = [_markdown(_about_exercise(exercises[0], lesson))]
            continue
        sentences = [_markdown(_about_knobs(call, functions, lesson)) for call in knobs]
        cell["outputs"] = [_still(output) for output in _without_widgets(cell["outputs"], sentences)]
    return page


def payloads_in(fragment: str) -> Iterator[dict[str, Any]]:
    """Return what the players of an HTML fragment play: those that `pagedlab.widgets.play` and ``predict`` display."""
    for page in re.findall(r'data-page="([^"]*)"', fragment):
        found = re.search(r'id="pagedlab-data">(.*?)</script>', html.unescape(page), re.DOTALL)
        assert found is not None
        payload: dict[str, Any] = json.loads(found.group(1))
        yield payload


def _calls(nodes: Iterable[ast.AST], name: str) -> list[ast.Call]:
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


# --- what a cell showed ---------------------------------------------------------------------------------------


def _without_widgets(outputs: list[dict[str, Any]], sentences: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave the widgets out; where those of a knob were, and the words that `knob` shows below, put its sentence."""
    rest, sentences_left = iter(outputs), iter(sentences)
    for output in rest:
        if _WIDGET not in output.get("data", {}):
            yield output
        elif (sentence := next(sentences_left, None)) is not None:
            next(rest, None)
            yield sentence


def _still(output: dict[str, Any]) -> dict[str, Any]:
    """Return a player or a figure as data for the page's script, code without a style sheet, others as they are."""
    data = output.get("data", {})
    if _FIGURE in data:
        return _html(_figure(data[_FIGURE]))
    fragment = "".join(data.get("text/html", ""))
    if "data-pagedlab-static" in fragment:
        return _html("".join(f"<div {PLAYS}>{_json(payload)}</div>" for payload in payloads_in(fragment)))
    if '<div class="highlight">' in fragment:
        return _html(re.sub(r"<style>.*?</style>", "", fragment, flags=re.DOTALL))
    return output


def _figure(figure: dict[str, Any]) -> str:
    layout = figure.get("layout", {})
    title = re.sub(r"<[^>]*>", " ", layout.get("title", {}).get("text", "")) or "A chart"
    height = layout.get("height", _FIGURE_HEIGHT)
    drawn = {name: figure[name] for name in ("data", "layout") if name in figure}
    return f'<div {DRAWS} role="img" aria-label="{html.escape(title)}" style="height: {height}px">{_json(drawn)}</div>'


def _json(data: Any) -> str:
    # "<" never appears in the data: neither "</script>" nor "<!--" can end or confuse the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _html(fragment: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": fragment}}


def _markdown(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/markdown": text}}


# --- what needs the kernel --------------------------------------------------------------------------------------


def _about_exercise(call: ast.Call, lesson: str) -> str:
    name = ast.literal_eval(call.args[0])
    return (
        f"**Write it, then have it checked.** In the notebook (`pagedlab lab {lesson}`) the cell is checked when it "
        f"runs. In a terminal, `pagedlab start {name}` writes a file to work in, and `pagedlab check {name} {name}.py` "
        "checks it."
    )


def _about_knobs(call: ast.Call, functions: Mapping[str, ast.FunctionDef], lesson: str) -> str:
    assert isinstance(call.args[0], ast.Name)
    arguments = functions[call.args[0].id].args
    starts = {
        argument.arg: ast.unparse(default)
        for argument, default in zip(arguments.args[-len(arguments.defaults) :], arguments.defaults, strict=True)
    }
    knobs = [f"`{keyword.arg}`{_range(keyword.value)}" for keyword in call.keywords if keyword.arg is not None]
    now = _listed([f"`{keyword.arg} = {starts[keyword.arg]}`" for keyword in call.keywords if keyword.arg is not None])
    one = len(knobs) == 1
    return (
        f"**Here the notebook has {'a knob' if one else 'knobs'}:** {_listed(knobs)}. "
        f"{'It needs' if one else 'They need'} a running kernel: `pagedlab lab {lesson}`. "
        f"This is what there is to see at {now}:"
    )


def _range(choices: ast.expr) -> str:
    """Say where a knob goes, if its choices are numbers that stand in the call."""
    try:
        values = ast.literal_eval(choices)
    except ValueError:
        return ""
    if isinstance(values, tuple):
        return f" ({values[0]} to {values[1]})"
    return f" ({_listed([str(value) for value in values], 'or')})" if isinstance(values[0], int) else ""


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
