"""vLLM's scheduler on the allocator that does nothing: what a replay costs besides its pool."""

from __future__ import annotations

from kvreplay.allocators.base import BlockAllocator
from kvreplay.allocators.no_op import NoOpAllocator
from kvreplay.sim.setup import VllmSetup


class NoOpSetup(VllmSetup):
    """A setup to be handed to `Simulation` as `make`."""

    def _pool(self, num_nodes: int) -> BlockAllocator:
        return NoOpAllocator(self.capacity + 1, self.block_size)
