"""From a scheduler's decision to tensors: rows, the flat batch, padding, and what stale memory must not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import make_runner, new, step

from pagedlab.batch import ContextParallel
from pagedlab.config import SchedulerConfig
from pagedlab.conformance import compare, read_cases
from pagedlab.errors import ConfigError
from pagedlab.events import BatchUpdated, Event, InputsPrepared
from pagedlab.kvcache import EncoderOnlySpec, FullAttentionSpec, KVCacheManager, MambaSpec, SlidingWindowSpec
from pagedlab.model.decoder import Decoder
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner, KVCache, ModelInputs, PagedAttention
from pagedlab.runner.attention import TorchMetadataBuilder
from pagedlab.scheduling import Scheduler
from pagedlab.scheduling.output import SchedulerOutput

GOLDEN = Path(__file__).parents[1] / "golden"


def prepared(runner: GPUModelRunner, output: SchedulerOutput, sampled: int = 50) -> ModelInputs:
    """Prepare a step that schedules something; row r then gets the token ``sampled + r``."""
    inputs = runner.prepare(output)
    assert inputs is not None
    runner.bookkeep(inputs, [sampled + row for row in range(len(inputs.req_ids))])
    return inputs


def lists(inputs: ModelInputs) -> dict[str, Any]:
    names = ("input_ids", "positions", "query_start_loc", "seq_lens", "logits_indices", "discard")
    return {"req_ids": list(inputs.req_ids)} | {name: getattr(inputs, name).tolist() for name in names}


# --- the flat batch -----------------------------------------------------------------------------------------------


def test_decodes_and_chunks_lie_side_by_side_in_one_flat_batch() -> None:
    runner = make_runner()
    prepared(
        runner,
        step(
            {"A": 9, "B": 5},
            new=[new("A", range(20, 29), [[1, 2, 3]]), new("B", range(30, 35), [[4, 5]])],
        ),
    )
    inputs = runner.prepare(
        step(
            {"A": 1, "B": 1, "C": 4},
            new=[new("C", range(40, 50), [[6]])],
            going_on={"A": (9, None), "B": (5, None)},
        )
    )
    assert inputs is not None
    assert lists(inputs) == {
        "req_ids": ["A", "B", "C"],
        "input_ids": [50, 51, 40, 41, 42, 43],
        "positions": [9, 5, 0, 1, 2, 3],
        "query_start_loc": [0, 1, 2, 6],
        "seq_lens": [10, 6, 4],
        "logits_indices": [0, 1, 5],
        "discard": [False, False, True],
    }
    assert inputs.slot_mapping.tolist() == [3 * 4 + 1, 5 * 4 + 1, 24, 25, 26, 27]
    assert inputs.block_table[:, :3].tolist() == [[1, 2, 3], [4, 5, 0], [6, 0, 0]]
    dtypes = [inputs.input_ids.dtype, inputs.positions.dtype, inputs.slot_mapping.dtype, inputs.block_table.dtype]
    assert dtypes == [torch.int32, torch.int64, torch.int64, torch.int32]
    (common,) = inputs.attention
    assert (common.num_reqs, common.num_tokens, common.max_query_len, common.max_seq_len) == (3, 6, 4, 10)
    assert (inputs.num_reqs_padded, inputs.num_tokens_padded) == (3, 6)


def test_the_same_step_is_told_as_an_event() -> None:
    runner = make_runner()
    events: list[Event] = []
    runner.set_observer(events.append)
    prepared(runner, step({"A": 2}, new=[new("A", (5, 6, 7), [[1]])]))
    assert [event for event in events if isinstance(event, InputsPrepared)] == [
        InputsPrepared(("A",), (5, 6), (0, 1), (0, 2), (2,), (1,), (True,))
    ]


def test_a_partial_prefill_gets_no_token_and_the_last_chunk_one() -> None:
    runner = make_runner()
    inputs = runner.prepare(step({"A": 2, "B": 1}, new=[new("A", (5, 6, 7), [[1]]), new("B", (8,), [[2]])]))
    assert inputs is not None
    assert runner.take_in(inputs, np.array([60, 61])) == {"A": (), "B": (61,)}
    inputs = runner.prepare(step({"A": 1, "B": 1}, going_on={"A": (2, None), "B": (1, None)}))
    assert inputs is not None
    assert inputs.input_ids.tolist() == [7, 61]
    assert runner.take_in(inputs, np.array([62, 63])) == {"A": (62,), "B": (63,)}
    assert {name: state.output_token_ids for name, state in runner.requests.items()} == {"A": [62], "B": [61, 63]}


def test_outputs_that_the_scheduler_took_back_are_forgotten() -> None:
    """As in vLLM, where loaded KV may turn out to be wrong: the scheduler then reports fewer outputs."""
    runner = make_runner()
    inputs = runner.prepare(step({"A": 1}, new=[new("A", (5,), [[1]])]))
    assert inputs is not None
    runner.take_in(inputs, np.array([60]))
    inputs = runner.prepare(step({"A": 1}, going_on={"A": (1, None)}, num_outputs=1))
    assert inputs is not None
    runner.take_in(inputs, np.array([61]))
    inputs = runner.prepare(step({"A": 1}, going_on={"A": (1, None)}, num_outputs=1))
    assert inputs is not None
    assert inputs.input_ids.tolist() == [60]
    assert runner.requests["A"].output_token_ids == [60]
    assert not inputs.discard.any()
    runner.check_integrity({"A": ((1,),)})


def test_batch_order_is_the_order_of_rows_whatever_the_scheduling_order() -> None:
    runner = make_runner()
    prepared(runner, step({"A": 2, "B": 2}, new=[new("A", (5, 6), [[1]]), new("B", (7, 8), [[2]])]))
    inputs = prepared(runner, step({"B": 1, "A": 1}, going_on={"B": (2, None), "A": (2, None)}))
    assert lists(inputs)["req_ids"] == ["A", "B"]
    assert inputs.input_ids.tolist() == [50, 51]


# --- who comes and goes -------------------------------------------------------------------------------------------


def test_who_is_skipped_leaves_the_batch_and_comes_back_with_its_state() -> None:
    runner = make_runner()
    first = [new("A", (5, 6), [[1]]), new("B", (7, 8), [[2]])]
    prepared(runner, step({"A": 2, "B": 2}, new=first))
    inputs = prepared(runner, step({"B": 1}, going_on={"B": (2, None)}))
    assert (inputs.req_ids, inputs.input_ids.tolist()) == (("B",), [51])
    assert runner.requests.keys() == {"A", "B"}
    inputs = prepared(runner, step({"A": 1, "B": 1}, going_on={"A": (2, [[3]]), "B": (3, None)}))
    assert lists(inputs)["req_ids"] == ["B", "A"]
    assert inputs.input_ids.tolist() == [50, 50]  # B's own second token, and A's first
    assert inputs.block_table[:, :2].tolist() == [[2, 0], [1, 3]]  # extended, not replaced


def test_who_is_resumed_takes_other_blocks_and_computes_its_outputs_anew() -> None:
    runner = make_runner()
    prepared(runner, step({"A": 3, "B": 1}, new=[new("A", (5, 6, 7), [[1]]), new("B", (8,), [[2]])]))
    prepared(runner, step({"A": 1, "B": 1}, going_on={"A": (3, None), "B": (1, None)}))
    prepared(runner, step({"B": 1}, going_on={"B": (2, None)}))
    inputs = prepared(
        runner, step({"B": 1, "A": 4}, going_on={"B": (3, None), "A": (0, [[9, 10]])}, resumed=["A"]), sampled=70
    )
    assert lists(inputs) == {
        "req_ids": ["B", "A"],
        "input_ids": [50, 5, 6, 7, 50],
        "positions": [3, 0, 1, 2, 3],
        "query_start_loc": [0, 1, 5],
        "seq_lens": [4, 4],
        "logits_indices": [0, 4],
        "discard": [False, True],  # of its two outputs the second is still to be computed
    }
    assert inputs.block_table[1, :3].tolist() == [9, 10, 0]
    inputs = prepared(runner, step({"B": 1, "A": 1}, going_on={"B": (4, [[4]]), "A": (4, None)}))
    assert (inputs.input_ids.tolist(), inputs.discard.tolist()) == ([70, 50], [False, False])


def test_who_is_resumed_before_it_left_its_row_starts_anew_too() -> None:
    runner = make_runner()
    prepared(runner, step({"A": 2, "B": 1}, new=[new("A", (5, 6), [[1]]), new("B", (8,), [[2]])]))
    inputs = prepared(
        runner, step({"B": 1, "A": 3}, going_on={"B": (1, None), "A": (0, [[9]])}, resumed=["A"]), sampled=60
    )
    assert (inputs.req_ids, inputs.input_ids.tolist()) == (("A", "B"), [5, 6, 50, 51])
    assert inputs.block_table[:, :2].tolist() == [[9, 0], [2, 0]]


def test_who_is_resumed_with_a_hit_computes_the_rest() -> None:
    runner = make_runner()
    prepared(runner, step({"A": 6}, new=[new("A", range(20, 26), [[1, 2]])]))
    runner.prepare(step({}))
    inputs = prepared(runner, step({"A": 3}, going_on={"A": (4, [[1, 7]])}, resumed=["A"]))
    assert (inputs.input_ids.tolist(), inputs.positions.tolist()) == ([24, 25, 50], [4, 5, 6])
    assert inputs.slot_mapping.tolist() == [28, 29, 30]


def test_an_id_that_ended_and_is_new_in_one_step_is_a_new_request() -> None:
    runner = make_runner()
    prepared(runner, step({"A": 3, "B": 1}, new=[new("A", (5, 6, 7), [[1]]), new("B", (8,), [[2]])]))
    inputs = prepared(
        runner,
        step({"B": 1, "A": 2}, new=[new("A", (9, 10), [[3]])], going_on={"B": (1, None)}, finished=["A"]),
    )
    assert (inputs.req_ids, inputs.input_ids.tolist()) == (("A", "B"), [9, 10, 51])
    assert runner.requests["A"].output_token_ids == [50]
    assert inputs.block_table[:, 0].tolist() == [3, 2]


def test_a_step_that_schedules_nobody_still_lets_go_of_whoever_ended() -> None:
    """And what it changed in the batch is told in this step, not in the next."""
    runner = make_runner()
    events: list[Event] = []
    runner.set_observer(events.append)
    prepared(runner, step({"A": 2}, new=[new("A", (5, 6), [[1]])]))
    events.clear()
    assert runner.prepare(step({}, finished=["A"])) is None
    assert [event for event in events if isinstance(event, BatchUpdated)] == [BatchUpdated(0, (0,), (), ())]
    assert (runner.requests, runner.input_batch.num_reqs) == ({}, 0)
    events.clear()
    assert runner.prepare(step({})) is None
    assert events == []
    assert runner.execute(None).sampled_token_ids == {}


def test_after_a_reset_the_runner_knows_nobody() -> None:
    runner = make_runner()
    events: list[Event] = []
    runner.set_observer(events.append)
    prepared(runner, step({"A": 2}, new=[new("A", (5, 6), [[1]])]))
    runner.reset()
    events.clear()
    inputs = prepared(runner, step({"A": 3}, new=[new("A", (5, 6), [[2]], outputs=(9,))]))
    assert (inputs.input_ids.tolist(), inputs.slot_mapping.tolist()) == ([5, 6, 9], [8, 9, 10])
    assert runner.requests.keys() == {"A"}
    assert any(isinstance(event, InputsPrepared) for event in events)


def test_decodes_are_put_first_where_the_kernel_wants_it() -> None:
    runner = make_runner(decode_threshold=1)
    prepared(runner, step({"A": 4, "B": 2}, new=[new("A", range(20, 30), [[1, 2, 3]]), new("B", (7, 8), [[4]])]))
    inputs = prepared(runner, step({"A": 4, "B": 1}, going_on={"A": (4, None), "B": (2, None)}))
    assert (inputs.req_ids, inputs.input_ids.tolist()) == (("B", "A"), [51, 24, 25, 26, 27])
    assert inputs.query_start_loc.tolist() == [0, 1, 5]
    inputs = prepared(
        runner,
        step({"A": 2, "B": 1, "C": 1}, new=[new("C", (3,), [[5]])], going_on={"A": (8, None), "B": (3, None)}),
    )
    assert inputs.req_ids == ("B", "A", "C")  # a first chunk is last, even of one token


# --- groups -------------------------------------------------------------------------------------------------------


def test_each_group_has_a_table_and_slots_of_its_kind() -> None:
    """B6 too: only the full-attention group is spread over ranks."""
    specs = [FullAttentionSpec(4), SlidingWindowSpec(4, 8), MambaSpec(), EncoderOnlySpec()]
    runner = make_runner(specs, context_parallel=ContextParallel(2, 0))
    inputs = prepared(runner, step({"A": 4}, new=[new("A", (5, 6, 7, 8), [[2], [3], [9], []])]))
    full, sliding, mamba, encoder = inputs.attention
    assert full.slot_mapping.tolist() == [8, -1, 9, -1]
    assert sliding.slot_mapping.tolist() == [12, 13, 14, 15]
    assert (mamba.block_table.tolist(), mamba.slot_mapping.tolist()) == ([[9]], [-1] * 4)
    assert (encoder.block_table.tolist(), encoder.slot_mapping.tolist()) == ([[0]], [0] * 4)
    assert all(common.seq_lens_cpu is full.seq_lens_cpu for common in inputs.attention)


# --- padding ------------------------------------------------------------------------------------------------------


def decodes(runner: GPUModelRunner, num_reqs: int) -> ModelInputs:
    """Run as many prompts of two tokens, poison what that left, and return the inputs of their first decode."""
    names = "ABCD"[:num_reqs]
    prompts = [new(name, (row, row), [[row + 1]]) for row, name in enumerate(names)]
    prepared(runner, step(dict.fromkeys(names, 2), new=prompts))
    runner._buffers.poison()
    return prepared(runner, step(dict.fromkeys(names, 1), going_on=dict.fromkeys(names, (2, None))))


def test_a_batch_of_decodes_is_padded_with_empty_rows() -> None:
    runner = make_runner(capture_sizes=(8, 1, 4, 2))
    inputs = decodes(runner, 3)
    assert (inputs.num_reqs_padded, inputs.num_tokens_padded) == (4, 4)
    (common,) = inputs.attention
    assert common.query_start_loc_cpu.tolist() == common.query_start_loc.tolist() == [0, 1, 2, 3, 3]
    assert common.seq_lens_cpu.tolist() == common.seq_lens.tolist() == [3, 3, 3, 0]
    assert common.slot_mapping.tolist() == [6, 10, 14, -1]
    assert common.block_table[:, 0].tolist() == [1, 2, 3, 0]
    assert not common.block_table[3].any()
    assert common.positions.tolist() == [2, 2, 2, 0]
    assert (common.num_reqs, common.num_tokens) == (3, 3)
    assert runner._buffers.input_ids.gpu[:4].tolist() == [50, 51, 52, 0]
    assert lists(inputs)["input_ids"] == [50, 51, 52]  # what is not attention sees live rows and tokens only
    assert len(inputs.seq_lens) == len(inputs.logits_indices) == len(inputs.block_table) == 3


def test_a_mixed_batch_is_padded_with_tokens_that_belong_to_no_row() -> None:
    runner = make_runner(capture_sizes=(4, 8))
    inputs = prepared(runner, step({"A": 4, "B": 1}, new=[new("A", range(4), [[1]]), new("B", (7,), [[2]])]))
    assert (inputs.num_reqs_padded, inputs.num_tokens_padded) == (2, 8)
    (common,) = inputs.attention
    assert common.query_start_loc_cpu.tolist() == [0, 4, 5]
    assert common.slot_mapping.tolist() == [4, 5, 6, 7, 8, -1, -1, -1]
    assert common.positions.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    assert runner._buffers.input_ids.gpu[:8].tolist() == [0, 1, 2, 3, 7, 0, 0, 0]


@pytest.mark.parametrize(("sizes", "padded"), [((1, 2), (3, 3)), ((), (3, 3)), ((3,), (3, 3)), ((16,), (3, 16))])
def test_beyond_the_largest_size_nothing_is_padded_nor_are_rows_beyond_those_there_are(
    sizes: tuple[int, ...], padded: tuple[int, int]
) -> None:
    inputs = decodes(make_runner(capture_sizes=sizes), 3)
    assert (inputs.num_reqs_padded, inputs.num_tokens_padded) == padded


@pytest.mark.parametrize("size", [0, 17, True])
def test_a_size_that_no_step_can_have_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="a capture size is"):
        make_runner(capture_sizes=(4, size))


@pytest.mark.parametrize("commit_mode", ["changed", "full"])
def test_b3_padded_rows_name_the_null_block_and_not_what_stood_there(commit_mode: str) -> None:
    runner = make_runner(capture_sizes=(4,), commit_mode=commit_mode)
    prompts = [new(name, (5, 6), [[block]]) for name, block in (("A", 3), ("B", 4), ("C", 7), ("D", 8))]
    prepared(runner, step(dict.fromkeys("ABCD", 2), new=prompts))
    inputs = prepared(runner, step(dict.fromkeys("ABCD", 1), going_on=dict.fromkeys("ABCD", (2, None))))
    assert inputs.attention[0].block_table[:, 0].tolist() == [3, 4, 7, 8]
    inputs = prepared(runner, step({"A": 1, "B": 1}, going_on=dict.fromkeys("AB", (3, None)), finished="CD"))
    (common,) = inputs.attention
    assert common.block_table[:, 0].tolist() == [3, 4, 0, 0]
    assert not common.block_table[2:].any()
    assert common.seq_lens.tolist() == [4, 4, 0, 0]
    assert common.slot_mapping.tolist() == [15, 19, -1, -1]
    assert common.query_start_loc.tolist() == [0, 1, 2, 2, 2]
    again = [new(name, (5, 6), [[block]]) for name, block in (("C", 9), ("D", 10))]
    inputs = prepared(
        runner, step({"A": 1, "B": 1, "C": 1, "D": 1}, new=again, going_on=dict.fromkeys("AB", (4, [[11]])))
    )
    assert inputs.attention[0].block_table[:, :2].tolist() == [[3, 11], [4, 11], [9, 0], [10, 0]]


def test_b11_the_tail_of_query_start_loc_repeats_the_total() -> None:
    runner = make_runner(max_num_reqs=5)
    prompts = [new("A", (1, 2, 3), [[1]]), new("B", (4,), [[2]]), new("C", (5, 6), [[3]])]
    prepared(runner, step({"A": 3, "B": 1, "C": 2}, new=prompts))
    buffers = runner._buffers
    assert buffers.query_start_loc.gpu.tolist() == buffers.query_start_loc.np.tolist() == [0, 3, 4, 6, 6, 6]
    assert buffers.seq_lens.gpu.tolist() == [3, 1, 2, 0, 0]


def test_b2_a_token_whose_slot_is_pad_is_written_nowhere() -> None:
    """Block size 4, 5 blocks: -1 is neither the last slot (19) nor any other."""
    cache = KVCache(num_layers=1, num_blocks=5, block_size=4, num_kv_heads=1, head_dim=2)
    cache.data.copy_(torch.arange(cache.data.numel()).view_as(cache.data))
    before = cache.data.clone()
    runner = make_runner(capture_sizes=(4,))
    common = decodes(runner, 1).attention[0]
    key = torch.full((4, 1, 2), -5.0)

    def attend(slots: list[int]) -> None:
        step_slots = common.for_group(common.block_table, torch.tensor(slots))
        PagedAttention(cache, TorchMetadataBuilder(cache.block_size).build(step_slots))(
            0, torch.zeros(4, 1, 2), key, key
        )

    attend([-1, -1, -1, -1])
    assert torch.equal(cache.data, before)
    attend([6, -1, -1, -1])
    changed = (cache.data != before).flatten(3).any(dim=3)[0].nonzero().tolist()
    assert changed == [[0, 6], [1, 6]]


# --- stale memory -------------------------------------------------------------------------------------------------


def test_poison_in_all_that_is_stale_changes_nothing_of_what_vllm_does() -> None:
    families: dict[str, Any] = {}
    for case in read_cases(GOLDEN / "engine.jsonl.gz"):
        families.setdefault(case["name"].rsplit("-", 1)[0], case)
    report = compare(families.values(), poison=True)
    assert report.difference is None, str(report.difference)
    assert report.num_cases == len(families) == 22


def generated(model: Decoder, **options: Any) -> list[dict[str, tuple[int, ...]]]:
    """Return the tokens of each step of a small workload: chunks, decodes of unequal length, rows that move."""
    spec = FullAttentionSpec(4)
    scheduler = Scheduler(SchedulerConfig(16, max_num_seqs=4), KVCacheManager([spec], 40, 48), 48)
    runner = GPUModelRunner(
        model, max_num_reqs=4, max_model_len=48, max_num_batched_tokens=16, num_blocks=40, specs=[spec], **options
    )
    for index, (length, max_tokens) in enumerate([(3, 2), (20, 9), (9, 5), (1, 12), (30, 3), (2, 9)]):
        params = SamplingParams(max_tokens=max_tokens, temperature=0.8 if index % 2 else 0, seed=index)
        scheduler.add_request(Request(f"r{index}", range(length), params, index))
    steps = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        sampled = runner.execute(runner.prepare(output)).sampled_token_ids
        scheduler.update_from_output(output, sampled)
        runner.check_integrity(scheduler.kv_cache_manager.held_block_ids)
        steps.append(dict(sampled))
    return steps


@pytest.mark.parametrize(
    "options",
    [
        {"poison": True},
        {"capture_sizes": (1, 2, 4, 8, 16)},
        {"capture_sizes": (1, 2, 4, 8, 16), "poison": True, "commit_mode": "full"},
    ],
    ids=["poison", "padding", "both"],
)
def test_neither_poison_nor_padding_changes_a_token_of_a_real_model(
    options: dict[str, Any], tiny_model: Decoder
) -> None:
    expected = generated(tiny_model)
    assert sum(len(tokens) for tokens in expected) > 40
    assert generated(tiny_model, **options) == expected
