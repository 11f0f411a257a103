"""No result is typed into a lesson: a number in its words is computed, or given to the engine, or has a source.

Words are the Markdown cells, and in code cells the fixed parts of what `say` and the titles and labels of charts are
given, however they are put together. A number there must be one of

- a number that the lesson's code has as a literal: what the engine was given (a budget of 4), or a name of a step;
- in a sentence that names its source: a seed, a paper, vLLM and its documents, a data sheet;
- part of a name: lesson 07, prediction 1, version 0.25.1, block 0, Llama-3-8B.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest

from pagedlab.teaching import lessons_directory

NOTEBOOKS = sorted(lessons_directory().glob("*.ipynb"))
NAMES = re.compile(
    r"\b(?:lessons?|predictions?|exercises?|seeds?|section|chapter|figure|table|step|row|block|slot|group|rank|level|"
    r"programs?|beats?|hint) \d+(?:(?:,|\s+and|\s+to|–|-)\s?\d+)*"
    r"|\b\d+\.\d+\.\d+\b"  # versions
    r"|\b[A-Za-z][\w.-]*\d[\w.-]*"  # int32, float16, Llama-3-8B, H200
    r"|`[^`]*`"  # code
    r"|^\s*\d+\.(?=\s|$)"  # numbered lists
    r"|^#+ .*$",  # headings
    re.IGNORECASE | re.MULTILINE,
)
SOURCES = re.compile(
    r"\bseeds?\b|\bpaper\b|et al\.|\bvLLM\b|\bdocumentation\b|data ?sheet|\bsource\b|\bH200\b|measured|\]\(http",
    re.IGNORECASE,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TELLERS = ("say", "show_tokens", "charts.sweep", "charts.budget", "charts.latency", "charts.kernel_bars")
SMALL = {"0", "1", "2"}
"""Too common a way of speaking to mean a result."""


def words_of(cells: list[dict[str, object]]) -> Iterator[str]:
    """Yield the words of a lesson."""
    for cell in cells:
        source = "".join(cell["source"])  # type: ignore[arg-type]
        if cell["cell_type"] == "markdown":
            yield source
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in TELLERS:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    yield fixed_parts(argument)


def fixed_parts(node: ast.AST) -> str:
    """Return what stands in an expression as text; what is computed becomes an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            computed = [fixed_parts(part.value) for part in parts if isinstance(part, ast.FormattedValue)]
            return " ".join([fixed_parts(part) if isinstance(part, ast.Constant) else "…" for part in parts] + computed)
        case ast.Subscript(value=inner):  # what it is looked up by is no word
            return fixed_parts(inner)
        case _:
            return " ".join(filter(None, map(fixed_parts, ast.iter_child_nodes(node))))


def literals_of(cells: list[dict[str, object]]) -> set[str]:
    """Return the numbers that the lesson's code has as literals."""
    found = set()
    for cell in cells:
        if cell["cell_type"] == "code":
            for node in ast.walk(ast.parse("".join(cell["source"]))):  # type: ignore[arg-type]
                if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
                    found.add(f"{node.value:g}" if isinstance(node.value, float) else str(node.value))
    return found


def typed_numbers(cells: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Return the numbers that nothing in the lesson accounts for, each with its sentence."""
    given = literals_of(cells) | SMALL
    found = []
    for words in words_of(cells):
        for sentence in re.split(r"(?<=[.?!:])\s+(?!\Z)|\n\n|\n(?=[-|])", words):
            if not SOURCES.search(sentence):
                numbers = NUMBER.findall(NAMES.sub(" ", sentence))
                found += [(number, sentence.strip()) for number in numbers if number.replace(",", "") not in given]
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_every_number_in_the_words_of_a_lesson_is_accounted_for(notebook: object) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]  # type: ignore[attr-defined]
    assert typed_numbers(cells) == []


@pytest.mark.parametrize(
    ("kind", "source", "found"),
    [
        ("markdown", "The engine needed 37 steps.", ["37"]),
        ("markdown", "The paper says that 20.4 % is useful.", []),
        ("markdown", "In lesson 07 and with int32, 0.25.1 does the same.", []),
        ("markdown", "What will a budget of 16 do?", []),
        ("code", 'say(f"It took {steps} steps, which is 40 % less.")', ["40"]),
        ("code", 'say(f"It took {steps} steps.")', []),
        ("code", r'say("It took" + "\n".join(f"{name}: 40 steps" for name in names))', ["40"]),
        ("code", "say(f\"It took {' and '.join(['37 steps', more])}.\")", ["37"]),
        ("code", "say(f\"It took {times['99']:.3f} steps.\")", []),
        ("code", 'charts.sweep(rows, x="x", y="y", labels={"y": "of 512 steps"})', ["512"]),
    ],
)
def test_a_typed_result_is_found(kind: str, source: str, found: list[str]) -> None:
    cells = [{"cell_type": "code", "source": "budget = 16"}, {"cell_type": kind, "source": source}]
    assert [number for number, _ in typed_numbers(cells)] == found
