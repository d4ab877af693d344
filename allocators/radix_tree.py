"""SGLang's radix tree: which pages hold which prefixes."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .slot_pool import SlotPool

Int64 = npt.NDArray[np.int64]


class TokenSequence(Protocol):
    """A request's tokens, as far as they can be told from others'."""

    def common(self, other: Any, start: int, stop: int) -> int:
        """Return where this and the `other` sequence first differ, at most `stop`; they are equal up to `start`."""
        ...

    def key(self, position: int) -> int:
        """Return a number that is the same for two sequences if, and only if, they are equal through `position`."""
        ...


class TreeObserver(Protocol):
    """Told of what happens to a tree."""

    def evicted(self, leaf: Node, key: int) -> None:
        """`leaf`, whose first page has `key`, was dropped."""
        ...

    def missed(self, sequence: TokenSequence, start: int, stop: int, page_size: int) -> None:
        """A request was given pages to compute the tokens `start` to `stop - 1` of its `sequence`."""
        ...


class Node:
    """The tokens `start` to `stop` of `sequence`, below `parent`, and the pages that hold them."""

    __slots__ = (
        "children",
        "created",
        "distance",
        "end_key",
        "hits",
        "locks",
        "pages",
        "parent",
        "priority",
        "sequence",
        "serial",
        "start",
        "stop",
        "touched",
    )

    def __init__(
        self, sequence: TokenSequence | None, start: int, stop: int, pages: Int64, parent: Node | None
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.stop = stop
        self.pages = pages
        self.parent = parent
        """None for the root, and for a node that was evicted."""
        self.children: dict[int, Node] = {}
        """By the key of the last token of their first page."""
        self.end_key = 0 if sequence is None else sequence.key(stop - 1)
        self.touched = 0
        self.distance = 0
        """Minus its distance from the end of the path that was touched then: a parent is older than its child."""
        self.created = 0
        self.serial = 0
        """In the order in which the nodes came to be: breaks ties."""
        self.locks = 0
        """Requests that have it on their path."""
        self.hits = 0
        self.priority = 0


Key = tuple[int, ...]

EVICTION_KEYS: dict[str, Callable[[Node], Key]] = {
    "lru": lambda node: (node.touched, node.distance),
    "mru": lambda node: (-node.touched, -node.distance),
    "lfu": lambda node: (node.hits, node.touched, node.distance),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.touched, node.distance),
    "slru": lambda node: (int(node.hits >= 2), node.touched, node.distance),
    "tlru": lambda node: (node.touched, node.distance),
}
"""The leaf with the smallest key is evicted first. `tlru` stands with its default thresholds."""


class RadixTree:
    """The unified radix tree of SGLang 0.5.22 (`mem_cache/unified_radix_cache.py`), over pages of a `SlotPool`.

    A node is a run of tokens with an array of pages, so that what is done to it costs a few array operations however
    long it is. Time is a counter that goes up with every touch. Nodes on the path of a running request are locked;
    what is not can be evicted, leaf by leaf.

    Attributes:
        evictable: pages in nodes that nobody has locked.
        evicted: pages evicted so far.
    """

    def __init__(self, pool: SlotPool, policy: str) -> None:
        self._pool = pool
        self._page = pool.page_size
        self._key = EVICTION_KEYS[policy]
        self._shrinking = policy == "mru"
        """Whether a touch makes a node's key smaller; with all other policies keys only grow."""
        self._clock = 0
        self._serial = 0
        self.root = Node(None, 0, 0, np.empty(0, np.int64), None)
        self.evictable = 0
        self.evicted = 0
        self.observer: TreeObserver | None = None
        self._leaves: list[tuple[Key, int, Node]] = []
        """Heap of what could be evicted when it was pushed, with its key of then."""

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    @property
    def touches(self) -> int:
        """The tree's time."""
        return self._clock

    def aligned(self, length: int) -> int:
        """Return the whole pages of a length, in tokens."""
        return length // self._page * self._page

    # -- looking up

    def match(self, sequence: TokenSequence, length: int) -> Node:
        """Return the node at which agreement with the first `length` tokens of `sequence` ends.

        Only whole pages agree. An end inside a node splits it. The path is touched.
        """
        if length < self._page:
            return self.root
        end, _ = self._walk(sequence, self.aligned(length), touch=False)
        self.touch(end)
        return end

    def touch(self, end: Node) -> None:
        """Touch the path to `end`, as a match that ends there does."""
        now, node, distance = self._tick(), end, 0
        while True:
            node.touched, node.distance = now, -distance
            if node.parent is None:
                break
            node, distance = node.parent, distance + 1
        self._touched(end)

    def _walk(self, sequence: TokenSequence, limit: int, *, touch: bool) -> tuple[Node, list[Node]]:
        """Walk down to where agreement ends, splitting there; returns the end, and the path to it from the top."""
        node, last = self.root, self._page - 1
        path: list[Node] = []
        while node.stop < limit:
            child = node.children.get(sequence.key(node.stop + last))
            if child is None:
                break
            if touch:
                self._clock += 1
                child.touched, child.distance = self._clock, 0
            if child.stop <= limit and sequence.key(child.stop - 1) == child.end_key:
                node = child
                path.append(node)
                continue
            assert child.sequence is not None
            agreed = self.aligned(sequence.common(child.sequence, child.start, min(child.stop, limit)))
            node = self._split(child, agreed)
            path.append(node)
            break
        return node, path

    def _split(self, child: Node, at: int) -> Node:
        """Put a new node that ends at token `at` above `child`, which keeps the rest.

        The new one inherits all but the touch. Both count as touched now, although nobody asked for the rest.
        """
        parent, sequence = child.parent, child.sequence
        assert parent is not None and sequence is not None
        cut = (at - child.start) // self._page
        upper = Node(sequence, child.start, at, child.pages[:cut], parent)
        upper.created, upper.locks, upper.hits, upper.priority = child.created, child.locks, child.hits, child.priority
        upper.serial = self._next_serial()
        upper.touched = self._tick()
        parent.children[sequence.key(upper.start + self._page - 1)] = upper
        child.parent = upper
        child.start = at
        child.pages = child.pages[cut:]
        child.touched, child.distance = self._tick(), 0
        upper.children[sequence.key(at + self._page - 1)] = child
        self._touched(child)
        return upper

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def copy_pages(self, node: Node, start: int, row: Int64) -> None:
        """Write the pages of the path to `node` into `row` (int64, a request's pages), from token `start` on."""
        page = self._page
        while node.stop > start and node.parent is not None:
            low = max(node.start, start)
            row[low // page : node.stop // page] = node.pages[(low - node.start) // page :]
            node = node.parent

    # -- inserting

    def insert(
        self, sequence: TokenSequence, length: int, row: Int64, *, owned: int, counted: int, priority: int = 0
    ) -> Node:
        """Make the first `length` tokens of `sequence` part of the tree.

        What the tree holds already is a duplicate: its pages in `row` (int64, the request's pages) are given back from
        token `owned` on, node by node. Nodes that end beyond token `counted` get one more hit; the priority of all on
        the way rises to `priority` at least. Returns the node at which the tokens end.
        """
        self.root.touched, self.root.distance = self._tick(), 0
        page = self._page
        end, path = self._walk(sequence, length, touch=True)
        for node in path:
            node.priority = max(node.priority, priority)
            if node.stop > owned:
                self._pool.give_back(row[max(owned, node.start) // page : node.stop // page])
            node.hits += node.stop > counted
        if end.stop < length:
            leaf = Node(sequence, end.stop, length, row[end.stop // page : length // page].copy(), end)
            leaf.touched = self._tick()
            leaf.created = self._tick()
            leaf.serial = self._next_serial()
            leaf.priority = priority
            leaf.hits = int(length > counted)
            end.children[sequence.key(end.stop + page - 1)] = leaf
            self.evictable += len(leaf.pages)
            end = leaf
            self._offer(end)
        else:
            self._touched(end)
        return end

    # -- locking and evicting

    def lock(self, node: Node) -> None:
        """Keep a path from being evicted."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Drop one lock of a path, nodes that came by splits since included."""
        end = node
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += len(node.pages)
            node = node.parent
        self._offer(end)

    def _offer(self, node: Node) -> None:
        """Note `node` for eviction if it can be evicted."""
        if not node.locks and not node.children and node.parent is not None:
            heapq.heappush(self._leaves, (self._key(node), node.serial, node))

    def _touched(self, node: Node) -> None:
        """Note that the key of `node` has changed, where it may have become smaller.

        A key that has grown is found out when the node's turn comes.
        """
        if self._shrinking:
            self._offer(node)

    def evict_to(self, target: int) -> int:
        """Drop whole leaves until `target` pages are free or no leaf is left; returns the pages dropped."""
        dropped = 0
        while self._pool.free < target and self._leaves:
            key, _, leaf = heapq.heappop(self._leaves)
            parent = leaf.parent
            if leaf.locks or leaf.children or parent is None:
                continue
            if key != (current := self._key(leaf)):
                if key < current:
                    heapq.heappush(self._leaves, (current, leaf.serial, leaf))
                continue
            assert leaf.sequence is not None
            first_page = leaf.sequence.key(leaf.start + self._page - 1)
            del parent.children[first_page]
            leaf.parent = None
            if self.observer is not None:
                self.observer.evicted(leaf, first_page)
            self._pool.give_back(leaf.pages)
            dropped += len(leaf.pages)
            self._offer(parent)
        self.evictable -= dropped
        self.evicted += dropped
        return dropped
