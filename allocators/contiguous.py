"""Memory as engines had it before paging: every request one region of consecutive blocks, for all it may become."""

from __future__ import annotations

from bisect import bisect

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

_NO_BLOCKS: Int64 = np.empty(0, np.int64)


class ContiguousPool:
    """Blocks 1 to `capacity`, of which regions of neighbours are reserved and given back whole.

    A region comes from the start of the first piece of free blocks, in the order of their numbers, that is large
    enough. What is given back is merged with free neighbours. So free blocks may lie in pieces each of which is too
    small: that is external fragmentation, which paging was made to end.

    A `BlockSource` too, from which nothing can be taken: a request grows inside its region.

    Attributes:
        block_size: tokens a block.
        capacity: blocks that can be in use at once.
        free: blocks in no region.
        largest: of them, those in the largest piece.
        cached, evicted: 0; no prefix is found again.
        releases: regions given back so far.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make a pool in one piece of `num_blocks` blocks, of which block 0 is left out as in vLLM's pool."""
        self.block_size = block_size
        self.capacity = self.free = self.largest = num_blocks - 1
        self.cached = self.evicted = self.releases = 0
        self._starts = [1]
        """First blocks of the free pieces, in order."""
        self._stops = [num_blocks]
        """The blocks behind them."""

    @property
    def used(self) -> int:
        """Blocks in regions."""
        return self.capacity - self.free

    @property
    def ready(self) -> int:
        """Free blocks."""
        return self.free

    @property
    def scattered(self) -> int:
        """Free blocks outside the largest piece."""
        return self.free - self.largest

    def holds(self, node: int) -> bool:
        """No."""
        return False

    def take(self, count: int) -> Int64:
        """Return no blocks; nobody may ask for any."""
        assert not count, "blocks are reserved as regions"
        return _NO_BLOCKS

    def reserve(self, count: int) -> int:
        """Reserve `count` blocks and return the first. The caller checks `0 < count <= largest`."""
        place = next(place for place, (start, stop) in enumerate(self.pieces()) if stop - start >= count)
        start = self._starts[place]
        if start + count == self._stops[place]:
            del self._starts[place], self._stops[place]
        else:
            self._starts[place] = start + count
        self._changed(-count)
        return start

    def give_back(self, start: int, count: int) -> None:
        """Free the region of `count` blocks that begins with block `start`."""
        stop = start + count
        place = bisect(self._starts, start)
        joins_before = place > 0 and self._stops[place - 1] == start
        joins_behind = place < len(self._starts) and self._starts[place] == stop
        if joins_before and joins_behind:
            del self._stops[place - 1], self._starts[place]
        elif joins_before:
            self._stops[place - 1] = stop
        elif joins_behind:
            self._starts[place] = start
        else:
            self._starts.insert(place, start)
            self._stops.insert(place, stop)
        self.releases += 1
        self._changed(count)

    def _changed(self, by: int) -> None:
        self.free += by
        self.largest = max((stop - start for start, stop in self.pieces()), default=0)

    def pieces(self) -> list[tuple[int, int]]:
        """Return the free pieces in order, each as its first block and the block behind it."""
        return list(zip(self._starts, self._stops, strict=True))

    def free_order(self) -> Int64:
        """Return the free blocks in the order of their numbers, int64 [free]."""
        return np.concatenate([_NO_BLOCKS, *(np.arange(start, stop) for start, stop in self.pieces())])

    def check(self) -> None:
        """Raise AssertionError unless the pieces are in order, apart from each other, and as many as they should be."""
        edges = [edge for piece in self.pieces() for edge in piece]
        assert edges == sorted(set(edges)), "pieces overlap, touch or are empty"
        assert not edges or (edges[0] >= 1 and edges[-1] <= self.capacity + 1), "a piece is outside the pool"
        assert sum(stop - start for start, stop in self.pieces()) == self.free, "free blocks miscounted"
