"""A queue of ids in an array with room at both ends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Ring:
    """Ids that leave at the head and come in at either end, many at a time.

    `_ids[_head:_tail]` holds the queue. When an end runs out of room the queue is moved to where both have some; at
    least a queue length of ids comes in between two moves, each of which costs time in proportion to the queue.
    """

    def __init__(self, ids: Int64) -> None:
        """Begin with `ids` (int64 [k], the first at the head); there will never be more at once."""
        self._most = len(ids)
        self._ids: Int64 = np.empty(4 * self._most, np.int64)
        self._head = self._tail = self._most
        self.append(ids)

    def __len__(self) -> int:
        return self._tail - self._head

    def order(self) -> Int64:
        """Return the ids from head to tail, int64 [len(self)] (a copy)."""
        return self._ids[self._head : self._tail].copy()

    def pop(self, count: int) -> Int64:
        """Take the `count` ids at the head, in order: int64 [count]. The caller checks that there are as many."""
        head = self._head
        self._head = head + count
        return self._ids[head : head + count].copy()

    def append(self, ids: Int64) -> None:
        """Put `ids` (int64 [k]) at the tail, the last of them last."""
        if self._tail + len(ids) > len(self._ids):
            self._centre()
        start, self._tail = self._tail, self._tail + len(ids)
        self._place(ids, start)

    def prepend(self, ids: Int64) -> None:
        """Put `ids` (int64 [k]) at the head as a group, the first of them becoming the head."""
        if self._head < len(ids):
            self._centre()
        self._head -= len(ids)
        self._place(ids, self._head)

    def _place(self, ids: Int64, start: int) -> None:
        self._ids[start : start + len(ids)] = ids

    def _centre(self) -> None:
        ids = self.order()
        self._head = self._most
        self._tail = self._head + len(ids)
        self._place(ids, self._head)
