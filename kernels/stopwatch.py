"""Timing: device events, warm-up, medians, and a cache that does not help."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import statistics
import time
from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 << 20
"""More than any last-level cache of a GPU."""


class Stopwatch:
    """Times functions on one device.

    On CUDA each repetition has its own pair of events, and the L2 cache is overwritten before it. On a CPU, the clock;
    there the data must be larger than the cache by itself.
    """

    def __init__(self, device: torch.device, most_seconds: float = 0.4, most_repeats: int = 30) -> None:
        """Prepare.

        Args:
            device: that the functions run on.
            most_seconds: of repetitions a function; at least three are made.
            most_repeats: repetitions a function.
        """
        self._cuda = device.type == "cuda"
        self._most_seconds = most_seconds
        self._most_repeats = most_repeats
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device) if self._cuda else None

    def median(self, function: Callable[[], object]) -> float:
        """The median time of a call, in seconds."""
        once = self._once_cuda if self._cuda else self._once_cpu
        once(function)
        first = once(function)
        repeats = max(3, min(self._most_repeats, int(self._most_seconds / max(first, 1e-6))))
        return statistics.median(once(function) for _ in range(repeats))

    def _once_cpu(self, function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin

    def _once_cuda(self, function: Callable[[], object]) -> float:
        assert self._flush is not None
        self._flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000
