"""The seam to the simulator: a replay's layout, line by line, and the sizes that go with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sim.layout import LayoutLog, Line
from ..sim.request import UNSEEN, TreeRequest
from ..sim.scheduler import Scheduler
from ..sim.settings import Settings, SglangSettings
from ..sim.setup import max_running_requests
from ..sim.simulation import Result, Simulation
from ..sim.step import Step
from ..sim.tree_memory import TreeMemory
from ..traces.trace import Trace
from .launch import ceil_div
from .steps import Geometry

Int64 = npt.NDArray[np.int64]


def lengths_of(trace: Trace) -> Int64:
    """Tokens that each request may have at most, int64 [n]."""
    return trace.prompt_tokens.astype(np.int64) + trace.output_tokens


def geometry_of(trace: Trace, settings: Settings, capacity: int) -> Geometry:
    """Sizes of a worker for a trace: the engine's own, but rows as wide as the longest request needs.

    Args:
        trace: the requests.
        settings: of the engine.
        capacity: vLLM's `num_blocks` or SGLang's `num_slots`.
    """
    scheduler, size = settings.scheduler, settings.allocator.block_size
    longest = int(lengths_of(trace).max(initial=1))
    if isinstance(scheduler, SglangSettings):
        return Geometry(
            engine="sglang",
            block_size=1,
            page_size=size,
            num_blocks=(capacity // size + 1) * size,
            reserved=size,
            max_reqs=max(min(max_running_requests(scheduler, capacity), len(trace)), 1),
            width=min(longest, scheduler.context_length) + size,
            max_tokens=max(scheduler.chunked_prefill_size, scheduler.max_prefill_tokens),
        )
    return Geometry(
        engine="vllm",
        block_size=size,
        page_size=size,
        num_blocks=capacity,
        reserved=1,
        max_reqs=max(min(scheduler.max_num_seqs, len(trace)), 1),
        width=ceil_div(min(longest, scheduler.max_model_len), size) + 1,
        max_tokens=scheduler.max_num_batched_tokens,
    )


def simulate(
    trace: Trace,
    settings: Settings,
    capacity: int,
    consume: Callable[[Line], None],
    progress: Callable[[int, int | None], None] | None = None,
) -> Result:
    """Replay, and hand every step's layout to `consume` as it is treated.

    Args:
        trace: the requests.
        settings: of the engine.
        capacity: vLLM's `num_blocks` or SGLang's `num_slots`.
        consume: called with each line, as `StepReader` reads it.
        progress: called now and then with the requests done and all requests.
    """
    simulation = Simulation(trace, settings, capacity)
    simulation.records.progress = progress
    memory = getattr(simulation.setup.scheduler, "memory", None)
    simulation.engine.listeners.append(LayoutLog(consume) if memory is None else _RowLog(consume, memory))
    return simulation.run()


class _RowLog(LayoutLog):
    """A layout log with what SGLang's tree puts into rows: `rows`, as `StepReader` reads it.

    Slots get into a row in two ways that hand nothing out. An extend batch begins behind a prefix that the tree holds.
    And what a batch computed becomes part of the tree once its result is treated: where the tree has these tokens
    already, the row is given the tree's slots and its own are freed. Both are over when the next step is scheduled.
    """

    def __init__(self, write: Callable[[Line], None], memory: TreeMemory) -> None:
        super().__init__(write)
        self._memory = memory
        self._published: dict[TreeRequest, int] = {}
        """Requests that go on, whose first so many tokens were published since the last step was scheduled."""
        self._holding: dict[int, TreeRequest] = {}

    def scheduled(self, step: Step[Any], scheduler: Scheduler) -> None:
        super().scheduled(step, scheduler)
        self._open[step.number]["preempted"] += self._aborted()
        self._holding |= {chunk.request.index: chunk.request for chunk in step.chunks}
        known = self._published | {chunk.request: chunk.computed for chunk in step.chunks}
        self._published = {}
        self._open[step.number]["rows"] = [
            [request.index, 0, slot_runs(self._memory.slots(request, 0, tokens))]
            for request, tokens in known.items()
            if tokens and request.row != UNSEEN
        ]

    def _aborted(self) -> list[int]:
        """Requests that lost their slots and have not ended: retracted, or given up, which the log does not name."""
        gone = [request for request in self._holding.values() if request.row == UNSEEN]
        for request in gone:
            del self._holding[request.index]
        return [request.index for request in gone if not request.finished]

    def treated(self, step: Step[Any], now_ns: int) -> None:
        super().treated(step, now_ns)
        self._published |= {chunk.request: chunk.computed + chunk.tokens for chunk in step.chunks}


def slot_runs(slots: Int64) -> list[list[int]]:
    """Slots as `[start, length]` runs."""
    starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
    lengths = np.diff(starts, append=len(slots))
    return [[start, length] for start, length in zip(slots[starts].tolist(), lengths.tolist(), strict=True)]
