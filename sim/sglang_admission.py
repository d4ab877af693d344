"""SGLang's admission: which waiting requests an extend batch computes, and how much of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .request import UNSEEN, TreeRequest
from .sglang_budget import Budget
from .step import Chunk
from .tree_step import TreeStep

if TYPE_CHECKING:
    from .sglang_scheduler import SglangScheduler

_TOUCH_INTERVAL = 32
"""Passes from one touching of the waiting prefixes to the next."""
_MATCHED_IN_QUEUE = 128
"""Waiting requests that are touched; with more of them, `lpm` neither matches nor sorts."""
_IN_BATCH_PREFIX = 32
"""`lpm`: tokens shared within the queue that make a request wait for the other one's prefix."""

_WHOLE, _CHUNK, _NO_MEMORY, _NO_BUDGET = range(4)


class SglangAdmission:
    """Forms extend batches from the chunked request and the head of the waiting queue."""

    def __init__(self, scheduler: SglangScheduler) -> None:
        settings = scheduler.settings
        self._scheduler = scheduler
        self._memory = scheduler.memory
        self._clip = settings.clip_max_new_tokens_estimation
        self._chunk_size = settings.chunked_prefill_size if settings.chunked_prefill_size > 0 else None
        self._max_prefill_tokens = settings.max_prefill_tokens
        caching = scheduler.memory.caching
        self._sorts = settings.schedule_policy == "lpm" and caching
        self._touches = settings.radix_eviction_policy == "lru" and caching
        self._passes = 0

    def form(self, now_ns: int) -> TreeStep | None:
        """Form an extend batch, or return None."""
        scheduler = self._scheduler
        if not scheduler.running:
            scheduler.full = False
        if scheduler.chunked is None:
            if scheduler.full or not len(scheduler.waiting):
                return None
            if self._seats() <= 0:
                scheduler.full = True
                return None
        self._apply_policy()
        budget = self._open_budget()
        admitted: list[TreeRequest] = []
        if scheduler.chunked is not None:
            admitted.append(scheduler.chunked)
            if self._continue_chunked(scheduler.chunked, budget):
                scheduler.chunked = None
        started = self._admit_waiting(admitted, budget)
        if not admitted:
            return None
        if started is not None:
            scheduler.chunked = started
        if scheduler.chunked is not None:
            scheduler.chunked.chunks_out += 1
        return self._launch(admitted, now_ns)

    def _admit_waiting(self, admitted: list[TreeRequest], budget: Budget) -> TreeRequest | None:
        """Add waiting requests to `admitted` until one is refused; returns the one that becomes the chunked one."""
        scheduler, waiting = self._scheduler, self._scheduler.waiting
        started: TreeRequest | None = None
        while waiting:
            if len(admitted) >= self._seats():
                scheduler.full = True
                break
            request = waiting[0]
            verdict = self._try(request, budget, bool(admitted))
            taken = verdict in (_WHOLE, _CHUNK)
            if taken:
                waiting.popleft()
                admitted.append(request)
            if verdict == _CHUNK:
                started = request
            if verdict == _NO_MEMORY or (taken and budget.out_of_memory):
                scheduler.full = bool(admitted) or bool(scheduler.running)
                break
            if not taken or budget.spent:
                break
        return started

    def _seats(self) -> int:
        scheduler = self._scheduler
        return min(max(scheduler.max_running, 1) - len(scheduler.running), len(self._memory.free_rows))

    def _open_budget(self) -> Budget:
        scheduler = self._scheduler
        decoding = len(scheduler.running) if scheduler.mixes else 0
        future = 0.0
        if scheduler.running:
            shares = np.minimum(scheduler.tokens_left(), self._clip) * scheduler.ratio
            # Added up from left to right, as the engine does: the last digit counts.
            future = float(shares.cumsum()[-1])
        chunk = None if self._chunk_size is None else self._chunk_size - decoding
        return Budget(self._memory, decoding + future, decoding, self._max_prefill_tokens - decoding, chunk)

    def _continue_chunked(self, request: TreeRequest, budget: Budget) -> bool:
        """Take the chunked request's next chunk, whatever is left; returns whether it completes the prompt."""
        assert budget.chunk_tokens is not None
        room = min(budget.chunk_tokens, int(budget.left))
        if room <= 0:
            room = budget.chunk_tokens
        wanted = request.known - request.prefix
        complete = wanted <= room
        request.extend_end = request.prefix + min(wanted, room)
        limit = min(request.limit, self._clip) if complete else 0
        budget.charge(request.extend_end - request.prefix, limit)
        return complete

    def _try(self, request: TreeRequest, budget: Budget, others: bool) -> int:
        """Admit `request` if it fits: whole, or a chunk. Its prefix is touched in any case."""
        node = self._memory.match(request, request.known - 1)
        request.prefix = request.protected = 0 if node is None else node.stop
        # A prefix that is used cannot be evicted to make room for the rest.
        self._memory.lock(node)
        verdict = self._judge(request, budget, others)
        if verdict in (_WHOLE, _CHUNK):
            request.locked = node
        else:
            self._memory.unlock(node)
        return verdict

    def _judge(self, request: TreeRequest, budget: Budget, others: bool) -> int:
        memory = self._memory
        extend = request.known - request.prefix
        left = min(max(request.limit - request.generated, 0), self._clip)
        if extend + left + memory.page_size >= budget.left:
            return _NO_MEMORY
        if budget.chunk_tokens is None:
            if others and memory.ceil(extend) >= budget.input_tokens:
                return _NO_BUDGET
        elif memory.ceil(extend) > budget.chunk_tokens:
            extend = memory.aligned(budget.chunk_tokens)
            if extend <= 0:
                return _NO_BUDGET
            request.extend_end = request.prefix + extend
            budget.charge(extend, 0)
            return _CHUNK
        request.extend_end = request.known
        budget.charge(extend, min(request.limit, self._clip))
        return _WHOLE

    def _launch(self, admitted: list[TreeRequest], now_ns: int) -> TreeStep:
        """Allocate for the batch: rows first, then pages, evicting for them."""
        scheduler, memory = self._scheduler, self._memory
        step = scheduler.new_step(now_ns, "extend")
        step.chunked = scheduler.chunked
        step.prefill_only = all(request.limit == 0 for request in admitted)
        opened = [request for request in admitted if request.row == UNSEEN]
        memory.open_rows(opened)
        for request in opened:
            request.running = True
            request.admitted(now_ns, request.prefix)
        step.chunks = [
            Chunk(request, request.prefix, request.extend_end - request.prefix, request.held) for request in admitted
        ]
        spare = 0 if memory.page_size == 1 else len(admitted) * memory.page_size
        memory.evict_for(sum(chunk.tokens for chunk in step.chunks) + spare)
        memory.extend(admitted)
        for request in admitted:
            request.retracted = False
            request.in_extend = step.number
        scheduler.active += len(opened)
        if scheduler.mixes and scheduler.running:
            scheduler.mix_in_running(step)
        return step

    # -- policy

    def _apply_policy(self) -> None:
        waiting = self._scheduler.waiting
        if self._sorts and len(waiting) <= _MATCHED_IN_QUEUE:
            self._sort_by_prefix()
        elif self._touches and waiting:
            self._passes += 1
            if self._passes % _TOUCH_INTERVAL == 1:
                for place in range(min(len(waiting), _MATCHED_IN_QUEUE) - 1, -1, -1):
                    self._memory.match(waiting[place], waiting[place].known)

    def _sort_by_prefix(self) -> None:
        """Longest cached prefix first; those that would share a prefix with an earlier one go behind."""
        waiting = self._scheduler.waiting
        ranked: list[tuple[int, TreeRequest]] = []
        behind: list[TreeRequest] = []
        leaders: list[TreeRequest] = []
        for request in waiting:
            node = self._memory.match(request, request.known)
            matched = 0 if node is None else node.stop
            if matched <= _IN_BATCH_PREFIX:
                if any(_same_opening(request, leader) for leader in leaders):
                    behind.append(request)
                    continue
                leaders.append(request)
            ranked.append((-min(matched, request.known - 1), request))
        ranked.sort(key=lambda entry: entry[0])
        waiting.clear()
        waiting.extend(request for _, request in ranked)
        waiting.extend(behind)


def _same_opening(request: TreeRequest, leader: TreeRequest) -> bool:
    if min(request.known, leader.known) < _IN_BATCH_PREFIX:
        return False
    return request.sequence.common(leader.sequence, 0, _IN_BATCH_PREFIX) == _IN_BATCH_PREFIX
