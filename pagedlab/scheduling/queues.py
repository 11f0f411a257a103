"""Waiting queues: who is admitted next.

>>> from pagedlab.request import SamplingParams
>>> queue = PriorityQueue()
>>> for name, priority in (("A", 5), ("B", 1), ("C", 1)):
...     queue.add(Request(name, [1], SamplingParams(), arrival_time=ord(name), priority=priority))
>>> [request.request_id for request in queue]
['B', 'C', 'A']
>>> queue.pop().request_id
'B'

vLLM counterpart: ``vllm/v1/core/sched/request_queue.py`` (``FCFSRequestQueue``, ``PriorityRequestQueue``) at 0.25.1.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator
from typing import Protocol

from pagedlab.request import Request


class WaitingQueue(Protocol):
    """What the scheduler needs of a queue."""

    def add(self, request: Request) -> None:
        """Take in a request that has just arrived."""

    def requeue(self, request: Request) -> None:
        """Take back a request that was preempted."""

    def peek(self) -> Request:
        """Return who is next; `IndexError` if nobody waits."""

    def pop(self) -> Request:
        """Take out who is next; `IndexError` if nobody waits."""

    def discard(self, requests: Collection[Request]) -> None:
        """Take out requests, wherever they are; those that do not wait are passed over."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue:
    """First come, first served; who was preempted goes to the head."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def requeue(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def discard(self, requests: Collection[Request]) -> None:
        gone = {id(request) for request in requests}
        self._requests = deque(request for request in self._requests if id(request) not in gone)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Smallest (priority, arrival time, id) first, whether a request is new or was preempted."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.queue_key, request))

    requeue = add

    def peek(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def discard(self, requests: Collection[Request]) -> None:
        gone = {id(request) for request in requests}
        self._heap = [entry for entry in self._heap if id(entry[1]) not in gone]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap, key=lambda entry: entry[0]))
