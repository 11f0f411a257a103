"""A verdict in a notebook: an HTML fragment, and buttons for the next hint and for the play where widgets live.

Whatever comes from a submission (names, values, what it printed) is text and is escaped.

vLLM has no counterpart.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from pagedlab.printing import harmless
from pagedlab.teaching.exercises.hints import LEVELS, Hint
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.verdict import Verdict
from pagedlab.widgets.export import encodable

_STYLE = """
.pagedlab-verdict { border: 1px solid var(--jp-border-color1, #bbb); border-left: 4px solid; border-radius: 4px;
  padding: 8px 12px; margin: 4px 0; max-width: 960px; font-size: 14px; line-height: 1.45;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent); }
.pagedlab-verdict[data-passed="true"] { border-left-color: #009e73; }
.pagedlab-verdict[data-passed="false"] { border-left-color: #d55e00; }
.pagedlab-verdict p { margin: 4px 0; overflow-wrap: anywhere; }
.pagedlab-verdict table { border-collapse: collapse; margin: 6px 0; }
.pagedlab-verdict :is(th, td) { text-align: left !important; vertical-align: top; padding: 2px 10px;
  border-bottom: 1px solid var(--jp-border-color2, #ddd); font-size: 13px; font-weight: normal;
  overflow-wrap: anywhere; }
.pagedlab-verdict :is(td, code, pre) { font-family: var(--jp-code-font-family, monospace); font-size: 13px; }
.pagedlab-verdict th[scope="row"] { white-space: nowrap; font-family: var(--jp-code-font-family, monospace); }
.pagedlab-verdict tr[data-differs] > * { font-weight: bold; }
.pagedlab-verdict pre { max-height: 12em; overflow: auto; white-space: pre-wrap; margin: 4px 0; }
.pagedlab-verdict .pagedlab-quiet { color: var(--jp-ui-font-color2, #666); font-size: 13px; }
"""


def to_html(verdict: Verdict) -> str:
    """Return the verdict as an HTML fragment."""
    return encodable("\n".join(_fragment(verdict)))


def _fragment(verdict: Verdict) -> Iterator[str]:
    passed = "true" if verdict.passed else "false"
    yield f'<div class="pagedlab-verdict" data-passed="{passed}" role="status"><style>{_STYLE}</style>'
    mark = "\N{CHECK MARK}" if verdict.passed else "\N{MULTIPLICATION SIGN}"
    yield f"<p><strong>{mark} {html.escape(verdict.headline)}</strong> {_inline(verdict.message)}</p>"
    if verdict.place:
        yield f"<p><code>{html.escape(verdict.place)}</code></p>"
    if verdict.inputs is not None:
        why = f" ({html.escape(verdict.why)})" if verdict.why else ""
        yield f"<p>With this input{why}:</p><table>"
        yield from (f"<tr>{_cells(name, value)}</tr>" for name, value in verdict.input_lines)
        yield "</table>"
    if verdict.also:
        yield f"<p>It is wrong, too, on {html.escape(verdict.also)}.</p>"
    if rows := verdict.beside:
        yield '<table><tr><th></th><th scope="col">yours</th><th scope="col">the reference</th></tr>'
        for name, yours, expected, differs in rows:
            mark = "\N{RIGHTWARDS ARROW} " if differs else ""
            yield f"<tr{' data-differs' if differs else ''}>{_cells(mark + name, yours, expected)}</tr>"
        yield "</table>"
    if verdict.printed:
        yield f"<p>It printed:</p><pre>{html.escape(chr(10).join(verdict.printed_lines))}</pre>"
    if verdict.hint is not None:
        yield hint_to_html(verdict.hint)
    notes = " ".join(map(html.escape, verdict.notes))
    yield f'<p class="pagedlab-quiet">{notes} {verdict.num_inputs} inputs tried in {verdict.seconds:.1f} s.</p></div>'


def _cells(name: str, *values: str) -> str:
    return f'<th scope="row">{html.escape(name)}</th>' + "".join(f"<td>{html.escape(value)}</td>" for value in values)


def hint_to_html(hint: Hint) -> str:
    """Return a hint as a paragraph."""
    return f"<p><strong>Hint {hint.level} of {LEVELS}.</strong> {_inline(hint.text)}</p>"


def _inline(markdown: str) -> str:
    """Turn the little Markdown of messages and hints (code, emphasis) into HTML."""
    text = html.escape(markdown, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"(?<!\*)\*([^*]+)\*(?!\*)", r"<em>\1</em>", text)


def show(entry: Entry, verdict: Verdict) -> None:
    """Show a verdict: in a notebook as HTML, with buttons; elsewhere as text."""
    from pagedlab.teaching.telling import in_notebook

    if not in_notebook():
        print(harmless(verdict.text))
        return
    from IPython.display import display

    display({"text/html": to_html(verdict), "text/plain": encodable(verdict.text)}, raw=True)
    if find_spec("ipywidgets") is not None and (verdict.hint is not None or verdict.played is not None):
        display(_buttons(entry, verdict))


def _buttons(entry: Entry, verdict: Verdict) -> Any:
    """Return buttons that show the next hint, and the play, below themselves."""
    import ipywidgets
    from IPython.display import HTML, display

    from pagedlab import widgets
    from pagedlab.teaching.exercises.learner import next_hint

    below = ipywidgets.Output()
    buttons = []

    def button(label: str, act: Any) -> None:
        made = ipywidgets.Button(description=label, layout={"width": "auto"})

        def clicked(_: object) -> None:
            with below:
                act()

        made.on_click(clicked)
        buttons.append(made)

    if (played := verdict.played) is not None:
        button("Play yours beside the reference", lambda: widgets.play(played.scene()))
    if verdict.hint is not None:
        button(
            "Next hint", lambda: display(HTML(f'<div class="pagedlab-verdict">{hint_to_html(next_hint(entry))}</div>'))
        )
    return ipywidgets.VBox([ipywidgets.HBox(buttons), below])
