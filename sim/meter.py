"""Figures that are averages over simulated time, kept exactly in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


MeterState = tuple[int, int, int, int]
"""Blocks in use, running requests, blocks held (a shared one counted for each holder), their tokens."""


class Meter:
    """Integrals over time of what is in use, each step weighted with its duration (ns).

    All sums are Python integers, so that adding up step by step or many steps at once gives the same.
    """

    def __init__(self) -> None:
        self.busy_ns = 0
        """Time in steps."""
        self.used = 0
        """Blocks in use, each counted once, times ns."""
        self.used_peak = 0
        self.running = 0
        """Running requests times ns."""
        self.running_peak = 0
        self.held = 0
        """Blocks held, a shared one counted for each holder, times ns."""
        self.tokens = 0
        """Tokens computed or scheduled of running requests, times ns."""

    def step(self, duration: int, state: MeterState) -> None:
        """Count one step, with the state after its scheduling."""
        used, running, held, tokens = state
        self.busy_ns += duration
        self.used += used * duration
        self.running += running * duration
        self.held += held * duration
        self.tokens += tokens * duration
        if used > self.used_peak:
            self.used_peak = used
        if running > self.running_peak:
            self.running_peak = running

    def figures(self, end_ns: int) -> dict[str, Any]:
        """Return what a summary says besides, of a run that took `end_ns`."""
        return {}

    def decode_steps(self, durations: Int64, due: Int64, members: int, before: MeterState) -> None:
        """Count steps that only decode.

        Args:
            durations: int64 [k], ns.
            due: int64 [k], blocks handed out in each.
            members: requests that decode.
            before: the state before the first.
        """
        handed_out = np.cumsum(due)
        total = int(durations.sum())
        added = int(handed_out.dot(durations))
        steps = int(np.arange(1, len(durations) + 1).dot(durations))
        used, running, held, tokens = before
        self.busy_ns += total
        self.used += used * total + added
        self.running += running * total
        self.held += held * total + added
        self.tokens += tokens * total + members * steps
        self.used_peak = max(self.used_peak, used + int(handed_out[-1]))
        self.running_peak = max(self.running_peak, running)
