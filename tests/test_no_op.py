"""The allocator that does nothing: the same steps as without prefix cache, and books that balance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kvreplay.allocators.no_op import NoOpAllocator
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.settings import AllocatorSettings, Settings, SimSettings
from kvreplay.sim.simulation import Simulation
from kvreplay.traces import load_trace
from no_op_setup import NoOpSetup

BLOCKS = 500
UNCACHED = Settings(allocator=AllocatorSettings(num_blocks=BLOCKS, prefix_caching=False))


def steps(simulation: Simulation) -> list[dict[str, Any]]:
    """The layout of a replay, with the numbers of new blocks in place of their ids."""
    lines: list[dict[str, Any]] = []
    simulation.engine.listeners.append(LayoutLog(lines.append))
    simulation.run()
    simulation.allocator.check([])
    for line in lines:
        line["scheduled"] = [[*entry[:3], len(entry[3])] for entry in line["scheduled"]]
    return lines


@pytest.mark.parametrize("fast_forward", [True, False])
def test_takes_the_steps_of_a_pool_without_prefix_cache(fast_forward: bool) -> None:
    trace = load_trace("sample", limit=400)
    settings = replace(UNCACHED, sim=SimSettings(fast_forward=fast_forward))
    pool, nothing = Simulation(trace, settings, BLOCKS), Simulation(trace, settings, BLOCKS, make=NoOpSetup)
    assert steps(nothing) == steps(pool)


def test_check_finds_lost_blocks() -> None:
    allocator = NoOpAllocator(10, 16)
    held = allocator.take(4)
    allocator.check([held])
    with pytest.raises(AssertionError, match="held"):
        allocator.check([np.zeros(3, np.int64)])
    allocator.free = 99
    with pytest.raises(AssertionError, match="lost"):
        allocator.check()
