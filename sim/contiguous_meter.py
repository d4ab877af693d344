"""What reserving whole regions costs, averaged over simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .contiguous_holdings import ContiguousHoldings
from .meter import Meter, MeterState

Int64 = npt.NDArray[np.int64]


class ContiguousMeter(Meter):
    """The meter with the free blocks that lie outside the largest piece."""

    def __init__(self, holdings: ContiguousHoldings) -> None:
        super().__init__()
        self.scattered = 0
        """Free blocks outside the largest piece, times ns."""
        self._holdings = holdings

    def step(self, duration: int, state: MeterState) -> None:
        super().step(duration, state)
        self.scattered += self._holdings.pool.scattered * duration

    def decode_steps(self, durations: Int64, due: Int64, members: int, before: MeterState) -> None:
        super().decode_steps(durations, due, members, before)
        # Decoding neither reserves anything nor gives it back.
        self.scattered += self._holdings.pool.scattered * int(durations.sum())

    def figures(self, end_ns: int) -> dict[str, Any]:
        """Return the shares of the pool that were reserved without a token in them, and free but in small pieces.

        `kept_waiting` counts the requests that at some time fitted into no piece, though into all free blocks.
        """
        pool = self._holdings.pool
        whole = end_ns * pool.capacity or 1
        size = pool.block_size
        return {
            "contiguous": {
                "unused_share": (self.held * size - self.tokens) / (whole * size),
                "scattered_share": self.scattered / whole,
                "kept_waiting": len(self._holdings.fragmented),
            }
        }
