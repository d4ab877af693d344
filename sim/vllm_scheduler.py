"""vLLM's scheduler: which requests a step computes, and how many tokens of each."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from .admission import Admission
from .decode import Take
from .eager import EagerRegistration
from .meter import MeterState
from .one_by_one import schedule_one_by_one
from .request import UNSEEN, PoolRequest, Request
from .settings import SchedulerSettings
from .step import Chunk, Step
from .vllm_memory import NO_BLOCKS, VllmMemory
from .waiting import FcfsQueue, PriorityQueue, WaitingQueue

Int64 = npt.NDArray[np.int64]


class VllmScheduler:
    """The v1 scheduler of vLLM 0.32.0, for one full-attention KV-cache group.

    Each step has a budget of `max_num_batched_tokens`. Running requests come first, in the order of admission; one
    that needs blocks when none are free preempts the last one. Then, unless somebody was preempted, waiting requests
    are admitted while budget, `max_num_seqs` and free blocks allow.

    Running requests are of three sorts: those that decode (`DecodeGroup`: nothing to do for one but to hand it a block
    now and then), those that have more tokens to compute (`prefilling`), and those whose last token is in flight
    (`draining`). A step in which neither budget nor blocks run short is scheduled at once from these; any other request
    by request (`schedule_one_by_one`), by the same rules spelled out.
    """

    # Not Step[PoolRequest]: calling a subscripted class costs several times as much.
    step_class = Step

    def __init__(self, settings: SchedulerSettings, holdings: VllmMemory) -> None:
        self.aborted: list[Request] = []
        """Always empty: vLLM gives no request up."""
        self.settings = settings
        self.holdings = holdings
        self.allocator = holdings.allocator
        self.next_step = 0
        """Number of the step that will be scheduled next."""
        self.waiting: WaitingQueue = PriorityQueue() if settings.policy == "priority" else FcfsQueue()
        self.running: dict[int, PoolRequest] = {}
        """By place in the running list, which is the order of admission."""
        self.prefilling: list[PoolRequest] = []
        self.decoding = holdings.decode_group()
        self.eager = EagerRegistration(holdings, settings.async_scheduling)
        self._admission = Admission(self)
        self._next_order = 0
        self._ends: list[tuple[int, int, PoolRequest]] = []
        """Heap of (step that computes the last token, place, request); outdated entries are skipped."""

    @property
    def unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self.running) or len(self.waiting) > 0

    def add(self, request: PoolRequest) -> None:
        """Queue a request that arrived."""
        self.waiting.add(request)

    def schedule(self, now_ns: int) -> Step[PoolRequest]:
        """Schedule one step at `now_ns`; its duration is left to the caller. `complete` must follow."""
        step: Step[PoolRequest] = Step(self.next_step, now_ns)
        self.next_step += 1
        # A request on its own starves nobody, so that it may prefill as much as fits.
        alone = len(self.running) + len(self.waiting) <= 1
        threshold = 0 if alone else self.settings.long_prefill_token_threshold
        if self.running and not self._schedule_running(step, threshold):
            schedule_one_by_one(self, step, threshold)
        if len(self.waiting) and not step.preempted:
            budget = self.settings.max_num_batched_tokens - step.decodes
            self._admission.admit(step, threshold, budget - sum(chunk.tokens for chunk in step.chunks))
        return step

    def load(self, step: Step[PoolRequest]) -> tuple[int, int, int]:
        """Return prefill tokens, decoding requests, and tokens in the KV cache of all scheduled ones after `step`."""
        prefill, decodes, context = 0, step.decodes, self.decoding.context
        for request, computed, tokens, _ in step.chunks:
            context += computed + tokens
            if tokens == 1 and computed >= request.prompt and computed + 1 >= request.known - request.pending:
                decodes += 1
            else:
                prefill += tokens
        return prefill, decodes, context

    def complete(self, step: Step[PoolRequest]) -> None:
        """After a step was scheduled: sort out who now waits for a token only, and who for the last one."""
        if self.prefilling:
            for request in self.prefilling:
                if request.computed == request.known:
                    self._caught_up(step, request)
            self.prefilling = [request for request in self.prefilling if request.computed < request.known]
        self._end_decoding(step)

    def treat(self, step: Step[PoolRequest], now_ns: int) -> None:
        """Treat a step's result, which came at `now_ns`: first tokens are seen, finished requests leave."""
        for request in step.firsts:
            request.first_token_ns = now_ns
        for request in step.finishing:
            request.finished_ns = now_ns
            self.eager.flush(self.next_step, 0)
            if request.running:
                self._end(request)
            else:
                # Preempted while its last token was in flight: done all the same.
                self.waiting.remove(request)

    def _end(self, request: PoolRequest) -> None:
        """Let a running request whose last token was seen give back all it holds."""
        if request.decoding:
            # It ended by itself, when one more step was already scheduled for it.
            self.decoding.leave(request, self.next_step)
        elif request in self.prefilling:
            self.prefilling.remove(request)
        self._leave(request)
        request.tail_waste = request.held * self.holdings.block_size - request.computed
        self.holdings.let_go(request, request.total - 1)

    # -- what others want to know

    def idle(self) -> bool:
        """Nothing was launched: only an arrival can change that."""
        return False

    def take(self, count: int) -> Int64:
        """Hand out free blocks, int64 [count]."""
        return self.allocator.take(count)

    @property
    def free(self) -> int:
        """Blocks in the free list."""
        return self.allocator.ready

    @property
    def evicted(self) -> int:
        """Cached blocks whose content was dropped so far."""
        return self.allocator.evicted

    def cached(self) -> int:
        """Return the free blocks that hold a prefix."""
        return self.allocator.cached

    def state(self) -> MeterState:
        """Return blocks in use, running requests, blocks they hold, and tokens."""
        return self.allocator.used, len(self.running), self.holdings.blocks, self.holdings.tokens

    def entries(self, step: Step[PoolRequest]) -> list[Chunk[PoolRequest]]:
        """Return all that a step schedules, in running order; to be called before `complete`."""
        chunks = {chunk.request.order: chunk for chunk in step.chunks}
        if step.decodes:
            size = self.allocator.block_size
            for order, request in self.running.items():
                if request.decoding:
                    computed = request.decode_base + step.number
                    chunks[order] = Chunk(request, computed, 1, -(-computed // size))
        return [chunks[order] for order in sorted(chunks)]

    def new_ids(self, chunk: Chunk[PoolRequest]) -> list[int]:
        """Return the block ids appended to a request's row; for an admission, the whole row."""
        return self.holdings.new_ids(chunk)

    # -- many steps at once

    def only_decodes(self) -> bool:
        """Whether the next step seems to be a plain one."""
        return len(self.decoding) > 0 and not self.prefilling

    def due_between(self, count: int) -> Int64:
        """Return how many blocks each of the next `count` plain steps takes, int64 [count]."""
        return self.decoding.due_between(self.next_step, count)

    def plain_steps(self, limit: int) -> int:
        """Return how many of the next `limit` steps, at most, will only decode all of the decode group.

        It holds as long as nobody arrives. The last of them may bring last tokens.
        """
        decoding = self.decoding
        if not len(decoding) or self.prefilling or len(decoding) > self.settings.max_num_batched_tokens:
            return 0
        if len(self.waiting):
            if len(self.running) < self.settings.max_num_seqs and not self._admission.surely_refused(
                self.waiting.head()
            ):
                return 0
            if len(self.eager):
                # A block that is registered while a request waits may be one it asks for.
                limit = min(limit, self.eager.next_step() - self.next_step)
        limit = min(limit, self._next_end() - self.next_step + 1)
        return decoding.affordable(self.next_step, self.allocator.ready, limit) if limit > 0 else 0

    def decode_many(self, count: int, take: Take) -> None:
        """Schedule the next `count` steps, which are plain; `complete` must follow with the last of them."""
        blocks = self.decoding.advance_many(self.next_step, count, take)
        self.holdings.blocks += len(blocks)
        self.holdings.tokens += count * len(self.decoding)
        self.next_step += count

    # -- used by the parts of the scheduler

    def compute(self, request: PoolRequest, tokens: int) -> None:
        """Count `tokens` more of `request` as computed and register the blocks they fill."""
        request.computed += tokens
        self.holdings.tokens += tokens
        self.holdings.register(request, min(request.computed, request.known - request.pending))

    def start(self, request: PoolRequest) -> None:
        """Put an admitted request at the end of the running list."""
        request.running = True
        request.order = self._next_order
        self._next_order += 1
        self.running[request.order] = request
        self.prefilling.append(request)

    def preempt(self, request: PoolRequest) -> None:
        """Take everything from a running request that is not in the decode group, and queue it again."""
        self._leave(request)
        self.holdings.let_go(request, request.computed - request.pending)
        if request.draining:
            # The token in flight still counts when it comes, which is before the request can run again.
            request.known = request.computed + 1
        request.lost_pending = request.computed
        request.computed = request.pending = 0
        request.draining = False
        request.preemptions += 1
        self.waiting.put_back(request)

    def dissolve_decoding(self, number: int) -> None:
        """Before step `number`, turn all decoding requests into ones with one known token to compute."""
        self.eager.flush(number, -1)
        self.decoding.dissolve(number)
        for request in self.running.values():
            if not request.draining and request.computed >= request.known:
                request.known = request.computed + 1
                request.pending = int(self.settings.async_scheduling)
        self.prefilling = [request for request in self.running.values() if not request.draining]

    # -- inner workings

    def _schedule_running(self, step: Step[PoolRequest], threshold: int) -> bool:
        """Schedule all running requests at once; False, and nothing done, where budget or blocks may run short."""
        decoding, number = self.decoding, step.number
        plan = self._plan(threshold)
        if plan is None:
            return False
        due = decoding.due(number)
        needed = due + sum(need for _, _, need in plan)
        if needed > self.allocator.free:
            return False
        # All blocks at once, given out in running order.
        take = _Stock(self.allocator.take(needed)) if needed else _Stock(NO_BLOCKS)
        for request, tokens, need in plan:
            decoding.serve(number, request.order, take)
            step.chunks.append(Chunk(request, request.computed, tokens, request.held))
            self.holdings.grow(request, take(need))
            self.eager.flush(number, request.order)
            self.compute(request, tokens)
        step.decodes = len(decoding)
        decoding.advance(number, take)
        self.holdings.blocks += due
        self.holdings.tokens += step.decodes
        return True

    def _plan(self, threshold: int) -> list[tuple[PoolRequest, int, int]] | None:
        """Choose tokens and new blocks of the prefilling requests: (request, tokens, blocks), in running order.

        None where the budget might not reach every member of the decode group.
        """
        budget = self.settings.max_num_batched_tokens - len(self.decoding)
        if budget < 0:
            return None
        plan: list[tuple[PoolRequest, int, int]] = []
        for request in self.prefilling:
            if not budget:
                break
            tokens = request.known - request.computed
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                # What those before it left is not what all others left, unless it comes last.
                if next(reversed(self.running)) != request.order and self._decodes_behind(request):
                    return None
                tokens = budget
            budget -= tokens
            plan.append((request, tokens, self.holdings.needed(request, tokens)))
        return plan

    def _decodes_behind(self, request: PoolRequest) -> bool:
        return any(other.decoding for order, other in self.running.items() if order > request.order)

    def _caught_up(self, step: Step[PoolRequest], request: PoolRequest) -> None:
        """All known tokens of `request` are computed by `step`, which therefore brings a new one."""
        step.brings += 1
        if request.ending:
            return
        if request.known == request.prompt:
            step.firsts.append(request)
        left = request.total - 1 - request.computed
        end = step.number + left
        if request.finish_step != end:
            request.finish_step = end
            heapq.heappush(self._ends, (end, request.order, request))
        if left or self._overruns(request):
            self.decoding.join(request, step.number + 1)
            self.eager.watch(request)

    def _end_decoding(self, step: Step[PoolRequest]) -> None:
        """Find those whose last token `step` computes, and let them go out of the decode group."""
        ends = self._ends
        while ends and ends[0][0] <= step.number:
            end, order, request = heapq.heappop(ends)
            if request.order == order and request.finish_step == end and request.running:
                request.ending = True
                step.finishing.append(request)
                if not self._overruns(request):
                    if request.decoding:
                        self.eager.flush(step.number, order + 1)
                        self.decoding.leave(request, step.number + 1)
                    request.draining = True
                    request.pending = int(self.settings.async_scheduling)

    def _overruns(self, request: PoolRequest) -> bool:
        """Whether another step is scheduled for a request before its last token is seen to be the last."""
        return request.eos and self.settings.async_scheduling

    def _next_end(self) -> int:
        """Return the step that computes the next last token; some request decodes, so there is one."""
        ends = self._ends
        while True:
            end, order, request = ends[0]
            if request.order == order and request.finish_step == end and request.running:
                return end
            heapq.heappop(ends)

    def _leave(self, request: PoolRequest) -> None:
        del self.running[request.order]
        request.running = False
        request.finish_step = UNSEEN


class _Stock:
    """Blocks taken beforehand, handed out from the front."""

    def __init__(self, blocks: Int64) -> None:
        self._blocks = blocks
        self._next = 0

    def __call__(self, count: int) -> Int64:
        start, self._next = self._next, self._next + count
        return self._blocks[start : self._next]
