"""Golden slot-mapping cases: block tables, kernel blocks, context parallelism."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch import BlockTable, ContextParallel, CpuGpuBuffer, TableSpec
from pagedlab.conformance.report import Case, Pair
from pagedlab.kernels import backend as kernel_backend


def slot_mapping_pairs(case: Case, _poison: bool) -> Iterator[Pair]:
    """Return the slot buffer of every rank of a slot-mapping case: one step, a field a rank."""
    return iter([({rank: slots.tolist() for rank, slots in rank_slots(case)}, case["slot_mapping"])])


def rank_slots(
    case: Case, backend: str = "numpy", programs: str = "tokens"
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield ``"pcpI/dcpJ"`` and the slots of that rank, ``[max_num_batched_tokens]``.

    Parameters
    ----------
    case : Case
        Of kind ``slot_mapping``.
    backend : {"numpy", "triton"}
    programs : {"tokens", "requests"}
        What a program of the Triton kernel takes.
    """
    config = case["config"]
    device = torch.device("cuda" if backend == "triton" and kernel_backend().name == "cuda" else "cpu")
    num_reqs, num_tokens = len(case["block_ids"]), config["max_num_batched_tokens"]
    query_start_loc = CpuGpuBuffer((num_reqs + 1,), torch.int32, device)
    positions = CpuGpuBuffer((num_tokens,), torch.int64, device)
    query_start_loc.np[:] = case["query_start_loc"]
    positions.np[: len(case["positions"])] = case["positions"]
    query_start_loc.copy_to_gpu()
    positions.copy_to_gpu()
    pcp, dcp = config["pcp_world_size"], config["dcp_world_size"]
    for pcp_rank, dcp_rank in itertools.product(range(pcp), range(dcp)):
        cp = ContextParallel(pcp * dcp, pcp_rank * dcp + dcp_rank, config["interleave"])
        spec = TableSpec(config["block_size"], config["kernel_block_size"], cp)
        most_blocks = max(len(ids) for ids in case["block_ids"])
        table = BlockTable(spec, num_reqs, most_blocks * spec.block_size * cp.world_size, num_tokens, device)
        for row, ids in enumerate(case["block_ids"]):
            table.add_row(ids, row)
        table.commit(num_reqs)
        table.compute_slot_mapping(num_reqs, query_start_loc, positions, backend=backend, programs=programs)
        yield f"pcp{pcp_rank}/dcp{dcp_rank}", table.slot_mapping.gpu.cpu().numpy()
