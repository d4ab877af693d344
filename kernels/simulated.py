"""The seam to the simulator: a replay's layout, line by line, and the sizes that go with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..sim.layout import LayoutLog, Line
from ..sim.settings import Settings
from ..sim.simulation import Result, Simulation
from ..traces.trace import Trace
from .launch import ceil_div
from .steps import Geometry

Int64 = npt.NDArray[np.int64]


def lengths_of(trace: Trace) -> Int64:
    """Tokens that each request may have at most, int64 [n]."""
    return trace.prompt_tokens.astype(np.int64) + trace.output_tokens


def geometry_of(trace: Trace, settings: Settings, num_blocks: int) -> Geometry:
    """Sizes of a worker for a trace: the engine's own, but rows as wide as the longest request needs."""
    scheduler, size = settings.scheduler, settings.allocator.block_size
    longest = min(int(lengths_of(trace).max(initial=1)), scheduler.max_model_len)
    return Geometry(
        engine=settings.engine,
        block_size=size,
        page_size=size,
        num_blocks=num_blocks,
        reserved=1,
        max_reqs=scheduler.max_num_seqs,
        width=ceil_div(longest, size) + 1,
        max_tokens=scheduler.max_num_batched_tokens,
    )


def simulate(
    trace: Trace,
    settings: Settings,
    num_blocks: int,
    consume: Callable[[Line], None],
    progress: Callable[[int, int | None], None] | None = None,
) -> Result:
    """Replay, and hand every step's layout to `consume` as it is treated.

    Args:
        trace: the requests.
        settings: of the engine.
        num_blocks: of the pool.
        consume: called with each line.
        progress: called now and then with the requests done and all requests.
    """
    simulation = Simulation(trace, settings, num_blocks)
    simulation.records.progress = progress
    simulation.engine.listeners.append(LayoutLog(consume))
    return simulation.run()
