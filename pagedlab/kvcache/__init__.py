"""Paged KV memory: blocks, the pool, and who holds what. Needs neither torch nor numpy.

>>> from pagedlab.request import Request, SamplingParams
>>> manager = KVCacheManager([FullAttentionSpec(block_size=4)], num_blocks=6, max_model_len=20)
>>> request = Request("A", range(9), SamplingParams(), arrival_time=0)
>>> manager.allocate_slots(request, num_new_tokens=9)
((1, 2, 3),)
>>> manager.free(request)
>>> manager.num_free_blocks
5
"""

from pagedlab.kvcache.blocks import FreeKVCacheBlockQueue, KVCacheBlock
from pagedlab.kvcache.manager import KVCacheManager, MemoryUsage, PrefixHit
from pagedlab.kvcache.pool import BlockPool
from pagedlab.kvcache.specs import EncoderOnlySpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

__all__ = [
    "BlockPool",
    "EncoderOnlySpec",
    "FreeKVCacheBlockQueue",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheManager",
    "KVCacheSpec",
    "MambaSpec",
    "MemoryUsage",
    "PrefixHit",
    "SlidingWindowSpec",
]
