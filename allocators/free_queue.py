"""The queue of free blocks, in the order in which they will be handed out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

_HOLE = -1


class FreeQueue:
    """Block ids in eviction order, held in an array with room at both ends.

    Handing out takes from the head. Freed blocks join the tail (worth keeping: they are evicted last) or the head
    (worth nothing: they are reused first). A block that is hit leaves from wherever it is. Each of these moves many
    blocks with a few array operations.

    Invariants: `_ring[_head:_tail]` holds the queue with `_holes` entries of -1 in between, which stand for blocks
    removed from the middle; `_position[b]` is the index of `b` in `_ring` for every `b` in the queue and means
    nothing for the others; `len(self) == _tail - _head - _holes`.
    """

    def __init__(self, num_blocks: int) -> None:
        """Fill the queue with blocks `0 .. num_blocks - 1`, block 0 at the head."""
        # Room for one queue length before the head and two behind the tail: at least a queue length of blocks
        # moves between two compactions, each of which costs time proportional to the queue.
        self._ring: Int64 = np.full(4 * num_blocks, _HOLE, np.int64)
        # The random access here is a good part of a replay's time, and cheaper the less memory it goes over.
        self._position: Int32 = np.zeros(num_blocks, np.int32)
        self._head = self._tail = num_blocks
        self._holes = 0
        self.append(np.arange(num_blocks))

    def __len__(self) -> int:
        return self._tail - self._head - self._holes

    def order(self) -> Int64:
        """Return the ids from head to tail, int64 [len(self)] (a copy)."""
        live = self._ring[self._head : self._tail]
        return live[live != _HOLE]

    def contains(self, blocks: Int64) -> npt.NDArray[np.bool_]:
        """Return which of `blocks` (int64 [k]) are in the queue, bool [k]."""
        # The position of a block that left may be stale, but then some other block or a hole is there.
        position = self._position[blocks].astype(np.int64)
        there = self._ring[position] == blocks
        there &= position >= self._head
        there &= position < self._tail
        return there

    def pop(self, count: int) -> Int64:
        """Take the `count` blocks at the head, in order: int64 [count]. The caller checks that there are as many."""
        head = self._head
        if not self._holes:
            self._head = head + count
            return self._ring[head : head + count].copy()
        reach = count
        while True:
            taken = self._ring[head : head + reach]
            taken = taken[taken != _HOLE]
            if len(taken) >= count:
                break
            reach = 2 * reach + 64
        taken = taken[:count]
        if count:
            self._head = int(self._position[taken[-1]]) + 1
            self._holes -= self._head - head - count
        return taken

    def append(self, blocks: Int64) -> None:
        """Put `blocks` (int64 [k]) at the tail, the last of them last."""
        count = len(blocks)
        if self._tail + count > len(self._ring):
            self._compact()
        start, self._tail = self._tail, self._tail + count
        self._place(blocks, start)

    def prepend(self, blocks: Int64) -> None:
        """Put `blocks` (int64 [k]) at the head as a group, the first of them becoming the head."""
        count = len(blocks)
        if self._head < count:
            self._compact()
        self._head -= count
        self._place(blocks, self._head)

    def remove(self, blocks: Int64) -> None:
        """Take `blocks` (int64 [k], all in the queue) out of the middle."""
        self._ring[self._position[blocks]] = _HOLE
        self._holes += len(blocks)

    def _place(self, blocks: Int64, start: int) -> None:
        stop = start + len(blocks)
        self._ring[start:stop] = blocks
        # The same dtype on both sides: a scatter that has to cast takes twice as long.
        self._position[blocks] = np.arange(start, stop, dtype=np.int32)

    def _compact(self) -> None:
        live = self.order()
        self._head = len(self._position)
        self._tail = self._head + len(live)
        self._holes = 0
        self._place(live, self._head)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold (time proportional to the pool)."""
        window = self._ring[self._head : self._tail]
        live = self.order()
        assert len(live) == len(self) == len(np.unique(live)), "a block is twice in the free queue"
        assert np.count_nonzero(window == _HOLE) == self._holes, "holes miscounted"
        assert np.array_equal(self._ring[self._position[live]], live), "positions out of step"
