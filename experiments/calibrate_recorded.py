"""A recorded run of a real engine: what came, and when each request got its first and its last token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..traces.trace import Trace

Float64 = npt.NDArray[np.float64]
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Ticks:
    """What the engine logged of its state, a row a tick; the state is that of the last step before `time_s`."""

    time_s: Float64
    """On the requests' clock."""
    running: Float64
    waiting: Float64
    kv_usage: Float64 | None
    """Percent of the blocks; None where the run did not record it."""


@dataclass(frozen=True)
class Recorded:
    """n requests in order of arrival; times in seconds, float64 [n], on one clock."""

    name: str
    trace: Trace
    """The requests as the client sent them."""
    queued_s: Float64 | None
    """When the engine took the request in, between two steps; None where only the client's view was recorded."""
    first_s: Float64
    last_s: Float64
    settings: tuple[str, ...] = ()
    """The engine's settings, as far as they were recorded, as for `--set`."""
    ticks: Ticks | None = None
    notes: tuple[str, ...] = ()

    @property
    def start_s(self) -> Float64:
        """What latencies count from: `queued_s` where it is known, else the arrival."""
        return self.trace.arrival_ns / SECOND_NS if self.queued_s is None else self.queued_s

    @property
    def measured_from(self) -> str:
        """`start_s` in words."""
        return "arrival" if self.queued_s is None else "queued"

    def __len__(self) -> int:
        return len(self.first_s)


def in_order(recorded: Recorded, arrival_s: Float64) -> Recorded:
    """Return `recorded` with its requests sorted by `arrival_s`, which counts from the first of them."""
    order = np.argsort(arrival_s, kind="stable")
    trace = recorded.trace
    if (order != np.arange(len(order))).any():
        assert trace.nodes is None, "a trace with prefixes comes sorted"
        trace = replace(trace, prompt_tokens=trace.prompt_tokens[order], output_tokens=trace.output_tokens[order])
    arrival = np.rint((arrival_s[order] - arrival_s.min()) * SECOND_NS).astype(np.int64)
    queued = None if recorded.queued_s is None else recorded.queued_s[order]
    return replace(
        recorded,
        trace=replace(trace, arrival_ns=arrival),
        queued_s=queued,
        first_s=recorded.first_s[order],
        last_s=recorded.last_s[order],
    )
