"""Belady's optimum: the most hits that any policy could have, which knows when each block is asked for next."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from .curve_distances import previous_uses
from .curve_references import References

Int64 = npt.NDArray[np.int64]


def belady_hits(references: References, capacity: int) -> Int64:
    """Return how many blocks of each reference are hits in a cache of `capacity` blocks, int64 [r].

    On a miss in a full cache, the block goes whose next use is the furthest away (Belady, "A study of replacement
    algorithms for a virtual-storage computer", 1966). Blocks never used again need no record: they are the first to
    go, and only the block that is used just now cannot go.
    """
    previous = previous_uses(references.segment)
    repeats = previous >= 0
    following = np.zeros(len(previous), np.int64)
    following[previous[repeats]] = np.flatnonzero(repeats)
    # Blocks that are yet to be used again, after each reference.
    wanted = np.cumsum(references.blocks * ((following > 0).astype(np.int64) - repeats))
    if wanted.max() + references.blocks.max() <= capacity:
        return np.where(repeats, references.blocks, 0)
    cache = _Cache(len(previous), capacity)
    for place, (blocks, later) in enumerate(zip(references.blocks.tolist(), following.tolist(), strict=True)):
        cache.use(place, blocks, later)
    return np.array([kept.bit_count() for kept in cache.kept], np.int64)


class _Cache:
    """Blocks that will be used again, by the place of that use in the stream.

    Attributes:
        kept: for each place, a bit for each block of its segment that is kept for it; those left when the place is
            reached are its hits.
        active: blocks kept in all.
    """

    def __init__(self, places: int, capacity: int) -> None:
        self.kept = [0] * places
        self.active = 0
        self._capacity = capacity
        self._next_uses: list[int] = []
        """A heap of negative places, so that the furthest comes first; those that were reached sink to its end."""

    def use(self, place: int, blocks: int, following: int) -> None:
        """Use all `blocks` of the segment at `place`, whose next use is at `following` (0: never)."""
        hits = self.kept[place].bit_count()
        if following:
            # Room is first made at the cost of what is needed later than this segment.
            self._drop_from(self.active - hits + blocks - self._capacity, beyond=following)
            if self.active - hits + blocks <= self._capacity:
                self.kept[following] = (1 << blocks) - 1
            else:
                self._use_one_by_one(place, blocks, following)
            self.active += self.kept[following].bit_count()
            heappush(self._next_uses, -following)
        elif not self.kept[place] & 1 and self.active == self._capacity:
            self._drop_furthest(place)
        self.active -= self.kept[place].bit_count()

    def _use_one_by_one(self, place: int, blocks: int, following: int) -> None:
        """Use a segment that has too little room, and whose own blocks are the ones needed last."""
        free = self._capacity - self.active
        for bit in (1 << block for block in range(blocks)):
            if not self.kept[place] & bit:
                if free:
                    free -= 1
                elif self.kept[following]:
                    self.kept[following] ^= _highest(self.kept[following])
                else:
                    self._drop_furthest(place)
            self.kept[following] |= bit

    def _drop_furthest(self, place: int) -> None:
        """Drop one block; if no others are kept, one that is about to be used at `place`."""
        if not self._drop_from(1, beyond=place):
            self.kept[place] ^= _highest(self.kept[place])
            self.active -= 1

    def _drop_from(self, count: int, beyond: int) -> int:
        """Drop up to `count` blocks, the furthest first, that are kept for places after `beyond`; returns how many."""
        dropped = 0
        while dropped < count and self._next_uses and -self._next_uses[0] > beyond:
            furthest = -self._next_uses[0]
            kept = self.kept[furthest]
            while kept and dropped < count:
                kept ^= _highest(kept)
                dropped += 1
            self.kept[furthest] = kept
            if not kept:
                heappop(self._next_uses)
        self.active -= dropped
        return dropped


def _highest(bits: int) -> int:
    return 1 << (bits.bit_length() - 1)
