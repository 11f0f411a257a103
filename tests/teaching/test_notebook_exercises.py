"""`@exercise` in a notebook: the cell is what is checked, the function stays as it is, the verdict is shown."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import nbclient
import nbformat
import pytest

from pagedlab.errors import ExerciseError
from pagedlab.teaching import exercise, hint, progress, start
from pagedlab.teaching.exercises import find_exercise
from pagedlab.teaching.exercises.notebook import submission_of
from pagedlab.teaching.exercises.progress import ProgressBook

RIGHT = """@exercise("slot_mapping")
def slot_mapping(query_start_loc, positions, block_table, block_size, slot_mapping):
    slot_mapping.fill(PAD)
    for row, (begin, end) in enumerate(pairwise(query_start_loc)):
        mine = positions[begin:end]
        slot_mapping[begin:end] = np.int64(block_size) * block_table[row, mine // block_size] + mine % block_size

PAD = -1
print("after", slot_mapping.__name__)
"""


def cells(*sources: str) -> Iterator[list[Any]]:
    """Run cells in a kernel and yield the outputs of each."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    for cell in notebook.cells:
        yield cell.outputs


def plain(outputs: list[Any]) -> str:
    return "\n".join(output.get("text") or output["data"].get("text/plain", "") for output in outputs)


def test_a_notebook_checks_shows_hints_and_counts() -> None:
    setup = (
        "import numpy as np\nfrom itertools import pairwise\nfrom pagedlab.teaching import exercise, hint, progress\n"
    )
    wrong = RIGHT.replace("PAD = -1", "PAD = 0")
    helped = RIGHT.replace("    slot_mapping.fill(PAD)", "    slot_mapping.fill(helper())")
    outputs = list(cells(setup + "def helper(): return -1", RIGHT, wrong, 'hint("slot_mapping")', helped, "progress()"))
    _, right_out, wrong_out, hint_out, helped_out, progress_out = outputs

    assert plain(right_out).startswith("Slot mapping in NumPy: passed.")
    assert right_out[-1]["text"] == "after slot_mapping\n"  # the function is still one

    assert "slot_mapping[1] is 0; it should be -1" in plain(wrong_out)
    page = wrong_out[0]["data"]["text/html"]
    assert 'data-passed="false"' in page
    assert "Slot 0 exists" in page
    assert "application/vnd.jupyter.widget-view+json" in wrong_out[1]["data"]

    assert hint_out[0]["data"]["text/markdown"].startswith("**Hint 2 of 3.** Whoever writes keys and values")

    assert "name 'helper' is not defined. The check sees this cell, and what earlier cells have imported" in plain(
        helped_out
    )
    assert "this cell, line 3, in slot_mapping: slot_mapping.fill(helper())" in plain(helped_out)

    assert "1 exercise passed, 1 tried, 1 hint used" in plain(progress_out)


# --- outside a notebook -------------------------------------------------------------------------------------------


def defined(source: str, **names: Any) -> Callable[..., Any]:
    """Define a function as a cell of the plain runner does."""
    filename = "<cell 3>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(source, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def test_outside_a_notebook_the_verdict_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @exercise("condense")
    def condense(*arguments: Any) -> None:
        raise NotImplementedError

    assert capsys.readouterr().out.startswith("Condense the batch: not yet.")
    assert ProgressBook().read().exercises["condense"].tries == 1
    with pytest.raises(NotImplementedError):
        condense()  # as it was


def test_a_submission_is_the_cell_and_the_imports_that_it_uses() -> None:
    import itertools

    import numpy as np

    submission = submission_of(
        defined("def f(x):\n    return np.add(x, pick(local, 1))\n", np=np, pick=itertools.compress, local=3, other=np)
    )
    assert submission.prelude.splitlines() == ["import numpy as np", "from itertools import compress as pick"]
    assert submission.elsewhere == {"local"}
    assert submission.only_definitions


def test_a_function_without_a_source_is_a_named_error() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(): pass", namespace)
    with pytest.raises(ExerciseError, match="the source of f cannot be found: define it in a cell or in a file"):
        submission_of(namespace["f"])
    with pytest.raises(ExerciseError, match="the source of len cannot be found"):
        submission_of(len)


def test_an_unknown_exercise_is_said_before_the_function_is_looked_at() -> None:
    with pytest.raises(ExerciseError, match="no exercise 'slots'"):
        exercise("slots")


def test_start_shows_the_task_and_code_that_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    start("condense")
    out = capsys.readouterr().out
    assert "Close the holes" in out
    code = out[out.index("from pagedlab.teaching import exercise\n") :]
    assert '@exercise("condense")\ndef condense(' in code
    compile(code, "cell", "exec")


def test_the_decorator_stands_before_the_function_that_is_checked_not_before_its_kernel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start("slot_mapping_triton")
    out = capsys.readouterr().out
    code = out[out.index("from pagedlab.teaching import exercise\n") :]
    assert '@exercise("slot_mapping_triton")\ndef slot_mapping_triton(' in code
    assert "@triton.jit\ndef slot_mapping_kernel(" in code
    compile(code, "cell", "exec")


def test_hint_and_progress_print_outside_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    hint("condense")
    assert capsys.readouterr().out.startswith("Hint 1 of 3. Write down")
    progress()
    assert "0 exercises passed, 0 tried, 1 hint used" in capsys.readouterr().out


def test_every_starter_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from pagedlab.teaching.exercises import exercise_names

    for name in exercise_names():
        start(name)
        assert find_exercise(name).exercise.title in capsys.readouterr().out
