"""The scene `paged_attention`: how the kernel divides a step, and what a large batch looks like."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from attending import facts, one_long_request, reading_of
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import make_trace

from pagedlab import scenes
from pagedlab.errors import ConfigError
from pagedlab.kernels.attention_work import choose_tiles, divide_work_numpy
from pagedlab.scenes.paged_attention_state import PROCESSORS
from pagedlab.scenes.paged_attention_work import ModelShape, divide

# --- how work is divided ------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 5, 6, 17, 40, 300]), st.integers(0, 5000)), min_size=1, max_size=8),
    st.sampled_from([(6, 2, 32, 4), (32, 8, 128, 2), (4, 4, 64, 2), (28, 4, 128, 2), (8, 1, 256, 4), (64, 1, 192, 4)]),
    st.sampled_from([1, 4, 108, 132]),
    st.sampled_from([0, 0, 1, 100, 1024]),
)
def test_work_is_divided_as_the_kernel_divides_it(
    rows: list[tuple[int, int]], model: tuple[int, int, int, int], processors: int, window: int
) -> None:
    heads, kv_heads, head_dim, itemsize = model
    query_lens = [length for length, _ in rows]
    seq_lens = [length + before for length, before in rows]
    shape = ModelShape(3, heads, kv_heads, head_dim, itemsize)
    divisions = divide(query_lens, seq_lens, shape, processors, window)
    short, long = (
        choose_tiles(itemsize, head_dim, shape.group, long=is_long, processors=processors) for is_long in (False, True)
    )
    short_len = short.query_rows // shape.group
    expected: dict[int, int] = {}
    for tiles, above, up_to in ((short, 0, short_len), (long, short_len, 2**31 - 1)):
        items = divide_work_numpy(
            query_lens, seq_lens, queries_per_tile=tiles.query_rows // shape.group, keys_per_tile=tiles.keys,
            workers=max(1, tiles.programs // kv_heads), above=above, up_to=up_to, window=window,
        )  # fmt: skip
        for item in items:
            assert divisions[item.row].query_tiles == 1 + max(i.query_tile for i in items if i.row == item.row)
            expected[item.row] = item.num_splits
    assert {row: division.num_splits for row, division in enumerate(divisions)} == expected
    for division, length, seq_len in zip(divisions, query_lens, seq_lens, strict=True):
        for tile in range(division.query_tiles):
            parts, queries = division.splits_of(tile), division.queries_of(tile)
            assert len(parts) == division.num_splits
            # Side by side, from a whole tile at or before the first key that is seen, up to the last query's own.
            assert all(first.stop == second.start or not second for first, second in pairwise(parts))
            first_seen = max(0, queries.start + 1 - window) if window else 0
            assert parts[0].start == first_seen // division.tiles.keys * division.tiles.keys
            assert max(part.stop for part in parts) == queries.stop
        assert division.queries_of(division.query_tiles - 1).stop == seq_len
        assert division.queries_of(0).start == seq_len - length


def test_a_long_request_is_cut_and_its_parts_become_one() -> None:
    trace = one_long_request()
    scene = scenes.paged_attention(trace, 1)
    at = next(at for at, frame in enumerate(scene.frames) if "cut in" in frame.change)
    cut, merged = scene.frames[at : at + 2]
    reading = reading_of(trace, 1, "L")
    parts = sorted(facts(cut, "split"), key=lambda it: it["split"])
    assert len(parts) == 4
    assert cut.change == "On a GPU, L’s keys are cut in 4: 4 programs read at the same time."
    assert [parts[0]["first"], parts[-1]["stop"]] == [0, reading.seq_len]
    assert all(first["stop"] == second["first"] for first, second in pairwise(parts))
    assert [it["merged"] for it in facts(cut, "part")] == [0] * 4
    assert [it["merged"] for it in facts(merged, "part")] == [1] * 4
    assert facts(cut, "output") == []
    assert len(facts(merged, "output")) == 1
    assert len({a.x for key, a in merged.stage.items() if key.startswith("part:")}) == 1
    assert merged.arrows
    assert f"Here torch attended, in one piece; {PROCESSORS} multiprocessors are an H200’s." in cut.detail
    (question,) = [q for q in scene.questions if "In how many parts" in q.prompt]
    assert (question.answer, question.frame) == ("4", at)
    assert not any(facts(scene.frames[question.ask_frame], "split"))


def test_what_the_trace_says_of_processors_is_used() -> None:
    trace = one_long_request()
    told = replace(trace, settings={**trace.settings, "attention_processors": 1, "attention_backend": "triton"})
    scene = scenes.paged_attention(told, 1)
    cut = next(frame for frame in scene.frames if "cut in" in frame.change)
    assert cut.change.startswith("L’s keys are cut in ")
    assert "torch" not in cut.detail
    assert len(facts(cut, "split")) < 4
    assert any("1 multiprocessor" in part.text for part in cut.stage["band:programs"].parts)
    by_hand = scenes.paged_attention(trace, 1, processors=1)
    cut_by_hand = next(frame for frame in by_hand.frames if "cut in" in frame.change)
    assert facts(cut_by_hand, "split") == facts(cut, "split")
    assert "Here torch attended, in one piece; the GPU would have 1 multiprocessor." in cut_by_hand.detail
    assert "H200" not in cut_by_hand.detail
    with pytest.raises(ConfigError, match="processors is 0: give a whole number of at least 1"):
        scenes.paged_attention(trace, 1, processors=0)


@pytest.mark.parametrize("dtype", ["float64", "int8", None])
def test_without_a_kernel_for_the_dtype_nothing_is_divided(dtype: str | None) -> None:
    trace = one_long_request()
    scene = scenes.paged_attention(replace(trace, settings={**trace.settings, "dtype": dtype}), 1)
    assert not any("cut in" in frame.change for frame in scene.frames)
    assert {len(facts(frame, "split")) for frame in scene.frames} == {0, 1}
    assert any("bytes" in frame.change for frame in scene.frames) == (dtype == "float64")


# --- many rows ----------------------------------------------------------------------------------------------------


def test_256_rows_are_bars_and_four_of_them_shown_in_full() -> None:
    lengths = [1 + (37 * at) % 150 for at in range(256)]
    trace = make_trace(
        {f"request-{at}": "x" * length for at, length in enumerate(lengths)}, [3] * 256,
        budget=60_000, seats=256, num_blocks=10_000, block_size=16,
    )  # fmt: skip
    scene = scenes.paged_attention(trace, 1)
    bars = scene.frames[0].stage["bars"].data
    assert [int(keys) for keys in str(bars["keys"]).split()] == [length + 1 for length in lengths]
    assert (bars["rows"], bars["most"]) == (256, 151)
    assert len(facts(scene.frames[0], "row")) == 4
    assert any("252 rows more" in part.text for part in scene.frames[0].stage["band:batch"].parts)
    assert (
        scene.frames[1].change
        == f"They read {sum(lengths) + 256:,} keys, in {sum(-(-(n + 1) // 16) for n in lengths):,} blocks."
    )
    assert scene.frames[1].detail.startswith("request-77 (row 77) reads 151, request-0 (row 0) 2:")
    marked = [frame.stage["bar"] for frame in scene.frames if "bar" in frame.stage]
    assert {int(mark.data["row"]) for mark in marked} == {int(row["row"]) for row in facts(scene.frames[0], "row")}
    assert scene.height < 720
    assert all(len(frame.stage) < 120 for frame in scene.frames)


def test_a_thousand_rows_share_bars() -> None:
    trace = make_trace({f"r{at}": "x" for at in range(1000)}, [2] * 1000, budget=60_000, seats=1000, num_blocks=3000)
    scene = scenes.paged_attention(trace, 0)
    band = scene.frames[0].stage["band:overview"]
    assert any("a bar is the longest of 3 rows" in part.text for part in band.parts)
    assert len(str(scene.frames[0].stage["bars"].data["keys"]).split()) == 334
