"""The persistent batch: rows, holes, condense; and a stateful test against a dictionary that rebuilds everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedlab.batch import CachedRequestState, InputBatch, MoveDirection, RowStore
from pagedlab.errors import CapacityError, DuplicateRequestError, IntegrityError
from pagedlab.events import Event
from pagedlab.request import SamplingParams

CPU = torch.device("cpu")
VOCAB = 50


def make_batch(max_num_reqs: int = 5) -> InputBatch:
    return InputBatch(
        max_num_reqs, max_model_len=16, max_num_batched_tokens=16, vocab_size=VOCAB, block_sizes=(4,), device=CPU
    )


def state(name: str, prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> CachedRequestState:
    number = ord(name[0])
    sampling = SamplingParams(**{"temperature": 0.0, **params})  # type: ignore[arg-type]
    return CachedRequestState(name, prompt, sampling, ((number, number + 1),), num_computed_tokens=len(prompt) - 1)


def filled(names: str) -> InputBatch:
    batch = make_batch()
    for name in names:
        batch.add_request(state(name))
    batch.refresh_metadata()
    return batch


def test_condense_moves_the_last_row_into_the_lowest_hole() -> None:
    """[A, _, B, _, C] -> [A, C, B], as in the course."""
    batch = filled("AxByC")
    events: list[Event] = []
    batch.observer = events.append
    batch.remove_request("x")
    batch.remove_request("y")
    batch.condense()
    update = batch.refresh_metadata()
    assert batch.req_ids == ["A", "C", "B"]
    assert update is not None
    assert (update.batch_size, update.removed, update.added) == (3, (3,), ())
    assert [(m.source, m.target, m.direction) for m in update.moved] == [(4, 1, MoveDirection.UNIDIRECTIONAL)]
    assert [event.kind for event in events] == ["RowRemoved", "RowRemoved", "RowMoved", "BatchUpdated"]
    assert batch.block_table[0].row(1).tolist() == [ord("C"), ord("C") + 1]


def test_a_new_request_takes_the_lowest_hole_so_that_nothing_moves() -> None:
    batch = filled("ABC")
    batch.remove_request("C")
    batch.remove_request("A")
    assert batch.add_request(state("D")) == 0
    batch.condense()
    update = batch.refresh_metadata()
    assert update is not None
    assert (update.removed, [added.row for added in update.added], update.moved) == ((2,), [0], ())
    assert batch.req_ids == ["D", "B"]


def test_removing_the_only_request_reports_its_hole() -> None:
    batch = filled("A")
    batch.remove_request("A")
    batch.condense()
    update = batch.refresh_metadata()
    assert update is not None
    assert (update.batch_size, update.removed) == (0, (0,))
    assert batch.req_ids == []
    assert batch.refresh_metadata() is None


def test_an_unknown_request_is_removed_without_a_trace() -> None:
    batch = filled("A")
    assert batch.remove_request("nobody") is None
    assert batch.refresh_metadata() is None


def test_removals_come_before_holes_are_read() -> None:
    batch = filled("AB")
    batch.remove_request("A")
    batch.add_request(state("C"))
    with pytest.raises(IntegrityError, match="remove before you add"):
        batch.remove_request("B")
    assert batch.req_ids == ["C", "B"]


def test_a_full_batch_a_long_request_and_a_duplicate_are_refused_unchanged() -> None:
    batch = filled("ABCDE")
    with pytest.raises(CapacityError, match="all 5 rows"):
        batch.add_request(state("F"))
    with pytest.raises(DuplicateRequestError):
        batch.add_request(state("A"))
    batch.remove_request("E")
    with pytest.raises(CapacityError, match="a row holds 16"):
        batch.add_request(state("G", prompt=(1,) * 17))
    too_many = state("H")
    too_many.block_ids = (tuple(range(1000)),)
    with pytest.raises(CapacityError, match="cannot take 1000 more"):
        batch.add_request(too_many)
    assert "H" not in batch.req_id_to_index
    batch.condense()
    assert batch.req_ids == ["A", "B", "C", "D"]


def test_a_full_row_takes_no_token() -> None:
    batch = make_batch()
    batch.add_request(state("A", prompt=(1,) * 16))
    with pytest.raises(CapacityError, match="is full"):
        batch.append_token(0, 3)


def test_rows_with_holes_cannot_be_read_or_swapped() -> None:
    batch = filled("AB")
    batch.remove_request("A")
    with pytest.raises(IntegrityError, match="condense it"):
        _ = batch.req_ids
    with pytest.raises(IntegrityError, match="one is a hole"):
        batch.swap_rows(0, 1)


def test_swap_exchanges_everything_also_when_only_one_row_has_a_generator() -> None:
    batch = make_batch()
    first, second = state("A", prompt=(1, 2)), state("B", prompt=(3, 4, 5, 6), temperature=0.7, top_k=5)
    second.generator = torch.Generator().manual_seed(1)
    batch.add_request(first)
    batch.add_request(second)
    batch.swap_rows(0, 1)
    assert batch.req_ids == ["B", "A"]
    assert list(batch.generators) == [0]
    assert batch.token_ids[0, :4].tolist() == [3, 4, 5, 6]
    assert batch.token_ids[1, :2].tolist() == [1, 2]
    assert batch.rows.temperature[:2].tolist() == [np.float32(0.7), 0]
    assert batch.rows.top_k[:2].tolist() == [5, VOCAB]


def test_swapping_a_row_with_itself_changes_nothing() -> None:
    batch = make_batch()
    request = state("A")
    request.generator = torch.Generator()
    batch.add_request(request)
    batch.swap_rows(0, 0)
    assert batch.generators == {0: request.generator}


def test_integrity_names_a_row_that_is_too_short() -> None:
    batch = filled("A")
    batch.block_table[0].num_blocks_per_row[0] -= 1
    with pytest.raises(IntegrityError, match="but its row says"):
        batch.check_integrity({"A": ((ord("A"), ord("A") + 1),)})


def test_sampling_settings_are_stored_as_vllm_stores_them() -> None:
    batch = make_batch()
    batch.add_request(state("A"))
    batch.refresh_metadata()
    assert batch.sampling_metadata.temperature is None  # all greedy: nothing is built
    batch.add_request(state("B", temperature=0.001, top_p=0.5, top_k=VOCAB + 3))
    batch.refresh_metadata()
    metadata = batch.sampling_metadata
    assert metadata.temperature is not None
    assert metadata.top_p is not None
    assert metadata.temperature.tolist() == [0.0, np.float32(0.01)]
    assert metadata.top_p.tolist() == [1.0, 0.5]
    assert metadata.top_k is None  # a top_k as large as the vocabulary keeps everything


def test_row_store_moves_and_swaps_every_field() -> None:
    store = RowStore(4, CPU)
    store.ints.np[:] = np.arange(store.ints.np.size).reshape(store.ints.np.shape)
    store.floats.np[:] = np.arange(store.floats.np.size).reshape(store.floats.np.shape)
    ints, floats = store.ints.np.copy(), store.floats.np.copy()
    store.swap(0, 3)
    np.testing.assert_array_equal(store.ints.np, ints[:, [3, 1, 2, 0]])
    np.testing.assert_array_equal(store.floats.np, floats[:, [3, 1, 2, 0]])
    store.move(2, 0)
    np.testing.assert_array_equal(store.ints.np, ints[:, [2, 1, 2, 0]])


class BatchAgainstDictionary(RuleBasedStateMachine):
    """A step removes, adds, condenses, swaps and appends; a plain dict of states says what every row must hold.

    Everything behind a live prefix is poisoned after each step: stale values must never matter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batch = make_batch()
        self.states: dict[str, CachedRequestState] = {}
        self.order: list[str] = []  # followed from batch updates alone, as a logits processor does
        self.next_name = 0

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        for name in data.draw(st.lists(st.sampled_from(sorted(self.states) or ["none"]), unique=True)):
            if self.states.pop(name, None):
                self.batch.remove_request(name)
        for _ in range(data.draw(st.integers(0, 5 - len(self.states)))):
            name = chr(ord("A") + self.next_name % 1000)
            self.next_name += 1
            prompt = tuple(data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)))
            request = state(name, prompt, temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0])))
            if data.draw(st.booleans()):
                request.generator = torch.Generator()
            self.states[name] = request
            self.batch.add_request(request)
        self.batch.condense()
        self._follow(self.batch.refresh_metadata())

    def _follow(self, update: object) -> None:
        if update is None:
            return
        rows: dict[int, str] = dict(enumerate(self.order))
        names = {id(request.output_token_ids): name for name, request in self.states.items()}
        for row in update.removed:  # type: ignore[attr-defined]
            rows.pop(row, None)
        for added in update.added:  # type: ignore[attr-defined]
            rows[added.row] = names[id(added.output_token_ids)]
        for moved in update.moved:  # type: ignore[attr-defined]
            if moved.direction is MoveDirection.SWAP:
                rows[moved.source], rows[moved.target] = rows[moved.target], rows[moved.source]
            else:
                rows[moved.target] = rows.pop(moved.source)
        self.order = [rows[row] for row in range(update.batch_size)]  # type: ignore[attr-defined]

    @precondition(lambda self: len(self.states) >= 2)
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        first, second = data.draw(st.permutations(range(len(self.states))))[:2]
        self.batch.swap_rows(first, second)
        self._follow(self.batch.refresh_metadata())

    @precondition(lambda self: self.states)
    @rule(data=st.data(), token=st.integers(0, VOCAB - 1))
    def append(self, data: st.DataObject, token: int) -> None:
        request = self.states[data.draw(st.sampled_from(sorted(self.states)))]
        row = self.batch.req_id_to_index[request.req_id]
        if request.num_tokens < 16:
            before = list(request.output_token_ids)
            self.batch.append_token(row, token)
            assert request.output_token_ids == [*before, token]  # one list, shared
        if len(request.block_ids[0]) < 6:
            self.batch.append_blocks(request.req_id, ((token + 1,),))
            request.extend_block_ids(((token + 1,),))

    @invariant()
    def rows_hold_what_the_states_say(self) -> None:
        batch = self.batch
        assert batch.req_ids == self.order
        assert set(self.order) == set(self.states)
        assert batch.req_id_to_index == {name: row for row, name in enumerate(self.order)}
        for row, name in enumerate(self.order):
            request = self.states[name]
            tokens = [request.token_id(index) for index in range(request.num_tokens)]
            assert batch.token_ids[row, : request.num_tokens].tolist() == tokens
            assert batch.rows.num_tokens_no_spec[row] == request.num_tokens
            assert batch.rows.num_prompt_tokens[row] == request.num_prompt_tokens
            assert batch.rows.num_computed_tokens[row] == request.num_computed_tokens
            assert batch.rows.temperature[row] == request.sampling_params.temperature
            assert tuple(batch.block_table[0].row(row).tolist()) == request.block_ids[0]
            assert batch.generators.get(row) is request.generator
        assert batch.random_reqs == {n for n, s in self.states.items() if not s.sampling_params.greedy}

    @invariant()
    def poison_what_is_stale(self) -> None:
        batch = self.batch
        for row in range(batch.max_num_reqs):
            live = row < batch.num_reqs
            batch.token_ids[row, batch.rows.num_tokens_no_spec[row] if live else 0 :] = -999
            table = batch.block_table[0]
            table.table.np[row, table.num_blocks_per_row[row] :] = -999


TestBatchAgainstDictionary = BatchAgainstDictionary.TestCase
TestBatchAgainstDictionary.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
