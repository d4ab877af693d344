"""Adds up what operations did and how long they took, on a device without stopping it."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_MOST_PENDING = 4096


@dataclass(slots=True)
class _Sum:
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    pending: list[tuple[Any, Any]] = field(default_factory=list)


class Meter:
    """Device events on CUDA; the clock on a CPU, where nothing is asynchronous."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = True
        """Off while operations run that are not to be timed, such as interpreted ones."""
        self._cuda = device.type == "cuda"
        self._sums: dict[str, _Sum] = {}

    @contextmanager
    def timed(self, operation: str, tokens: int, num_bytes: int) -> Iterator[None]:
        """Count the operation done inside, which moves so many tokens and reads and writes so many bytes."""
        if not self.enabled:
            yield
            return
        found = self._sums.setdefault(operation, _Sum())
        found.tokens += tokens
        found.bytes += num_bytes
        if self._cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            found.pending.append((start, end))
            if len(found.pending) >= _MOST_PENDING:
                self._settle(found)
        else:
            begin = time.perf_counter()
            yield
            found.seconds += time.perf_counter() - begin

    def figures(self) -> dict[str, dict[str, float]]:
        """By operation: tokens, bytes, seconds, and the two rates."""
        figures: dict[str, dict[str, float]] = {}
        for operation, found in self._sums.items():
            self._settle(found)
            seconds = found.seconds or float("inf")
            figures[operation] = {
                "tokens": found.tokens,
                "bytes": found.bytes,
                "seconds": found.seconds,
                "tokens_per_s": found.tokens / seconds,
                "bytes_per_s": found.bytes / seconds,
            }
        return figures

    def _settle(self, found: _Sum) -> None:
        if found.pending:
            torch.cuda.synchronize()
            found.seconds += sum(start.elapsed_time(end) for start, end in found.pending) / 1000
            found.pending.clear()
