"""Context parallelism in earnest: several processes, each with a part of the keys, answer like one that has all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from pagedlab import LLMEngine
from pagedlab.batch import ContextParallel
from pagedlab.errors import ConfigError
from pagedlab.teaching import PEOPLE

RunRanks = Callable[..., tuple[Path, list[dict[str, Any]]]]
REQUESTS = {name: (PEOPLE[name][0], 6) for name in "ABC"}  # all end together, so that no block is used twice


@pytest.fixture(scope="module")
def alone(run_ranks: RunRanks) -> dict[str, Any]:
    return run_ranks(REQUESTS, world_size=1)[1][0]


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "interleave"), [(2, 1), (3, 2)])
def test_ranks_answer_like_one_and_share_the_keys(
    world_size: int, interleave: int, alone: dict[str, Any], run_ranks: RunRanks
) -> None:
    _, ranks = run_ranks(REQUESTS, world_size, interleave)
    assert [rank["answers"] for rank in ranks] == [alone["answers"]] * world_size
    assert sum(rank["slots"] for rank in ranks) == alone["slots"]
    assert max(rank["slots"] for rank in ranks) < alone["slots"]


def test_a_rank_of_several_without_the_others_is_refused() -> None:
    with pytest.raises(ConfigError, match="process group"):
        LLMEngine("quill", context_parallel=ContextParallel(2, 0))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_a_process_group_of_another_size_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        group = torch.distributed.group.WORLD
        with pytest.raises(ConfigError, match="rank 0 of 1, and context_parallel rank 1 of 2"):
            LLMEngine("quill", context_parallel=ContextParallel(2, 1), process_group=group)
    finally:
        torch.distributed.destroy_process_group()
