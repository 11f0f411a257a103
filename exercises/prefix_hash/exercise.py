"""Name blocks by a chain of hashes, and find the beginning of a prompt that is in memory already.

vLLM counterpart: ``vllm/v1/core/kv_cache_utils.py`` (``hash_block_tokens``), ``vllm/v1/core/block_pool.py``
(``BlockPool.cache_full_blocks``, ``.get_cached_block``) and ``vllm/v1/core/kv_cache_manager.py``
(``KVCacheManager.get_computed_blocks``) at 0.25.1. What differs: any hash will do that tells contents apart; LoRA
adapters and salts are left out; the caller says which blocks hold a prompt, and which block is evicted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Write `PrefixCache`: which blocks hold what, so that a prompt need not be computed where another began alike.

The keys and values of a token depend on **all tokens before it**. So two blocks hold the same only if their tokens are
the same *and* everything before them is. That is what a chain of hashes says:

    hash of a block = H(hash of the block before it, its own tokens)

with any fixed value in place of the hash before the first block. Only **full** blocks have one, of `block_size` tokens.

- `cache_blocks(token_ids, block_ids)`: from now on the blocks `block_ids`, in this order, hold these tokens. The last
  one may be partly filled; then it cannot be found. If another block holds the same already, there are two of them.
- `get_computed_blocks(token_ids)`: return the list of the blocks with which this prompt can begin. Follow the chain
  from the first block on, and stop at the first one that is not there. If several hold the same, take the one that was
  cached first. At least the **last token** of the prompt is left to compute: the next token is sampled from it.
- `evict(block_id)`: this block is used for something else now, and cannot be found any more. Others stay.
"""


class PrefixCache:
    """A list of (hash, block), in the order in which blocks were cached."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cached: list[tuple[bytes, int]] = []

    def block_hashes(self, token_ids: list[int]) -> list[bytes]:
        """One for each full block."""
        hashes: list[bytes] = []
        parent = b"nothing comes before"
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            tokens = token_ids[end - self.block_size : end]
            parent = hashlib.sha256(parent + str(tokens).encode()).digest()
            hashes.append(parent)
        return hashes

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        """Write down each full block."""
        for block_hash, block_id in zip(self.block_hashes(token_ids), block_ids, strict=False):
            self.cached.append((block_hash, block_id))

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        """Look for one block after the other, in what comes before the last token."""
        hit: list[int] = []
        for block_hash in self.block_hashes(token_ids[:-1]):
            found = [block_id for cached_hash, block_id in self.cached if cached_hash == block_hash]
            if not found:
                break
            hit.append(found[0])
        return hit

    def evict(self, block_id: int) -> None:
        """Strike it out."""
        self.cached = [(block_hash, cached_id) for block_hash, cached_id in self.cached if cached_id != block_id]


def drive(subject: Any, block_size: int, operations: list[tuple[Any, ...]]) -> list[Any]:
    """Do one operation after the other; see what each prompt can begin with."""
    cache = subject(block_size)
    seen = []
    for number, (name, *arguments) in enumerate(operations, 1):
        returned = getattr(cache, name)(*arguments)
        if name == "get_computed_blocks":
            seen.append([f"what {number}. {name}({arguments[0]}) returned", returned])
    return seen


def each_prompt(values: Values) -> Mapping[str, Any]:
    """Name what was returned for the operation that returned it."""
    return dict(values["returned"])


def cache(*operations: tuple[Any, ...], block_size: int = 2) -> dict[str, Any]:
    """Return the inputs for operations: (tokens, blocks) to cache, (tokens,) to look up, (block,) to evict."""
    return {"block_size": block_size, "operations": [(_name_of(*each), *each) for each in operations]}


def _name_of(first: Any, *others: Any) -> str:
    if others:
        return "cache_blocks"
    return "evict" if isinstance(first, int) else "get_computed_blocks"


@st.composite
def any_cache(draw: st.DrawFn) -> dict[str, Any]:
    """One to three prompts are cached, a block is evicted now and then, and each time another prompt is looked up."""
    block_size = draw(st.sampled_from([2, 3]))
    prompts = st.lists(st.sampled_from([15, 16]), min_size=1, max_size=3 * block_size + 1)
    num_blocks = 0
    operations: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(prompts)
        blocks = list(range(num_blocks + 1, num_blocks + 1 + -(-len(tokens) // block_size)))
        num_blocks += len(blocks)
        operations.append((tokens, blocks))
        if draw(st.sampled_from([False, False, True])):
            operations.append((draw(st.integers(1, num_blocks)),))
        operations.append((draw(prompts),))
    return cache(*operations, block_size=block_size)


EXERCISE = Exercise(
    name="prefix_hash",
    lesson="09-prefix-caching",
    title="Find a cached prefix",
    task=TASK,
    reference=PrefixCache,
    drive=drive,
    cases=(
        Case("a prompt that begins like another", **cache(([15, 16, 17, 18, 19], [3, 1, 4]), ([15, 16, 17, 18, 12],))),
        Case(
            "a prompt that goes another way in its second block",
            **cache(([15, 16, 17, 18], [3, 1]), ([15, 16, 17, 19, 18],)),
        ),
        Case("the same tokens behind another beginning", **cache(([15, 16, 17, 18], [3, 1]), ([19, 19, 17, 18, 12],))),
        Case("a prompt that begins like the end of another", **cache(([15, 16, 17, 18], [3, 1]), ([17, 18, 12],))),
        Case("a prompt that is cached to its last token", **cache(([15, 16, 17, 18], [3, 1]), ([15, 16, 17, 18],))),
        Case(
            "a third block whose neighbour is right, and the first is not",
            **cache(([15, 16, 17, 18, 19, 19], [3, 1, 4]), ([12, 12, 17, 18], [6, 7]), ([12, 12, 17, 18, 19, 19, 11],)),
        ),
        Case(
            "a block in the middle that is gone",
            **cache(([15, 16, 17, 18, 19, 19], [3, 1, 4]), (1,), ([15, 16, 17, 18, 19, 19, 12],)),
        ),
        Case(
            "two blocks with the same content, of which the first goes",
            **cache(([15, 16], [3]), ([15, 16], [1]), ([15, 16, 17],), (3,), ([15, 16, 17],)),
        ),
        Case(
            "a first block that is computed again, and what came behind it",
            **cache(
                ([15, 16, 17, 18], [3, 1]), (3,), ([15, 16, 17, 18, 19],), ([15, 16], [2]), ([15, 16, 17, 18, 19],)
            ),
        ),
        Case("a prompt of a single token", **cache(([15, 16], [3]), ([15],))),
        Case("an empty cache", **cache(([15, 16, 17],))),
    ),
    strategy=any_cache(),
    view=each_prompt,
)
