"""Several engines behind a router, in one simulated time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from simpy.events import Event

from ..sim.meter import Meter
from ..sim.records import RequestRecords
from ..sim.settings import Settings
from ..sim.simulation import Result, Simulation
from ..traces.errors import InputError
from ..traces.trace import Trace
from .config import engine_capacity, with_capacity
from .latency_source import with_step_time
from .routers import ROUTERS


class Fleet:
    """The same engine `replicas` times.

    Each has a clock of its own. All are brought to the moment at which a request arrives, then the router chooses, so
    that it knows what was finished before then.
    """

    def __init__(self, trace: Trace, settings: Settings, replicas: int, router: str) -> None:
        """Set everything up; `run` runs it.

        Raises:
            InputError: there is no such router, or settings that do not go together or with the trace.
        """
        if router not in ROUTERS:
            raise InputError(f"--router {router}: expected one of {', '.join(ROUTERS)}")
        if replicas < 1:
            raise InputError(f"replicas: expected a whole number of at least 1, got {replicas}")
        if settings.arrivals.sessions == "closed":
            raise InputError("arrivals.sessions: closed: expected open, where there are several engines")
        capacity = engine_capacity(settings)
        settings, timing, _ = with_step_time(with_capacity(settings, capacity))
        self.engines = [Simulation(trace, settings, capacity, timing=timing) for _ in range(replicas)]
        self.router = ROUTERS[router](trace, replicas)
        self.chosen: list[int] = []
        """The engine of each request."""
        self._trace = trace
        self._records = RequestRecords(len(trace))
        scale = settings.arrivals.scale
        arrivals = trace.arrival_ns if scale == 1.0 else (trace.arrival_ns / scale).astype(np.int64)
        self._arrival_ns: list[int] = arrivals.tolist()

    def run(self) -> Result:
        """Run to the end of the last request; the result counts all engines as one."""
        trace, outstanding = self._trace, self.router.outstanding
        tokens = (trace.prompt_tokens.astype(np.int64) + trace.output_tokens).tolist()
        for row, arrival in enumerate(self._arrival_ns):
            for engine in self.engines:
                if arrival > engine.env.now:
                    engine.env.run(until=arrival)
            chosen = self.router.choose(row)
            self.chosen.append(chosen)
            outstanding[chosen] += tokens[row]
            self.engines[chosen].env.process(self._request(chosen, row, arrival, tokens[row]))
        for engine in self.engines:
            engine.env.run()
        return self._result()

    def _request(self, chosen: int, row: int, arrival_ns: int, tokens: int) -> Generator[Event, Any, None]:
        """The life of a request in the engine that was chosen for it."""
        simulation = self.engines[chosen]
        request = simulation.setup.make(row, arrival_ns)
        if request is None:
            self._records.rejected(row, arrival_ns)
        else:
            first_token, last_token = simulation.engine.submit(request)
            yield first_token
            yield last_token
            self._records.ended(request)
        self.router.outstanding[chosen] -= tokens

    def _result(self) -> Result:
        meters = [simulation.engine.meter for simulation in self.engines]
        whole = Meter()
        for name in ("busy_ns", "used", "running", "held", "tokens"):
            setattr(whole, name, sum(getattr(meter, name) for meter in meters))
        setups = [simulation.setup for simulation in self.engines]
        # The fullest engine stands for all: the share is what its own would be.
        whole.used_peak = max(meter.used_peak for meter in meters) * len(meters)
        whole.running_peak = max(meter.running_peak for meter in meters) * len(meters)
        return Result(
            self._records,
            whole,
            sum(simulation.scheduler.next_step for simulation in self.engines),
            max(simulation.engine.last_ns for simulation in self.engines),
            sum(simulation.scheduler.evicted for simulation in self.engines),
            sum(setup.capacity for setup in setups),
            setups[0].block_size,
            np.concatenate([setup.free_order() for setup in setups]),
        )
