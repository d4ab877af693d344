"""vLLM's admission: which waiting requests start to run in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .request import PoolRequest
from .step import Chunk, Step
from .vllm_memory import NOTHING

if TYPE_CHECKING:
    from .vllm_scheduler import VllmScheduler


class Admission:
    """Admits from the head of the waiting queue while token budget, `max_num_seqs` and free blocks allow.

    The head's prefix is looked up at every attempt, and an attempt that fails changes nothing. So one that failed for
    want of blocks fails again until something is freed or the first block it missed is there, and need not be made.
    """

    def __init__(self, scheduler: VllmScheduler) -> None:
        self._scheduler = scheduler
        self._holdings = scheduler.holdings
        self._allocator = scheduler.allocator
        settings = scheduler.settings
        self._max_running = settings.max_num_seqs
        self._whole_prompt = settings.scheduler_reserve_full_isl
        self._watermark = int(settings.watermark * (self._allocator.capacity + 1))
        self._refused: PoolRequest | None = None
        self._refused_releases = 0
        self._refused_missing: int | None = None

    def admit(self, step: Step[PoolRequest], threshold: int, budget: int) -> None:
        """Admit what fits into `budget` tokens; each prefill takes at most `threshold` tokens (0: no limit)."""
        scheduler, waiting = self._scheduler, self._scheduler.waiting
        scheduler.eager.flush(step.number, float("inf"))
        while budget > 0 and len(waiting) and len(scheduler.running) < self._max_running:
            request = waiting.head()
            if self.surely_refused(request):
                break
            tokens = self._try(step, request, threshold, budget)
            if not tokens:
                break
            budget -= tokens

    def surely_refused(self, request: PoolRequest) -> bool:
        """Whether an attempt to admit `request` would fail for want of blocks, as the last one did."""
        return (
            request is self._refused
            and self._allocator.releases == self._refused_releases
            and not (self._refused_missing is not None and self._allocator.holds(self._refused_missing))
        )

    def _try(self, step: Step[PoolRequest], request: PoolRequest, threshold: int, budget: int) -> int:
        """Admit `request`, the head of the queue, or leave everything as it is; returns the tokens scheduled."""
        holdings, size = self._holdings, self._holdings.block_size
        hits = holdings.match(request)
        computed = len(hits) * size
        tokens = request.known - computed
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget)
        needed = -(-(computed + tokens) // size) - len(hits)
        must_fit = -(-request.known // size) - len(hits) if self._whole_prompt else needed
        # Matched blocks that nobody uses count as free until they are touched.
        idle = holdings.idle(hits) if len(hits) else NOTHING
        must_fit += int(np.count_nonzero(idle))
        if self._scheduler.running:
            must_fit += self._watermark
        if not holdings.fits(request, must_fit):
            self._refuse(request, len(hits))
            return 0
        self._refused = None
        self._scheduler.waiting.pop()
        holdings.admit(request, hits, idle, needed)
        request.computed = computed
        holdings.tokens += computed
        request.admitted(step.time_ns, computed)
        self._scheduler.start(request)
        step.chunks.append(Chunk(request, computed, tokens, 0))
        self._scheduler.compute(request, tokens)
        return tokens

    def _refuse(self, request: PoolRequest, hit_blocks: int) -> None:
        # Without `scheduler_reserve_full_isl` an eviction can shorten the first chunk, so that it then fits.
        self._refused = request if self._whole_prompt else None
        self._refused_releases = self._allocator.releases
        self._refused_missing = self._holdings.first_missing(request, hit_blocks)
