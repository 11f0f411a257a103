"""What a row of the batch may hold beside its prompt: sampled tokens, drafts, embeddings, an adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rebuilt_batch import PlainRequest, assert_holds, filled, make_batch, request

# --- tokens and drafts --------------------------------------------------------------------------------------------


def test_sampled_tokens_go_into_the_row_and_into_the_requests_own_output() -> None:
    batch = make_batch()
    states = [request(name).state() for name in "AB"]
    for state in states:
        batch.add_request(state)
    batch.append_token(1, 9)
    assert batch.append_token_to_each(np.array([5, 6])) == [5, 6]
    assert [state.output_token_ids for state in states] == [[5], [9, 6]]
    batch.refresh_metadata()
    assert_holds(batch, request("A", outputs=[5]), request("B", outputs=[9, 6]))


def test_a_token_for_each_of_no_rows_is_none() -> None:
    assert make_batch().append_token_to_each(np.array([], dtype=np.int64)) == []


def test_drafts_replace_the_old_ones_and_do_not_count_as_tokens() -> None:
    batch = filled("A")
    batch.set_drafts("A", [7, 8, 9])
    batch.set_drafts("A", [4])
    assert batch.rows.num_tokens_no_spec[0] == 3
    assert batch.num_row_tokens(0) == 4
    assert_holds(batch, request("A", drafts=[4]))


def test_drafts_end_with_their_request() -> None:
    batch = filled(*"AB")
    batch.set_drafts("A", [7, 8])
    batch.remove_request("A")
    assert batch.spec_token_ids[0] == []
    batch.add_request(request("C").state())
    batch.refresh_metadata()
    assert_holds(batch, *map(request, "CB"))


# --- prompts of embeddings ----------------------------------------------------------------------------------------


def embedded(name: str, length: int = 4, **fields: Any) -> PlainRequest:
    return request(name, None, num_embeds=length, **fields)


def test_what_is_an_embedding_is_not_kept_before_one_comes() -> None:
    batch = filled(*"AB")
    assert batch.is_token_ids is None
    batch.add_request(embedded("E", outputs=[5]).state())
    assert batch.is_token_ids is not None
    assert batch.is_token_ids[:3, :5].tolist() == [[True] * 5, [True] * 5, [False] * 4 + [True]]
    batch.refresh_metadata()
    assert_holds(batch, request("A"), request("B"), embedded("E", outputs=[5]))


def test_embeddings_move_swap_and_go_with_their_request() -> None:
    batch = filled("A", embedded("E"), embedded("F", 2))
    batch.remove_request("A")
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, embedded("F", 2), embedded("E"))
    batch.swap_rows(0, 1)
    batch.refresh_metadata()
    assert_holds(batch, embedded("E"), embedded("F", 2))
    batch.add_request(request("B").state())
    batch.refresh_metadata()
    batch.swap_rows(1, 2)
    batch.refresh_metadata()
    assert_holds(batch, embedded("E"), request("B"), embedded("F", 2))
    batch.remove_request("E")
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, embedded("F", 2), request("B"))
    assert set(batch.req_prompt_embeds) == {0}  # 0.25.1 keeps those of removed rows


@pytest.mark.parametrize("together", [False, True])
def test_a_sampled_token_is_a_token_also_where_an_embedding_was(together: bool) -> None:
    batch = filled(embedded("E", 10))
    batch.remove_request("E")
    batch.add_request(request("B").state())
    batch.condense()
    batch.refresh_metadata()
    batch.append_token_to_each(np.array([7])) if together else batch.append_token(0, 7)
    assert_holds(batch, request("B", outputs=[7]))


def test_a_draft_is_a_token_also_where_an_embedding_was() -> None:
    batch = filled(embedded("E", 10))
    batch.remove_request("E")
    batch.add_request(request("B").state())
    batch.condense()
    batch.refresh_metadata()
    batch.set_drafts("B", [7, 8])
    assert_holds(batch, request("B", drafts=[7, 8]))


# --- adapters -----------------------------------------------------------------------------------------------------


def test_each_token_and_each_sample_gets_the_adapter_of_its_row() -> None:
    batch = filled(request("A", lora_id=5), "B", request("C", lora_id=2), request("D", lora_id=5))
    inputs = batch.make_lora_inputs(np.array([2, 1, 3, 1]), np.array([1, 1, 0, 2]))
    assert inputs.per_token.tolist() == [5, 5, 0, 2, 2, 2, 5]
    assert inputs.per_sample.tolist() == [5, 0, 5, 5]
    assert (inputs.per_token.dtype, inputs.per_sample.dtype) == (np.int32, np.int32)
    assert inputs.active == {2, 5}


def test_an_adapter_is_active_until_its_last_request_leaves() -> None:
    batch = filled(request("A", lora_id=5), request("B", lora_id=5), "C")
    batch.remove_request("A")
    assert batch.lora_requests == {5: {"B"}}
    batch.remove_request("B")
    assert batch.lora_requests == {}
    batch.condense()
    batch.refresh_metadata()
    assert_holds(batch, request("C"))
