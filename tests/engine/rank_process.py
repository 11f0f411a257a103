"""One rank of several, in a process of its own: ``python rank_process.py STORE WORLD_SIZE RANK INTERLEAVE BACKEND``.

Prints what its engine answered, and how many slots of its KV memory hold something, as JSON.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
from pagedlab.batch import ContextParallel

PROMPTS = {"A": "To be, or not ", "B": "Farewell, ", "C": "Shall I compare thee to a "}


def main(store: str, world_size: int, rank: int, interleave: int, backend: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", world_size=world_size, rank=rank)
    engine = LLMEngine(
        "quill",
        dtype="float32",
        scheduler_config=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=20),
        attention_backend=backend,
        context_parallel=ContextParallel(world_size, rank, interleave),
        process_group=torch.distributed.group.WORLD,
    )
    for name, prompt in PROMPTS.items():  # all end together, so that no block is used twice
        engine.add_request(name, prompt, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    answers = dict.fromkeys(PROMPTS, "")
    while engine.has_unfinished_requests():
        for output in engine.step():
            answers[output.request_id] += output.new_text
        engine.check_integrity()
    held = int((engine.runner.kv_cache.data[0, 0].abs().sum(dim=(1, 2)) > 0).sum())
    print(json.dumps({"answers": answers, "slots": held}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
