"""A whole simulation: a trace and settings in, records out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy
from simpy.events import Event

from ..allocators.base import Observer
from ..allocators.block_pool import BlockPool
from ..allocators.block_table import BlockTable
from ..traces.blocks import BlockNodes
from ..traces.trace import Trace
from .engine import Clocked, Engine
from .holdings import Holdings
from .latency import StepTime
from .latency_kinds import step_time
from .meter import Meter
from .records import RequestRecords
from .request import PoolRequest
from .settings import Settings
from .vllm_scheduler import VllmScheduler


class ClockedObserver(Observer, Clocked, Protocol):
    """An allocator's observer that is told the time."""


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


class Simulation:
    """One trace through one simulated engine."""

    def __init__(
        self,
        trace: Trace,
        settings: Settings,
        num_blocks: int,
        max_new_tokens: list[int] | None = None,
        timing: StepTime | None = None,
    ) -> None:
        """Set everything up; `run` runs it.

        Args:
            trace: the requests.
            settings: of the engine; how large the pool is, they need not say.
            num_blocks: of the pool, null block included.
            max_new_tokens: what the server is told of each request [n], in place of what the settings say.
            timing: the time of a step, in place of what the settings say.

        Raises:
            InputError: the block size does not go with the trace's.
        """
        self.env = simpy.Environment()
        self._trace = trace
        self._settings = settings
        scheduler, allocator = settings.scheduler, settings.allocator
        self._prompt = trace.prompt_tokens.tolist()
        self._output = trace.output_tokens.tolist()
        told = settings.requests.max_new_tokens
        self._told = max_new_tokens
        if self._told is None and isinstance(told, int):
            self._told = [told] * len(trace)
        self._arrival_ns = _scaled(trace, settings.arrivals.scale)
        self._priority = None if trace.priority is None else trace.priority.tolist()
        self._num_blocks = num_blocks
        self._nodes = nodes = BlockNodes(trace, allocator.block_size)
        pool = BlockPool(num_blocks, allocator.block_size, nodes.num_nodes if allocator.prefix_caching else 0)
        self.allocator = pool
        longest = min(max(map(sum, zip(self._prompt, self._output, strict=True)), default=1), scheduler.max_model_len)
        width = min(-(-longest // allocator.block_size) + 1, num_blocks)
        table = BlockTable(min(scheduler.max_num_seqs, max(len(trace), 1)), width)
        holdings = Holdings(pool, table, nodes, allocator.prefix_caching)
        self.scheduler = VllmScheduler(scheduler, holdings)
        self.engine = Engine(
            self.env,
            self.scheduler,
            timing or step_time(settings),
            async_scheduling=scheduler.async_scheduling,
            fast_forward=settings.sim.fast_forward,
        )
        self.records = RequestRecords(len(trace))
        self._followers: dict[int, list[int]] = {}
        if settings.arrivals.sessions == "closed" and trace.parent is not None:
            for row, parent in enumerate(trace.parent.tolist()):
                if parent >= 0:
                    self._followers.setdefault(parent, []).append(row)
        self.engine.reactive = bool(self._followers)

    @property
    def num_nodes(self) -> int:
        """Prefix nodes are numbered below this."""
        return self._nodes.num_nodes

    def observe(self, observer: ClockedObserver) -> None:
        """Tell `observer` of what happens to blocks, and when."""
        self.allocator.observer = observer
        self.engine.clocked = observer

    def run(self) -> Result:
        """Run to the end of the last request."""
        self.env.process(self._arrivals())
        self.env.run()
        return Result(
            self.records,
            self.engine.meter,
            self.scheduler.next_step,
            self.engine.last_ns,
            self.allocator.evicted,
            self.allocator.capacity,
            self.allocator.block_size,
            self.allocator.free_order(),
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
        prompt = self._prompt[index]
        output = self._output[index]
        longest = self._settings.scheduler.max_model_len
        told = output if self._told is None else self._told[index]
        total = min(prompt + min(output, told), longest)
        eos = total < min(prompt + told, longest)
        if self._fits(prompt, total):
            priority = 0 if self._priority is None else self._priority[index]
            request = PoolRequest(index, arrival_ns, prompt, total, priority, eos)
            first_token, last_token = self.engine.submit(request)
            yield first_token
            yield last_token
            self.records.finished(request)
        else:
            self.records.rejected(index, arrival_ns)
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

    def _fits(self, prompt: int, total: int) -> bool:
        """Whether the request can run at all: its last token but one must have a slot, alone in the pool."""
        blocks = -(-(total - 1) // self._settings.allocator.block_size)
        return blocks <= self._num_blocks - 1 and prompt < self._settings.scheduler.max_model_len


def _scaled(trace: Trace, scale: float) -> list[int]:
    arrivals: list[int] = trace.arrival_ns.tolist()
    return arrivals if scale == 1.0 else [int(arrival / scale) for arrival in arrivals]
