"""Wrong versions of `condense`, each named for what its author believed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Batch = tuple[list[str | None], dict[str, int], npt.NDArray[np.int32], list[list[int]], npt.NDArray[np.int32]]


def _move(batch: Batch, source: int, target: int, *, length: int | None = None) -> None:
    req_ids, req_id_to_index, num_tokens, spec_token_ids, token_ids = batch
    if length is None:
        length = int(num_tokens[source]) + len(spec_token_ids[source])
    name = req_ids[source]
    assert name is not None
    token_ids[target, :length] = token_ids[source, :length]
    num_tokens[target] = num_tokens[source]
    req_ids[target], req_ids[source] = name, None
    spec_token_ids[target], spec_token_ids[source] = spec_token_ids[source], []
    req_id_to_index[name] = target


def _pairs(req_ids: list[str | None]) -> list[tuple[int, int]]:
    """The right moves: (source, target)."""
    live = [row for row, name in enumerate(req_ids) if name is not None]
    targets = [row for row in range(len(live)) if req_ids[row] is None]
    return list(zip((row for row in reversed(live) if row >= len(live)), targets, strict=True))


def _cut(batch: Batch) -> None:
    req_ids, _, _, spec_token_ids, _ = batch
    while req_ids and req_ids[-1] is None:
        req_ids.pop()
        spec_token_ids.pop()


def shifts_everything_up(*batch: Any) -> None:
    """Every row behind a hole moves up by one, so that the order stays."""
    free = 0
    for row, name in enumerate(batch[0]):
        if name is not None:
            if row != free:
                _move(batch, row, free)
            free += 1
    _cut(batch)


def fills_from_the_next_row(*batch: Any) -> None:
    """The first live row behind a hole fills it, though that opens another hole: the last row is never asked."""
    req_ids = batch[0]
    for source, hole in _pairs(req_ids):
        following = next(row for row in range(hole + 1, source + 1) if req_ids[row] is not None)
        _move(batch, following, hole)
        if following < source:
            _move(batch, source, following)
    _cut(batch)


def highest_hole_first(*batch: Any) -> None:
    """The highest hole is filled first, since it is nearest to the last row."""
    pairs = _pairs(batch[0])
    for (source, _), (_, target) in zip(pairs, reversed(pairs), strict=True):
        _move(batch, source, target)
    _cut(batch)


def loses_the_drafts(*batch: Any) -> None:
    """A row is as long as `num_tokens` says: its draft tokens stay behind."""
    for source, target in _pairs(batch[0]):
        _move(batch, source, target, length=int(batch[2][source]))
    _cut(batch)


def forgets_the_list_of_drafts(*batch: Any) -> None:
    """The drafts are in `token_ids`, so the list in `spec_token_ids` need not move."""
    req_ids, _, _, spec_token_ids, _ = batch
    before = [list(drafts) for drafts in spec_token_ids]
    for source, target in _pairs(req_ids):
        _move(batch, source, target)
        spec_token_ids[target] = before[target]
    _cut(batch)


def forgets_the_index(*batch: Any) -> None:
    """The row is what moves; `req_id_to_index` still says where it was."""
    index = dict(batch[1])
    for source, target in _pairs(batch[0]):
        _move(batch, source, target)
    batch[1].update(index)
    _cut(batch)


def forgets_the_length(*batch: Any) -> None:
    """The tokens move, `num_tokens` does not: the row has the length of the one that was there."""
    num_tokens = batch[2].copy()
    for source, target in _pairs(batch[0]):
        _move(batch, source, target)
    batch[2][:] = num_tokens
    _cut(batch)


def leaves_the_lists_long(*batch: Any) -> None:
    """Moving is all; the lists keep their empty ends."""
    for source, target in _pairs(batch[0]):
        _move(batch, source, target)


def fills_one_hole(*batch: Any) -> None:
    """One move is enough: whoever leaves, leaves alone."""
    for source, target in _pairs(batch[0])[:1]:
        _move(batch, source, target)
    _cut(batch)


def moves_into_holes_at_the_end(*batch: Any) -> None:
    """A hole is a hole: one behind the last live row is filled too, and the row before it becomes one."""
    req_ids = batch[0]
    for hole in [row for row, name in enumerate(req_ids) if name is None]:
        last = max((row for row, name in enumerate(req_ids) if name is not None), default=None)
        if last is not None:
            _move(batch, last, hole)
    _cut(batch)
