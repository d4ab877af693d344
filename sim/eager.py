"""Registering decoded blocks that other requests will ask for, at the very step the engine does."""

from __future__ import annotations

import heapq

from .request import PoolRequest
from .vllm_memory import VllmMemory


class EagerRegistration:
    """Blocks filled by generated tokens whose prefix the trace knows, in the order in which the engine registers them.

    A decoded block that nobody else can ask for is registered when its request lets go of it, which no one can tell
    from doing it in time. The blocks here can be hit by other requests while their own still runs, so they must be in
    the prefix cache before the first look-up after the step that registers them.

    Synchronous scheduling registers a block in the step that fills it; asynchronous scheduling one step later, when
    the block's last token is known.
    """

    def __init__(self, holdings: VllmMemory, async_scheduling: bool) -> None:
        self._holdings = holdings
        self._block_size = holdings.block_size
        self._delay = int(async_scheduling)
        self._due: list[tuple[int, int, int, PoolRequest]] = []
        """Heap of (step, place in the running list, tokens that are then known, request)."""

    def __len__(self) -> int:
        return len(self._due)

    def next_step(self) -> int:
        """Return the step that registers the next block; there is one."""
        return self._due[0][0]

    def watch(self, request: PoolRequest) -> None:
        """Follow a request that has just joined the decode group."""
        if request.registered < request.shared:
            tokens = (request.registered + 1) * self._block_size
            # Before step t it has decode_base + t tokens, so this step computes the last one of the block.
            filled = tokens - 1 - request.decode_base
            heapq.heappush(self._due, (filled + self._delay, request.order, tokens, request))

    def flush(self, step: int, order: float) -> None:
        """Register all that is due before `step`, and in `step` for those before running place `order`."""
        due = self._due
        while due and (due[0][0], due[0][1]) < (step, order):
            when, place, tokens, request = heapq.heappop(due)
            current = tokens - 1 - request.decode_base + self._delay
            # A request that was preempted or held up since has a newer entry or none.
            valid = request.decoding and request.order == place and current == when
            if valid and tokens > request.registered * self._block_size:
                self._holdings.register(request, tokens)
                self.watch(request)
