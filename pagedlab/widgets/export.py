"""One offline HTML page of a scene: the player, its style and the data, nothing from the network.

>>> from pagedlab.scenes import Actor, Frame, Scene
>>> scene = Scene("tiny", "Tiny", 120, 40, (Frame("0", Actor("a", 0, 0), change="</script><b>not markup</b>"),))
>>> page = to_html(scene)
>>> "</script><b>" in page, "https://" in page
(False, False)

The page forbids itself everything but its own script and style (Content-Security-Policy, by hash) and, as images, what
stands in it: "Save picture" makes an SVG or a PNG of a frame there, for slides, with the player's own drawing.

vLLM has no counterpart.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from pagedlab.files import replace_file
from pagedlab.scenes.scene import Question, Scene

_BOOT = """
boot(document.querySelector("main"), JSON.parse(document.querySelector("#pagedlab-data").textContent));
"""

_PAGE_STYLE = """
html { color-scheme: light dark; }
body { margin: 0; background: transparent; }
body[data-alone] { background: light-dark(#eef1f4, #0b0d10); }
body[data-alone] main { max-width: 1280px; margin: 0 auto; padding: 20px; }
@media (max-width: 640px) { body[data-alone] main { padding: 6px; } }
@media print { body[data-alone] { background: none; } }
"""


def resource(name: str) -> str:
    """Return the text of a file that ships beside this module."""
    return files("pagedlab.widgets").joinpath(name).read_text(encoding="utf-8")


def payload(shown: Scene | Question) -> dict[str, Any]:
    """Return what the player's ``mount`` takes: ``{"scene": …}``, with a ``"question"`` to ask.

    Raises
    ------
    ValueError
        If a question does not know its scene; take it from `Scene.questions`.
    """
    if isinstance(shown, Scene):
        return _encodable_data({"scene": shown.to_json()})
    if shown.scene is None:
        raise ValueError(f"this question has no scene to play: take it from scene.questions ({shown.prompt!r})")
    return _encodable_data({"scene": shown.scene.to_json(), "question": shown.to_json()})


_LARGE = 256 * 1024
"""From so many characters of JSON on a payload is compressed."""


def pack(data: dict[str, Any]) -> dict[str, Any]:
    """Return a payload as a page or a notebook keeps it: as it is, or a large one as compressed text.

    A saved notebook holds it twice, for the live player and for the frame, and as a list takes a line for each number.

    >>> pack({"scene": "small"})
    {'scene': 'small'}
    >>> len(pack({"scene": "large " * 100_000})["packed"]) < 2_000
    True
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if len(text) < _LARGE:
        return data
    return {"packed": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}


_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    r"""Return ``text`` with its lone surrogates, which neither UTF-8 nor a kernel's messages can hold, spelled out.

    >>> encodable("a\ud800")
    'a\\ud800'
    """
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _encodable_data(data: dict[str, Any]) -> dict[str, Any]:
    """Spell out lone surrogates in all texts, keys too: what was different stays different."""
    text = json.dumps(data, ensure_ascii=False)
    if not _SURROGATE.search(text):
        return data
    spelled: dict[str, Any] = json.loads(_SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text))
    return spelled


def to_html(shown: Scene | Question, *, alone: bool = True) -> str:
    """Return a self-contained page.

    Parameters
    ----------
    shown : Scene or Question
    alone : bool
        Whether the page stands alone in a browser; otherwise it is made for a frame in a notebook.
    """
    return page_of(shown, pack(payload(shown)), alone=alone)


def page_of(shown: Scene | Question, packed: dict[str, Any], *, alone: bool) -> str:
    """Return the page of `to_html`, for what its payload is `pack` ed into."""
    title = encodable(shown.title) if isinstance(shown, Scene) else "Predict"
    script = resource("player.js") + _BOOT
    style = resource("player.css") + _PAGE_STYLE
    # "<" never appears in the data: neither "</script>" nor "<!--" can end or confuse the element.
    data = json.dumps(packed, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    own = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    policy = f"default-src 'none'; {own}; base-uri 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="generator" content="pagedlab">
<title>{html.escape(title)} · pagedlab</title>
<style>{style}</style>
</head>
<body{" data-alone" if alone else ""}>
<main></main>
<noscript>This page plays a recorded scene and needs JavaScript; it uses no network.</noscript>
<script type="application/json" id="pagedlab-data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def export_html(shown: Scene | Question, path: str | Path) -> Path:
    """Write a scene, or a question about one, as one offline page.

    Parameters
    ----------
    shown : Scene or Question
    path : str or Path
        The file to write; its folder must exist. It appears, or is replaced, when the whole page is made.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    replace_file(path, to_html(shown).encode())
    return path


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
