"""The engine with the least to do."""

from __future__ import annotations

from .router import Router


class LeastLoaded(Router):
    """The fewest outstanding tokens."""

    def choose(self, request: int) -> int:
        return self.least_loaded()
