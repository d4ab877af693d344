"""The layout of every step: who computes what, and which blocks they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scheduler import Scheduler
from .step import Step

Line = dict[str, Any]


class LayoutLog:
    """Hands every step, once its result was treated, to `write` as one JSON-ready dictionary.

    Keys: `step`, `time_ns` (of scheduling), `duration_ns`, `scheduled` (a list of `[request, computed_tokens,
    scheduled_tokens, [new ids]]` in the engine's order), `preempted`, `finished`, `evicted`, `free`.
    """

    def __init__(self, write: Callable[[Line], None]) -> None:
        self._write = write
        self._open: dict[int, Line] = {}

    def scheduled(self, step: Step[Any], scheduler: Scheduler) -> None:
        """Note a step that was scheduled."""
        self._open[step.number] = {
            "step": step.number,
            "time_ns": step.time_ns,
            "duration_ns": step.duration_ns,
            "scheduled": [
                [chunk.request.index, chunk.computed, chunk.tokens, scheduler.new_ids(chunk)]
                for chunk in scheduler.entries(step)
            ],
            "preempted": [request.index for request in step.preempted],
            "finished": [],
            "evicted": step.evicted,
            "free": step.free,
        }

    def treated(self, step: Step[Any], now_ns: int) -> None:
        """Write the line of a step that was treated."""
        line = self._open.pop(step.number)
        line["finished"] = [request.index for request in step.finishing]
        self._write(line)
