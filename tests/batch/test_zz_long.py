"""The persistent batch after any changes, against one that is built anew from plain requests in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rebuilt_batch import CPU, VOCAB, Follower, PlainRequest, RebuiltBatch

from pagedlab.batch import ContextParallel, InputBatch, TableSpec
from pagedlab.errors import CapacityError, DuplicateRequestError
from pagedlab.request import SamplingParams

pytestmark = pytest.mark.timeout(900)  # Hypothesis takes up to five minutes to shrink a failure

NUM_ROWS, MAX_MODEL_LEN = 5, 14
GROUPS = [
    (TableSpec(4),),
    (TableSpec(8, kernel_block_size=2),),
    (TableSpec(2, context_parallel=ContextParallel(2, 1)),),
    (TableSpec(4), TableSpec(8, kernel_block_size=4)),
    (TableSpec(6, kernel_block_size=3), TableSpec(1, max_blocks=1)),
]

tokens = st.integers(0, VOCAB - 1)
penalty = st.sampled_from([0.0, 0.0, 0.5, -1.0])
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.005, 0.7]),
    top_p=st.sampled_from([1.0, 0.5]),
    top_k=st.sampled_from([0, 3, VOCAB, VOCAB + 3]),
    frequency_penalty=penalty,
    presence_penalty=penalty,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5]),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1, max_size=3).map(tuple),
    bad_words_token_ids=st.sampled_from([(), (), ((3,), (4, 5))]),
    logprobs=st.sampled_from([None, None, 0, 3, -1]),
    seed=st.none() | st.integers(0, 9),
)


class BatchAgainstRebuilt(RuleBasedStateMachine):
    """Two batches, which send to the device what changed or whole rows, get the same operations."""

    @initialize(
        data=st.data(),
        tables=st.sampled_from(GROUPS),
        poison=st.booleans(),
        commits=st.sampled_from([True, True, False]),
    )
    def start(self, data: st.DataObject, tables: tuple[TableSpec, ...], poison: bool, commits: bool) -> None:
        self.tables = tables
        self.poison = poison
        self.commits = commits  # after every operation, as after every step of an engine
        self.followers = (Follower(), Follower())
        self.batches = tuple(
            InputBatch(
                NUM_ROWS,
                MAX_MODEL_LEN,
                MAX_MODEL_LEN,
                VOCAB,
                tables,
                CPU,
                logits_processors=(follower,),
                commit_mode=mode,
            )
            for follower, mode in zip(self.followers, ("changed", "full"), strict=True)
        )
        self.rows: list[PlainRequest | None] = []
        self.parked: dict[str, PlainRequest] = {}
        self.num_names = self.num_blocks = 0
        self.arrive(data, data.draw(st.integers(2, NUM_ROWS)))
        self.both(InputBatch.refresh_metadata)

    # --- helpers ------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[PlainRequest]:
        return [request for request in self.rows if request is not None]

    def both(self, operation: Callable[[InputBatch], Any]) -> list[Any]:
        return [operation(batch) for batch in self.batches]

    def both_refuse(self, error: type[Exception], operation: Callable[[InputBatch], object]) -> None:
        """The invariant then proves that nothing changed."""
        for batch in self.batches:
            with pytest.raises(error):
                operation(batch)

    def new_blocks(self, counts: list[int]) -> list[list[int]]:
        """Return blocks that nobody else has."""
        blocks = []
        for count in counts:
            blocks.append(list(range(self.num_blocks + 1, self.num_blocks + 1 + count)))
            self.num_blocks += count
        return blocks

    def blocks_for(self, num_computed: int, more: int) -> list[list[int]]:
        counts = [
            spec.max_blocks if spec.max_blocks is not None else -(-num_computed // spec.block_size) + more
            for spec in self.tables
        ]
        return self.new_blocks(counts)

    def has_room(self, request: PlainRequest, new: list[list[int]]) -> bool:
        return all(
            (len(held) + len(ids)) * spec.blocks_per_kv_block <= spec.columns(MAX_MODEL_LEN)
            for held, ids, spec in zip(request.blocks, new, self.tables, strict=True)
        )

    def draw_request(self, data: st.DataObject, name: str) -> PlainRequest:
        request = PlainRequest(name, (), [], data.draw(params), lora_id=data.draw(st.sampled_from([0, 0, 1, 2])))
        if data.draw(st.integers(0, 5)):
            request.prompt = tuple(data.draw(st.lists(tokens, min_size=1, max_size=8)))
        else:
            request.prompt, request.num_embeds = None, data.draw(st.integers(1, 8))
        request.outputs = data.draw(st.lists(tokens, max_size=3))
        request.drafts = data.draw(st.lists(tokens, max_size=2))
        request.num_computed = data.draw(st.integers(0, request.num_tokens - 1))
        request.blocks = self.blocks_for(request.num_computed, data.draw(st.integers(0, 2)))
        return request

    def draw_arrival(self, data: st.DataObject) -> PlainRequest:
        """A new request, another one with the id of one that is gone, or one that comes back with its outputs."""
        how = data.draw(st.sampled_from(["new", "recycled", "resumed"])) if self.parked else "new"
        if how == "new":
            self.num_names += 1
            return self.draw_request(data, f"r{self.num_names}")
        request = self.parked.pop(data.draw(st.sampled_from(sorted(self.parked))))
        if how == "recycled":
            return self.draw_request(data, request.name)
        request.num_computed, request.drafts = 0, []
        request.blocks = self.blocks_for(0, data.draw(st.integers(0, 2)))
        return request

    def place(self, request: PlainRequest) -> int:
        """The rule for a new row: the lowest hole, else behind the last."""
        if None in self.rows:
            row = self.rows.index(None)
            self.rows[row] = request
        else:
            row = len(self.rows)
            self.rows.append(request)
        return row

    def condense(self) -> None:
        """The rule for holes: the last live row drops into the lowest, until there is none."""
        while None in self.rows:
            last = self.rows.pop()
            if last is not None:
                self.rows[self.rows.index(None)] = last

    # --- steps --------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some leave, some come, holes are filled, and rows may be put into another order."""
        for request in data.draw(st.lists(st.sampled_from(self.live), unique_by=id)) if self.live else []:
            row = self.rows.index(request)
            assert self.both(lambda batch, name=request.name: batch.remove_request(name)) == [row, row]
            self.rows[row] = None
            self.parked[request.name] = request
        assert self.both(lambda batch: batch.remove_request("nobody")) == [None, None]
        self.arrive(data, data.draw(st.integers(0, NUM_ROWS - len(self.live))))
        self.condense()
        self.both(InputBatch.condense)
        if len(self.rows) >= 2:
            for first, second in data.draw(st.lists(st.tuples(*[st.integers(0, len(self.rows) - 1)] * 2), max_size=3)):
                self.swap(first, second)
        self.both(InputBatch.refresh_metadata)

    def arrive(self, data: st.DataObject, number: int) -> None:
        for _ in range(number):
            request = self.draw_arrival(data)
            drafts, request.drafts = request.drafts, []
            row = self.place(request)
            assert self.both(lambda batch, request=request: batch.add_request(request.state())) == [row, row]
            request.drafts = drafts
            self.both(lambda batch, request=request: batch.set_drafts(request.name, request.drafts))

    def swap(self, first: int, second: int) -> None:
        self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
        self.both(lambda batch: batch.swap_rows(first, second))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def add_what_does_not_fit(self, data: st.DataObject) -> None:
        there = data.draw(st.sampled_from(self.live))
        self.both_refuse(DuplicateRequestError, lambda batch: batch.add_request(there.state()))
        too_long = PlainRequest("long", (1,) * (MAX_MODEL_LEN + 1), self.blocks_for(0, 0))
        self.both_refuse(CapacityError, lambda batch: batch.add_request(too_long.state()))
        too_many_blocks = PlainRequest("many", (1,), self.blocks_for(0, 1))
        too_many_blocks.blocks[-1] = [1] * 1000
        self.both_refuse(CapacityError, lambda batch: batch.add_request(too_many_blocks.state()))
        self.both(InputBatch.refresh_metadata)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), scalar=st.booleans())
    def append_blocks(self, data: st.DataObject, scalar: bool) -> None:
        """To one request any number of blocks, or to several, mostly one each."""
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, unique_by=id))
        most = 1 if not scalar and data.draw(st.integers(0, 3)) else 3
        new = [
            (request, self.new_blocks([data.draw(st.integers(1 if most == 1 else 0, most)) for _ in self.tables]))
            for request in chosen
        ]
        fitting = [(request, blocks) for request, blocks in new if self.has_room(request, blocks)]
        if scalar:
            for request, blocks in fitting:
                self.both(lambda batch, name=request.name, blocks=blocks: batch.append_blocks(name, blocks))
        else:
            self.both(lambda batch: batch.append_blocks_to_each([(r.name, blocks) for r, blocks in fitting]))
        for request, blocks in fitting:
            for held, ids in zip(request.blocks, blocks, strict=True):
                held += ids

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def append_more_blocks_than_fit(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.live))
        blocks = [[1] for _ in self.tables]
        blocks[-1] = [1] * 1000
        self.both_refuse(CapacityError, lambda batch: batch.append_blocks(request.name, blocks))
        self.both_refuse(CapacityError, lambda batch: batch.append_blocks_to_each([(request.name, blocks)]))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=tokens)
    def append_token(self, data: st.DataObject, token: int) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        request = self.live[row]
        self.clear_drafts([request])
        if request.num_tokens == MAX_MODEL_LEN:
            self.both_refuse(CapacityError, lambda batch: batch.append_token(row, token))
            return
        self.both(lambda batch: batch.append_token(row, token))
        request.outputs.append(token)

    @rule(data=st.data())
    def append_token_to_each(self, data: st.DataObject) -> None:
        new = data.draw(st.lists(tokens, min_size=len(self.live), max_size=len(self.live)))
        self.clear_drafts(self.live)
        on_device = torch.tensor(new, dtype=torch.int64).numpy()
        if any(request.num_tokens == MAX_MODEL_LEN for request in self.live):
            self.both_refuse(CapacityError, lambda batch: batch.append_token_to_each(on_device))
            return
        assert self.both(lambda batch: batch.append_token_to_each(on_device)) == [new, new]
        for request, token in zip(self.live, new, strict=True):
            request.outputs.append(token)

    def clear_drafts(self, requests: list[PlainRequest]) -> None:
        for request in requests:
            request.drafts = []
            self.both(lambda batch, name=request.name: batch.set_drafts(name, ()))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), drafts=st.lists(tokens, max_size=4))
    def set_drafts(self, data: st.DataObject, drafts: list[int]) -> None:
        request = data.draw(st.sampled_from(self.live))
        if request.num_tokens + len(drafts) > MAX_MODEL_LEN:
            self.both_refuse(CapacityError, lambda batch: batch.set_drafts(request.name, drafts))
            return
        request.drafts = list(drafts)
        self.both(lambda batch: batch.set_drafts(request.name, drafts))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """Count tokens as computed, as the runner does, as far as there are blocks for them."""
        row = data.draw(st.integers(0, len(self.rows) - 1))
        request = self.live[row]
        room = [
            len(ids) * spec.block_size
            for ids, spec in zip(request.blocks, self.tables, strict=True)
            if spec.max_blocks is None
        ]
        request.num_computed = data.draw(st.integers(0, min(request.num_tokens, *room)))
        for batch in self.batches:
            batch.rows.num_computed_tokens[row] = request.num_computed

    @rule(data=st.data())
    def commit_some(self, data: st.DataObject) -> None:
        num_reqs = data.draw(st.integers(0, len(self.rows)))
        self.commit(num_reqs, data.draw(st.integers(num_reqs, NUM_ROWS)))

    def commit(self, num_reqs: int, num_reqs_padded: int) -> None:
        """Whatever mode: the first rows are on the device as they are on the host, and both devices are equal."""
        by_change, by_row = self.both(lambda batch: batch.block_table.commit(num_reqs))
        assert by_row == sum(4 * num_reqs * spec.columns(MAX_MODEL_LEN) for spec in self.tables)
        assert by_change <= by_row
        for of_changed, of_full in zip(*(batch.block_table for batch in self.batches), strict=True):
            assert of_changed.table.gpu.numpy().tobytes() == of_full.table.gpu.numpy().tobytes()
            assert (of_changed.table.gpu.numpy()[:num_reqs] == of_changed.table.np[:num_reqs]).all()
            if num_reqs_padded > num_reqs:
                for table in (of_changed, of_full):
                    table.pad_rows(num_reqs, num_reqs_padded)
                assert not of_changed.table.gpu[num_reqs:num_reqs_padded].any()
                assert of_changed.table.gpu.numpy().tobytes() == of_full.table.gpu.numpy().tobytes()

    # --- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def the_batch_is_as_if_it_were_built_anew(self) -> None:
        rebuilt = RebuiltBatch(self.live, self.tables)
        held = {request.name: request.blocks for request in self.live}
        for batch, follower in zip(self.batches, self.followers, strict=True):
            rebuilt.assert_equals(batch)
            rebuilt.assert_metadata_equal(batch)
            follower.assert_follows(batch)
            batch.check_integrity(held)

    @invariant()
    def what_is_stale_may_be_anything(self) -> None:
        """What follows finds poison wherever nobody may look, and what was sent to the device."""
        if self.poison:
            self.both(InputBatch.poison)
        if self.commits:
            self.commit(len(self.rows), len(self.rows))


TestBatchAgainstRebuilt = BatchAgainstRebuilt.TestCase
TestBatchAgainstRebuilt.settings = settings(max_examples=1200, stateful_step_count=35, deadline=None)
