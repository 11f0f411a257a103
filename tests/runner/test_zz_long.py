"""The short way of a batch in which everybody decodes, beside the plain one; and the columns it is told in."""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import GREEDY, MAX_MODEL_LEN, make_runner, new, step

from pagedlab.batch import SamplingMetadata
from pagedlab.config import SchedulerConfig
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, ModelInputs
from pagedlab.runner.steady import SteadyRows
from pagedlab.scheduling import Scheduler
from pagedlab.scheduling.output import CachedRequestData, OneTokenEach, SchedulerOutput, Shifted

SPEC = FullAttentionSpec(4)


# --- both ways ----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return inputs as plain Python, every field of them."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, ModelInputs) or (dataclasses.is_dataclass(value) and not isinstance(value, SamplingMetadata)):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, SamplingMetadata):
        names = [field.name for field in dataclasses.fields(value) if field.name != "logits_processors"]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@dataclasses.dataclass
class Pair:
    """A scheduler and a runner; outputs may go to the runner through a pickle, as to another process."""

    fast: bool
    pickled: bool = False
    num_blocks: int = 9
    decode_threshold: int | None = None

    def __post_init__(self) -> None:
        manager = KVCacheManager([SPEC], self.num_blocks, MAX_MODEL_LEN)
        config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
        self.scheduler = Scheduler(config, manager, MAX_MODEL_LEN, fast_path=self.fast)
        self.runner = make_runner([SPEC], decode_threshold=self.decode_threshold)
        self.num_steady = 0
        steady_way = self.runner._update_steady_rows

        def counting(rows: SteadyRows, output: SchedulerOutput) -> None:
            self.num_steady += 1
            steady_way(rows, output)

        self.runner._update_steady_rows = counting  # type: ignore[method-assign]

    def step(self, arrivals: Sequence[Request] = (), aborts: Sequence[str] = ()) -> Any:
        """Run one step, and return everything the runner made of it."""
        for request in arrivals:
            self.scheduler.add_request(request)
        if aborts:  # an abort, even of nobody, ends the scheduler's short way
            self.scheduler.abort_requests(aborts)
        output = self.scheduler.schedule()
        seen = pickle.loads(pickle.dumps(output)) if self.pickled else output
        assert seen == output
        inputs = self.runner.prepare(seen)
        result = plain(inputs)
        sampled: Mapping[str, tuple[int, ...]] = {}
        if inputs is not None:
            tokens = [
                zlib.crc32(f"{n}:{s}".encode()) % 50 for n, s in zip(inputs.req_ids, inputs.seq_lens, strict=True)
            ]
            sampled = self.runner.take_in(inputs, np.array(tokens))
        self.scheduler.update_from_output(output, sampled)
        self.scheduler.check_integrity()
        self.runner.check_integrity(self.scheduler.kv_cache_manager.held_block_ids)
        blocks = {name: state.block_ids for name, state in self.runner.requests.items()}
        return result, dict(sampled), plain(blocks), output.preempted_req_ids


@dataclasses.dataclass(frozen=True)
class Arrival:
    name: str
    prompt: int
    max_tokens: int
    step: int
    random: bool

    def request(self) -> Request:
        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=0.5 if self.random else 0,
            presence_penalty=0.5 if self.random else 0,
            seed=self.prompt if self.random else None,
        )
        return Request(self.name, [zlib.crc32(self.name.encode()) % 50] * self.prompt, params, self.step)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Arrival], list[tuple[str, int]]]:
    arrivals = [
        Arrival(
            f"r{index}",
            draw(st.integers(1, 12)),
            draw(st.sampled_from([2, 9, 14])),
            draw(st.integers(0, 8)),
            draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 6)))
    ]
    names = st.sampled_from([arrival.name for arrival in arrivals])
    return arrivals, draw(st.lists(st.tuples(names, st.integers(1, 12)), max_size=2))


@given(
    workload=workloads(),
    num_blocks=st.sampled_from([7, 9, 17]),
    decode_threshold=st.sampled_from([None, 1]),
    pickled=st.booleans(),
)
@settings(max_examples=1500, deadline=None)
def test_both_ways_make_the_same_inputs_in_every_step(
    workload: tuple[list[Arrival], list[tuple[str, int]]],
    num_blocks: int,
    decode_threshold: int | None,
    pickled: bool,
) -> None:
    """Every field, with requests that come, are aborted and are preempted in between."""
    arrivals, aborts = workload
    fast = Pair(True, pickled, num_blocks, decode_threshold)
    slow = Pair(False, False, num_blocks, decode_threshold)
    for number in range(200):
        aborted = [name for name, at in aborts if at == number]
        expected = slow.step([a.request() for a in arrivals if a.step == number], aborted)
        assert fast.step([a.request() for a in arrivals if a.step == number], aborted) == expected
        if number > 12 and not slow.scheduler.has_unfinished_requests():
            break
    assert not slow.scheduler.has_unfinished_requests()
    assert slow.num_steady == 0
    assert not (pickled and fast.num_steady)


def test_the_short_way_is_really_taken_and_left_when_somebody_comes_goes_or_is_preempted() -> None:
    pair = Pair(True, num_blocks=6)
    arrivals = {0: [Arrival("A", 3, 9, 0, False), Arrival("B", 3, 13, 0, False)], 4: [Arrival("C", 1, 3, 4, True)]}
    ways, preempted_at = [], {}
    while pair.scheduler.has_unfinished_requests() or not ways:
        before = pair.num_steady
        *_, preempted = pair.step([arrival.request() for arrival in arrivals.get(len(ways), [])])
        if preempted:
            preempted_at[len(ways)] = preempted
        ways.append("short" if pair.num_steady > before else "plain")
    # A way is short if the step before was one of decodes too, and of the same requests.
    assert ways == ["plain"] * 2 + ["short"] * 2 + ["plain"] * 7 + ["short"] * 5
    assert preempted_at == {6: {"B", "C"}}


def steady_output(req_ids: tuple[str, ...], counts: Shifted | tuple[int, ...], **more: Any) -> SchedulerOutput:
    cached = CachedRequestData(req_ids, num_computed_tokens=counts, num_output_tokens=counts)
    scheduled = tuple((name, 1) for name in req_ids)
    return SchedulerOutput(scheduled, scheduled_cached_reqs=cached, total_num_scheduled_tokens=len(req_ids), **more)


def test_steady_rows_are_the_columns_in_row_order() -> None:
    req_ids, counts = ("A", "B", "C"), Shifted((5, 6, 7), 1)
    rows = SteadyRows.of(steady_output(req_ids, counts).scheduled_cached_reqs, {"A": 2, "B": 0, "C": 1})
    assert rows.base_by_row.tolist() == [6, 7, 5]
    later = steady_output(req_ids, Shifted(counts.base, 4))
    assert rows.goes_on(later)
    assert rows.num_computed_tokens(later.scheduled_cached_reqs).tolist() == [10, 11, 9]


@pytest.mark.parametrize(
    ("what", "output"),
    [
        ("other requests", lambda ids, base: steady_output((*ids[:2], "X"), Shifted(base, 2))),
        ("requests that grew otherwise", lambda ids, base: steady_output(ids, Shifted((5, 6, 8), 2))),
        ("counts that are no columns", lambda ids, base: steady_output(ids, base)),
        ("somebody ended", lambda ids, base: steady_output(ids, Shifted(base, 2), finished_req_ids=frozenset("X"))),
        (
            "somebody came",
            lambda ids, base: steady_output(ids, Shifted(base, 2), scheduled_new_reqs=(new("X", (1,), [[1]]),)),
        ),
    ],
)
def test_rows_are_no_longer_steady_with(what: str, output: Any) -> None:
    req_ids, base = ("A", "B", "C"), (5, 6, 7)
    rows = SteadyRows.of(steady_output(req_ids, Shifted(base, 1)).scheduled_cached_reqs, {"A": 0, "B": 1, "C": 2})
    assert rows.goes_on(steady_output(req_ids, Shifted(base, 2)))
    assert not rows.goes_on(output(req_ids, base)), what


def test_after_somebody_came_the_columns_of_before_are_not_believed() -> None:
    runner = make_runner()
    req_ids, base = ("A", "B"), (2, 1)

    def seen(output: SchedulerOutput) -> tuple[tuple[str, ...], list[int]]:
        inputs = runner.prepare(output)
        assert inputs is not None
        runner.take_in(inputs, np.arange(len(inputs.req_ids)))
        return inputs.req_ids, inputs.seq_lens.tolist()

    seen(step({"A": 2, "B": 1}, new=[new("A", (5, 6), [[1]]), new("B", (7,), [[2]])]))
    assert seen(steady_output(req_ids, Shifted(base, 0))) == (req_ids, [3, 2])
    assert seen(steady_output(req_ids, Shifted(base, 1))) == (req_ids, [4, 3])
    prompt = new("X", (1,), [[3]])
    scheduled = SchedulerOutput(
        scheduled=(("A", 1), ("B", 1), ("X", 1)),
        scheduled_new_reqs=(prompt,),
        scheduled_cached_reqs=steady_output(req_ids, Shifted(base, 2)).scheduled_cached_reqs,
        total_num_scheduled_tokens=3,
    )
    assert seen(scheduled) == (("A", "B", "X"), [5, 4, 1])
    assert seen(steady_output(req_ids, Shifted(base, 3))) == (req_ids, [6, 5])


def test_tokens_of_all_rows_at_once_are_those_of_one_row_after_the_other() -> None:
    def run(at_once: bool) -> tuple[Mapping[str, tuple[int, ...]], GPUModelRunner]:
        runner = make_runner()
        prompts = [new("A", (5, 6), [[1]]), new("B", (7,), [[2]])]
        inputs = runner.prepare(step({"A": 2, "B": 1}, new=prompts))
        assert inputs is not None
        return (runner.take_in(inputs, np.array([8, 9])) if at_once else runner.bookkeep(inputs, [8, 9])), runner

    (together, one), (apart, other) = run(True), run(False)
    assert isinstance(together, OneTokenEach)
    assert together == apart == {"A": (8,), "B": (9,)}
    np.testing.assert_array_equal(one.input_batch.token_ids, other.input_batch.token_ids)
    np.testing.assert_array_equal(one.input_batch.rows.ints.np, other.input_batch.rows.ints.np)
    assert one.input_batch.req_output_token_ids == other.input_batch.req_output_token_ids == [[8], [9]]


# --- the columns --------------------------------------------------------------------------------------------------


@given(base=st.lists(st.integers(-9, 9)).map(tuple), shift=st.integers(-5, 5), data=st.data())
def test_a_shifted_column_is_the_tuple_of_its_sums(base: tuple[int, ...], shift: int, data: st.DataObject) -> None:
    column, sums = Shifted(base, shift), tuple(value + shift for value in base)
    assert column == sums
    assert sums == column
    assert column == Shifted(sums, 0)
    assert hash(column) == hash(sums)
    assert (len(column), list(column), list(reversed(column))) == (len(sums), list(sums), list(reversed(sums)))
    assert column != (*sums, 1)
    assert (*sums, 1) != column
    assert (3 in column, column.count(2)) == (3 in sums, sums.count(2))
    part = data.draw(st.slices(len(sums)))
    assert column[part] == sums[part]
    assert sums[part] == column[part]
    for index in range(-len(sums), len(sums)):
        assert column[index] == sums[index]
    for index in (len(sums), -len(sums) - 1):
        with pytest.raises(IndexError):
            column[index]
    copy = pickle.loads(pickle.dumps(column))
    assert (copy, copy.base, copy.shift) == (column, base, shift)


def test_an_output_with_shifted_columns_is_equal_to_one_with_tuples() -> None:
    assert steady_output(("A", "B"), Shifted((3, 4), 2)) == steady_output(("A", "B"), (5, 6))
    assert steady_output(("A", "B"), (5, 6)) == steady_output(("A", "B"), Shifted((3, 4), 2))
    assert steady_output(("A", "B"), Shifted((3, 4), 2)) != steady_output(("A", "B"), (5, 7))


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 99), max_size=5), st.booleans())
def test_one_token_each_is_the_dict_of_one_tuples(tokens: dict[str, int], looked_at: bool) -> None:
    expected = {name: (token,) for name, token in tokens.items()}
    each = OneTokenEach(tuple(tokens), list(tokens.values()))
    if looked_at:
        assert all(each[name] == one for name, one in expected.items())
    assert each == expected
    assert expected == each
    assert each != {**expected, "another": (1,)}
    assert {**expected, "another": (1,)} != each
    assert (list(each), list(each.items()), list(each.values())) == (
        list(expected),
        list(expected.items()),
        list(expected.values()),
    )
    assert (len(each), "another" in each, each.get("another")) == (len(expected), False, None)
    with pytest.raises(KeyError):
        each["another"]
    assert repr(each) == f"OneTokenEach({expected})"
    copy = pickle.loads(pickle.dumps(each))
    assert (copy, copy.req_ids, copy.token_ids) == (each, tuple(tokens), list(tokens.values()))


def test_greedy_requests_have_no_settings_to_compare_but_random_ones_do() -> None:
    """Proves that `plain` compares settings: the tensors of a batch with one random request are in it."""
    runner = make_runner()
    random = SamplingParams(temperature=0.5, seed=3)
    inputs = runner.prepare(step({"A": 1, "B": 1}, new=[new("A", (5,), [[1]], params=random), new("B", (6,), [[2]])]))
    fields = plain(inputs)
    assert fields["sampling"]["temperature"] == ("torch.float32", (2,), [0.5, 0.0])
    assert fields["sampling"]["generators"] == {0: 3}
    assert GREEDY.greedy
    assert len(fields["attention"]) == 1
    assert fields["attention"][0]["slot_mapping"] == ("torch.int64", (2,), [4, 8])
