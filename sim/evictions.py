"""What was evicted: how long unused, how often hit, and whether it was asked for again."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class EvictionSink(Protocol):
    """Takes rows, numbered from 0 in the order in which they come."""

    def add(self, time_ns: Int64, block: Int64, age_ns: Int64, hits: Int64, blocks: Int64) -> None:
        """Add rows; all arrays int64 [k]. `blocks`: how many were dropped together, of which `block` is the first."""
        ...

    def asked_again(self, rows: Int64, time_ns: int) -> None:
        """The prefixes of these rows were asked for at `time_ns`, and were not there."""
        ...


class EvictionRecorder:
    """An allocator's observer that makes one row an eviction."""

    def __init__(self, num_blocks: int, num_nodes: int, sink: EvictionSink) -> None:
        self._now_ns = 0
        self._sink = sink
        self._last_use: Int64 = np.zeros(num_blocks, np.int64)
        self._hits: Int64 = np.zeros(num_blocks, np.int64)
        self._row: Int64 = np.zeros(num_nodes, np.int64)
        """1 + the row of a node's last eviction; 0: it was not evicted, or was asked for since."""
        self._rows = 0

    def at(self, now_ns: int) -> None:
        """What happens from here on happens at `now_ns`."""
        self._now_ns = now_ns

    def hit(self, blocks: Int64) -> None:
        """Count a hit."""
        self._hits[blocks] += 1

    def released(self, blocks: Int64) -> None:
        """Note the last use."""
        self._last_use[blocks] = self._now_ns

    def evicted(self, blocks: Int64, nodes: Int64) -> None:
        """Make the rows."""
        count = len(blocks)
        times, ages = np.full(count, self._now_ns), self._now_ns - self._last_use[blocks]
        self._sink.add(times, blocks, ages, self._hits[blocks], np.ones(count, np.int64))
        self._hits[blocks] = 0
        self._row[nodes] = np.arange(self._rows + 1, self._rows + count + 1)
        self._rows += count

    def missed(self, nodes: Int64) -> None:
        """A request came for the prefixes `nodes` (int64 [k]) and must compute them."""
        rows = self._row[nodes]
        again = rows > 0
        if again.any():
            self._sink.asked_again(rows[again] - 1, self._now_ns)
            self._row[nodes[again]] = 0
