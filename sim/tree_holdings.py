"""What running requests hold of SGLang's slots or pages under vLLM's scheduler: a crossing that no engine ships."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.radix_tree import Node
from ..allocators.tree_pages import TreePages
from .request import PagedRequest
from .tree_memory import TreeMemory
from .vllm_memory import NO_BLOCKS, NOTHING, VllmMemory

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class TreeHoldings(VllmMemory):
    """Pages with a radix tree behind them, as vLLM's scheduler asks for blocks.

    What the two leave to each other: pages in the tree that nobody has locked count as free, and are evicted, leaf by
    leaf, when they are needed; what a step computes of prompts is published when it is scheduled, what a request
    decoded when it lets go of it; a look-up touches the path, whether or not the request is then admitted. Where the
    tree has published pages already, a running request's row is given the tree's, of which the layout log says nothing.

    That an attempt to admit is not repeated before something was given back or published changes nothing: nothing else
    is touched in between, so that touching the path again would leave the order in which leaves are evicted as it is.
    """

    def __init__(self, memory: TreeMemory) -> None:
        """Hold nothing; `memory` moves pages between list, tree and rows, and its own counts are not used."""
        self._pages = TreePages(memory.pool, memory.tree)
        super().__init__(self._pages, memory.table)
        self._memory = memory
        self._end: Node | None = None
        """Where the last match ended."""

    def match(self, request: PagedRequest) -> Int64:
        self._end = end = self._memory.match(request, request.known - 1)
        if end is None or self._memory.tree is None or not end.stop:
            return NO_BLOCKS
        pages = np.empty(end.stop // self.block_size, np.int64)
        self._memory.tree.copy_pages(end, 0, pages)
        return pages

    def idle(self, hits: Int64) -> Bool:
        count, node = 0, self._end
        # Who locks a node locks all those above it.
        while node is not None and node.parent is not None and not node.locks:
            count += len(node.pages)
            node = node.parent
        return np.arange(len(hits)) >= len(hits) - count if count else NOTHING

    def admit(self, request: PagedRequest, hits: Int64, idle: Bool, count: int) -> None:
        held = request.held = len(hits)
        start = request.block_start = self.table.claim()
        self._memory.lock(self._end)
        request.locked = self._end
        request.protected = held * self.block_size
        request.prefill_end = request.known
        self._memory.fill(request, self.table.flat[start : start + held])
        self.blocks += held
        self.grow(request, self.allocator.take(count))

    def register(self, request: PagedRequest, tokens: int) -> None:
        """Publish pages of what was known at the last admission, not of what was decoded since."""
        if tokens <= request.prefill_end and self._memory.aligned(tokens) > request.protected:
            self._memory.publish(request, tokens)
            self._pages.releases += 1

    def let_go(self, request: PagedRequest, tokens: int) -> None:
        # Of one that is preempted in the step that was to compute them, fewer tokens may be left than it published.
        if tokens >= request.protected:
            self._memory.publish(request, tokens)
        row = request.block_start
        self._memory.give_back(request, self.table.flat[row : row + request.held])
        self.table.give_back(row)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.held = request.protected = request.published = 0
        request.locked = None
        self._pages.releases += 1
