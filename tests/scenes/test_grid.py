"""Grids as data: a step costs what it changes, in memory and in JSON, and nothing is lost on the way."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.scenes import Frame, Question, Scene
from pagedlab.scenes.grid import Grid, Look, cells_from_json, cells_to_json

FREE = Look("free", title="free")
LOOKS = [
    FREE,
    Look("owned", 0, "", "in use"),
    Look("owned", 1, "", "in use"),
    Look("owned shared", 1, "×2", "in use, twice"),
]


def scene_of(count: int, changes: list[dict[int, Look]]) -> Scene:
    frames = tuple(Frame(str(at), (), f"Frame {at}.", cells=cells) for at, cells in enumerate(changes))
    return Scene("pool", "Pool", 100, 20, frames, ("A", "B"), grid=Grid("block", count, FREE, (("owned", "in use"),)))


frames = st.lists(st.dictionaries(st.integers(0, 39), st.sampled_from(LOOKS), max_size=40), min_size=1, max_size=6)


@given(frames)
def test_a_scene_with_a_grid_survives_json(changes: list[dict[int, Look]]) -> None:
    scene = scene_of(40, changes)
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


@given(frames)
def test_a_cell_looks_as_the_last_frame_that_changed_it_says(changes: list[dict[int, Look]]) -> None:
    scene = scene_of(40, changes)
    cells = [FREE] * 40
    for at, changed in enumerate(changes):
        for cell, look in changed.items():
            cells[cell] = look
        assert scene.cells_at(at) == cells
    assert scene.cells_at(-1) == cells


@given(st.dictionaries(st.integers(0, 300), st.sampled_from(LOOKS), max_size=80))
def test_cells_are_written_by_look_and_neighbours_together(cells: dict[int, Look]) -> None:
    looks: dict[Look, int] = {}
    text = cells_to_json(cells, looks)
    assert cells_from_json(text, list(looks)) == cells
    for part in filter(None, text.split(";")):
        ends = [[int(end) for end in run.split("-")] for run in part.partition(":")[2].split(" ")]
        assert all(after[0] > before[-1] + 1 for before, after in pairwise(ends))


def test_a_step_of_a_large_pool_costs_its_changes_and_not_its_size() -> None:
    touched = list(range(3, 16_000, 800))
    scene = scene_of(16_384, [{}, dict.fromkeys(touched, LOOKS[1]), dict.fromkeys(touched, FREE)])
    first, taken, freed = scene.to_json()["frames"]
    assert "cells" not in first
    assert len(taken["cells"].split(" ")) == len(freed["cells"].split(" ")) == len(touched) == 20
    assert len(json.dumps(scene.to_json())) < 2_000


def test_looks_that_differ_in_their_owner_alone_share_their_words() -> None:
    owned = [Look("owned", owner, "#", "in use, reference count 1") for owner in range(1000)]
    scene = scene_of(1000, [dict(enumerate(owned))])
    assert json.dumps(scene.to_json()).count("reference count 1") == 1
    assert Scene.from_json(scene.to_json()).cells_at(0) == owned


def test_a_cell_that_the_grid_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="frame '1' changes cell 40: the grid has 40, from 0 on"):
        scene_of(40, [{}, {40: FREE}])
    with pytest.raises(ValueError, match="the grid has 0"):
        Scene("s", "S", 1, 1, (Frame("0", (), "x", cells={0: FREE}),))
    with pytest.raises(ValueError, match="at least one cell"):
        Grid("block", 0, FREE)


def test_a_scene_without_a_grid_has_no_cells() -> None:
    scene = Scene("s", "S", 1, 1, (Frame("0", (), "x"),))
    assert scene.cells_at(0) == []
    assert "grid" not in scene.to_json()


def test_a_pick_names_the_fact_that_answers_it() -> None:
    asked = Question("Which?", "pick", "7", (), {"3": "Not free."}, "It is the head.", 0, 1, fact="block")
    assert Question.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    with pytest.raises(ValueError, match="a pick names the fact"):
        Question("Which?", "pick", "7", (), {}, "", 0, 1)
    with pytest.raises(ValueError, match="a pick names the fact"):
        Question("How many?", "number", "7", (), {}, "", 0, 1, fact="block")
