"""The state of the engine, sampled over time."""

from __future__ import annotations

from .scheduler import Scheduler

_FIRST_INTERVAL_NS = 100_000_000
_MOST_ROWS = 4096


class Timeline:
    """Rows of state after scheduling, at a regular interval that grows with the length of the run.

    Whenever there are 4,096 rows, every second one is dropped and the interval doubled, so that a run of any length
    leaves between 2,048 and 4,096 of them (fewer if it is short).
    """

    COLUMNS = (
        "time_ns",
        "running",
        "waiting",
        "used_blocks",
        "cached_blocks",
        "free_blocks",
        "tail_waste_tokens",
        "evicted_blocks",
    )
    """`cached_blocks` are free ones that hold a prefix, `free_blocks` the other free ones."""

    def __init__(self, capacity: int, block_size: int) -> None:
        """Sample an engine whose pool has `capacity` blocks of `block_size` tokens."""
        self._capacity = capacity
        self._block_size = block_size
        self.rows: list[tuple[int, ...]] = []
        self.due_ns = 0
        self._interval = _FIRST_INTERVAL_NS

    def sample(self, now_ns: int, scheduler: Scheduler) -> None:
        """Add a row."""
        used, running, held, tokens = scheduler.state()
        cached = scheduler.cached()
        free = self._capacity - used - cached
        waste = held * self._block_size - tokens
        self.rows.append((now_ns, running, len(scheduler.waiting), used, cached, free, waste, scheduler.evicted))
        if len(self.rows) >= _MOST_ROWS:
            self.rows = self.rows[::2]
            self._interval *= 2
        self.due_ns = (now_ns // self._interval + 1) * self._interval
