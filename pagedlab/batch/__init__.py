"""The persistent batch: requests in rows that stay from step to step, and are changed only where they differ.

>>> builder = BatchUpdateBuilder()
>>> builder.remove(3)
>>> builder.remove(1)
>>> builder.pop_lowest_hole()
1
"""

from pagedlab.batch.block_table import BlockTable
from pagedlab.batch.buffers import CpuGpuBuffer, Fence
from pagedlab.batch.context_parallel import ContextParallel
from pagedlab.batch.input_batch import InputBatch, LoRAInputs
from pagedlab.batch.logits_processors import LogitsProcessor, builtin_logits_processors
from pagedlab.batch.multi_group import MultiGroupBlockTable
from pagedlab.batch.row_store import RowStore
from pagedlab.batch.sampling_metadata import SamplingMetadata
from pagedlab.batch.state import CachedRequestState
from pagedlab.batch.table_spec import TableSpec
from pagedlab.batch.update import AddedRow, BatchUpdate, BatchUpdateBuilder, MoveDirection, MovedRow

__all__ = [
    "AddedRow",
    "BatchUpdate",
    "BatchUpdateBuilder",
    "BlockTable",
    "CachedRequestState",
    "ContextParallel",
    "CpuGpuBuffer",
    "Fence",
    "InputBatch",
    "LoRAInputs",
    "LogitsProcessor",
    "MoveDirection",
    "MovedRow",
    "MultiGroupBlockTable",
    "RowStore",
    "SamplingMetadata",
    "TableSpec",
    "builtin_logits_processors",
]
