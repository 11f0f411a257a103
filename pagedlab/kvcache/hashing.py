"""Block hashes: a name for a block's content *and everything before it*.

>>> first = chain_hash(ROOT, [1, 2, 3, 4])
>>> second = chain_hash(first, [1, 2, 3, 4])
>>> first != second  # the same tokens under another parent are another block
True

Two blocks may be shared only if their keys and values are equal, and those depend on all tokens before them. So a hash
covers the parent's hash: a chain. SHA-256 makes equal hashes mean equal content for all that matters.

vLLM counterpart: ``vllm/v1/core/kv_cache_utils.py`` (``hash_block_tokens``, ``generate_block_hash_extra_keys``) at
0.25.1. What differs: tokens are hashed as 64-bit numbers, without pickling; multi-modal keys are not here.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from array import array
from collections.abc import Sequence

BlockHash = bytes
TOKEN_BYTES = 8

ROOT: BlockHash = (
    hashlib.sha256(os.environ["PYTHONHASHSEED"].encode()).digest()
    if os.environ.get("PYTHONHASHSEED", "random") != "random"
    else secrets.token_bytes(32)
)
"""The parent of every first block: unpredictable (nobody can prepare a clash) unless ``PYTHONHASHSEED`` is set."""


def chain_hash(parent: BlockHash, token_ids: Sequence[int], extra: bytes = b"") -> BlockHash:
    """Return the hash of one full block.

    Parameters
    ----------
    parent : bytes, 32 long
        The hash of the block before, or `ROOT`.
    token_ids : sequence of int
        The block's tokens.
    extra : bytes
        What else the block's content depends on (`extra_key`).
    """
    return hashlib.sha256(parent + _pack(token_ids) + extra).digest()


def extra_key(lora_id: int, cache_salt: str | None) -> bytes:
    """Return what beside its tokens tells a request's first block from another's.

    The chain carries it to all later blocks. Parts are length-prefixed, so that no two pairs give one key.

    >>> extra_key(0, None)
    b''
    >>> extra_key(1, "a") != extra_key(1, "b")
    True
    """
    if lora_id == 0 and cache_salt is None:
        return b""
    salt = b"-" if cache_salt is None else b"+" + cache_salt.encode("utf-8", "surrogatepass")
    return b"lora" + lora_id.to_bytes(8, "big") + len(salt).to_bytes(8, "big") + salt


def extend_hashes(hashes: list[BlockHash], token_ids: Sequence[int], block_size: int, extra: bytes = b"") -> None:
    """Append the hashes of the full blocks of ``token_ids`` that ``hashes`` does not cover yet."""
    first, last = len(hashes), len(token_ids) // block_size
    if first >= last:
        return
    if not hashes:
        hashes.append(chain_hash(ROOT, token_ids[:block_size], extra))
        first = 1
    packed = _pack(token_ids[first * block_size : last * block_size])
    parent, size = hashes[-1], block_size * TOKEN_BYTES
    for start in range(0, len(packed), size):
        parent = hashlib.sha256(parent + packed[start : start + size]).digest()
        hashes.append(parent)


def _pack(token_ids: Sequence[int]) -> bytes:
    return array("q", token_ids).tobytes()
