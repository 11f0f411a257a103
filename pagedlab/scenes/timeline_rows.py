"""Which request has which row on a page of the scene `timeline`.

>>> granted = {"A": [0, 1], "B": [0, 1, 2], "C": [2, 3], "D": []}
>>> share_rows(list(granted), granted, range(4), room=4)["D"].row  # a row for each, if there are enough
3
>>> shared = share_rows(list(granted), granted, range(4), room=3)
>>> {request_id: (place.row, place.since) for request_id, place in shared.items()}  # C follows A; D has none
{'A': (0, 0), 'B': (1, 0), 'C': (0, 2)}

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A row, and the columns in which it is the request's: from ``since``, before ``until``."""

    row: int
    since: int
    until: int


def share_rows(there: Sequence[str], granted: Mapping[str, Sequence[int]], shown: range, room: int) -> dict[str, Place]:
    """Give rows to the requests of a page.

    Parameters
    ----------
    there : sequence of str
        Who is there at all, in the order of the rows.
    granted : mapping of str to sequence of int
        In which columns something happens to each.
    shown : range
        The columns of the page.
    room : int
        How many rows there are. Where they do not suffice, one is left free, those that run come before those that
        only wait, and a row that somebody has left goes to another.
    """
    if len(there) <= room:
        return {request_id: Place(at, shown.start, shown.stop) for at, request_id in enumerate(there)}
    places: dict[str, Place] = {}
    ends: list[int] = []  # of each row: from when on it is free
    spans = {}
    for request_id in there:
        columns = [column for column in granted.get(request_id, ()) if column in shown]
        if columns:
            spans[request_id] = (columns[0], columns[-1] + 1)
    for request_id, (first, stop) in sorted(spans.items(), key=lambda item: item[1][0]):
        row = next((at for at, end in enumerate(ends) if end <= first), len(ends))
        if row == len(ends):
            if row == room - 1:
                continue
            ends.append(shown.start)
        places[request_id] = Place(row, ends[row], stop)
        ends[row] = stop
    for request_id in there:
        if request_id not in spans and len(ends) < room - 1:
            places[request_id] = Place(len(ends), shown.start, shown.stop)
            ends.append(shown.stop)
    return places
