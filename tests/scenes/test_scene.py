"""Scenes as data: JSON form, questions, words, what is left out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import five_recorded_requests
from traces import five_requests

from pagedlab import scenes
from pagedlab.errors import TraceError
from pagedlab.scenes import Actor, Frame, Part, Question, Scene
from pagedlab.scenes.counterparts import counterpart
from pagedlab.scenes.marks import Gap, choose, elide, share
from pagedlab.scenes.scene import in_key_order
from pagedlab.scenes.words import TokenLabels, name, shorten


def test_importing_scenes_loads_neither_torch_nor_numpy_nor_jupyter() -> None:
    code = "import sys, pagedlab.scenes; print(sorted({'torch', 'numpy', 'IPython', 'anywidget'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("make", [scenes.condense, scenes.step])
def test_a_scene_survives_json(make) -> None:
    scene = make(five_recorded_requests())
    assert scene.sources
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


def test_json_holds_each_distinct_body_once_and_only_what_changes() -> None:
    still = Actor("still", 0, 0, 5, 5, (Part("box", 0, 0, 5, 5),))
    moves = [dataclasses.replace(still, key="moves", x=float(at)) for at in range(20)]
    frames = tuple(Frame(str(at), in_key_order((still, moved)), "x") for at, moved in enumerate(moves))
    data = Scene("s", "S", 10, 10, frames).to_json()
    assert len(data["bodies"]) == 1
    assert [len(frame["set"]) for frame in data["frames"]] == [2] + [1] * 19


def test_data_of_another_format_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match="not a scene"):
        Scene.from_json({"format": "something"})


def test_two_actors_may_not_share_a_key() -> None:
    with pytest.raises(ValueError, match="share the key"):
        in_key_order((Actor("a", 0, 0), Actor("a", 1, 1)))


def test_frame_of_says_what_there_is() -> None:
    scene = scenes.condense(five_requests())
    assert scene.frames[scene.frame_of("RowMoved")].event == "RowMoved"
    with pytest.raises(TraceError, match="RowMoved"):
        scene.frame_of("RowsSwapped")


@given(st.integers(0, 300), st.integers(5, 40), st.integers(0, 300), st.integers(1, 300))
def test_what_is_elided_fits_and_is_counted(count: int, room: int, start: int, length: int) -> None:
    start = min(start, max(count - 1, 0))
    focus = range(start, min(count, start + length)) or None
    items = elide(count, room, focus)
    covered = [at for item in items for at in (range(item.start, item.stop) if isinstance(item, Gap) else [item])]
    assert covered == list(range(count))
    assert sum(2 if isinstance(item, Gap) else 1 for item in items) <= room
    if focus:
        assert focus.stop - 1 in items


@given(st.lists(st.integers(1, 80), min_size=1, max_size=20), st.integers(20, 60))
def test_cells_are_shared_without_overflow(wanted: list[int], room: int) -> None:
    granted = share(wanted, room)
    assert sum(granted) <= room
    assert all(0 < got <= want for got, want in zip(granted, wanted, strict=True))


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=6))
def test_rows_that_something_happens_to_are_chosen_first(count: int, wanted: set[int]) -> None:
    wanted = {row for row in wanted if row < count}
    shown = choose(count, wanted, room=8)
    assert wanted <= {item for item in shown if isinstance(item, int)}
    assert sum(isinstance(item, int) for item in shown) <= 8


def test_a_question_needs_a_reason_for_every_wrong_choice() -> None:
    with pytest.raises(ValueError, match="no reason why 'b' is wrong"):
        Question("?", "choice", "a", ("a", "b"), {}, "", 0, 0)
    with pytest.raises(ValueError, match="must differ"):
        Question("?", "choice", "c", ("a", "b"), {"a": "", "b": ""}, "", 0, 0)


def test_names_are_one_line_and_cut_in_the_middle() -> None:
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert name("a\nb") == "a↵b"
    assert len(name("x" * 10_000)) <= 28
    assert name("") == "“” (an empty id)"
    assert name("שלום").startswith("\u2068")  # kept apart from the text around it


def test_tokens_without_a_shape_of_their_own_get_one() -> None:
    labels = TokenLabels({32: "␠", 10: "⏎", 195: "\\xc3", 256: "<end>", 7: "hippopotamus"})
    assert [labels.label(token) for token in (32, 10, 195, 256, 7, 999, None)] == [
        "␣",
        "↵",
        "c3",
        "■",
        "hip…us",
        "999",
        "?",
    ]


def test_counterparts_name_vllm_at_0_25_1() -> None:
    assert counterpart("Scheduler.schedule") == ("vllm/v1/core/sched/scheduler.py", "Scheduler.schedule")
    assert counterpart("helper") is None
