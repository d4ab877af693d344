"""SGLang's free pages, and those that its radix tree can give up, as one stock of blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .radix_tree import RadixTree
from .slot_pool import SlotPool

Int64 = npt.NDArray[np.int64]


class TreePages:
    """A `BlockSource`: pages that nobody uses, whether free or in the tree; taking evicts what it must.

    Attributes:
        capacity: pages that can be in use at once.
        releases: counted up by whoever gives pages back, or puts some into the tree.
    """

    def __init__(self, pool: SlotPool, tree: RadixTree | None) -> None:
        self._pool = pool
        self._tree = tree
        self.block_size = pool.page_size
        self.capacity = pool.capacity
        self.releases = 0

    @property
    def ready(self) -> int:
        """Pages that can be taken without evicting.

        Evicting page by page does not give the order that evicting at once gives: pages come in front of the list.
        """
        return self._pool.free

    @property
    def cached(self) -> int:
        """Pages in the tree that nobody uses."""
        return 0 if self._tree is None else self._tree.evictable

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return self._pool.free + self.cached

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.capacity - self.free

    @property
    def evicted(self) -> int:
        """Pages evicted so far."""
        return 0 if self._tree is None else self._tree.evicted

    def holds(self, node: int) -> bool:
        """No: a tree knows tokens, not numbers of prefixes."""
        return False

    def take(self, count: int) -> Int64:
        """Hand out `count` pages, int64 [count], evicting leaves for all of them first if there are too few."""
        if count > self._pool.free and self._tree is not None:
            self._tree.evict_to(count)
        return self._pool.take(count)
