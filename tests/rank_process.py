"""One rank of several, in a process of its own: ``python rank_process.py SETTINGS`` (JSON, see `run_ranks`).

Prints what its engine answered and how many slots of its KV memory hold something, as JSON; saves its trace to
``FOLDER/RANK.jsonl`` if it is to record.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
import torch.distributed

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.batch import ContextParallel


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    folder, world_size, rank = settings["folder"], settings["world_size"], settings["rank"]
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=world_size, rank=rank)
    engine = LLMEngine(
        "quill",
        dtype="float32",
        max_model_len=64,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=settings["budget"], max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=40),
        attention_backend=settings["backend"],
        context_parallel=ContextParallel(world_size, rank, settings["interleave"]),
        process_group=torch.distributed.group.WORLD,
    )
    with record(engine) if settings["records"] else contextlib.nullcontext() as recorder:
        for name, (prompt, length) in settings["requests"].items():
            engine.add_request(name, prompt, SamplingParams(max_tokens=length, temperature=0, ignore_eos=True))
        answers = dict.fromkeys(settings["requests"], "")
        while engine.has_unfinished_requests():
            for output in engine.step():
                answers[output.request_id] += output.new_text
            engine.check_integrity()
    if recorder is not None:
        recorder.trace.save(f"{folder}/{rank}.jsonl")
    held = int((engine.runner.kv_cache.data[0, 0].abs().sum(dim=(1, 2)) > 0).sum())
    print(json.dumps({"answers": answers, "slots": held}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
