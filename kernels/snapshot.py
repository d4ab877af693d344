"""The fullest moment of a replay: block tables as evictions and releases have left them, and fresh ones like them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..sim.settings import Settings
from ..traces.errors import InputError
from ..traces.trace import Trace
from .fingerprint import TokenIdentity
from .simulated import geometry_of, lengths_of, simulate
from .steps import Batch, Geometry, Line, StepReader

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Snapshot:
    """Who holds what at one moment.

    Attributes:
        geometry: of the engine.
        seq_lens: int64 [n], tokens of each request.
        rows: the ids of each.
        fragmented: whether the ids are the replay's.
    """

    geometry: Geometry
    seq_lens: Int64
    rows: list[Int64]
    fragmented: bool

    @property
    def table(self) -> Int32:
        """int32 [n, longest row]."""
        table = np.zeros((len(self.rows), max(map(len, self.rows))), np.int32)
        for place, row in enumerate(self.rows):
            table[place, : len(row)] = row
        return table

    @property
    def consecutive(self) -> float:
        """Share of ids that are one more than the id before them in their row."""
        steps = np.concatenate([np.diff(row) for row in self.rows])
        return float((steps == 1).mean()) if len(steps) else 1.0

    def unshared(self) -> Snapshot:
        """The first requests, as many as would fit into the memory if they shared nothing."""
        ends = np.cumsum([self.geometry.reserved, *map(len, self.rows)])[1:]
        count = int(np.searchsorted(ends, self.geometry.num_blocks, "right"))
        return Snapshot(self.geometry, self.seq_lens[:count], self.rows[:count], self.fragmented)

    def fresh(self) -> Snapshot:
        """The same requests, alone in memory one behind the other, sharing nothing."""
        starts = np.cumsum([self.geometry.reserved, *map(len, self.rows)])
        rows = [np.arange(start, start + len(row)) for start, row in zip(starts, self.rows, strict=False)]
        return Snapshot(self.geometry, self.seq_lens, rows, fragmented=False)


def fullest(trace: Trace, settings: Settings, capacity: int) -> Snapshot:
    """Replay, and return the moment with the most tokens in running requests, once the pool has been turned over.

    That is when as many blocks (pages) were evicted as there are; if it never comes, the first eviction counts.

    Raises:
        InputError: nothing was ever evicted: the capacity is too large for the trace.
    """
    geometry = geometry_of(trace, settings, capacity)
    pages = geometry.num_blocks // (geometry.page_size if geometry.slots else 1)
    evicted, most, best = 0, (False, 0), None

    def look(batch: Batch) -> None:
        nonlocal most, best
        lives = [entry.live for entry in batch.entries.values()]
        full = (evicted >= pages, sum(live.tokens for live in lives))
        if evicted and full > most:
            rows = [live.ids[: live.count].copy() for live in lives]
            best = Snapshot(geometry, np.array([live.tokens for live in lives]), rows, fragmented=True)
            most = full

    reader = StepReader(geometry, TokenIdentity(trace), lengths_of(trace), 1 << 60, look)

    def feed(line: Line) -> None:
        nonlocal evicted
        evicted += line.get("evicted", 0)
        reader.feed(line)

    simulate(trace, settings, capacity, feed)
    reader.close()
    if best is None:
        raise InputError(f"{trace.name}: nothing was evicted from {capacity} blocks or slots; expected fewer of them")
    return best
