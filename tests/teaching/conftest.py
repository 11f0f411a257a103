"""What tests of the exercises share: a learner whose progress is a file of the test's own, and a tiny exercise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Limits, Submission
from pagedlab.teaching.exercises.sandbox import Loaded, Sandbox


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test counts in the progress of whoever runs it."""
    path = tmp_path / "learner" / "progress.json"
    monkeypatch.setenv("PAGEDLAB_PROGRESS", str(path))
    return path


def double(number: int) -> int:
    return number + number


@pytest.fixture
def doubling() -> Exercise:
    return Exercise(
        name="double",
        lesson="00-one-step",
        title="Double a number",
        task="Return twice `number`.",
        reference=double,
        cases=(Case("nothing to double", number=0), Case("a negative number", number=-3)),
        strategy=st.fixed_dictionaries({"number": st.integers(-100, 100)}),
        limits=Limits(call_seconds=1.0),
    )


@pytest.fixture
def asked(doubling: Exercise) -> Iterator[Callable[..., object]]:
    """Run a function body in a sandbox and return what it returns."""
    sandboxes = []

    def ask(body: str, number: object = 0, hidden: tuple[Path, ...] = ()) -> object:
        sandbox = Sandbox(doubling, hidden)
        sandboxes.append(sandbox)
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        assert sandbox.load(Submission(f"def double(number):\n{lines}\n")) == Loaded()
        answer = sandbox.answer({"number": number})
        assert answer.raised is None, answer.raised
        return answer.returned

    yield ask
    for sandbox in sandboxes:
        sandbox.close()
