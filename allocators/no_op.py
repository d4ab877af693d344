"""An allocator that does nothing, to see what a replay costs without one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from .base import BlockAllocator

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class NoOpAllocator(BlockAllocator):
    """Counts blocks and nothing else: every id is 0, nothing is cached, nothing is evicted.

    A replay on it takes the same steps as one on a pool of the same size without prefix cache, so that what it takes
    less time for is the pool's own work.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Have `num_blocks - 1` blocks of `block_size` tokens to give, as a pool with its null block has."""
        self.block_size = block_size
        self.capacity = self.free = num_blocks - 1
        self._zeros: Int64 = np.zeros(num_blocks, np.int64)

    def match(self, nodes: Int64) -> Int64:
        return self._zeros[:0]

    def holds(self, node: int) -> bool:
        return False

    def idle(self, blocks: Int64) -> Bool:
        return np.zeros(len(blocks), np.bool_)

    def touch(self, blocks: Int64, idle: Bool) -> None:
        """Nothing is ever matched, so there is nothing to touch."""

    def take(self, count: int) -> Int64:
        self.free -= count
        return self._zeros[:count]

    def register(self, nodes: Int64, blocks: Int64) -> None:
        """Nothing is cached."""

    def release(self, blocks: Int64, registered: int) -> None:
        self.releases += 1
        self.free += len(blocks)

    def free_order(self) -> Int64:
        return self._zeros[: self.free]

    def check(self, tables: Iterable[Int64] | None = None) -> None:
        assert 0 <= self.free <= self.capacity, "blocks lost or made"
        if tables is not None:
            assert sum(map(len, tables)) == self.used, "blocks lost or held free"
