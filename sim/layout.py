"""The layout of every step: who computes what, and which blocks they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .request import Request
from .step import Chunk, Step
from .vllm_scheduler import VllmScheduler

Line = dict[str, Any]


class LayoutLog:
    """Hands every step, once its result was treated, to `write` as one JSON-ready dictionary.

    Keys: `step`, `time_ns` (of scheduling), `duration_ns`, `scheduled` (a list of `[request, computed_tokens,
    scheduled_tokens, [new block ids]]` in the engine's order), `preempted`, `finished`, `evicted`, `free`.
    """

    def __init__(self, write: Callable[[Line], None]) -> None:
        self._write = write
        self._open: dict[int, Line] = {}

    def scheduled(self, step: Step, scheduler: VllmScheduler) -> None:
        """Note a step that was scheduled."""
        self._open[step.number] = {
            "step": step.number,
            "time_ns": step.time_ns,
            "duration_ns": step.duration_ns,
            "scheduled": _entries(step, scheduler),
            "preempted": [request.index for request in step.preempted],
            "finished": [],
            "evicted": step.evicted,
            "free": step.free,
        }

    def treated(self, step: Step, now_ns: int) -> None:
        """Write the line of a step that was treated."""
        line = self._open.pop(step.number)
        line["finished"] = [request.index for request in step.finishing]
        self._write(line)


def _entries(step: Step, scheduler: VllmScheduler) -> list[list[Any]]:
    chunks = {chunk.request.order: chunk for chunk in step.chunks}
    if step.decodes:
        size = scheduler.allocator.block_size
        for order, request in scheduler.running.items():
            if request.decoding:
                chunks[order] = _decode(request, request.decode_base + step.number, size)
    table = scheduler.holdings.table.flat
    entries: list[list[Any]] = []
    for order in sorted(chunks):
        request, computed, tokens, first_new = chunks[order]
        row = request.block_start
        held = -(-(computed + tokens) // scheduler.allocator.block_size)
        entries.append([request.index, computed, tokens, table[row + first_new : row + held].tolist()])
    return entries


def _decode(request: Request, computed: int, block_size: int) -> Chunk:
    return Chunk(request, computed, 1, -(-computed // block_size))
