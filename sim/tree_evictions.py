"""What a radix tree evicted: how long unused, how often hit, and whether it was asked for again."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ..allocators.radix_tree import Node, RadixTree, TokenSequence
from .evictions import EvictionSink


class TreeEvictionRecorder:
    """A radix tree's observer that makes one row of each evicted leaf.

    The tree counts touches and knows no time, so what is remembered here is where its counter stood when. A leaf counts
    as asked for again when a request is admitted that has the tokens at its beginning and no longer finds them.
    """

    def __init__(self, tree: RadixTree, sink: EvictionSink) -> None:
        self._tree = tree
        self._sink = sink
        self._now_ns = 0
        self._touches: list[int] = [0]
        self._times: list[int] = [0]
        self._gone: dict[tuple[int, int], tuple[int, int]] = {}
        """By start and key of its first page, a leaf that was evicted and not asked for since: row, and end."""
        self._rows = 0

    def at(self, now_ns: int) -> None:
        """What happens from here on happens at `now_ns`."""
        if self._tree.touches > self._touches[-1]:
            self._touches.append(self._tree.touches)
            self._times.append(self._now_ns)
        self._now_ns = now_ns

    def evicted(self, leaf: Node, key: int) -> None:
        """Make a row of `leaf`, whose first page has `key`."""
        touched = bisect_right(self._touches, leaf.touched - 1)
        used_ns = self._times[touched] if touched < len(self._times) else self._now_ns
        row = np.array([[self._now_ns], [leaf.pages[0]], [self._now_ns - used_ns], [max(leaf.hits - 1, 0)]])
        self._sink.add(row[0], row[1], row[2], row[3], np.array([len(leaf.pages)]))
        self._gone[leaf.start, key] = (self._rows, leaf.stop)
        self._rows += 1

    def missed(self, sequence: TokenSequence, start: int, stop: int, page_size: int) -> None:
        """A request was admitted that must compute the tokens `start` to `stop - 1` of its `sequence`."""
        while start + page_size <= stop:
            found = self._gone.pop((start, sequence.key(start + page_size - 1)), None)
            if found is None:
                return
            row, start = found
            self._sink.asked_again(np.array([row]), self._now_ns)
