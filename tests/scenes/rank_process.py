"""One rank of several, in a process of its own, that records: ``python rank_process.py FOLDER WORLD_SIZE RANK``.

Writes its trace to ``FOLDER/RANK.jsonl``.
"""

from __future__ import annotations

import sys

import torch.distributed

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.batch import ContextParallel


def main(folder: str, world_size: int, rank: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", world_size=world_size, rank=rank
    )  # fmt: skip
    engine = LLMEngine(
        "quill",
        device="cpu",
        max_model_len=64,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=40),
        context_parallel=ContextParallel(world_size, rank, 2),
        process_group=torch.distributed.group.WORLD,
    )
    recorder = record(engine)
    engine.add_request("A", "To be, or n", SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    recorder.stop().save(f"{folder}/{rank}.jsonl")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
