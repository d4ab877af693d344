"""A run as a Chrome/Perfetto trace: what every request did when, and memory and queue over time."""

from __future__ import annotations

import json
from typing import Any

from ..sim.scheduler import Scheduler
from ..sim.step import Step
from ..sim.timeline import Timeline
from ..traces.output import whole_file

_MOST_EVENTS = 400_000
"""Spans kept: some 50 MB of JSON, which the viewers still open."""
_MICROSECOND = 1000
_REQUESTS, _COUNTERS = 1, 2


class PerfettoTrace:
    """Collects spans of requests: waiting, prefill (one a chunk), decode, preempted.

    Each request is a track. Beyond 400,000 spans no more are kept, and the trace says from when on.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._cut_ns: int | None = None
        self._since: dict[int, tuple[str, int]] = {}
        """By request: what it is doing, and since when (ns)."""
        self._busy_until: dict[int, int] = {}
        """By request that prefills or has: the end of its last chunk (ns)."""

    def scheduled(self, step: Step, scheduler: Scheduler) -> None:
        """Note who was admitted, preempted or prefilled."""
        for request in step.preempted:
            # Under asynchronous scheduling a chunk of it may still be running.
            self._turn(request.index, "preempted", max(step.time_ns, self._busy_until.pop(request.index, 0)))
        start = step.end_ns - step.duration_ns
        for request, computed, tokens, first_new in step.chunks:
            if request.index not in self._since:
                self._since[request.index] = ("waiting", request.arrival_ns)
            doing = self._since[request.index][0]
            if first_new == 0 and doing in ("waiting", "preempted"):
                self._turn(request.index, "running", step.time_ns)
            if doing != "decode":
                args = {"tokens": tokens, "computed": computed}
                self._span(request.index, "prefill", start, step.end_ns, args)
                self._busy_until[request.index] = step.end_ns
            if request.computed == request.known and doing != "decode":
                self._turn(request.index, "decode", step.end_ns)

    def treated(self, step: Step, now_ns: int) -> None:
        """Note who ended."""
        for request in step.finishing:
            self._turn(request.index, None, now_ns)
            self._busy_until.pop(request.index, None)

    def _turn(self, request: int, doing: str | None, now_ns: int) -> None:
        """End what the request was doing, and begin something else."""
        before = self._since.pop(request, None)
        if before is not None and before[0] != "running":
            self._span(request, before[0], before[1], now_ns, {})
        if doing is not None:
            self._since[request] = (doing, now_ns)

    def _span(self, request: int, name: str, start_ns: int, end_ns: int, args: dict[str, int]) -> None:
        if len(self._events) >= _MOST_EVENTS:
            self._cut_ns = self._cut_ns or start_ns
            return
        if end_ns > start_ns:
            span = {"ph": "X", "name": name, "pid": _REQUESTS, "tid": request, "ts": start_ns / _MICROSECOND}
            self._events.append(span | {"dur": (end_ns - start_ns) / _MICROSECOND, "args": args})

    def write(self, path: str, timeline: Timeline) -> None:
        """Write the trace, with the samples of `timeline` as counters.

        Raises:
            InputError: `path` cannot be written.
        """
        note = {} if self._cut_ns is None else {"spans_end_at_s": self._cut_ns / 1e9}
        head = {"displayTimeUnit": "ms", "otherData": note, "traceEvents": []}
        with whole_file(path) as file:
            file.write(json.dumps(head)[:-2].encode())
            events = [_name(_REQUESTS, "requests"), _name(_COUNTERS, "engine")]
            events += self._events + _counters(timeline)
            file.write(",\n".join(json.dumps(event) for event in events).encode())
            file.write(b"]}\n")


def _name(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _counters(timeline: Timeline) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for time_ns, running, waiting, used, cached, free, waste, _ in timeline.rows:
        for name, values in (
            ("requests", {"running": running, "waiting": waiting}),
            ("blocks", {"used": used, "cached": cached, "free": free}),
            ("tail waste (tokens)", {"tokens": waste}),
        ):
            place = {"ph": "C", "name": name, "pid": _COUNTERS, "tid": 0, "ts": time_ns / _MICROSECOND}
            events.append(place | {"args": values})
    return events
