"""The waiting queue, by policy."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from .request import PoolRequest


class WaitingQueue(Protocol):
    """Requests that are not running, in the order in which they will be admitted."""

    def __len__(self) -> int: ...

    def add(self, request: PoolRequest) -> None:
        """Queue a request that arrived."""
        ...

    def put_back(self, request: PoolRequest) -> None:
        """Queue a request that was preempted."""
        ...

    def head(self) -> PoolRequest:
        """Return the next request; the queue is not empty."""
        ...

    def pop(self) -> PoolRequest:
        """Remove and return the next request."""
        ...

    def remove(self, request: PoolRequest) -> None:
        """Remove a request from wherever it is."""
        ...


class FcfsQueue:
    """First come, first served; preempted requests go to the front."""

    def __init__(self) -> None:
        self._queue: deque[PoolRequest] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: PoolRequest) -> None:
        self._queue.append(request)

    def put_back(self, request: PoolRequest) -> None:
        self._queue.appendleft(request)

    def head(self) -> PoolRequest:
        return self._queue[0]

    def pop(self) -> PoolRequest:
        return self._queue.popleft()

    def remove(self, request: PoolRequest) -> None:
        self._queue.remove(request)


class PriorityQueue:
    """By priority, then arrival, then id compared as text, as vLLM orders requests, preempted ones included."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, PoolRequest]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: PoolRequest) -> None:
        heapq.heappush(self._heap, (request.priority, request.arrival_ns, str(request.index), request))

    put_back = add

    def head(self) -> PoolRequest:
        return self._heap[0][3]

    def pop(self) -> PoolRequest:
        return heapq.heappop(self._heap)[3]

    def remove(self, request: PoolRequest) -> None:
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapq.heapify(self._heap)
