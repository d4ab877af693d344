"""vLLM's pass over the running requests, one by one: when token budget or blocks run short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .request import UNSEEN, PoolRequest
from .step import Chunk, Step

if TYPE_CHECKING:
    from .vllm_scheduler import VllmScheduler


def schedule_one_by_one(scheduler: VllmScheduler, step: Step[PoolRequest], threshold: int) -> None:
    """Schedule the running requests in their order, preempting where blocks are short.

    Dissolves the decode group; `VllmScheduler.complete` builds it anew.
    """
    _Pass(scheduler, step, threshold).run()


class _Pass:
    def __init__(self, scheduler: VllmScheduler, step: Step[PoolRequest], threshold: int) -> None:
        self._scheduler = scheduler
        self._holdings = scheduler.holdings
        self._step = step
        self._threshold = threshold
        self._budget = scheduler.settings.max_num_batched_tokens
        self._by_priority = scheduler.settings.policy == "priority"
        self._scheduled: dict[int, Chunk] = {}

    def run(self) -> None:
        scheduler = self._scheduler
        scheduler.dissolve_decoding(self._step.number)
        for request in list(scheduler.running.values()):
            if self._budget <= 0:
                break
            if request.running and not request.draining and not self._schedule(request):
                break
        self._step.chunks.extend(self._scheduled.values())
        scheduler.prefilling = [request for request in scheduler.prefilling if request.running]
        for request in scheduler.prefilling:
            if request.order not in self._scheduled:
                # Not scheduled, so the token that was in flight has arrived by the next step, and its end is later.
                request.pending = 0
                request.finish_step = UNSEEN

    def _schedule(self, request: PoolRequest) -> bool:
        """Schedule `request`, preempting others for its blocks; False where it was itself preempted."""
        tokens = request.known - request.computed
        if 0 < self._threshold < tokens:
            tokens = self._threshold
        tokens = min(tokens, self._budget)
        held = request.held
        need = self._holdings.needed(request, tokens)
        while need > self._scheduler.allocator.free:
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        self._scheduled[request.order] = Chunk(request, request.computed, tokens, held)
        self._budget -= tokens
        self._holdings.grow(request, self._scheduler.allocator.take(need))
        self._scheduler.compute(request, tokens)
        return True

    def _victim(self) -> PoolRequest:
        """The last running request; by priority, the first of those with the largest (priority, arrival)."""
        running = self._scheduler.running
        if self._by_priority:
            return max(running.values(), key=lambda request: (request.priority, request.arrival_ns))
        return running[next(reversed(running))]

    def _preempt(self, victim: PoolRequest) -> None:
        chunk = self._scheduled.pop(victim.order, None)
        if chunk is not None:
            # Its turn in this step is taken back, yet the blocks stay registered that it would have filled.
            self._budget += chunk.tokens
            self._holdings.tokens -= chunk.tokens
            victim.computed = chunk.computed
        self._scheduler.preempt(victim)
        self._step.preempted.append(victim)
