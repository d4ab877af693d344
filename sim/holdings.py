"""What running requests hold in the KV cache: the seam between a scheduler and an allocator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.base import BlockAllocator
from ..allocators.block_table import BlockTable
from ..traces.blocks import BlockNodes
from .request import PoolRequest

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

NOTHING: Bool = np.empty(0, np.bool_)
NO_BLOCKS: Int64 = np.empty(0, np.int64)


class Holdings:
    """Moves blocks between the allocator and the rows of the block table, and keeps the requests' counts of them.

    Attributes:
        blocks: blocks held by all running requests, a shared one counted once for each.
        tokens: tokens in the KV cache or scheduled, of all running requests.
    """

    def __init__(self, allocator: BlockAllocator, table: BlockTable, nodes: BlockNodes, prefix_caching: bool) -> None:
        self.allocator = allocator
        self.table = table
        self.block_size = allocator.block_size
        self.blocks = 0
        self.tokens = 0
        self._nodes = nodes
        self._caching = prefix_caching

    def match(self, request: PoolRequest) -> Int64:
        """Return the cached blocks of the longest prefix of a waiting request, int64 [any].

        The last known token is always computed, so a whole block that ends with it is not taken from the cache.
        """
        if not self._caching:
            return NO_BLOCKS
        if request.nodes is None:
            request.load_nodes(self._nodes)
        limit = (request.known - 1) // self.block_size
        if not request.preemptions:
            # Blocks that only it can fill are not there before it ran.
            limit = min(limit, request.shared)
        if limit <= 0:
            return NO_BLOCKS
        return self.allocator.match(request.nodes_between(0, limit))

    def first_missing(self, request: PoolRequest, hit_blocks: int) -> int | None:
        """Return the node whose absence ends a match after `hit_blocks` blocks; None where nothing is missing."""
        if not self._caching or hit_blocks >= (request.known - 1) // self.block_size:
            return None
        return int(request.nodes_between(hit_blocks, hit_blocks + 1)[0])

    def admit(self, request: PoolRequest, hits: Int64, idle: Bool, count: int) -> None:
        """Give a waiting request a row with the matched blocks `hits`, some of them `idle`, and `count` new ones."""
        start = self.table.claim()
        request.block_start = start
        held = len(hits)
        if held:
            self.allocator.touch(hits, idle)
            self.table.flat[start : start + held] = hits
        request.held = request.registered = held
        observer = self.allocator.observer
        if observer is not None and request.nodes is not None:
            known = (request.known - 1) // self.block_size
            known = known if request.preemptions else min(known, request.shared)
            if known > held:
                observer.missed(request.nodes_between(held, known))
        self.blocks += held
        self.grow(request, self.allocator.take(count))

    def grow(self, request: PoolRequest, blocks: Int64) -> None:
        """Append new blocks to a request's row."""
        count = len(blocks)
        if count:
            start = request.block_start + request.held
            self.table.flat[start : start + count] = blocks
            request.held += count
            self.blocks += count

    def register(self, request: PoolRequest, tokens: int) -> None:
        """Let others find the request's blocks that its first `tokens` tokens fill."""
        full = tokens // self.block_size
        if self._caching and full > request.registered:
            start, stop = request.registered, full
            row = request.block_start
            self.allocator.register(request.nodes_between(start, stop), self.table.flat[row + start : row + stop])
            request.registered = full

    def release(self, request: PoolRequest) -> None:
        """Give back all blocks and the row of a request whose `held` and `computed` are up to date."""
        row = request.block_start
        self.allocator.release(self.table.flat[row : row + request.held], request.registered)
        self.table.give_back(row)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.held = request.registered = 0
