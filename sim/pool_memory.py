"""What SGLang's running requests hold of vLLM's block pool: a crossing that no engine ships."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..allocators.block_pool import BlockPool
from ..allocators.block_table import BlockTable
from ..traces.blocks import BlockNodes
from .request import BlockRequest
from .sglang_memory import SglangMemory

Int64 = npt.NDArray[np.int64]


class PoolHit(NamedTuple):
    """Cached blocks, and the tokens in them."""

    stop: int
    blocks: Int64


class PoolMemory(SglangMemory):
    """A block pool under SGLang's scheduler, whose pages are the pool's blocks.

    What the two leave to each other: a cached block that nobody uses is free, so that nothing is ever evicted to make
    room but by handing out; a lock is one more user of the matched blocks, so that a look-up touches them whether or
    not the request is then admitted; blocks are registered when the scheduler publishes, and what was computed twice is
    held twice; what requests let go of is free at once, not when all results of a batch are treated.
    """

    def __init__(
        self, pool: BlockPool, table: BlockTable, nodes: BlockNodes, rows: int, *, prefix_caching: bool
    ) -> None:
        """Hold nothing.

        Args:
            pool: the blocks.
            table: rows of blocks.
            nodes: of the trace, at the pool's block size.
            rows: of the request-to-token table; row 0 is for padding.
            prefix_caching: whether blocks are registered at all.
        """
        super().__init__(table, pool.block_size, pool.capacity, rows, caching=prefix_caching)
        self.pool = pool
        self._nodes = nodes

    @property
    def free(self) -> int:
        return self.pool.free

    @property
    def cached(self) -> int:
        return self.pool.cached

    @property
    def reachable(self) -> int:
        return self.pool.free

    @property
    def evicted(self) -> int:
        return self.pool.evicted

    # -- the prefix cache

    def match(self, request: BlockRequest, tokens: int) -> PoolHit | None:
        if not self.caching:
            return None
        if request.nodes is None:
            request.load_nodes(self._nodes)
        blocks = self.pool.match(request.nodes_between(0, tokens // self.page_size))
        return PoolHit(len(blocks) * self.page_size, blocks)

    def lock(self, hit: PoolHit | None) -> None:
        if hit is not None and hit.stop:
            self.pool.touch(hit.blocks, self.pool.idle(hit.blocks))

    def unlock(self, hit: PoolHit | None) -> None:
        if hit is not None and hit.stop:
            self.pool.release(hit.blocks, len(hit.blocks))

    def publish(self, request: BlockRequest, tokens: int) -> None:
        """Register the blocks that a request's first `tokens` tokens fill; `published` says how far that went."""
        # Nobody can ask for the last token, which no block of the trace has: it is computed only by an overrun.
        whole = self.aligned(min(tokens, request.total - 1))
        if self.caching and whole > request.published:
            start, stop = request.published // self.page_size, whole // self.page_size
            row = request.block_start
            self.pool.register(request.nodes_between(start, stop), self.table.flat[row + start : row + stop])
            request.published = whole

    # -- giving and taking

    def evict_for(self, tokens: int) -> bool:
        return self.pages(tokens) <= self.pool.free

    def take(self, count: int) -> Int64:
        return self.pool.take(count)

    def hold(self) -> None:
        """Nothing: what is given back is free at once."""

    def apply(self) -> None:
        """Nothing was collected."""

    def fill(self, request: BlockRequest, row: Int64) -> None:
        if len(row):
            row[:] = request.locked.blocks
        request.published = request.prefix
        observer = self.pool.observer
        known = (request.known - 1) // self.page_size
        if self.caching and observer is not None and known > len(row):
            observer.missed(request.nodes_between(len(row), known))

    def give_back(self, request: BlockRequest, row: Int64) -> None:
        # What it locked stands at the beginning of its row.
        self.pool.release(row, request.published // self.page_size)
