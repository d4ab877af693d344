"""All turns of a session to one engine."""

from __future__ import annotations

from ...traces.trace import Trace
from .router import Router


class Sticky(Router):
    """The engine that served the session before; the least loaded one for a new session, or a request without one."""

    def __init__(self, trace: Trace, replicas: int) -> None:
        super().__init__(trace, replicas)
        self._engine: dict[int, int] = {}

    def choose(self, request: int) -> int:
        session = -1 if self._trace.session is None else int(self._trace.session[request])
        if session < 0:
            return self.least_loaded()
        return self._engine.setdefault(session, self.least_loaded())
