"""The worker's side of a step: from the scheduler's decision to sampled tokens."""

from pagedlab.runner.attention import AttentionMetadata, KVCache, PagedAttention
from pagedlab.runner.inputs import ModelInputs
from pagedlab.runner.model_runner import GPUModelRunner
from pagedlab.runner.sampler import sample

__all__ = ["AttentionMetadata", "GPUModelRunner", "KVCache", "ModelInputs", "PagedAttention", "sample"]
