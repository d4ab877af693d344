"""SGLang's scheduler: extend batches, decode batches, and retraction."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import numpy.typing as npt

from .decode import DecodeGroup, Take
from .meter import MeterState
from .request import UNSEEN, Request, TreeRequest
from .settings import SglangSettings
from .sglang_admission import SglangAdmission
from .sglang_memory import SglangMemory
from .sglang_retraction import retract
from .step import Chunk
from .tree_step import TreeStep

Int64 = npt.NDArray[np.int64]

_START_RATIO, _FLOOR_SHARE, _DECAY_STEPS = 0.7, 0.14, 600


class SglangScheduler:
    """The scheduler of SGLang 0.5.22 (`managers/scheduler.py`) over one full-attention KV pool.

    A batch either extends (computes prompts or chunks of them) or decodes (one token of each running request); with
    `enable_mixed_chunk` it may do both. Extending comes first. With overlap scheduling a batch is formed while the one
    before it runs, so that tokens in flight are not known yet.

    The running list holds those that decode (`DecodeGroup`, whose time is the number of decode batches), and those
    that have ended or are about to by the result in flight: these keep their seat until the next decode batch is
    formed (`_leaving`).

    Attributes:
        running: the running list by place.
        full: set when a waiting request was refused, to spare trying again until something changes.
        ratio: the new-token ratio: which share of the tokens that running requests may still generate is reserved.
        chunked: the request in the middle of its prompt.
        active: requests that hold memory.
        aborted: requests given up for want of memory, since the caller last looked.
    """

    step_class = TreeStep

    def __init__(self, settings: SglangSettings, memory: SglangMemory, max_running: int) -> None:
        self.settings = settings
        self.memory = memory
        self.max_running = max_running
        self.next_step = 0
        self.tick = 0
        """Decode batches so far."""
        self.waiting: deque[TreeRequest] = deque()
        self.running: dict[int, TreeRequest] = {}
        self.full = False
        self.chunked: TreeRequest | None = None
        self.active = 0
        self.aborted: list[Request] = []
        self.decoding = DecodeGroup(memory.page_size, memory.table, memory.table.rows)
        self.overlap = not settings.disable_overlap_schedule
        self.mixes = settings.enable_mixed_chunk and settings.chunked_prefill_size > 0
        self._start_ratio = min(_START_RATIO * settings.schedule_conservativeness, 1.0)
        self._floor_ratio = min(self._start_ratio * _FLOOR_SHARE, 1.0)
        self._ratio_step = (self._start_ratio - self._floor_ratio) / _DECAY_STEPS
        self.ratio = self._start_ratio
        self.last: TreeStep | None = None
        """What the last pass launched; with overlap its result is still out while the next batch is formed."""
        self._admission = SglangAdmission(self)
        self._leaving: list[TreeRequest] = []
        self._prefill_only = False
        """Whether the running list came from a batch that generates nothing more."""
        self._next_order = 0
        self._idled_at = UNSEEN
        """The next step at the last idle pass; the same again means that only an arrival can help."""
        self._ends: list[tuple[int, int, TreeRequest]] = []
        """Heap of (time of the decode batch that computes the last token, place, request)."""

    # -- arrival and passes

    @property
    def unfinished(self) -> bool:
        """Whether any request is running or waiting, or a batch has yet to be followed up."""
        return bool(self.running or self.waiting) or self.chunked is not None or self.last is not None

    def add(self, request: TreeRequest) -> None:
        """Queue a request that arrived."""
        self.waiting.append(request)
        self._idled_at = UNSEEN

    def schedule(self, now_ns: int) -> TreeStep | None:
        """Form a batch at `now_ns`; None where there is nothing to launch."""
        chunked = self.chunked
        if chunked is not None and chunked.extend_end > chunked.prefix:
            self._publish_prefill(chunked)
        self._join_last()
        if self._prefill_only:
            self._drop_finished()
            if not self.running:
                self.full = False
        step = self._admission.form(now_ns)
        if step is None and self.running and not self._prefill_only:
            step = self._form_decode(now_ns)
        self.last = step
        return step

    def new_step(self, now_ns: int, kind: str) -> TreeStep:
        """Begin a batch."""
        step = TreeStep(self.next_step, now_ns, kind=kind)
        self.next_step += 1
        return step

    def idle(self) -> bool:
        """Nothing was launched and no result is out: whether another pass may change that."""
        if not self.unfinished:
            self.ratio = self._start_ratio
            return False
        # The running list may have emptied in this pass, so that the head of the queue fits into the next.
        again, self._idled_at = self._idled_at != self.next_step, self.next_step
        return again

    def _join_last(self) -> None:
        """Let those of the last extend or mixed batch that go on join the running list."""
        last = self.last
        if last is None or last.kind == "decode":
            return
        outside = (self.chunked, last.chunked)
        joining = [chunk.request for chunk in last.chunks]
        joining = [request for request in joining if not request.finished and request not in outside]
        if last.kind == "mixed":
            # The batch as it was becomes the running list: those that were extended stand before those that decoded.
            decoded = [request for request in self.running.values() if not request.finished]
            self.full, self._prefill_only = False, False
            self.rebuild(joining + decoded)
            return
        if len(joining) < len(last.chunks):
            self.full = False
        if not joining:
            return
        if not self.running:
            self.full = False
            self._prefill_only = True
        self._prefill_only = self._prefill_only and last.prefill_only
        for request in joining:
            self._join(request)

    def rebuild(self, requests: list[TreeRequest]) -> None:
        """Make `requests` the running list, in this order; brings the fields of those that decode up to date."""
        self.decoding.dissolve(self.tick)
        self.running.clear()
        self._leaving.clear()
        for request in requests:
            self._join(request)

    def _join(self, request: TreeRequest) -> None:
        """Put a request at the end of the running list."""
        request.order = self._next_order
        self._next_order += 1
        self.running[request.order] = request
        # Tokens that it has generated or that a batch in flight brings.
        produced = request.computed - request.prompt + 1
        if produced >= request.limit:
            request.generated = max(request.limit - 1, 0) if self.overlap else request.limit
            self._leaving.append(request)
            return
        self.decoding.join(request, self.tick)
        request.left_base = request.limit - request.decode_base + request.prompt - 1
        left = request.total - request.prompt - produced
        if left > 0:
            request.finish_step = self.tick + left - 1
            heapq.heappush(self._ends, (request.finish_step, request.order, request))

    # -- decode batches

    def _form_decode(self, now_ns: int) -> TreeStep | None:
        """Decode the running list; None to launch nothing."""
        before = len(self.running)
        awaited = self._drop_leaving()
        if not self.running:
            self.full = False
            return None
        retracted: list[TreeRequest] = []
        if self._fits():
            self.ratio = max(self.ratio - self._ratio_step, self._floor_ratio)
        elif awaited:
            self.full = False
            return None
        else:
            retracted = retract(self)
        if len(self.running) < before:
            self.full = False
        if not self.running:
            return None
        step = self.new_step(now_ns, "decode")
        step.preempted = retracted
        self._decode(step)
        return step

    def mix_in_running(self, step: TreeStep) -> None:
        """Let the running list decode with an extend batch, if there is room."""
        if self._drop_leaving():
            self.full = False
        if self.running and self._fits():
            self._decode(step)
            step.kind = "mixed"
            step.prefill_only = False

    def _drop_leaving(self) -> bool:
        """Take those that have ended off the running list, and those that end by the result in flight.

        Returns whether there were any of the latter.
        """
        awaited = False
        for request in self._leaving:
            awaited = awaited or not request.finished
            del self.running[request.order]
        self._leaving.clear()
        return awaited

    def _drop_finished(self) -> None:
        """Take those that have ended off the running list."""
        for request in [request for request in self._leaving if request.finished]:
            del self.running[request.order]
            self._leaving.remove(request)

    def _fits(self) -> bool:
        """Whether each running request can get its next slot, after evicting for it."""
        return self.memory.evict_for(self.decoding.due(self.tick) * self.memory.page_size)

    def _decode(self, step: TreeStep) -> None:
        memory, count = self.memory, len(self.decoding)
        memory.evict_for(count * memory.page_size)
        memory.blocks += self.decoding.due(self.tick)
        memory.tokens += count
        self.decoding.advance(self.tick, memory.take)
        self.tick += 1
        step.decodes = count

    # -- results

    def complete(self, step: TreeStep) -> None:
        """After a batch was formed: find the decoding requests whose last token it computes."""
        self.last = step
        if step.kind == "extend":
            return
        now, ends = self.tick - 1, self._ends
        while ends and ends[0][0] <= now:
            end, order, request = heapq.heappop(ends)
            if request.decoding and request.order == order and request.finish_step == end:
                step.finishing.append(request)
                if not request.eos:
                    self.decoding.leave(request, self.tick)
                    request.generated = request.limit - 1
                    self._leaving.append(request)

    def treat(self, step: TreeStep, now_ns: int) -> None:
        """Treat a batch's result: tokens in batch order, frees together at the end."""
        if step.plain:
            return
        ending, step.finishing = step.finishing, []
        self.memory.hold()
        for chunk in step.chunks:
            request = chunk.request
            if request.finished or request.retracted:
                continue
            if request.chunks_out:
                request.chunks_out -= 1
                continue
            self._extended(step, request, now_ns)
        for request in ending:
            if not request.finished and not request.retracted:
                self._finish(step, request, now_ns)
        self.memory.apply()

    def _extended(self, step: TreeStep, request: TreeRequest, now_ns: int) -> None:
        """A request whose known tokens were all computed gets its next one."""
        request.generated = request.extend_end - request.prompt + 1
        if request.first_token_ns < 0:
            request.first_token_ns = now_ns
            step.firsts.append(request)
        if request.prompt + request.generated >= request.total:
            self._finish(step, request, now_ns)
        else:
            self._publish_prefill(request)

    def _finish(self, step: TreeStep, request: TreeRequest, now_ns: int) -> None:
        """Publish what a request computed, and let it go."""
        if request.decoding:
            # It ended by itself: it keeps its place in the running list, and may have been decoded once more.
            self.decoding.leave(request, self.tick)
            self._leaving.append(request)
        request.finished = True
        request.finished_ns = now_ns
        request.generated = request.total - request.prompt
        request.tail_waste = self.memory.ceil(request.computed) - request.computed
        self.memory.publish(request, request.computed)
        self.memory.release(request)
        self.active -= 1
        step.finishing.append(request)

    def _publish_prefill(self, request: TreeRequest) -> None:
        """Publish what an extend batch computes; the request's next one goes on from there."""
        self.memory.publish(request, request.extend_end)
        request.prefix = request.extend_end

    # -- what admission and retraction need

    def tokens_left(self) -> Int64:
        """Return for each of the running list the tokens that it may still generate, as far as the scheduler knows.

        int64 [running], in the list's order; tokens in flight are not known yet.
        """
        last = self.last if self.overlap else None
        everyone = last is not None and last.kind != "extend"
        passed = self.tick - everyone
        left = np.array(
            [
                request.left_base - passed if request.decoding else request.limit - request.generated
                for request in self.running.values()
            ]
        )
        if last is not None and not everyone:
            # Those that the batch in flight extended have joined last.
            for place, request in zip(range(len(left) - 1, -1, -1), reversed(self.running.values()), strict=True):
                if request.in_extend != last.number:
                    break
                left[place] += request.decoding
        return left

    def seen(self, request: TreeRequest) -> int:
        """Return the generated tokens of a request, up to date but for this, that the scheduler has seen."""
        last = self.last if self.overlap else None
        in_flight = last is not None and (last.kind != "extend" or request.in_extend == last.number)
        return request.computed - request.prompt + 1 - in_flight

    def retake_ratio(self, requests: list[TreeRequest], steps: int) -> None:
        """Set the new-token ratio after a retraction that leaves `requests`, with room for `steps` tokens each."""
        generated = sum(self.seen(request) for request in requests)
        limits = sum(request.limit for request in requests)
        self.ratio = min(1.0, (generated + steps * len(requests)) / (limits + 1))

    # -- what others want to know

    def load(self, step: TreeStep) -> tuple[int, int, int]:
        """Return prefill tokens, decoding requests, and tokens in the KV cache of all in the batch after it."""
        prefill = sum(chunk.tokens for chunk in step.chunks)
        context = prefill + sum(chunk.computed for chunk in step.chunks)
        if step.decodes:
            context += self.decoding.context
        return prefill, step.decodes, context

    def take(self, count: int) -> Int64:
        """Hand out free pages, int64 [count]."""
        return self.memory.take(count)

    @property
    def free(self) -> int:
        """Free pages."""
        return self.memory.free

    @property
    def evicted(self) -> int:
        """Pages evicted so far."""
        return self.memory.evicted

    def cached(self) -> int:
        """Return the pages that hold a prefix and that nobody uses."""
        return self.memory.cached

    def state(self) -> MeterState:
        """Return pages in use, requests that hold memory, the pages they hold, and tokens."""
        memory = self.memory
        used = memory.capacity - memory.reachable
        return used, self.active, memory.blocks, memory.tokens

    def entries(self, step: TreeStep) -> list[Chunk[TreeRequest]]:
        """Return all in a batch, in its order; to be called before `complete`."""
        entries = list(step.chunks)
        if step.decodes:
            tick = self.tick - (self.next_step - step.number)
            size = self.memory.page_size
            for request in self.running.values():
                if request.decoding:
                    computed = request.decode_base + tick
                    entries.append(Chunk(request, computed, 1, -(-computed // size)))
        return entries

    def new_ids(self, chunk: Chunk[TreeRequest]) -> list[list[int]]:
        """Return the slots handed out to a request in a batch, as `[start, length]` runs."""
        slots = self.memory.slots(chunk.request, chunk.computed, chunk.computed + chunk.tokens)
        starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
        lengths = np.diff(starts, append=len(slots))
        return [[start, length] for start, length in zip(slots[starts].tolist(), lengths.tolist(), strict=True)]

    # -- many batches at once

    def only_decodes(self) -> bool:
        """Whether the next batch seems to be a plain decode batch."""
        return (
            len(self.decoding) > 0
            and (self.last is None or self.last.kind == "decode")
            and not self._leaving
            and (self.full or not self.waiting)
        )

    def plain_steps(self, limit: int) -> int:
        """Return how many of the next `limit` batches, at most, decode the running list as it is, evicting nothing."""
        if not self.only_decodes() or self.chunked is not None or self._prefill_only:
            return 0
        ends = self._ends
        while ends and not self._holds(*ends[0]):
            heapq.heappop(ends)
        if ends:
            limit = min(limit, ends[0][0] - self.tick + 1)
        # Before each batch a page must be free for every request, due or not.
        spare = self.memory.free - len(self.decoding)
        if limit <= 0 or spare < 0:
            return 0
        return 1 + self.decoding.affordable(self.tick, spare, limit - 1)

    @staticmethod
    def _holds(end: int, order: int, request: TreeRequest) -> bool:
        return request.decoding and request.order == order and request.finish_step == end

    def due_between(self, count: int) -> Int64:
        """Return how many pages each of the next `count` plain batches takes, int64 [count]."""
        return self.decoding.due_between(self.tick, count)

    def decode_many(self, count: int, take: Take) -> None:
        """Form the next `count` batches, which are plain; `complete` must follow with the last of them."""
        pages = self.decoding.advance_many(self.tick, count, take)
        self.memory.blocks += len(pages)
        self.memory.tokens += count * len(self.decoding)
        self.tick += count
        self.next_step += count
        # One by one, as the engine does: the sum of the steps is not quite their product.
        for _ in range(count):
            if self.ratio <= self._floor_ratio:
                break
            self.ratio = max(self.ratio - self._ratio_step, self._floor_ratio)
