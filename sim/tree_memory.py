"""What SGLang's running requests hold: pages out of the free list, and the tree's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.block_table import BlockTable
from ..allocators.radix_tree import Node, RadixTree
from ..allocators.slot_pool import SlotPool
from .request import TreeHolder
from .sglang_memory import SglangMemory

Int64 = npt.NDArray[np.int64]


class TreeMemory(SglangMemory):
    """Pages in the free list, in the radix tree, and in requests' rows, and how they move between these.

    A request's row lists the pages of its tokens. Up to `protected` tokens they are the tree's, locked by the request;
    the rest is its own.
    """

    def __init__(self, pool: SlotPool, tree: RadixTree | None, table: BlockTable, rows: int) -> None:
        """Hold nothing.

        Args:
            pool: the free pages.
            tree: the prefix cache; None where it is turned off.
            table: rows of pages.
            rows: of the request-to-token table; row 0 is for padding.
        """
        super().__init__(table, pool.page_size, pool.capacity, rows, caching=tree is not None)
        self.pool = pool
        self.tree = tree

    @property
    def free(self) -> int:
        return self.pool.free

    @property
    def evictable(self) -> int:
        """Pages in the tree that no running request has locked."""
        return 0 if self.tree is None else self.tree.evictable

    @property
    def cached(self) -> int:
        return self.evictable

    @property
    def reachable(self) -> int:
        return self.pool.free + self.evictable

    @property
    def evicted(self) -> int:
        return 0 if self.tree is None else self.tree.evicted

    # -- the prefix cache

    def match(self, request: TreeHolder, tokens: int) -> Node | None:
        """Return where in the tree the first `tokens` tokens of a request end; touches the path."""
        return None if self.tree is None else self.tree.match(request.sequence, tokens)

    def lock(self, node: Node | None) -> None:
        """Keep the path to `node` from being evicted."""
        if self.tree is not None and node is not None:
            self.tree.lock(node)

    def unlock(self, node: Node | None) -> None:
        """Drop one lock of the path to `node`."""
        if self.tree is not None and node is not None:
            self.tree.unlock(node)

    def publish(self, request: TreeHolder, tokens: int) -> None:
        """Make the whole pages of a request's first `tokens` tokens part of the tree, and lock them there.

        What goes beyond the prompt's whole pages is split off at their end, and the prompt counts as touched twice.
        """
        if self.tree is None:
            return
        whole, prompt = self.aligned(tokens), self.aligned(request.prompt)
        row = self.table.flat[request.block_start : request.block_start + self.pages(tokens)]
        sequence = request.sequence
        node = self.tree.insert(sequence, whole, row, owned=request.protected, counted=request.published)
        request.published = max(request.published, whole)
        if 0 < prompt < whole:
            self.tree.insert(sequence, prompt, row, owned=prompt, counted=prompt, priority=1)
        self.tree.touch(node)
        self.tree.copy_pages(node, request.protected, row)
        # In this order nothing in between becomes evictable for a moment.
        self.tree.lock(node)
        self.unlock(request.locked)
        request.locked = node
        request.protected = node.stop

    # -- giving and taking

    def evict_for(self, tokens: int) -> bool:
        pages = self.pages(tokens)
        if pages > self.pool.free and self.tree is not None:
            self.tree.evict_to(pages)
        return pages <= self.pool.free

    def take(self, count: int) -> Int64:
        return self.pool.take(count)

    def hold(self) -> None:
        self.pool.hold()

    def apply(self) -> None:
        self.pool.apply()

    def fill(self, request: TreeHolder, row: Int64) -> None:
        if self.tree is None:
            return
        if len(row) and request.locked is not None:
            self.tree.copy_pages(request.locked, 0, row)
        if self.tree.observer is not None:
            self.tree.observer.missed(request.sequence, len(row) * self.page_size, request.known, self.page_size)

    def give_back(self, request: TreeHolder, row: Int64) -> None:
        self.pool.give_back(row[self.pages(request.protected) :])
        self.unlock(request.locked)
