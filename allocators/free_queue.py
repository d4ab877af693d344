"""The queue of free blocks, in the order in which they will be handed out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .ring import Ring

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

_HOLE = -1
_NOWHERE = 1 << 62
_LOOK_AHEAD = 4096
"""Ids looked at for the next hole at once: many times what is handed out in one go."""


class FreeQueue(Ring):
    """Block ids in eviction order, out of the middle of which blocks can be removed.

    Handing out takes from the head. Freed blocks join the tail (worth keeping: they are evicted last) or the head
    (worth nothing: they are reused first). A block that is hit leaves from wherever it is.

    Invariants: `_ids[_head:_tail]` has `_holes` entries of -1, which stand for blocks removed from the middle; none of
    them stands before index `_sound`; `_position[b]` is the index of `b` in `_ids` for every `b` in the queue, stale
    for the others.
    """

    def __init__(self, num_blocks: int) -> None:
        """Fill the queue with blocks `0 .. num_blocks - 1`, block 0 at the head."""
        # The random access here is a good part of a replay's time, and cheaper the less memory it goes over.
        self._position: Int32 = np.zeros(num_blocks, np.int32)
        self._holes = 0
        self._sound = _NOWHERE
        super().__init__(np.arange(num_blocks))

    def __len__(self) -> int:
        return self._tail - self._head - self._holes

    def order(self) -> Int64:
        """Return the ids from head to tail, int64 [len(self)] (a copy)."""
        live = self._ids[self._head : self._tail]
        return live[live != _HOLE]

    def contains(self, blocks: Int64) -> npt.NDArray[np.bool_]:
        """Return which of `blocks` (int64 [k]) are in the queue, bool [k]."""
        # The position of a block that left may be stale, but then some other block or a hole is there.
        position = self._position[blocks].astype(np.int64)
        there = self._ids[position] == blocks
        there &= position >= self._head
        there &= position < self._tail
        return there

    def pop(self, count: int) -> Int64:
        """Take the `count` blocks at the head, in order: int64 [count]. The caller checks that there are as many."""
        if self._head + count <= self._sound:
            return super().pop(count)
        head, reach = self._head, count
        while True:
            taken = self._ids[head : min(head + reach, self._tail)]
            taken = taken[taken != _HOLE]
            if len(taken) >= count:
                break
            reach = 2 * reach + 64
        taken = taken[:count]
        if count:
            self._head = int(self._position[taken[-1]]) + 1
            self._holes -= self._head - head - count
        self._find_hole()
        return taken

    def remove(self, blocks: Int64) -> None:
        """Take `blocks` (int64 [k], all in the queue) out of the middle."""
        places = self._position[blocks].astype(np.int64)
        self._ids[places] = _HOLE
        self._holes += len(blocks)
        self._sound = min(self._sound, int(places.min(initial=self._sound)))

    def _find_hole(self) -> None:
        """Look some way ahead for the next hole."""
        self._sound = _NOWHERE
        if self._holes:
            ahead = self._ids[self._head : min(self._head + _LOOK_AHEAD, self._tail)] == _HOLE
            self._sound = self._head + (int(ahead.argmax()) if ahead.any() else len(ahead))

    def _place(self, ids: Int64, start: int) -> None:
        super()._place(ids, start)
        # The same dtype on both sides: a scatter that has to cast takes twice as long.
        self._position[ids] = np.arange(start, start + len(ids), dtype=np.int32)

    def _centre(self) -> None:
        super()._centre()
        self._holes = 0
        self._sound = _NOWHERE

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold (time proportional to the pool)."""
        window = self._ids[self._head : self._tail]
        live = self.order()
        assert len(live) == len(self) == len(np.unique(live)), "a block is twice in the free queue"
        assert np.count_nonzero(window == _HOLE) == self._holes, "holes miscounted"
        assert not (window[: max(self._sound - self._head, 0)] == _HOLE).any(), "a hole where none should be"
        assert np.array_equal(self._ids[self._position[live]], live), "positions out of step"
