"""Every kind of damage to the batch is found: one thing at a time is broken, and the proof must fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from rebuilt_batch import FOUR, TWO_GROUPS, PlainRequest, assert_holds, filled, request

from pagedlab.batch import ContextParallel, InputBatch, TableSpec
from pagedlab.errors import IntegrityError

REQUESTS = (
    request("A", outputs=[5, 6], num_computed=4, lora_id=3, groups=2),
    request(
        "B",
        outputs=[7],
        groups=2,
        params={
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 3,
            "frequency_penalty": 0.5,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.5,
            "allowed_token_ids": (2,),
            "bad_words_token_ids": ((1,),),
            "logprobs": 2,
            "seed": 1,
        },
    ),
    request("C", drafts=[8, 9], groups=2),
)
HELD = {one.name: one.blocks for one in REQUESTS}


def whole_batch() -> InputBatch:
    """Three requests, committed; behind them a free row that was used before."""
    batch = filled(*REQUESTS, request("gone", groups=2), tables=TWO_GROUPS)
    batch.set_drafts("C", [8, 9])
    batch.remove_request("gone")
    batch.condense()
    batch.refresh_metadata()
    batch.block_table.commit(4)
    return batch


def swap_index(batch: InputBatch) -> None:
    index = batch.req_id_to_index
    index["A"], index["B"] = index["B"], index["A"]


def rename(batch: InputBatch) -> None:
    batch.req_id_to_index["X"] = batch.req_id_to_index.pop("C")


def of_mask(row: int) -> Callable[[InputBatch], None]:
    def damage(batch: InputBatch) -> None:
        mask = batch.sampling.allowed_token_ids_mask
        assert mask is not None
        mask.np[row, 4] = True

    return damage


DAMAGE: dict[str, Callable[[InputBatch], object]] = {
    "two requests exchanged in the index": swap_index,
    "a request of the index that is in no row": rename,
    "a request missing in the index": lambda batch: batch.req_id_to_index.pop("C"),
    "an output token": lambda batch: batch.token_ids.__setitem__((0, 3), 1),
    "another list of outputs": lambda batch: batch.req_output_token_ids.__setitem__(0, [5]),
    "no list of outputs": lambda batch: batch.req_output_token_ids.__setitem__(0, None),
    "a list of outputs too many": lambda batch: batch.req_output_token_ids.append([]),
    "a list of drafts too few": lambda batch: batch.spec_token_ids.pop(),
    "a draft token": lambda batch: batch.token_ids.__setitem__((2, 4), 1),
    "another draft": lambda batch: batch.spec_token_ids.__setitem__(2, [8, 7]),
    "drafts of a row that has none": lambda batch: batch.spec_token_ids.__setitem__(0, [8]),
    "one token more": lambda batch: batch.rows.num_tokens_no_spec.__setitem__(0, 6),
    "one token less": lambda batch: batch.rows.num_tokens_no_spec.__setitem__(0, 4),
    "a prompt too long": lambda batch: batch.rows.num_prompt_tokens.__setitem__(0, 4),
    "a prompt too short": lambda batch: batch.rows.num_prompt_tokens.__setitem__(0, 2),
    "more computed than blocks hold": lambda batch: batch.rows.num_computed_tokens.__setitem__(0, 9),
    "a block": lambda batch: batch.block_table[0].table.np.__setitem__((0, 1), 1),
    "a kernel block": lambda batch: batch.block_table[1].table.np.__setitem__((1, 3), 1),
    "a block too few": lambda batch: batch.block_table[0].num_blocks_per_row.__setitem__(0, 1),
    "a block too many": lambda batch: batch.block_table[1].num_blocks_per_row.__setitem__(0, 5),
    "a block on the device": lambda batch: batch.block_table[1].table.gpu.__setitem__((2, 0), 1),
    "a mask in a row without one": of_mask(0),
    "a mask in a free row": of_mask(3),
    "a generator in a free row": lambda batch: batch.sampling.generators.__setitem__(3, torch.Generator()),
    "bad words in a free row": lambda batch: batch.sampling.bad_words_token_ids.__setitem__(4, ((1,),)),
    "an adapter nobody is said to use": lambda batch: batch.lora_requests.clear(),
    "an adapter of somebody who is gone": lambda batch: batch.lora_requests.__setitem__(7, {"gone"}),
    "an adapter of another request": lambda batch: batch.lora_requests[3].add("B"),
    "another adapter in the row": lambda batch: batch.rows.lora_id.__setitem__(0, 4),
    "an adapter in a row without one": lambda batch: batch.rows.lora_id.__setitem__(1, 4),
    "greedy and random": lambda batch: batch.sampling.random_reqs.add("A"),
    "neither greedy nor random": lambda batch: batch.sampling.greedy_reqs.discard("A"),
    "greedy and gone": lambda batch: batch.sampling.greedy_reqs.add("gone"),
    "top_p of somebody who is gone": lambda batch: batch.sampling.top_p_reqs.add("gone"),
    "top_k of somebody who is gone": lambda batch: batch.sampling.top_k_reqs.add("gone"),
    "a penalty of somebody who is gone": lambda batch: batch.sampling.frequency_penalty_reqs.add("gone"),
    "another penalty of somebody who is gone": lambda batch: batch.sampling.presence_penalty_reqs.add("gone"),
    "a third penalty of somebody who is gone": lambda batch: batch.sampling.repetition_penalty_reqs.add("gone"),
    "allowed tokens of somebody who is gone": lambda batch: batch.sampling.allowed_token_reqs.add("gone"),
    "logprobs of somebody who is gone": lambda batch: batch.sampling.num_logprobs.__setitem__("gone", 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str) -> None:
    batch = whole_batch()
    assert_holds(batch, *REQUESTS, tables=TWO_GROUPS)
    DAMAGE[kind](batch)
    with pytest.raises(IntegrityError):
        batch.check_integrity(HELD)


def test_a_batch_with_holes_is_not_whole() -> None:
    batch = whole_batch()
    batch.remove_request("A")
    with pytest.raises(IntegrityError, match="holes"):
        batch.check_integrity(HELD)


def test_blocks_are_compared_with_what_is_held_where_anything_is() -> None:
    batch = filled("A")
    batch.check_integrity({})  # it ended in this step: it holds nothing, and its row is there until the next
    batch.check_integrity({"A": request("A").blocks, "elsewhere": [[1]]})
    batch.check_integrity({"A": [[0, request("A").blocks[0][1]]]})  # the first fell out of the window
    with pytest.raises(IntegrityError, match="'A' holds blocks"):
        batch.check_integrity({"A": [[1, 2]]})
    with pytest.raises(IntegrityError, match="'A' holds blocks"):
        batch.check_integrity({"A": [[]]})


def test_what_a_commit_will_send_is_no_damage() -> None:
    batch = whole_batch()
    batch.append_blocks("A", [[50], [51]])
    batch.block_table[0].append_each(np.array([52], dtype=np.int32), np.array([1]))
    blocks = {name: [list(ids) for ids in held] for name, held in HELD.items()}
    blocks["A"][0].append(50)
    blocks["A"][1].append(51)
    blocks["B"][0].append(52)
    batch.check_integrity(blocks)
    batch.block_table.commit(0)
    batch.check_integrity(blocks)
    batch.block_table[0].pad_rows(1, 3)
    batch.check_integrity(blocks)
    batch.block_table.commit(3)
    batch.check_integrity(blocks)


def test_a_block_that_spans_two_ranks_covers_the_tokens_of_both() -> None:
    tables = (TableSpec(4, context_parallel=ContextParallel(2, 1)),)
    spread = PlainRequest("A", (1,) * 9, [[5]], num_computed=8)
    batch = filled(spread, tables=tables)
    assert_holds(batch, spread, tables=tables)
    batch.rows.num_computed_tokens[0] = 9
    with pytest.raises(IntegrityError, match="'A' has computed more tokens than its blocks hold"):
        batch.check_integrity({})


def test_a_state_in_a_mamba_group_covers_any_number_of_tokens() -> None:
    tables = (*FOUR, TableSpec(1, max_blocks=1))
    long = PlainRequest("A", (1,) * 12, [[1, 2, 3], [9]], num_computed=11)
    batch = filled(long, tables=tables)
    assert_holds(batch, long, tables=tables)
