"""What all routers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...traces.trace import Trace


class Router(ABC):
    """Chooses an engine for each request as it arrives.

    Attributes:
        outstanding: by engine, the tokens (prompt and answer) of the requests that it has not finished; kept by the
            fleet.
    """

    def __init__(self, trace: Trace, replicas: int) -> None:
        self.outstanding = [0] * replicas
        self._trace = trace

    @abstractmethod
    def choose(self, request: int) -> int:
        """Return the engine for the request of row `request`."""

    def least_loaded(self) -> int:
        """Return the engine with the fewest outstanding tokens, the first of several."""
        return self.outstanding.index(min(self.outstanding))
