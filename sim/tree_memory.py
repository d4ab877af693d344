"""What SGLang's running requests hold: pages out of the free list, and the tree's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.block_table import BlockTable
from ..allocators.radix_tree import Node, RadixTree
from ..allocators.slot_pool import SlotPool
from .request import UNSEEN, TreeRequest

Int64 = npt.NDArray[np.int64]


class TreeMemory:
    """Pages in the free list, in the radix tree, and in requests' rows, and how they move between these.

    A request's row lists the pages of its tokens. Up to `protected` tokens they are the tree's, locked by the request;
    the rest is its own.

    Attributes:
        blocks: pages in rows of all running requests, a shared one counted for each.
        tokens: tokens in the KV cache or scheduled, of all running requests.
        free_rows: numbers of the free rows of the request-to-token table, as the engine has them; the last is next.
    """

    def __init__(self, pool: SlotPool, tree: RadixTree | None, table: BlockTable, rows: int) -> None:
        """Hold nothing.

        Args:
            pool: the free pages.
            tree: the prefix cache; None where it is turned off.
            table: rows of pages.
            rows: of the request-to-token table; row 0 is for padding.
        """
        self.pool = pool
        self.tree = tree
        self.table = table
        self.page_size = pool.page_size
        self.free_rows = list(range(1, rows + 1))
        self.blocks = 0
        self.tokens = 0

    @property
    def evictable(self) -> int:
        """Pages in the tree that no running request has locked."""
        return 0 if self.tree is None else self.tree.evictable

    @property
    def reachable_tokens(self) -> int:
        """Slots that are free or can be evicted."""
        return (self.pool.free + self.evictable) * self.page_size

    def aligned(self, tokens: int) -> int:
        """Return the whole pages of a length, in tokens."""
        return tokens // self.page_size * self.page_size

    def pages(self, tokens: int) -> int:
        """Return the pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def ceil(self, tokens: int) -> int:
        """Return a length rounded up to whole pages, in tokens."""
        return self.pages(tokens) * self.page_size

    # -- the prefix cache

    def match(self, request: TreeRequest, tokens: int) -> Node | None:
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

    def publish(self, request: TreeRequest, tokens: int) -> None:
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
        """Evict if fewer than `tokens` slots are free; returns whether they are then."""
        pages = self.pages(tokens)
        if pages > self.pool.free and self.tree is not None:
            self.tree.evict_to(pages)
        return pages <= self.pool.free

    def open_rows(self, requests: list[TreeRequest]) -> None:
        """Give rows to requests that have none, holding what they matched."""
        if not requests:
            return
        numbers = self.free_rows[-len(requests) :]
        del self.free_rows[-len(requests) :]
        for request, number in zip(requests, numbers, strict=True):
            request.row = number
            request.block_start = self.table.claim()
            request.held = request.prefix // self.page_size
            if request.held and self.tree is not None and request.locked is not None:
                row = self.table.flat[request.block_start : request.block_start + request.held]
                self.tree.copy_pages(request.locked, 0, row)
            request.computed = request.prefix
            self.blocks += request.held
            self.tokens += request.prefix
            if self.tree is not None and self.tree.observer is not None:
                self.tree.observer.missed(request.sequence, request.prefix, request.known, self.page_size)

    def extend(self, requests: list[TreeRequest]) -> None:
        """Give each of `requests`, in order, the pages for its tokens up to `extend_end`."""
        counts = [self.pages(request.extend_end) - request.held for request in requests]
        taken = self.pool.take(sum(counts))
        used = 0
        for request, count in zip(requests, counts, strict=True):
            start = request.block_start + request.held
            self.table.flat[start : start + count] = taken[used : used + count]
            used += count
            request.held += count
            self.blocks += count
            self.tokens += request.extend_end - request.computed
            request.computed = request.extend_end

    def release(self, request: TreeRequest) -> None:
        """Take everything from a request whose `computed` and `held` are up to date: its own pages, lock and row."""
        own = self.pages(request.protected)
        row = request.block_start
        self.pool.give_back(self.table.flat[row + own : row + request.held])
        self.unlock(request.locked)
        self.free_rows.append(request.row)
        self.table.give_back(row)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.locked, request.row, request.held = None, UNSEEN, 0

    def slots(self, request: TreeRequest, start: int, stop: int) -> Int64:
        """Return the slots of a request's tokens `start` to `stop - 1`, int64 [stop - start]."""
        positions = np.arange(start, stop)
        pages = self.table.flat[request.block_start + positions // self.page_size]
        return pages * self.page_size + positions % self.page_size
