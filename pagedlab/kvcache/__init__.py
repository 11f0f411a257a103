"""Paged KV memory: blocks, the pool, and who holds what. Needs neither torch nor numpy.

>>> manager = KVCacheManager(block_size=4, num_blocks=6, max_model_len=20)
>>> manager.allocate_slots("A", num_computed_tokens=0, num_new_tokens=9)
((1, 2, 3),)
>>> manager.free("A")
>>> manager.num_free_blocks
5
"""

from pagedlab.kvcache.blocks import FreeKVCacheBlockQueue, KVCacheBlock
from pagedlab.kvcache.manager import KVCacheManager
from pagedlab.kvcache.pool import BlockPool

__all__ = ["BlockPool", "FreeKVCacheBlockQueue", "KVCacheBlock", "KVCacheManager"]
