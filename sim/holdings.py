"""What running requests hold in the KV cache: the seam between a scheduler and an allocator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.base import BlockAllocator
from ..allocators.block_table import BlockTable
from ..traces.blocks import BlockNodes
from .request import PoolRequest
from .vllm_memory import NO_BLOCKS, VllmMemory

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Holdings(VllmMemory):
    """Blocks of a pool that finds them again by the prefixes they hold, as vLLM has it."""

    def __init__(self, allocator: BlockAllocator, table: BlockTable, nodes: BlockNodes, prefix_caching: bool) -> None:
        super().__init__(allocator, table)
        self.allocator: BlockAllocator = allocator
        self._nodes = nodes
        self._caching = prefix_caching

    def match(self, request: PoolRequest) -> Int64:
        if not self._caching:
            return NO_BLOCKS
        if request.nodes is None:
            request.load_nodes(self._nodes)
        limit = self._findable(request)
        if limit <= 0:
            return NO_BLOCKS
        return self.allocator.match(request.nodes_between(0, limit))

    def _findable(self, request: PoolRequest) -> int:
        """Return how many blocks of a waiting request can be in the cache."""
        limit = (request.known - 1) // self.block_size
        # Blocks that only it can fill are not there before it ran.
        return limit if request.preemptions else min(limit, request.shared)

    def idle(self, hits: Int64) -> Bool:
        return self.allocator.idle(hits)

    def first_missing(self, request: PoolRequest, hit_blocks: int) -> int | None:
        if not self._caching or hit_blocks >= (request.known - 1) // self.block_size:
            return None
        return int(request.nodes_between(hit_blocks, hit_blocks + 1)[0])

    def admit(self, request: PoolRequest, hits: Int64, idle: Bool, count: int) -> None:
        start = self.table.claim()
        request.block_start = start
        held = len(hits)
        if held:
            self.allocator.touch(hits, idle)
            self.table.flat[start : start + held] = hits
        request.held = request.registered = held
        observer = self.allocator.observer
        if observer is not None and request.nodes is not None:
            findable = self._findable(request)
            if findable > held:
                observer.missed(request.nodes_between(held, findable))
        self.blocks += held
        self.grow(request, self.allocator.take(count))

    def register(self, request: PoolRequest, tokens: int) -> None:
        full = tokens // self.block_size
        if self._caching and full > request.registered:
            start, stop = request.registered, full
            row = request.block_start
            self.allocator.register(request.nodes_between(start, stop), self.table.flat[row + start : row + stop])
            request.registered = full

    def let_go(self, request: PoolRequest, tokens: int) -> None:
        self.register(request, tokens)
        row = request.block_start
        self.allocator.release(self.table.flat[row : row + request.held], request.registered)
        self.table.give_back(row)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.held = request.registered = 0
