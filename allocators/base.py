"""What a scheduler may ask of an allocator of KV-cache blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Observer(Protocol):
    """Told of what happens to blocks; all arrays are int64 [k] and must not be changed."""

    def hit(self, blocks: Int64) -> None:
        """`blocks` were found in the prefix cache and are used once more."""
        ...

    def released(self, blocks: Int64) -> None:
        """Nobody uses `blocks` any longer; some may still hold a prefix."""
        ...

    def evicted(self, blocks: Int64, nodes: Int64) -> None:
        """The prefixes `nodes` that `blocks` held were given up."""
        ...

    def missed(self, nodes: Int64) -> None:
        """A request was given blocks to compute the prefixes `nodes`, which were not in the cache."""
        ...


class BlockSource(Protocol):
    """Blocks to be had, whoever keeps them: what a scheduler needs to know of any allocator.

    The members are those of `BlockAllocator`.
    """

    @property
    def block_size(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def ready(self) -> int: ...

    @property
    def cached(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def evicted(self) -> int: ...

    @property
    def releases(self) -> int: ...

    def holds(self, node: int) -> bool: ...

    def take(self, count: int) -> Int64: ...


class BlockAllocator(ABC):
    """Blocks of `block_size` tokens: handed out, shared by prefix, given back, evicted.

    An id is a block number; a *node* is the number of a whole prefix (see `kvreplay.traces.trace`). Capacity and use
    are counted in blocks. A caller holds blocks in a table of its own; the allocator knows only how many hold each.
    A method that the caller's checks should have prevented (taking more than is free) may corrupt the state: `check()`
    finds out.
    """

    block_size: int
    """Tokens a block."""
    capacity: int
    """Blocks that can be handed out at once."""
    free: int
    """Blocks that can be taken now, cached ones that nobody uses included."""
    cached: int = 0
    """Free blocks that still hold a prefix."""
    evicted: int = 0
    """Cached blocks whose content was dropped so far."""
    releases: int = 0
    """Calls that may have made blocks free so far; unchanged means that nothing was."""
    observer: Observer | None = None

    @property
    def ready(self) -> int:
        """Blocks in the free list, which are the same ones in whatever portions they are taken. Changes nothing."""
        return self.free

    @property
    def used(self) -> int:
        """Blocks that somebody holds, each counted once. Changes nothing."""
        return self.capacity - self.free

    @abstractmethod
    def match(self, nodes: Int64) -> Int64:
        """Return the blocks holding the longest cached part of `nodes` (int64 [k]) from its start. Changes nothing."""

    @abstractmethod
    def holds(self, node: int) -> bool:
        """Whether some block holds `node`. Changes nothing."""

    @abstractmethod
    def idle(self, blocks: Int64) -> Bool:
        """Which of `blocks` nobody uses, bool [k]: touching takes these from `free`. Changes nothing."""

    @abstractmethod
    def touch(self, blocks: Int64, idle: Bool) -> None:
        """Use matched `blocks` once more. Those that nobody used, as `idle` says of them, leave the free ones."""

    @abstractmethod
    def take(self, count: int) -> Int64:
        """Hand out `count` blocks (int64 [count]), evicting what they held. The caller checks `count <= free`."""

    @abstractmethod
    def register(self, nodes: Int64, blocks: Int64) -> None:
        """From now on `blocks[k]` holds the prefix `nodes[k]` and can be matched. Changes the prefix cache only."""

    @abstractmethod
    def release(self, blocks: Int64, registered: int) -> None:
        """Give back a request's `blocks` (int64 [k], in the order of its tokens), the first `registered` of which
        hold a registered prefix. They become free where nobody else uses them."""

    @abstractmethod
    def free_order(self) -> Int64:
        """Return the free blocks in the order in which they would be handed out, int64 [free]. Changes nothing."""

    @abstractmethod
    def check(self, tables: Iterable[Int64] | None = None) -> None:
        """Raise AssertionError where the books do not balance. Changes nothing; costs time in the pool's size.

        With `tables`, the blocks of every holder, use counts are checked against them too.
        """
