"""vLLM's block pool: fixed blocks, one free queue that is also the prefix cache's eviction order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from .base import BlockAllocator
from .free_queue import FreeQueue
from .prefix_map import PrefixMap

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

_NO_NODE = -1


class BlockPool(BlockAllocator):
    """`num_blocks` blocks of `block_size` tokens, block 0 being the null block that is never handed out.

    The order is that of `vllm.v1.core.block_pool.BlockPool` in vLLM 0.32.0:

    - blocks are handed out from the head of the free queue, which starts in the order of the ids;
    - a freed block that holds a prefix joins the tail, one that holds none the head, each group in the order freed;
      a request frees its last block first, so the end of a prefix is evicted before its start;
    - a hit takes a free block out of the queue wherever it is; a block that is handed out loses its prefix;
    - equal prefixes in several blocks are not merged; a match gives the oldest of them.
    """

    def __init__(self, num_blocks: int, block_size: int, num_nodes: int) -> None:
        """Make an empty pool.

        Args:
            num_blocks: all blocks, the null block included; at least 2.
            block_size: tokens a block.
            num_nodes: prefix nodes are numbered below this; 0 turns the prefix cache off.
        """
        self.block_size = block_size
        self.capacity = self.free = num_blocks - 1
        self._queue = FreeQueue(num_blocks)
        self._queue.pop(1)
        self._prefixes = PrefixMap(num_nodes)
        # Users beyond the first: 0 for nearly all blocks, free or not, so that taking and giving back leave it alone.
        self._sharers: Int32 = np.zeros(num_blocks, np.int32)
        # Of a block in use that is not registered, the entry is stale: taking need not write it either.
        self._node: Int32 = np.full(num_blocks, _NO_NODE, np.int32)

    def match(self, nodes: Int64) -> Int64:
        return self._prefixes.match(nodes)

    def holds(self, node: int) -> bool:
        return node in self._prefixes

    def idle(self, blocks: Int64) -> Bool:
        return self._queue.contains(blocks)

    def touch(self, blocks: Int64, idle: Bool) -> None:
        count = int(np.count_nonzero(idle))
        if count:
            self._queue.remove(blocks[idle])
            self.free -= count
            self.cached -= count
        if count < len(blocks):
            self._sharers[blocks[~idle]] += 1
        if self.observer:
            self.observer.hit(blocks)

    def take(self, count: int) -> Int64:
        blocks = self._queue.pop(count)
        nodes = self._node[blocks].astype(np.int64)
        holding = nodes != _NO_NODE
        evicted = int(np.count_nonzero(holding))
        if evicted == count > 0:
            self._evict(blocks, nodes)
        elif evicted:
            self._evict(blocks[holding], nodes[holding])
        self.free -= count
        return blocks

    def _evict(self, blocks: Int64, nodes: Int64) -> None:
        self._prefixes.drop(nodes, blocks)
        self.cached -= len(blocks)
        self.evicted += len(blocks)
        if self.observer:
            self.observer.evicted(blocks, nodes)

    def register(self, nodes: Int64, blocks: Int64) -> None:
        self._node[blocks] = nodes.astype(np.int32)
        self._prefixes.add(nodes, blocks)

    def release(self, blocks: Int64, registered: int) -> None:
        self.releases += 1
        sharers = self._sharers[blocks]
        if np.count_nonzero(sharers):
            shared = sharers > 0
            self._sharers[blocks[shared]] -= 1
            registered -= int(np.count_nonzero(shared[:registered]))
            blocks = blocks[~shared]
        # Last block first: so the plain ones, which come last, make the head of the queue in reverse.
        plain = blocks[registered:][::-1]
        if len(plain):
            self._node[plain] = _NO_NODE
            self._queue.prepend(plain)
        self._queue.append(blocks[:registered][::-1])
        self.free += len(blocks)
        self.cached += registered
        if self.observer:
            self.observer.released(blocks)

    def free_order(self) -> Int64:
        return self._queue.order()

    def users(self, tables: Iterable[Int64]) -> Int64:
        """Return how many of the `tables` (one a holder) hold each block, int64 [capacity + 1]. For checks."""
        held = np.concatenate([np.empty(0, np.int64), *tables])
        return np.bincount(held, minlength=self.capacity + 1)

    def check(self, tables: Iterable[Int64] | None = None) -> None:
        self._queue.check()
        order = self._queue.order()
        self._prefixes.check(self._node, order)
        assert len(order) == self.free, "free blocks miscounted"
        assert self.free + self.used == self.capacity, "blocks lost or made"
        assert np.count_nonzero(self._node[order] != _NO_NODE) == self.cached, "cached blocks miscounted"
        assert self._node[0] == _NO_NODE and 0 not in order, "the null block is in use"
        assert self._sharers.min() >= 0, "a block was given back more often than it was taken"
        assert not self._sharers[order].any(), "a free block is in use"
        if tables is not None:
            users = self.users(tables)
            assert np.array_equal(users > 0, ~np.isin(np.arange(len(users)), [0, *order])), "blocks lost or held free"
            assert np.array_equal(np.maximum(users - 1, 0), self._sharers), "use counts are off"
