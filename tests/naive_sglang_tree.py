"""SGLang 0.5.22's unified radix tree over full-attention KV on the device, with plain objects.

A node stands for a piece of token sequence and owns the slots that hold its KV. All lengths are multiples of
the page size. Time is a counter that goes up with every touch. The rule numbers are those of `naive_sglang`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from naive_sglang_memory import NaiveAllocator

Token = Hashable


@dataclass(eq=False)
class Node:
    """A piece of sequence below `parent`; the root has none, and no tokens."""

    tokens: Sequence[Token]
    slots: list[int]
    parent: Node | None
    touched: tuple[int, int]
    """When it was last touched, and minus its distance from the end of the path touched then (rule 17)."""
    created: int
    children: dict[tuple[Token, ...], Node] = field(default_factory=dict)
    """By the tokens of their first page."""
    locks: int = 0
    """Requests that have this node on their path."""
    hits: int = 0
    priority: int = 0


EvictionOrder = Callable[[Node], tuple[int, ...]]

EVICTION_ORDERS: dict[str, EvictionOrder] = {
    "lru": lambda node: node.touched,
    "mru": lambda node: (-node.touched[0], -node.touched[1]),
    "lfu": lambda node: (node.hits, *node.touched),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, *node.touched),
    "slru": lambda node: (node.hits >= 2, *node.touched),
    "tlru": lambda node: node.touched,
}
"""The leaf with the smallest value goes first (rule 22)."""


class NaiveRadixTree:
    """Match, insert, lock and evict. A disabled tree matches nothing and keeps nothing."""

    def __init__(self, allocator: NaiveAllocator, policy: str, *, disabled: bool) -> None:
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.eviction_order = EVICTION_ORDERS[policy]
        self.disabled = disabled
        self.clock = 0
        self.root = Node((), [], None, (0, 0), 0)
        self.nodes: dict[Node, None] = {}
        """All but the root."""

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def aligned(self, length: int) -> int:
        """The whole pages of a length."""
        return length // self.page_size * self.page_size

    @property
    def evictable(self) -> int:
        """Slots of nodes that no request has locked."""
        return sum(len(node.slots) for node in self.nodes if node.locks == 0)

    # ------------------------------------------------------------------ match

    def match(self, tokens: Sequence[Token]) -> Node:
        """Walk down as far as whole pages agree; return the node at the end, and touch its path.

        An end inside a node splits it there. The whole path gets one time, told apart by the distance from
        its end, so that a parent counts as older than its child (rule 17).
        """
        if self.disabled or self.aligned(len(tokens)) == 0:
            return self.root
        end, _ = self._walk(tokens, on_visit=None)
        now, node, distance = self._tick(), end, 0
        while node is not None:
            node.touched = (now, -distance)
            node, distance = node.parent, distance + 1
        return end

    def _walk(self, tokens: Sequence[Token], on_visit: Callable[[Node], None] | None) -> tuple[Node, int]:
        """The node at which agreement with `tokens` ends, and how many tokens lie up to its end.

        `on_visit` is called with each node on the way, before it may be split.
        """
        limit = self.aligned(len(tokens))
        node, done = self.root, 0
        while done < limit:
            child = node.children.get(tuple(tokens[done : done + self.page_size]))
            if child is None:
                break
            if on_visit is not None:
                on_visit(child)
            agreed = self.aligned(_common(child.tokens, tokens[done:limit]))
            node = child if agreed == len(child.tokens) else self._split(child, agreed)
            done += agreed
            if node is not child:
                break
        return node, done

    def _split(self, child: Node, length: int) -> Node:
        """Put a new node with the first `length` tokens above `child`, which keeps the rest.

        The new one inherits locks, hits, priority and creation time. The rest counts as touched now, although
        nobody asked for it (rule 18).
        """
        assert child.parent is not None
        upper = Node(
            child.tokens[:length],
            child.slots[:length],
            child.parent,
            (self._tick(), 0),
            child.created,
            locks=child.locks,
            hits=child.hits,
            priority=child.priority,
        )
        child.parent.children[self._first_page(upper.tokens)] = upper
        child.parent = upper
        child.tokens = child.tokens[length:]
        child.slots = child.slots[length:]
        child.touched = (self._tick(), 0)
        upper.children[self._first_page(child.tokens)] = child
        self.nodes[upper] = None
        return upper

    def _first_page(self, tokens: Sequence[Token]) -> tuple[Token, ...]:
        return tuple(tokens[: self.page_size])

    @staticmethod
    def path_slots(node: Node) -> list[int]:
        """The slots from the beginning of the sequence to the end of `node`."""
        pieces: list[list[int]] = []
        while node.parent is not None:
            pieces.append(node.slots)
            node = node.parent
        return [slot for piece in reversed(pieces) for slot in piece]

    # ------------------------------------------------------------------ insert

    def insert(
        self, tokens: Sequence[Token], slots: Sequence[int], *, owned: int, counted: int, priority: int = 0
    ) -> None:
        """Make `tokens` part of the tree, with `slots` for what it does not hold yet.

        What it holds already is a duplicate: from position `owned` on, the request's slots are given back,
        node by node (rule 19). The nodes on the way are touched one by one from the top; those that end
        beyond `counted` get one more hit; their priority rises to `priority` at least.
        """
        assert len(tokens) == len(slots) == self.aligned(len(tokens))
        self.root.touched = (self._tick(), 0)

        def touch(node: Node) -> None:
            node.touched = (self._tick(), 0)

        end, done = self._walk(tokens, touch)
        start = 0
        for node in _path(end):
            stop = start + len(node.tokens)
            node.priority = max(node.priority, priority)
            self.allocator.give_back(slots[max(owned, start) : stop])
            node.hits += stop > counted
            start = stop
        if done < len(tokens):
            leaf = Node(tokens[done:], list(slots[done:]), end, (self._tick(), 0), self._tick())
            leaf.priority = priority
            leaf.hits = int(len(tokens) > counted)
            end.children[self._first_page(leaf.tokens)] = leaf
            self.nodes[leaf] = None

    # ------------------------------------------------------------------ locks and eviction

    def lock(self, node: Node) -> None:
        """Keep a path from being evicted."""
        for each in _path(node):
            each.locks += 1

    def unlock(self, node: Node) -> None:
        """Drop one lock of a path; nodes that came by splits since share it."""
        for each in _path(node):
            each.locks -= 1
            assert each.locks >= 0

    def evict_to(self, target: int) -> int:
        """Drop whole leaves until `target` slots are available or no leaf is left; return the slots dropped.

        A leaf is a node without children and locks; a parent whose last child goes becomes one at once
        (rule 21). Each leaf is freed by itself.
        """
        dropped = 0
        while self.allocator.available < target:
            leaves = [node for node in self.nodes if node.locks == 0 and not node.children]
            if not leaves:
                break
            leaf = min(leaves, key=self.eviction_order)
            assert leaf.parent is not None
            del leaf.parent.children[self._first_page(leaf.tokens)]
            del self.nodes[leaf]
            self.allocator.give_back(leaf.slots)
            dropped += len(leaf.slots)
        return dropped


def _path(node: Node) -> list[Node]:
    """From below the root down to `node`."""
    path: list[Node] = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def _common(a: Sequence[Token], b: Sequence[Token]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
