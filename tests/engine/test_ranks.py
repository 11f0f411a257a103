"""Context parallelism in earnest: several processes, each with a part of the keys, answer like one that has all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from pagedlab import LLMEngine
from pagedlab.batch import ContextParallel
from pagedlab.errors import ConfigError

SCRIPT = Path(__file__).with_name("rank_process.py")
pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs torch.distributed with gloo")


def run_ranks(folder: Path, world_size: int, interleave: int = 1, backend: str = "torch") -> list[dict[str, Any]]:
    store = folder / f"store-{world_size}-{interleave}-{backend}"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(store), str(world_size), str(rank), str(interleave), backend],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world_size, outputs
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(tmp_path_factory.mktemp("alone"), world_size=1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "interleave"), [(2, 1), (3, 2)])
def test_ranks_answer_like_one_and_share_the_keys(
    world_size: int, interleave: int, alone: dict[str, Any], tmp_path: Path
) -> None:
    ranks = run_ranks(tmp_path, world_size, interleave)
    assert [rank["answers"] for rank in ranks] == [alone["answers"]] * world_size
    assert sum(rank["slots"] for rank in ranks) == alone["slots"]
    assert max(rank["slots"] for rank in ranks) < alone["slots"]


def test_a_rank_of_several_without_the_others_is_refused() -> None:
    with pytest.raises(ConfigError, match="process group"):
        LLMEngine("quill", context_parallel=ContextParallel(2, 0))


def test_a_process_group_of_another_size_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        group = torch.distributed.group.WORLD
        with pytest.raises(ConfigError, match="rank 0 of 1, and context_parallel rank 1 of 2"):
            LLMEngine("quill", context_parallel=ContextParallel(2, 1), process_group=group)
    finally:
        torch.distributed.destroy_process_group()
