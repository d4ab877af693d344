"""A whole simulation: a trace and settings in, records out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from simpy.events import Event

from ..allocators.base import BlockAllocator
from ..traces.errors import InputError
from ..traces.trace import Trace
from .crossing import make_setup
from .engine import Engine
from .evictions import EvictionSink
from .latency import StepTime
from .latency_kinds import step_time
from .meter import Meter
from .records import RequestRecords
from .settings import Settings
from .setup import Setup, VllmSetup

_LATEST_NS = 100 * 366 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class Result:
    """What a simulation leaves behind."""

    records: RequestRecords
    meter: Meter
    steps: int
    end_ns: int
    """When the last result was treated."""
    evicted_blocks: int
    capacity: int
    """Blocks that could be handed out."""
    block_size: int
    free_order: np.ndarray
    """Free blocks from the head of the queue, int64."""


MakeSetup = Callable[[Trace, Settings, int, list[int] | None], Setup]
"""Puts an engine together from trace, settings, capacity and what the server is told of each request."""


class Simulation:
    """One trace through one simulated engine."""

    def __init__(
        self,
        trace: Trace,
        settings: Settings,
        capacity: int,
        max_new_tokens: list[int] | None = None,
        timing: StepTime | None = None,
        make: MakeSetup = make_setup,
    ) -> None:
        """Set everything up; `run` runs it.

        Args:
            trace: the requests.
            settings: of the engine; how large its memory is, they need not say.
            capacity: vLLM's `num_blocks` (the null block included) or SGLang's `num_slots`.
            max_new_tokens: what the server is told of each request [n], in place of what the settings say.
            timing: the time of a step, in place of what the settings say.
            make: puts the engine together, in place of what the settings name.

        Raises:
            InputError: the block size does not go with the trace's.
        """
        self.env = simpy.Environment()
        self.setup = make(trace, settings, capacity, max_new_tokens)
        self.scheduler = self.setup.scheduler
        self.engine = Engine(
            self.env,
            self.scheduler,
            timing or step_time(settings),
            async_scheduling=self.setup.asynchronous,
            fast_forward=settings.sim.fast_forward,
        )
        self.engine.meter = self.setup.meter
        self.records = RequestRecords(len(trace))
        self._trace = trace
        self._arrival_ns = _scaled(trace, settings.arrivals.scale)
        self._followers: dict[int, list[int]] = {}
        if settings.arrivals.sessions == "closed" and trace.parent is not None:
            for row, parent in enumerate(trace.parent.tolist()):
                if parent >= 0:
                    self._followers.setdefault(parent, []).append(row)
        self.engine.reactive = bool(self._followers)

    @property
    def allocator(self) -> BlockAllocator:
        """vLLM's block pool."""
        assert isinstance(self.setup, VllmSetup)
        return self.setup.allocator

    def observe(self, sink: EvictionSink) -> None:
        """Send evictions to `sink`."""
        self.engine.clocked = self.setup.observe(sink)

    def run(self) -> Result:
        """Run to the end of the last request."""
        self.env.process(self._arrivals())
        self.env.run()
        return Result(
            self.records,
            self.engine.meter,
            self.scheduler.next_step,
            self.engine.last_ns,
            self.scheduler.evicted,
            self.setup.capacity,
            self.setup.block_size,
            self.setup.free_order(),
        )

    def _arrivals(self) -> Generator[Event, Any, None]:
        """The source: starts each request's process when it arrives."""
        env = self.env
        follows: Sequence[int] = ()
        if self._followers and self._trace.parent is not None:
            follows = self._trace.parent.tolist()
        for index, arrival in enumerate(self._arrival_ns):
            if follows and follows[index] >= 0:
                continue
            if arrival > env.now:
                yield env.timeout(arrival - int(env.now))
            env.process(self._request(index, arrival))

    def _request(self, index: int, arrival_ns: int) -> Generator[Event, Any, None]:
        """The life of a request: it waits for its first token and for its last, then the next turn may come."""
        request = self.setup.make(index, arrival_ns)
        if request is None:
            self.records.rejected(index, arrival_ns)
        else:
            first_token, last_token = self.engine.submit(request)
            yield first_token
            yield last_token
            self.records.ended(request)
        for follower in self._followers.get(index, ()):
            self.env.process(self._next_turn(follower))

    def _next_turn(self, index: int) -> Generator[Event, Any, None]:
        """A turn whose predecessor has just ended: it comes after the think time, and not before its recorded time."""
        now = int(self.env.now)
        think = -1 if self._trace.think_ns is None else int(self._trace.think_ns[index])
        arrival = now + think if think >= 0 else max(now, self._arrival_ns[index])
        if arrival > now:
            yield self.env.timeout(arrival - now)
        yield from self._request(index, arrival)


def _scaled(trace: Trace, scale: float) -> memoryview:
    """Return the arrivals in ns, divided by `scale`; as a memoryview, so that they need no Python object each."""
    if scale == 1.0:
        return trace.arrival_ns.data
    arrivals = trace.arrival_ns / scale
    if arrivals.max(initial=0) > _LATEST_NS:
        raise InputError(f"arrivals.scale: {scale} puts arrivals beyond a century; expected a larger number")
    return arrivals.astype(np.int64).data
