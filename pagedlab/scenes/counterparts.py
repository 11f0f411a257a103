"""Where vLLM 0.25.1 does what our functions do: the line under the source in the player.

>>> counterpart("InputBatch.condense")
('vllm/v1/worker/gpu_input_batch.py', 'InputBatch.condense')
>>> counterpart("InputBatch._move_row")  # the class has one, this helper is ours
('vllm/v1/worker/gpu_input_batch.py', 'InputBatch')
"""

from __future__ import annotations

from collections.abc import Iterable

from pagedlab.scenes.scene import Source
from pagedlab.trace import Record, Trace

_CORE, _WORKER = "vllm/v1/core", "vllm/v1/worker"

_FILES = {
    "LLMEngine": ("vllm/v1/engine/core.py", "EngineCore"),
    "Scheduler": (f"{_CORE}/sched/scheduler.py", "Scheduler"),
    "KVCacheManager": (f"{_CORE}/kv_cache_manager.py", "KVCacheManager"),
    "BlockPool": (f"{_CORE}/block_pool.py", "BlockPool"),
    "FreeKVCacheBlockQueue": (f"{_CORE}/kv_cache_utils.py", "FreeKVCacheBlockQueue"),
    "InputBatch": (f"{_WORKER}/gpu_input_batch.py", "InputBatch"),
    "BatchUpdateBuilder": ("vllm/v1/sample/logits_processor/state.py", "BatchUpdateBuilder"),
    "BlockTable": (f"{_WORKER}/block_table.py", "BlockTable"),
    "MultiGroupBlockTable": (f"{_WORKER}/block_table.py", "MultiGroupBlockTable"),
    "GPUModelRunner": (f"{_WORKER}/gpu_model_runner.py", "GPUModelRunner"),
    "Sampler": ("vllm/v1/sample/sampler.py", "Sampler"),
}
"""Our class: vLLM's file and class."""

_METHODS = {
    "LLMEngine": {"step": "step"},
    "Scheduler": {
        "schedule": "schedule",
        "_schedule_plain": "schedule",
        "update_from_output": "update_from_output",
        "_allocate": "schedule",
        "_grant": "schedule",
        "_preempt": "_preempt_request",
        "_finish": "_free_request",
    },
    "KVCacheManager": {"allocate_slots": "allocate_slots", "cache_blocks": "cache_blocks", "free": "free"},
    "BlockPool": {"get_new_blocks": "get_new_blocks", "free_blocks": "free_blocks"},
    "InputBatch": {
        "add_request": "add_request",
        "remove_request": "remove_request",
        "condense": "condense",
        "swap_rows": "swap_states",
        "refresh_metadata": "refresh_metadata",
    },
    "BlockTable": {
        "add_row": "add_row",
        "append_row": "append_row",
        "move_row": "move_row",
        "swap_row": "swap_row",
        "clear_row": "clear_row",
        "commit": "commit_block_table",
        "compute_slot_mapping": "compute_slot_mapping",
    },
    "MultiGroupBlockTable": {
        "add_row": "add_row",
        "append_row": "append_row",
        "move_row": "move_row",
        "swap_row": "swap_row",
        "clear_row": "clear_row",
        "commit": "commit_block_table",
        "compute_slot_mapping": "compute_slot_mapping",
    },
    "GPUModelRunner": {
        "prepare": "execute_model",
        "update_states": "_update_states",
        "prepare_inputs": "_prepare_inputs",
        "_reorder": "_may_reorder_batch",
        "execute": "execute_model",
        "_sample": "_sample",
        "bookkeep": "_bookkeeping_sync",
    },
}
"""Our method: vLLM's method of the counterpart class."""


def counterpart(function: str) -> tuple[str, str] | None:
    """Return vLLM's file and class (with the method, where there is one) for one of our functions."""
    class_name, _, method = function.partition(".")
    if class_name not in _FILES:
        return None
    file, theirs = _FILES[class_name]
    their_method = _METHODS.get(class_name, {}).get(method)
    return file, f"{theirs}.{their_method}" if their_method else theirs


def sources_of(trace: Trace, records: Iterable[Record]) -> dict[str, Source]:
    """Return the functions whose lines caused these records."""
    keys = dict.fromkeys(record.source.function for record in records if record.source is not None)
    return {
        key: Source(function.file, function.name, function.first_line, function.lines, counterpart(function.name))
        for key in keys
        if (function := trace.sources.get(key)) is not None
    }
