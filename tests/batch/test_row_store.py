"""The parts that rows are made of: scalars in two matrices, sampling settings, the worker's state, what changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.batch import BatchUpdateBuilder, CachedRequestState, CpuGpuBuffer, MoveDirection, RowStore
from pagedlab.batch.buffers import rows_as_bytes, swap_prefix
from pagedlab.batch.row_store import FLOAT_FIELDS, INT_FIELDS
from pagedlab.batch.sampling_rows import SamplingRows
from pagedlab.errors import IntegrityError, RequestError
from pagedlab.request import SamplingParams

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)


# --- scalars ------------------------------------------------------------------------------------------------------


def numbered(num_rows: int = 4) -> RowStore:
    """A store in which every value is another."""
    store = RowStore(num_rows, CPU)
    store.ints.np[:] = np.arange(store.ints.np.size).reshape(store.ints.np.shape)
    store.floats.np[:] = 1000.5 + np.arange(store.floats.np.size).reshape(store.floats.np.shape)
    return store


def test_a_row_moves_and_swaps_with_every_field() -> None:
    store = numbered()
    ints, floats = store.ints.np.copy(), store.floats.np.copy()
    store.swap(0, 3)
    np.testing.assert_array_equal(store.ints.np, ints[:, [3, 1, 2, 0]])
    np.testing.assert_array_equal(store.floats.np, floats[:, [3, 1, 2, 0]])
    store.move(2, 0)
    np.testing.assert_array_equal(store.ints.np, ints[:, [2, 1, 2, 0]])
    np.testing.assert_array_equal(store.floats.np, floats[:, [2, 1, 2, 0]])
    store.swap(1, 1)
    np.testing.assert_array_equal(store.ints.np, ints[:, [2, 1, 2, 0]])


def test_each_field_is_a_view_of_its_own() -> None:
    store = RowStore(3, CPU)
    for index, name in enumerate((*INT_FIELDS, *FLOAT_FIELDS)):
        getattr(store, name)[1] = index + 0.5
    values = [getattr(store, name)[1] for name in (*INT_FIELDS, *FLOAT_FIELDS)]
    assert values == [*range(len(INT_FIELDS)), *(len(INT_FIELDS) + i + 0.5 for i in range(len(FLOAT_FIELDS)))]
    assert {getattr(store, name).dtype for name in INT_FIELDS} == {np.dtype(np.int32)}
    assert {getattr(store, name).dtype for name in FLOAT_FIELDS} == {np.dtype(np.float32)}


def test_one_token_is_accepted_before_anything_ran() -> None:
    assert RowStore(2, CPU).num_accepted_tokens.tolist() == [1, 1]


def test_one_copy_brings_every_field_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    store = numbered()
    names = (*INT_FIELDS, *FLOAT_FIELDS)
    assert not any(store.device_view(name).any() for name in names)
    copies: list[CpuGpuBuffer] = []
    send = CpuGpuBuffer.send
    monkeypatch.setattr(CpuGpuBuffer, "send", lambda buffer, n=None: (copies.append(buffer), send(buffer, n)))
    store.copy_to_gpu()
    assert len(copies) == 1
    for name in names:
        assert store.device_view(name).tolist() == getattr(store, name).tolist(), name
        assert store.device_view(name).dtype == (torch.int32 if name in INT_FIELDS else torch.float32)


# --- buffers ------------------------------------------------------------------------------------------------------


def test_a_copy_sends_the_first_entries_and_the_device_is_a_memory_of_its_own() -> None:
    buffer = CpuGpuBuffer((3, 2), torch.int32, CPU)
    buffer.np[:] = [[1, 2], [3, 4], [5, 6]]
    assert buffer.gpu.tolist() == [[0, 0]] * 3
    assert buffer.copy_to_gpu(2).tolist() == [[1, 2], [3, 4]]
    assert buffer.gpu.tolist() == [[1, 2], [3, 4], [0, 0]]
    assert buffer.copy_to_gpu().tolist() == buffer.cpu.tolist() == buffer.np.tolist()


def test_a_part_shares_the_memory_and_may_read_the_bytes_otherwise() -> None:
    buffer = CpuGpuBuffer((8,), torch.int32, CPU)
    part, floats = buffer.part(2, (2, 2)), buffer.part(6, (2,), torch.float32)
    part.np[:] = [[1, 2], [3, 4]]
    floats.np[:] = [0.5, 2.0]
    assert buffer.np[:6].tolist() == [0, 0, 1, 2, 3, 4]
    floats.send()
    assert buffer.gpu[:6].tolist() == [0] * 6
    assert floats.gpu.tolist() == [0.5, 2.0]
    buffer.send()
    assert part.gpu.tolist() == [[1, 2], [3, 4]]


@given(st.integers(0, 2), st.integers(0, 2), st.integers(0, 4))
def test_swapping_prefixes_leaves_the_rest(first: int, second: int, length: int) -> None:
    matrix = np.arange(12, dtype=np.int32).reshape(3, 4)
    expected = matrix.copy()
    expected[[first, second], :length] = expected[[second, first], :length]
    swap_prefix(rows_as_bytes(matrix), first, second, 4 * length)
    np.testing.assert_array_equal(matrix, expected)


# --- sampling settings --------------------------------------------------------------------------------------------


def test_a_mask_is_made_only_when_somebody_needs_it() -> None:
    sampling = SamplingRows(RowStore(3, CPU), 3, 6, CPU)
    sampling.add("A", 0, GREEDY)
    assert sampling.allowed_token_ids_mask is None
    sampling.add("B", 2, SamplingParams(temperature=0, allowed_token_ids=(1, 4)))
    assert sampling.allowed_token_ids_mask is not None
    assert sampling.allowed_token_ids_mask.np.tolist() == [[False] * 6] * 2 + [[True, False, True, True, False, True]]
    sampling.remove("B", 2)
    assert not sampling.allowed_token_ids_mask.np.any()


def test_bad_words_and_generators_follow_their_row() -> None:
    rows = RowStore(4, CPU)
    sampling = SamplingRows(rows, 4, 6, CPU)
    generators = [torch.Generator(), torch.Generator()]
    sampling.add("A", 1, SamplingParams(temperature=0, bad_words_token_ids=((1,),)), generators[0])
    sampling.add("B", 2, SamplingParams(temperature=0, bad_words_token_ids=((2,),)))
    sampling.add("C", 3, GREEDY, generators[1])
    sampling.move(1, 0)
    assert (sampling.bad_words_token_ids, sampling.generators) == (
        {0: ((1,),), 2: ((2,),)},
        {0: generators[0], 3: generators[1]},
    )
    sampling.move(2, 1)
    sampling.swap(0, 3)
    sampling.swap(1, 3)
    assert (sampling.bad_words_token_ids, sampling.generators) == (
        {1: ((1,),), 3: ((2,),)},
        {0: generators[1], 1: generators[0]},
    )


@pytest.mark.parametrize(
    ("params", "settings"),
    [
        ({"frequency_penalty": 0.5}, ("frequency_penalties", [0.0, 0.5])),
        ({"presence_penalty": 0.5}, ("presence_penalties", [0.0, 0.5])),
        ({"repetition_penalty": 1.5}, ("repetition_penalties", [1.0, 1.5])),
    ],
)
def test_greedy_rows_may_have_penalties_and_then_all_three_are_there(
    params: dict[str, float], settings: tuple[str, list[float]]
) -> None:
    rows = RowStore(3, CPU)
    sampling = SamplingRows(rows, 3, 6, CPU)
    sampling.add("A", 0, GREEDY)
    sampling.add("B", 1, SamplingParams(temperature=0, **params))
    rows.num_prompt_tokens[:2] = [1, 2]
    metadata = sampling.make_metadata(["A", "B"], np.array([[3, 9], [4, 5]], dtype=np.int32), [[7], [8]])
    expected = {"frequency_penalties": [0.0] * 2, "presence_penalties": [0.0] * 2, "repetition_penalties": [1.0] * 2}
    expected[settings[0]] = settings[1]
    assert {name: getattr(metadata, name).tolist() for name in expected} == expected
    assert metadata.prompt_token_ids is not None
    assert metadata.prompt_token_ids.tolist() == [[3, 6], [4, 5]]
    assert metadata.output_token_ids == ([7], [8])
    assert metadata.all_greedy


def test_bad_words_need_the_outputs_and_nothing_else() -> None:
    sampling = SamplingRows(RowStore(1, CPU), 1, 6, CPU)
    sampling.add("A", 0, SamplingParams(temperature=0, bad_words_token_ids=((1,),)))
    outputs = [[7]]
    metadata = sampling.make_metadata(["A"], np.array([[3, 9]], dtype=np.int32), outputs)
    assert metadata.output_token_ids[0] is outputs[0]
    assert metadata.bad_words_token_ids == {0: ((1,),)}
    assert metadata.prompt_token_ids is metadata.frequency_penalties is metadata.temperature is None


def test_who_leaves_takes_every_setting_along() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_p=0.5,
        top_k=2,
        frequency_penalty=1.0,
        presence_penalty=1.0,
        repetition_penalty=1.5,
        allowed_token_ids=(1,),
        bad_words_token_ids=((1,),),
        logprobs=0,
    )
    sampling = SamplingRows(RowStore(2, CPU), 2, 6, CPU)
    empty = {name: value.copy() for name, value in vars(sampling).items() if isinstance(value, (set, dict))}
    assert len(empty) >= 11
    sampling.add("A", 1, params, torch.Generator())
    assert sampling.penalty_reqs == {"A"}
    assert {name: value for name, value in vars(sampling).items() if name in empty} != empty
    sampling.remove("A", 1)
    assert {name: value for name, value in vars(sampling).items() if name in empty} == empty
    sampling.check_integrity([])


# --- the worker's state -------------------------------------------------------------------------------------------


def test_a_state_answers_for_each_token_and_keeps_the_list_it_is_given() -> None:
    outputs = [7]
    state = CachedRequestState("A", (4, 5), GREEDY, ((1,), (2, 3)), 2, outputs, lora_id=6)
    assert [state.token_id(index) for index in range(5)] == [4, 5, 7, -1, -1]
    outputs.append(8)
    assert (state.num_prompt_tokens, state.num_tokens, state.token_id(3), state.lora_id) == (2, 4, 8, 6)


def test_an_embedded_prompt_has_tokens_but_no_ids() -> None:
    state = CachedRequestState("A", None, GREEDY, ((1,),), 0, [9], prompt_embeds=torch.zeros(3, 2))
    assert (state.num_prompt_tokens, state.num_tokens) == (3, 4)
    with pytest.raises(ValueError, match="'A': its prompt is embeddings, so token 2 has no id"):
        state.token_id(2)
    assert (state.token_id(3), state.token_id(4)) == (9, -1)


@pytest.mark.parametrize(
    ("prompt", "embeds"), [(None, None), ((1,), torch.zeros(1, 2))], ids=["no prompt", "two prompts"]
)
def test_a_prompt_has_one_form(prompt: tuple[int, ...] | None, embeds: torch.Tensor | None) -> None:
    with pytest.raises(RequestError, match="'A': give its prompt as token ids or as embeddings, one of the two"):
        CachedRequestState("A", prompt, GREEDY, ((1,),), 0, prompt_embeds=embeds)


def test_blocks_are_extended_or_replaced_and_never_those_of_the_giver() -> None:
    given_blocks = [[1], [2]]
    state = CachedRequestState("A", (4, 5), GREEDY, given_blocks, 0)
    state.extend_block_ids(((3,), ()))
    assert (state.block_ids, given_blocks) == ([[1, 3], [2]], [[1], [2]])
    with pytest.raises(ValueError, match="shorter"):
        state.extend_block_ids(((3,),))
    state.replace_block_ids(((7,), (8, 9)))
    assert state.block_ids == [[7], [8, 9]]


# --- what changed -------------------------------------------------------------------------------------------------


def test_rows_that_were_filled_again_are_not_reported_as_removed() -> None:
    builder = BatchUpdateBuilder()
    for row in (4, 1, 2):
        builder.remove(row)
    assert builder.row_to_add(9) == 1
    builder.add((1, GREEDY, (7,), []))
    assert (builder.num_holes, builder.peek_lowest_hole(), builder.pop_lowest_hole()) == (2, 2, 2)
    builder.move(5, 2, MoveDirection.UNIDIRECTIONAL)
    update = builder.get_and_reset(5)
    assert update is not None
    assert (update.batch_size, update.removed) == (5, (4,))
    assert [(added.row, added.sampling_params, added.prompt_token_ids) for added in update.added] == [(1, GREEDY, (7,))]
    assert [(moved.source, moved.target) for moved in update.moved] == [(5, 2)]
    assert builder.get_and_reset(5) is None
    assert builder.num_holes == 0


def test_without_holes_the_next_row_is_behind_the_last() -> None:
    builder = BatchUpdateBuilder()
    assert (builder.peek_lowest_hole(), builder.pop_lowest_hole(), builder.row_to_add(3)) == (None, None, 3)


def test_removals_after_holes_were_taken_are_refused_until_the_step_is_closed() -> None:
    builder = BatchUpdateBuilder()
    builder.remove(3)
    builder.pop_lowest_hole()
    with pytest.raises(IntegrityError, match="row 1 is removed after holes were read"):
        builder.remove(1)
    builder.get_and_reset(2)
    builder.remove(1)
    assert builder.num_holes == 1


def test_additions_after_rows_moved_are_refused() -> None:
    builder = BatchUpdateBuilder()
    builder.move(0, 1, MoveDirection.SWAP)
    with pytest.raises(IntegrityError, match="rows have moved in this step"):
        builder.row_to_add(2)
