"""Give blocks of KV memory to requests, and take them back.

vLLM counterpart: ``vllm/v1/core/kv_cache_manager.py`` (``KVCacheManager.allocate_slots``, ``.free``) over
``vllm/v1/core/block_pool.py`` (``BlockPool``) at 0.25.1. What differs: there is one group and no prefix cache, so each
block has one holder; a request is its id, and the caller says how many tokens it has in all; the ids of new blocks come
back as a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from pagedlab.teaching.exercises import Case, Exercise, Values

TASK = """
Write `KVCacheManager`: who holds which blocks of KV memory, and which are free.

There are `num_blocks` blocks, `block_size` tokens each. Block 0 is the **null block**: padding points at it, so no
request ever gets it. All others are free at first, and `free_block_ids` lists them in the order in which they are given
out: 1, 2, 3, …

- `allocate_slots(request_id, num_tokens)` makes room for the first `num_tokens` tokens of a request, prompt and output
  together. What it holds already counts: it gets only the blocks that are missing, from the head of `free_block_ids`.
  Return the list of the new ones, empty if none is needed. If fewer are free than are missing, return `None`, and
  nothing has changed.
- `free(request_id)` takes back all that a request holds. Its **last** block becomes the head of `free_block_ids`, then
  the one before it, and so on; the blocks that were free already follow. A request that holds nothing is fine: it may
  have been aborted before it ran.
"""


class KVCacheManager:
    """A list of free blocks, and a list for each request."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_block_ids = [block_id for block_id in range(num_blocks) if block_id != 0]
        self.block_ids: dict[str, list[int]] = {}

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        """Count how many blocks are missing, then take them one by one."""
        held = self.block_ids.get(request_id, [])
        num_missing = 0
        while (len(held) + num_missing) * self.block_size < num_tokens:
            num_missing += 1
        if num_missing > len(self.free_block_ids):
            return None
        new = [self.free_block_ids.pop(0) for _ in range(num_missing)]
        self.block_ids[request_id] = held + new
        return new

    def free(self, request_id: str) -> None:
        """Put each block in front of all others; so the last one ends up at the head."""
        for block_id in self.block_ids.pop(request_id, []):
            self.free_block_ids.insert(0, block_id)


def drive(subject: Any, num_blocks: int, block_size: int, operations: list[tuple[Any, ...]]) -> list[Any]:
    """Do one operation after the other; see what comes back and what is free."""
    manager = subject(num_blocks, block_size)
    seen = [["at the start", None, list(manager.free_block_ids)]]
    for number, (name, *arguments) in enumerate(operations, 1):
        new = getattr(manager, name)(*arguments)
        call = f"{number}. {name}({', '.join(map(repr, arguments))})"
        seen.append([f"after {call}", new if new is None else list(new), list(manager.free_block_ids)])
    return seen


def after_each_operation(values: Values) -> Mapping[str, Any]:
    """Name what was seen for the operation after which it was."""
    seen: dict[str, Any] = {}
    for when, new, free in values["returned"]:
        if "allocate_slots" in when:
            seen[f"what {when.removeprefix('after ')} returned"] = new
        seen[f"{when}, free_block_ids"] = free
    return seen


def blocks(*operations: tuple[Any, ...], num_blocks: int = 8, block_size: int = 4) -> dict[str, Any]:
    """Return the inputs for operations like ("A", 6), which is room for 6 tokens of A, and ("A",), which frees A."""
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "operations": [("free" if len(each) == 1 else "allocate_slots", *each) for each in operations],
    }


@st.composite
def any_blocks(draw: st.DrawFn) -> dict[str, Any]:
    """Up to three requests that grow and end, in a pool that may be too small for them."""
    block_size = draw(st.sampled_from([2, 4, 1, 16]))
    num_tokens: dict[str, int] = {}
    operations: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from("ABC"))
        if name in num_tokens and draw(st.sampled_from([False, False, True])):
            del num_tokens[name]
            operations.append((name,))
        else:
            num_tokens[name] = num_tokens.get(name, 0) + draw(st.integers(1, 2 * block_size + 1))
            operations.append((name, num_tokens[name]))
    return blocks(*operations, num_blocks=draw(st.sampled_from([6, 5, 4, 3, 2])), block_size=block_size)


EXERCISE = Exercise(
    name="allocate_blocks",
    lesson="02-paged-memory",
    title="Allocate blocks",
    task=TASK,
    reference=KVCacheManager,
    drive=drive,
    cases=(
        Case("a request that ends in the middle of a block", **blocks(("A", 6))),
        Case("a request that fills its last block", **blocks(("A", 8))),
        Case("a request that decodes: the ninth token begins a block", **blocks(("A", 8), ("A", 9), ("A", 10))),
        Case("a request that ends, and one that gets its blocks", **blocks(("A", 12), ("A",), ("B", 8))),
        Case(
            "two requests in turn, of which the first ends", **blocks(("A", 4), ("B", 4), ("A", 8), ("A",), ("C", 12))
        ),
        Case("just enough blocks", **blocks(("A", 12), num_blocks=4)),
        Case("one block too few", **blocks(("A", 8), ("B", 8), ("B", 4), num_blocks=4)),
        Case("a request that comes back after it was freed", **blocks(("A", 8), ("A",), ("A", 4))),
        Case("a request that holds nothing and is freed", **blocks(("A", 4), ("B",), ("B", 4))),
    ),
    strategy=any_blocks(),
    view=after_each_operation,
)
