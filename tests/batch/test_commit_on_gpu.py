"""On a CUDA GPU: changed cells sent as CUDA graphs leave the table that a full copy leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagedlab.batch import MultiGroupBlockTable, TableSpec
from pagedlab.batch.commit import MAX_GRAPH_CELLS
from pagedlab.kernels import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(backend().name != "cuda", reason=f"needs a CUDA GPU: {backend().reason}"),
]


def test_both_modes_leave_the_same_tables_step_after_step() -> None:
    dice = np.random.default_rng(0)
    specs = [TableSpec(16), TableSpec(32, 16)]
    batches = [
        MultiGroupBlockTable(specs, 512, 16 * 1024, 1024, torch.device("cuda"), commit_mode=mode)
        for mode in ("changed", "full")
    ]
    for step in range(60):
        num_cells = [1, 3, 64, 65, 700, MAX_GRAPH_CELLS + 9][step % 6]
        row, other = dice.choice(512, 2, replace=False)
        counts = [int(batches[0][group].num_blocks_per_row[row]) for group in range(2)]
        blocks = [dice.integers(1, 9999, min(num_cells, 1024 // (1 + group))).tolist() for group in range(2)]
        num_reqs = int(dice.integers(500, 512)) if step % 2 else 512
        for tables in batches:
            if counts[0] + len(blocks[0]) <= 1024 and counts[1] // 2 + len(blocks[1]) <= 512:
                tables.append_row(blocks, row)
            else:
                tables.add_row(blocks, row)
            tables.swap_row(row, other)
            if num_cells > MAX_GRAPH_CELLS:
                for index in range(6):
                    tables.add_row(blocks, (row + index) % 512)
            tables.commit(num_reqs)
        torch.cuda.synchronize()
        if step % 2 == 0:
            for ours, full in zip(*batches, strict=True):
                assert torch.equal(ours.table.gpu, full.table.gpu)
                assert (ours.table.gpu.cpu().numpy() == ours.table.np).all()
