"""One engine after the other."""

from __future__ import annotations

from ...traces.trace import Trace
from .router import Router


class RoundRobin(Router):
    """Takes turns, whatever the requests are like."""

    def __init__(self, trace: Trace, replicas: int) -> None:
        super().__init__(trace, replicas)
        self._next = 0

    def choose(self, request: int) -> int:
        chosen = self._next
        self._next = (chosen + 1) % len(self.outstanding)
        return chosen
