"""The persistent batch: rows, holes, condense, swap; what is refused changes nothing; who follows sees everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rebuilt_batch import (
    FOUR,
    MAX_MODEL_LEN,
    TWO_GROUPS,
    VOCAB,
    Follower,
    RebuiltBatch,
    assert_holds,
    filled,
    make_batch,
    request,
)

from pagedlab.batch import MoveDirection, TableSpec
from pagedlab.errors import CapacityError, ConfigError, DuplicateRequestError, IntegrityError, RequestError
from pagedlab.events import (
    BatchUpdated,
    BlocksAppended,
    Event,
    RowAdded,
    RowMoved,
    RowRemoved,
    RowsSwapped,
    TokenAppended,
)

# --- holes ------------------------------------------------------------------------------------------------------


def test_condense_moves_the_last_row_into_the_lowest_hole() -> None:
    """[A, _, B, _, C] -> [A, C, B], as in the course."""
    batch = filled(*"AxByC")
    batch.remove_request("x")
    batch.remove_request("y")
    assert batch.num_reqs == 3  # right although there are holes
    batch.condense()
    update = batch.refresh_metadata()
    assert_holds(batch, *map(request, "ACB"))
    assert update is not None
    assert (update.batch_size, update.removed, update.added) == (3, (3,), ())
    assert update.moved == ((4, 1, MoveDirection.UNIDIRECTIONAL),)


def test_a_new_request_takes_the_lowest_hole_so_that_nothing_moves() -> None:
    batch = filled(*"ABC")
    batch.remove_request("C")
    batch.remove_request("A")
    assert batch.add_request(request("D").state()) == 0
    batch.condense()
    update = batch.refresh_metadata()
    assert update is not None
    assert (update.removed, [added.row for added in update.added], update.moved) == ((2,), [0], ())
    assert_holds(batch, *map(request, "DB"))


def test_removing_everybody_reports_the_holes() -> None:
    batch = filled(*"AB")
    batch.remove_request("A")
    batch.remove_request("B")
    batch.condense()
    update = batch.refresh_metadata()
    assert update is not None
    assert (update.batch_size, update.removed) == (0, (1, 0))
    assert_holds(batch)
    assert batch.refresh_metadata() is None


def test_an_unknown_request_is_removed_without_a_trace() -> None:
    batch = filled("A")
    assert batch.remove_request("nobody") is None
    assert batch.refresh_metadata() is None


def test_a_removed_rows_tokens_and_numbers_stay_stale() -> None:
    batch = filled(*"AB")
    batch.remove_request("A")
    assert batch.token_ids[0, :3].tolist() == [1, 2, 3]
    assert batch.rows.num_prompt_tokens[0] == 3
    assert batch.block_table[0].row(0).tolist() == []


def test_an_id_may_leave_and_come_back_as_somebody_else_in_one_step() -> None:
    batch = filled(*"AB")
    batch.remove_request("A")
    other = request("A", (9, 9), blocks=[[7]], params={"temperature": 0.5})
    assert batch.add_request(other.state()) == 0
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, other, request("B"))


# --- what is refused changes nothing ------------------------------------------------------------------------------


def test_removals_come_before_holes_are_read() -> None:
    batch = filled(*"AB")
    batch.remove_request("A")
    batch.add_request(request("C").state())
    with pytest.raises(IntegrityError, match="remove before you add"):
        batch.remove_request("B")
    assert_holds(batch, *map(request, "CB"))


def test_additions_come_before_rows_move() -> None:
    """Whoever follows applies moves last: an addition in a row that somebody just left would be moved with it."""
    batch = filled(*"AxB")
    batch.remove_request("x")
    batch.condense()
    with pytest.raises(IntegrityError, match="add requests before that"):
        batch.add_request(request("C").state())
    batch.refresh_metadata()
    batch.add_request(request("C").state())
    assert_holds(batch, *map(request, "ABC"))


REFUSED = {
    "duplicate": (request("A"), DuplicateRequestError, "in the batch already"),
    "too long": (request("X", (1,) * 17), CapacityError, "has 17 tokens and a row holds 16"),
    "too long with outputs": (request("X", (1,) * 10, outputs=[2] * 7), CapacityError, "has 17 tokens"),
    "too many blocks": (request("X", blocks=[[1] * 33]), CapacityError, "cannot take 33 more"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_request_that_does_not_fit_is_refused_and_the_batch_goes_on(reason: str) -> None:
    misfit, error, words = REFUSED[reason]
    follower = Follower()
    batch = filled(*"AB", logits_processors=(follower,))
    with pytest.raises(error, match=words):
        batch.add_request(misfit.state())
    assert batch.refresh_metadata() is None
    assert_holds(batch, *map(request, "AB"))
    follower.assert_follows(batch)
    batch.add_request(request("C").state())
    assert_holds(batch, *map(request, "ABC"))


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_request_is_as_if_it_had_not_come_so_others_may_still_leave(reason: str) -> None:
    misfit, error, words = REFUSED[reason]
    batch = filled(*"AB")
    with pytest.raises(error, match=words):
        batch.add_request(misfit.state())
    assert batch.remove_request("A") == 0
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, request("B"))


def test_a_full_batch_takes_nobody() -> None:
    batch = filled(*"ABCDE")
    with pytest.raises(CapacityError, match="all 5 rows"):
        batch.add_request(request("F").state())
    assert_holds(batch, *map(request, "ABCDE"))


@pytest.mark.parametrize("full_group", [0, 1])
def test_a_request_too_large_for_one_group_is_in_none(full_group: int) -> None:
    batch = filled("A", tables=TWO_GROUPS)
    blocks = [[5], [6]]
    blocks[full_group] = [7] * 40
    with pytest.raises(CapacityError, match="cannot take 40 more"):
        batch.add_request(request("B", blocks=blocks).state())
    with pytest.raises(CapacityError, match="cannot take 40 more"):
        batch.append_blocks("A", blocks)
    with pytest.raises(ValueError, match="for 1 groups"):
        batch.append_blocks("A", [[5]])
    with pytest.raises(ValueError, match="for 1 groups"):
        batch.add_request(request("B", blocks=[[5]]).state())
    assert batch.refresh_metadata() is None
    assert_holds(batch, request("A", groups=2), tables=TWO_GROUPS)


@pytest.mark.parametrize(("tables", "observed"), [(FOUR, False), (FOUR, True), (TWO_GROUPS, False)])
def test_if_one_request_has_no_room_no_other_gets_its_blocks(tables: Sequence[TableSpec], observed: bool) -> None:
    full = request("B", blocks=[[1] * (spec.columns(MAX_MODEL_LEN) // spec.blocks_per_kv_block) for spec in tables])
    batch = filled("A", full, tables=tables)
    events: list[Event] = []
    batch.observer = events.append if observed else None
    new = [(name, [[9] for _ in tables]) for name in "AB"]
    with pytest.raises(CapacityError, match="cannot take 1 more"):
        batch.append_blocks_to_each(new)
    assert_holds(batch, request("A", groups=len(tables)), full, tables=tables)
    assert events == []


def test_a_full_row_takes_no_token() -> None:
    full = request("A", (1,) * 16, blocks=[[1, 2, 3, 4]])
    batch = filled(full, "B")
    with pytest.raises(CapacityError, match=r"row 0 \(request 'A'\) is full: 16 tokens"):
        batch.append_token(0, 3)
    with pytest.raises(CapacityError, match=r"row 0 \(request 'A'\) is full: 16 tokens"):
        batch.append_token_to_each(np.array([3, 4]))
    assert_holds(batch, full, request("B"))


def test_drafts_that_do_not_fit_leave_the_old_ones() -> None:
    batch = filled(request("A", (1,) * 13, blocks=[[1, 2, 3, 4]]))
    batch.set_drafts("A", [7, 8])
    with pytest.raises(CapacityError, match="holds 13 tokens and cannot take 4 drafts: a row holds 16"):
        batch.set_drafts("A", [1, 2, 3, 4])
    assert_holds(batch, request("A", (1,) * 13, blocks=[[1, 2, 3, 4]], drafts=[7, 8]))


def test_rows_with_holes_cannot_be_read_swapped_or_written() -> None:
    batch = filled(*"AB")
    batch.remove_request("A")
    with pytest.raises(IntegrityError, match="condense it"):
        _ = batch.req_ids
    with pytest.raises(IntegrityError, match="one is a hole"):
        batch.swap_rows(0, 1)
    with pytest.raises(IntegrityError, match="is a hole"):
        batch.append_token(0, 3)
    with pytest.raises(IntegrityError, match="condense it"):
        batch.append_token_to_each(np.array([3]))
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, request("B"))


def test_an_unknown_commit_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="commit_mode is 'half'"):
        make_batch(commit_mode="half")


# --- swap ---------------------------------------------------------------------------------------------------------


def test_swap_exchanges_everything_of_two_rows() -> None:
    plain = request("A", (1, 2), drafts=[9])
    rich = request(
        "B",
        (3, 4, 5, 6),
        outputs=[7, 8],
        num_computed=5,
        lora_id=3,
        params={
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.5,
            "seed": 1,
            "allowed_token_ids": (2,),
            "bad_words_token_ids": ((1, 2),),
            "frequency_penalty": 0.5,
            "logprobs": 3,
        },
    )
    batch = filled(plain, rich)
    batch.set_drafts("A", [9])
    batch.swap_rows(0, 1)
    update = batch.refresh_metadata()
    assert update is not None
    assert update.moved == ((0, 1, MoveDirection.SWAP),)
    assert_holds(batch, rich, plain)
    RebuiltBatch([rich, plain], FOUR).assert_metadata_equal(batch)


def test_swapping_a_row_with_itself_changes_nothing() -> None:
    batch = filled(request("A", params={"seed": 1}))
    batch.swap_rows(0, 0)
    assert batch.refresh_metadata() is None
    assert_holds(batch, request("A", params={"seed": 1}))


# --- who follows --------------------------------------------------------------------------------------------------


def test_logits_processors_hear_of_every_step_and_settings_are_made_anew_only_after_a_change() -> None:
    follower = Follower()
    batch = filled("A", logits_processors=(follower,))
    assert (follower.num_calls, follower.num_updates) == (1, 1)
    before = batch.sampling_metadata
    batch.append_token(0, 7)
    assert batch.refresh_metadata() is None
    assert (follower.num_calls, follower.num_updates) == (2, 1)
    assert batch.sampling_metadata is before
    batch.add_request(request("B").state())
    assert batch.refresh_metadata() is not None
    assert (follower.num_calls, follower.num_updates) == (3, 2)
    assert batch.sampling_metadata is not before


def test_an_empty_batch_is_all_greedy() -> None:
    assert make_batch().sampling_metadata.all_greedy
    assert make_batch().sampling_metadata.max_num_logprobs is None


def test_an_observer_sees_every_change_as_it_was() -> None:
    batch = make_batch(TWO_GROUPS)
    events: list[Event] = []
    batch.observer = events.append
    for name in "ABC":
        batch.add_request(request(name, groups=2, num_computed=2, outputs=[9]).state())
    batch.refresh_metadata()
    batch.remove_request("A")
    batch.condense()
    batch.swap_rows(0, 1)
    batch.append_blocks("B", [[7], []])
    batch.append_blocks_to_each([("C", [[8], [9]])])
    batch.append_token(1, 4)
    batch.refresh_metadata()
    batch.refresh_metadata()
    blocks = {name: tuple(map(tuple, request(name, groups=2).blocks)) for name in "ABC"}
    assert events == [
        *(RowAdded(row, name, 4, 2, blocks[name]) for row, name in enumerate("ABC")),
        BatchUpdated(3, (), (0, 1, 2), ()),
        RowRemoved(0, "A"),
        RowMoved(2, 0, "C", 4),
        RowsSwapped(0, 1, "C", "B"),
        BlocksAppended(0, "B", 0, (7,)),
        BlocksAppended(0, "B", 1, ()),
        BlocksAppended(1, "C", 0, (8,)),
        BlocksAppended(1, "C", 1, (9,)),
        TokenAppended(1, "C", 4),
        BatchUpdated(2, (), (), ((2, 0, "move"), (0, 1, "swap"))),
    ]


def test_poison_changes_nothing_that_is_live() -> None:
    rich = request("A", drafts=[5], lora_id=2, params={"temperature": 0.5, "frequency_penalty": 1.0})
    batch = filled(rich, "B", tables=FOUR)
    batch.set_drafts("A", [5])
    batch.remove_request("B")
    batch.condense()
    batch.refresh_metadata()
    batch.poison()
    assert (batch.token_ids[0, 4:] == -999).all()
    assert (batch.token_ids[1:] == -999).all()
    assert (batch.rows.num_tokens_no_spec[1:] == -999).all()
    assert (batch.rows.temperature[1:] == -999).all()
    assert_holds(batch, rich)
    batch.add_request(request("C").state())
    batch.refresh_metadata()
    assert_holds(batch, rich, request("C"))
    RebuiltBatch([rich, request("C")], FOUR).assert_metadata_equal(batch)


def test_sampling_settings_are_stored_as_vllm_stores_them() -> None:
    raised = request("B", params={"temperature": 0.001, "top_p": 0.5, "top_k": VOCAB + 3, "logprobs": -1})
    batch = filled("A", raised)
    metadata = batch.sampling_metadata
    assert metadata.temperature is not None
    assert metadata.temperature.tolist() == [0.0, np.float32(0.01)]
    assert metadata.top_p is not None
    assert metadata.top_p.tolist() == [1.0, 0.5]
    assert metadata.top_k is None  # a top_k as large as the vocabulary keeps everything
    assert batch.rows.top_k[:2].tolist() == [VOCAB, VOCAB]
    assert (metadata.num_logprobs, metadata.max_num_logprobs) == ({1: VOCAB}, VOCAB)
    batch.remove_request("B")
    batch.condense()
    batch.refresh_metadata()
    assert batch.sampling_metadata.temperature is None  # all greedy: nothing is built
    assert batch.sampling_metadata.all_greedy


def test_prompts_are_padded_with_the_vocabulary_size_and_only_there_with_penalties() -> None:
    batch = filled(request("A", (1, 2)), request("B", (3, 4, 5), outputs=[6]))
    assert batch.sampling_metadata.prompt_token_ids is None
    assert batch.sampling_metadata.output_token_ids == ()
    batch.add_request(request("C", (7,), params={"presence_penalty": 0.5}).state())
    batch.refresh_metadata()
    prompts = batch.sampling_metadata.prompt_token_ids
    assert prompts is not None
    assert prompts.dtype == torch.int64
    assert prompts.tolist() == [[1, 2, VOCAB], [3, 4, 5], [7, VOCAB, VOCAB]]
    assert [*batch.sampling_metadata.output_token_ids] == [[], [6], []]


def test_removals_come_before_rows_move() -> None:
    batch = make_batch()
    batch.add_request(request("A").state())
    batch.add_request(request("B").state())
    batch.refresh_metadata()
    batch.swap_rows(0, 1)
    with pytest.raises(IntegrityError, match="remove first"):
        batch.remove_request("A")
    assert batch.req_ids == ["B", "A"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": (2**31,)},
        {"outputs": [2**31]},
        {"lora_id": 2**31},
        {"params": {"allowed_token_ids": (10**6,)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_no_row_can_hold_is_refused_before_anything_changes(fields: dict[str, Any]) -> None:
    batch = make_batch()
    batch.add_request(request("A").state())
    with pytest.raises(RequestError, match="'X'"):
        batch.add_request(request("X", **fields).state())
    assert batch.req_ids == ["A"]
    batch.refresh_metadata()
    batch.check_integrity({})


def test_changes_are_not_closed_while_there_are_holes() -> None:
    batch = make_batch()
    batch.add_request(request("A").state())
    batch.add_request(request("B").state())
    batch.refresh_metadata()
    batch.remove_request("A")
    with pytest.raises(IntegrityError, match="condense it"):
        batch.refresh_metadata()
    batch.condense()
    update = batch.refresh_metadata()
    assert update is not None
    assert [(move.source, move.target) for move in update.moved] == [(1, 0)]
    assert batch.req_ids == ["B"]
