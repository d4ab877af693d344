"""What SGLang's scheduler asks of its memory, whatever allocator that is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..allocators.block_table import BlockTable
from .request import UNSEEN, TreeRequest

Int64 = npt.NDArray[np.int64]


class Hit(Protocol):
    """A prefix that was found in the cache."""

    @property
    def stop(self) -> int:
        """Its tokens."""
        ...


class SglangMemory(ABC):
    """Requests' rows of pages, with a prefix cache behind them.

    What is here concerns the rows. Where pages come from, and how they are found again, is each allocator's own.

    Attributes:
        table: rows of pages.
        page_size: tokens a page.
        capacity: pages that can be in use at once.
        caching: whether prefixes are found again at all.
        free_rows: numbers of the free rows of the request-to-token table, as the engine has them; the last is next.
        blocks: pages in rows of all running requests, a shared one counted for each.
        tokens: tokens in the KV cache or scheduled, of all running requests.
    """

    def __init__(self, table: BlockTable, page_size: int, capacity: int, rows: int, *, caching: bool) -> None:
        """Hold nothing; `rows` are those of the request-to-token table, in which row 0 is for padding."""
        self.table = table
        self.page_size = page_size
        self.capacity = capacity
        self.caching = caching
        self.free_rows = list(range(1, rows + 1))
        self.blocks = 0
        self.tokens = 0

    # -- how much there is; nothing here changes anything

    @property
    @abstractmethod
    def free(self) -> int:
        """Pages in the free list."""

    @property
    @abstractmethod
    def cached(self) -> int:
        """Pages that hold a prefix and that nobody uses."""

    @property
    @abstractmethod
    def reachable(self) -> int:
        """Pages that are free or can be made so by evicting."""

    @property
    @abstractmethod
    def evicted(self) -> int:
        """Cached pages whose content was dropped so far."""

    @property
    def reachable_tokens(self) -> int:
        """Slots that are free or can be evicted."""
        return self.reachable * self.page_size

    def aligned(self, tokens: int) -> int:
        """Return the whole pages of a length, in tokens."""
        return tokens // self.page_size * self.page_size

    def pages(self, tokens: int) -> int:
        """Return the pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def ceil(self, tokens: int) -> int:
        """Return a length rounded up to whole pages, in tokens."""
        return self.pages(tokens) * self.page_size

    def slots(self, request: TreeRequest, start: int, stop: int) -> Int64:
        """Return the slots of a request's tokens `start` to `stop - 1`, int64 [stop - start]."""
        positions = np.arange(start, stop)
        pages = self.table.flat[request.block_start + positions // self.page_size]
        return pages * self.page_size + positions % self.page_size

    # -- the prefix cache

    @abstractmethod
    def match(self, request: Any, tokens: int) -> Hit | None:
        """Return what the cache has of the first `tokens` tokens of a request; None where there is no cache."""

    @abstractmethod
    def lock(self, hit: Any, /) -> None:
        """Keep what was matched from being evicted."""

    @abstractmethod
    def unlock(self, hit: Any, /) -> None:
        """Take back one `lock`."""

    @abstractmethod
    def publish(self, request: Any, tokens: int) -> None:
        """Let others find the whole pages of a request's first `tokens` tokens, all of which are computed."""

    # -- giving and taking

    @abstractmethod
    def evict_for(self, tokens: int) -> bool:
        """Evict if fewer than `tokens` slots are free; returns whether they are then."""

    @abstractmethod
    def take(self, count: int) -> Int64:
        """Hand out `count` free pages, int64 [count]. The caller has made sure of them with `evict_for`."""

    @abstractmethod
    def hold(self) -> None:
        """The results of a batch are about to be treated: what is given back may be collected until `apply`."""

    @abstractmethod
    def apply(self) -> None:
        """Free what was collected."""

    def open_rows(self, requests: list[TreeRequest]) -> None:
        """Give rows to requests that have none, holding what they matched and locked."""
        if not requests:
            return
        numbers = self.free_rows[-len(requests) :]
        del self.free_rows[-len(requests) :]
        for request, number in zip(requests, numbers, strict=True):
            request.row = number
            request.block_start = self.table.claim()
            request.held = request.prefix // self.page_size
            self.fill(request, self.table.flat[request.block_start : request.block_start + request.held])
            request.computed = request.prefix
            self.blocks += request.held
            self.tokens += request.prefix

    @abstractmethod
    def fill(self, request: Any, row: Int64) -> None:
        """Write the pages of a request's matched prefix into `row` (int64, as many as there are)."""

    def extend(self, requests: list[TreeRequest]) -> None:
        """Give each of `requests`, in order, the pages for its tokens up to `extend_end`."""
        counts = [self.pages(request.extend_end) - request.held for request in requests]
        taken = self.take(sum(counts))
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
        """Take everything from a request whose `computed` and `held` are up to date: its pages, lock and row."""
        row = request.block_start
        self.give_back(request, self.table.flat[row : row + request.held])
        self.free_rows.append(request.row)
        self.table.give_back(row)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.locked, request.row, request.held = None, UNSEEN, 0

    @abstractmethod
    def give_back(self, request: Any, row: Int64) -> None:
        """Let go of the pages in a request's `row` (int64, all of them) and of what it locked."""
