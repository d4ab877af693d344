"""SGLang 0.5.22's scheduler over one full-attention KV pool, spelled out with plain lists and dicts.

The slow twin of the fast engine: one request, one token, one node at a time, so that it can be read against
the engine's rules line by line. The allocators are in `naive_sglang_memory`, the radix tree in
`naive_sglang_tree`. Left out: speculative decoding, LoRA, host caches, sliding windows, disaggregation,
priorities, `ignore_eos`.

Words used throughout:

* *known* tokens of a request: its prompt and the generated tokens that the scheduler has seen.
* *committed*: tokens whose KV is in the cache once all launched batches have run.
* *protected*: the first tokens of a request whose slots the tree owns.
* *row*: the request's line in the table that says which slot holds which of its tokens.
* `num_slots` counts whole pages only.
* a *batch* is an *extend* batch (computes prompts, or chunks of them), a *decode* batch (one token each), or a
  *mixed* one (an extend batch with decodes behind it).

The rules, numbered so that the code can refer to them.

The loop
 1. Each pass: take in what has arrived, schedule, launch the batch if there is one, treat one result.
 2. Without overlap the launched batch's own result is treated at once. With overlap it is the result of the
    batch launched in the pass before, whether or not this pass launched one.
 3. A pass with nothing to launch and nothing to treat is idle. If no request is left in the engine, the
    new-token ratio goes back to its start, and time moves on to the next arrival. If some wait, the next pass
    follows at once: without overlap this is what admits the head of the queue after the last running
    requests have ended under the flag `full` (rule 10). Should that pass be idle too, the head does not fit
    into the empty engine: the engine goes round idly until something arrives that the policy puts first, or
    for ever. That befalls prompts of `num_slots - page_size` tokens and more that rule 4 lets in, and whatever
    must be chunked where the chunk budget is less than a page.

Arrival
 4. A request is rejected if its prompt has at least `min(context_length, num_slots) - 6` tokens. It leaves no
    trace here. (A server lets a prompt of one token take its place, and aborts that after its prefill.)
 5. Its limit is clipped to `min(context_length - 1, num_slots - 1) - prompt - 1`, then to
    `num_slots - ceil(prompt) - page_size - 1`, and to 0 from below (ceil: to whole pages). With a limit of 0
    a request still computes its prompt, and ends with the first token; a running list of only such requests
    is never decoded, and loses those that have ended in every pass.
 6. `max_running_requests`: what was asked for, else `num_slots / context_length * 512` between 2048 and
    4096; at most `num_slots // 2`. It is also the number of rows.

Scheduling, in this order
 7. A request in the middle of a chunked prompt publishes what the last chunk computes (rule 19), although
    the result may still be out.
 8. An extend or mixed batch launched in the last pass joins the running list behind those that run: without
    those that have ended, and without the chunked request. If that leaves out any, the running list counts
    as not full. If nothing ran, the batch itself becomes the running list, and its flag is clear.
 9. Extend if possible (rules 10 to 15), else decode (rule 16).
10. No extend batch is tried if nothing waits or the running list counts as full, nor without a seat
    (`min(max_running - running, free rows)`); a chunked request overrides both. The flag `full` is
    cleared while nothing runs. Requests that have ended stay in the running list, with seat and reserve,
    until the next decode or mixed batch is formed.
11. Then the policy. `lpm` with at most 128 waiting: each is matched over all its known tokens, which touches
    and may split the tree, and the queue is sorted for good by the matched tokens, most first. Those that
    match at most 32 tokens and share at least 32 with an earlier such one in the queue go behind all others.
    With a disabled tree `lpm` is `fcfs`.
12. Under `lru`, unless rule 11 has sorted: in the 1st, 33rd, 65th, ... such pass the first 128 waiting are
    matched over all their known tokens, last one first. The pass counts only if something waits.
13. The budget: free and evictable slots, minus `min(limit - generated, clip) * ratio` summed over the
    running list. Each admission takes `ceil(extend) + page_size + min(limit, clip)` from it, the generated
    tokens of a resumed request notwithstanding; a chunk that does not complete its prompt takes no limit.
    `max_prefill_tokens` and the chunk budget both go down by `ceil(extend)`.
14. The chunked request comes first. Its next chunk is as long as the chunk budget and the memory budget
    (rounded down) allow, at any place in a page; if the memory budget is spent, the chunk budget alone
    counts. It takes from the budget as in rule 13, and is never refused: should the slots not be there, the
    engine stops with an error.
15. The waiting ones follow in order until one is refused or a budget is spent (0 left). Each is matched over
    all known tokens but the last, which touches and may split even if it is refused. The seats are counted
    against all admitted so far, the chunked request included. It must leave more than nothing of the budget:
    `extend + min(limit - generated, clip) + page_size < budget`, `extend` not rounded here, its own prefix
    not counted as evictable. If `ceil(extend)` exceeds the chunk budget, it becomes the chunked request, with
    as many whole pages as that budget has, or is refused if that is none. With chunking off it is refused if
    anything was admitted before and `ceil(extend)` is not less than what is left of `max_prefill_tokens`;
    otherwise that budget is only looked at after each admission, and may be overdrawn. `full` is set for want
    of a seat; and for want of memory, before or after an admission, if anything runs or was admitted.
16. A decode batch is the running list, without those that have ended, and with overlap without those whose
    result in flight will end them by length. If that is empty, nothing is launched. It needs a page for each
    request at a page boundary; leaves are evicted for that. If it is not enough: when some were left out for
    their last result, nothing is launched in this pass; otherwise some are retracted (rule 23). If none
    were, the ratio goes down by a step. `full` is cleared if the list has shrunk.

The tree
17. A match touches its path with one time: the end is youngest. It moves neither hits nor priority.
18. A split makes the lower part young as well. During a match that is still older than the path; during an
    insert, older than a new leaf only.
19. Publishing: insert the whole pages of the request's computed tokens, giving back duplicates from
    `protected` on. If that reaches beyond the prompt's whole pages (an answer, or the generated tokens of a
    resumed request), insert the prompt alone as well, with priority 1: it splits at the prompt's end, and
    touches the prompt's nodes once more. Match the whole again, take over the tree's slots into the row, lock
    the new end instead of the old one.
20. A request counts one hit on each node that ends beyond what it has published before.
21. Eviction takes whole leaves until enough is free: it may overshoot by the rest of the last leaf.
22. `slru` protects nodes with two hits. `tlru` with its default thresholds is `lru` without rule 12. `priority`
    favours prompts over answers, for no request has a priority of its own. A split inherits its creation
    time, so that `fifo` and `filo` see parts of one insert as equally old.

Retraction and end
23. Retracted are those with the fewest generated tokens first, among those the ones with the longest prompt,
    among those the last in the batch: at least one, and until what remains fits (rule 16), but not the last
    one. Its slots from `protected` on are freed, then its row; nothing is published. Then leaves are evicted
    until 20 slots are free for each that remains. It goes to the end of the queue and keeps its generated
    tokens; a token in flight is lost, and generated again. The running list stays in the order of this rule,
    most generated tokens first.
24. If the one that remains does not fit either, it is aborted. The ratio becomes
    `min(1, (generated + 20 * n) / (limits + 1))` over the n that remain: 0 after an abort, the floor at the
    next step down.
25. Freed slots go to the tail of the list (page size 1), freed pages to its head.
26. Slots are handed out in batch order. At page size 1 leaves are evicted for exactly what is needed; above,
    for a page a request on top of the tokens (extend), or for a page a request (decode), after rule 16.
27. While a result is treated, frees are held back and applied together at its end, in the order in which they
    came. All others are applied at once, each by itself: evictions, retractions, duplicates found in rule 7.
28. New rows are the last of the free rows, in the list's order; a row is given back to the end.
29. A prompt that is complete is published when its result is treated. One that ends with it is published once
    only, at its end: up to its committed tokens, at most prompt and generated ones. The rest of its last page is
    given back, then the lock, then the row. With overlap a request that ends by EOS has been decoded once
    more by then, and the KV of the EOS is published too; one that ends by length has not (rule 16).
30. A mixed batch: the extend batch is formed as ever, with all budgets lower by the running list's length. Then
    the running ones, chosen as in rule 16, are decoded with it if a page for each at a boundary is there;
    if not they sit out. It never retracts, and the ratio stays. The running list is then empty, and keeps
    the flag `full`, until rule 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from naive_sglang_memory import NaiveRows, make_allocator
from naive_sglang_tree import NaiveRadixTree, Node

StepTime = Callable[[int, int, int], int]

TOUCH_INTERVAL = 32
"""Passes from one touching of the waiting prefixes to the next."""
MATCHED_IN_QUEUE = 128
"""Waiting requests that are touched; with more of them, `lpm` neither matches nor sorts."""
IN_BATCH_PREFIX = 32
"""`lpm`: tokens shared within the queue that make a request wait for the other one's prefix."""
RETRACT_STEPS = 20
"""Decode steps for which a retraction makes room."""
START_RATIO, FLOOR_SHARE, DECAY_STEPS = 0.7, 0.14, 600


def linear_step_ns(prefill_tokens: int, decode_seqs: int, context_tokens: int) -> int:
    """The linear step time with its default coefficients."""
    return 5_000_000 + 20_000 * prefill_tokens + 50_000 * decode_seqs + 20 * context_tokens


@dataclass
class NaiveRequest:
    """A request of the trace: when it comes, what it asks and what the model will answer."""

    arrival_ns: int
    prompt: Sequence[Hashable]
    output: Sequence[Hashable]
    """The answer, token by token; the request ends with the last one at the latest."""
    max_new_tokens: int | None = None
    """The limit the server is told; None: the length of `output`. If larger, `output` ends with an EOS."""


@dataclass
class NaiveResult:
    """What a replay did: a layout-log line a batch, and a number a request in each list."""

    steps: list[dict]
    """Beyond the layout log, each line has the batch's `kind`; `start_ns` on the device; its load,
    `prefill_tokens`, `decode_seqs` and `context_tokens`; the `rows` of its requests; right after scheduling
    the `available` and `evictable` slots, the requests `waiting` and `running`, and the `new_token_ratio`; and
    the `evictions` since the launch before as [slots short, slots dropped]."""
    free_order: list[int]
    """Pages (slots at page size 1) in the free list at the end, what the tree holds aside."""
    row_order: list[int]
    """The free rows at the end."""
    rejected: list[int]
    aborted: list[int]
    ingested_ns: list[int]
    first_scheduled_ns: list[int]
    first_token_ns: list[int]
    finished_ns: list[int]
    cached_first: list[int]
    """Tokens hit at the first admission, -1 if there was none."""
    cached_resumed: list[int]
    """Tokens hit at all later admissions together."""
    preemptions: list[int]
    generated: list[int]
    prefills: list[int]
    """Extend batches that a request took part in."""

    def requests(self) -> dict[str, list[int]]:
        """The per-request lists by name."""
        lists = dict(vars(self))
        for name in ("steps", "free_order", "row_order", "rejected", "aborted"):
            del lists[name]
        return lists


@dataclass(eq=False)
class _Live:
    """A request as the scheduler sees it."""

    number: int
    request: NaiveRequest
    limit: int
    """Generated tokens at most (rule 5)."""
    known: list[Hashable]
    row: int | None = None
    slots: list[int] = field(default_factory=list)
    """The row's contents."""
    committed: int = 0
    protected: int = 0
    published: int = 0
    """Up to where it has been inserted into the tree (rule 20)."""
    prefix: int = 0
    """Tokens before the part that its next, or current, extend batch computes."""
    extend_end: int = 0
    """The end of that part."""
    node: Node | None = None
    """Where its last match ended."""
    locked: Node | None = None
    chunks_out: int = 0
    """Launched batches with a chunk that did not complete its prompt, and whose result is still out."""
    retracted: bool = False
    """From its retraction to its next extend batch."""
    retractions: int = 0
    resumed_at: int = -1
    """The count of retractions at its last admission."""
    finished: bool = False

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        return len(self.known) - self.prompt_length

    @property
    def ends_by_next_token(self) -> bool:
        """Whether one more token brings it to its limit."""
        return self.generated + 1 >= self.limit

    @property
    def prefill_only(self) -> bool:
        return self.limit == 0

    def left(self, clip: int) -> int:
        """Tokens it may still generate, as admission estimates them."""
        return min(max(self.limit - self.generated, 0), clip)

    def keep_rank(self) -> tuple[int, int]:
        """The larger, the longer it is spared from retraction."""
        return (self.generated, -self.prompt_length)


@dataclass(eq=False)
class _Batch:
    """A batch, and the running list, which is one between launches."""

    lives: list[_Live] = field(default_factory=list)
    full: bool = False
    """Set when a waiting request was refused, to spare trying again until something changes."""
    kind: str = "extend"
    computed: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)
    given: list[list[int]] = field(default_factory=list)
    """The slots handed out to each."""
    decoding: list[_Live] = field(default_factory=list)
    """Of a mixed batch, those behind the extending ones."""
    chunked: _Live | None = None
    prefill_only: bool = False

    def drop(self, leaving: Sequence[_Live] = ()) -> None:
        """Leave out those that have ended, and `leaving`."""
        self.lives = [live for live in self.lives if not live.finished and live not in leaving]

    def join(self, other: _Batch) -> None:
        self.lives = self.lives + other.lives
        self.prefill_only = self.prefill_only and other.prefill_only


@dataclass
class _Launched:
    """A batch from its launch to the treatment of its result."""

    lives: list[_Live]
    kind: str
    decoding: list[_Live]
    end_ns: int
    log: dict


@dataclass
class _Budget:
    """What an extend batch may still take (rule 13)."""

    tree: NaiveRadixTree
    reserved: float
    """All that has been promised, future tokens of running requests included."""
    promised: int
    """The part of it that this batch allocates."""
    input_tokens: int
    chunk_tokens: int | None

    @property
    def memory(self) -> float:
        return self.tree.allocator.available + self.tree.evictable - self.reserved

    def charge(self, extend: int, new_tokens: int) -> None:
        page = self.tree.page_size
        extend = -(-extend // page) * page
        self.reserved += extend + page + new_tokens
        self.promised += extend + page
        self.input_tokens -= extend
        if self.chunk_tokens is not None:
            self.chunk_tokens -= extend

    @property
    def out_of_memory(self) -> bool:
        free = self.tree.allocator.available + self.tree.evictable
        return self.memory <= 0 or free - self.promised <= 0

    @property
    def spent(self) -> bool:
        chunk_spent = self.chunk_tokens is not None and self.chunk_tokens <= 0
        return self.out_of_memory or self.input_tokens <= 0 or chunk_spent


class NaiveScheduler:
    """Admission, decoding, retraction and bookkeeping, without a clock."""

    def __init__(
        self,
        *,
        num_slots: int,
        page_size: int,
        chunked_prefill_size: int,
        max_prefill_tokens: int,
        schedule_policy: str,
        schedule_conservativeness: float,
        radix_eviction_policy: str,
        disable_radix_cache: bool,
        disable_overlap_schedule: bool,
        enable_mixed_chunk: bool,
        max_running_requests: int | None,
        context_length: int,
        clip_max_new_tokens_estimation: int,
    ) -> None:
        self.page_size = page_size
        self.num_slots = num_slots // page_size * page_size
        self.allocator = make_allocator(self.num_slots, page_size)
        self.tree = NaiveRadixTree(self.allocator, radix_eviction_policy, disabled=disable_radix_cache)
        if max_running_requests is None:
            max_running_requests = max(2048, min(4096, int(self.num_slots / context_length * 512)))
        self.max_running = min(max_running_requests, self.num_slots // 2)
        self.rows = NaiveRows(self.max_running)
        self.context_length = context_length
        self.chunk_size = chunked_prefill_size if chunked_prefill_size > 0 else None
        self.max_prefill_tokens = max_prefill_tokens
        self.by_prefix = schedule_policy == "lpm" and not disable_radix_cache
        self.touches_waiting = radix_eviction_policy == "lru" and not disable_radix_cache
        self.touch_passes = 0
        self.overlap = not disable_overlap_schedule
        self.mixes = enable_mixed_chunk and self.chunk_size is not None
        self.clip = clip_max_new_tokens_estimation
        self.start_ratio = min(START_RATIO * schedule_conservativeness, 1.0)
        self.floor_ratio = min(self.start_ratio * FLOOR_SHARE, 1.0)
        self.ratio_step = (self.start_ratio - self.floor_ratio) / DECAY_STEPS
        self.ratio = self.start_ratio
        self.waiting: list[_Live] = []
        self.running = _Batch()
        self.last_batch: _Batch | None = None
        self.chunked: _Live | None = None
        self.in_flight: deque[_Launched] = deque()
        self.evictions: list[tuple[int, int]] = []
        """(slots asked for, slots dropped) of each eviction since the last launch."""
        self.retracted_now: list[_Live] = []
        """Since the last launch."""
        self.aborted: list[_Live] = []

    # ------------------------------------------------------------------ arrival

    def add(self, number: int, request: NaiveRequest) -> _Live | None:
        """Queue a request that has just come; None if it is rejected (rules 4 and 5)."""
        prompt_length = len(request.prompt)
        longest = min(self.context_length, self.num_slots) - 1
        if prompt_length >= longest - 5:
            return None
        limit = len(request.output) if request.max_new_tokens is None else request.max_new_tokens
        room = self.num_slots - self._ceil(prompt_length) - self.page_size - 1
        limit = max(0, min(limit, longest - prompt_length - 1, room))
        live = _Live(number, request, limit, list(request.prompt))
        self.waiting.append(live)
        return live

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    # ------------------------------------------------------------------ one pass

    def schedule(self) -> _Batch | None:
        """The batch to launch now, if any."""
        if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix:
            self._publish_prefill(self.chunked)
        self._join_last_batch()
        if self.running.prefill_only:
            self.running.drop()
            if not self.running.lives:
                self.running.full = False
        batch = self._form_extend_batch()
        if batch is None and self.running.lives and not self.running.prefill_only:
            batch = self._form_decode_batch()
        self.last_batch = batch
        return batch

    def _join_last_batch(self) -> None:
        """Rule 8. A decode batch is the running list itself, so there is nothing to join."""
        last = self.last_batch
        if last is None or last.kind == "decode":
            return
        before = len(last.lives)
        last.drop([live for live in (self.chunked, last.chunked) if live is not None])
        if len(last.lives) < before:
            self.running.full = False
        if not last.lives:
            return
        if self.running.lives:
            self.running.join(last)
        else:
            self.running = last

    @property
    def is_empty(self) -> bool:
        """Whether no request is left in the engine."""
        return not (self.running.lives or self.waiting or self.in_flight or self.chunked)

    def check_nothing_lost(self) -> None:
        """With no request in the engine every slot is free or the tree's, and every row is free."""
        assert self.allocator.available + self.tree.evictable == self.num_slots
        assert len(set(self.allocator.free)) == len(self.allocator.free)
        assert not any(node.locks for node in self.tree.nodes)
        assert len(self.rows.free) == self.max_running

    # ------------------------------------------------------------------ extend batches

    def _form_extend_batch(self) -> _Batch | None:
        running = self.running
        if not running.lives:
            running.full = False
        if self.chunked is None:
            if running.full or not self.waiting:
                return None
            if self._seats() <= 0:
                running.full = True
                return None
        self._apply_policy()
        budget = self._open_budget()
        admitted: list[_Live] = []
        started: _Live | None = None
        if self.chunked is not None:
            admitted.append(self.chunked)
            if self._continue_chunked(self.chunked, budget):
                self.chunked = None
        for live in self.waiting:
            if len(admitted) >= self._seats():
                running.full = True
                break
            verdict = self._try_admit(live, budget, bool(admitted))
            if verdict in ("whole", "chunk"):
                admitted.append(live)
            if verdict == "chunk":
                started = live
            if verdict == "no memory" or (verdict in ("whole", "chunk") and budget.out_of_memory):
                running.full = bool(admitted) or bool(running.lives)
                break
            if verdict == "no budget" or budget.spent:
                break
        if not admitted:
            return None
        self.waiting = [live for live in self.waiting if live not in admitted]
        if started is not None:
            assert self.chunked is None
            self.chunked = started
        if self.chunked is not None:
            self.chunked.chunks_out += 1
        batch = _Batch(admitted, chunked=self.chunked)
        batch.prefill_only = all(live.prefill_only for live in admitted)
        self._allocate_extend(batch)
        if self.mixes and running.lives:
            self._mix_in_running(batch)
        return batch

    def _seats(self) -> int:
        return min(max(self.max_running, 1) - len(self.running.lives), len(self.rows.free))

    def _open_budget(self) -> _Budget:
        decoding = len(self.running.lives) if self.mixes else 0
        future = 0.0
        for live in self.running.lives:
            future += min(live.limit - live.generated, self.clip) * self.ratio
        chunk = None if self.chunk_size is None else self.chunk_size - decoding
        return _Budget(self.tree, decoding + future, decoding, self.max_prefill_tokens - decoding, chunk)

    def _continue_chunked(self, live: _Live, budget: _Budget) -> bool:
        """Rule 14; whether this chunk completes the prompt."""
        assert budget.chunk_tokens is not None
        room = min(budget.chunk_tokens, int(budget.memory))
        if room <= 0:
            room = budget.chunk_tokens
        wanted = len(live.known) - live.prefix
        live.extend_end = live.prefix + min(wanted, room)
        complete = wanted <= room
        budget.charge(live.extend_end - live.prefix, min(live.limit, self.clip) if complete else 0)
        return complete

    def _try_admit(self, live: _Live, budget: _Budget, others: bool) -> str:
        """Rule 15: `whole`, `chunk`, or why not: `no memory`, `no budget`."""
        live.node = self.tree.match(live.known[: len(live.known) - 1])
        live.prefix = live.protected = len(self.tree.path_slots(live.node))
        self.tree.lock(live.node)
        verdict = self._judge(live, budget, others)
        if verdict in ("whole", "chunk"):
            live.locked = live.node
        else:
            self.tree.unlock(live.node)
        return verdict

    def _judge(self, live: _Live, budget: _Budget, others: bool) -> str:
        """With the prefix locked, decide and charge the budget."""
        extend = len(live.known) - live.prefix
        if extend + live.left(self.clip) + self.page_size >= budget.memory:
            return "no memory"
        if budget.chunk_tokens is None:
            if others and self._ceil(extend) >= budget.input_tokens:
                return "no budget"
        elif self._ceil(extend) > budget.chunk_tokens:
            extend = self.tree.aligned(budget.chunk_tokens)
            if extend <= 0:
                return "no budget"
            live.extend_end = live.prefix + extend
            budget.charge(extend, 0)
            return "chunk"
        live.extend_end = len(live.known)
        budget.charge(extend, min(live.limit, self.clip))
        return "whole"

    def _allocate_extend(self, batch: _Batch) -> None:
        """Rows first, then slots, evicting for them (rules 26 and 28)."""
        new = [live for live in batch.lives if live.row is None]
        for live, row in zip(new, self.rows.take(len(new)), strict=True):
            live.row = row
            live.slots = self.tree.path_slots(live.node) if live.node is not None else []
        batch.computed = [live.prefix for live in batch.lives]
        batch.scheduled = [live.extend_end - live.prefix for live in batch.lives]
        spare = 0 if self.page_size == 1 else len(batch.lives) * self.page_size
        self._evict_for(sum(batch.scheduled) + spare)
        for live, tokens in zip(batch.lives, batch.scheduled, strict=True):
            given = self.allocator.extend(live.slots, tokens)
            live.slots = live.slots + given
            live.committed = live.extend_end
            live.retracted = False
            batch.given.append(given)

    def _evict_for(self, slots: int) -> bool:
        """Evict if fewer than `slots` are free; whether they are then."""
        short = slots - self.allocator.available
        if short > 0 and not self.tree.disabled:
            self.evictions.append((short, self.tree.evict_to(slots)))
        return self.allocator.available >= slots

    # ------------------------------------------------------------------ policy

    def _apply_policy(self) -> None:
        """Rules 11 and 12."""
        if self.by_prefix and len(self.waiting) <= MATCHED_IN_QUEUE:
            self._sort_by_prefix()
        elif self.touches_waiting and self.waiting:
            self.touch_passes += 1
            if self.touch_passes % TOUCH_INTERVAL == 1:
                for live in reversed(self.waiting[:MATCHED_IN_QUEUE]):
                    self.tree.match(live.known)

    def _sort_by_prefix(self) -> None:
        matched: dict[_Live, int] = {}
        behind: list[_Live] = []
        leaders: list[_Live] = []
        for live in self.waiting:
            length = len(self.tree.path_slots(self.tree.match(live.known)))
            matched[live] = min(length, len(live.known) - 1)
            if length > IN_BATCH_PREFIX:
                continue
            opening = live.known[:IN_BATCH_PREFIX]
            if len(opening) == IN_BATCH_PREFIX and any(opening == leader.known[:IN_BATCH_PREFIX] for leader in leaders):
                behind.append(live)
            else:
                leaders.append(live)
        ahead = [live for live in self.waiting if live not in behind]
        self.waiting = sorted(ahead, key=lambda live: -matched[live]) + behind

    # ------------------------------------------------------------------ decode batches

    def _form_decode_batch(self) -> _Batch | None:
        """Rule 16; the running list itself, or None to launch nothing."""
        running = self.running
        before = len(running.lives)
        ending = self._ending_in_flight()
        running.drop(ending)
        if not running.lives:
            running.full = False
            return None
        if self._fits_decode(running.lives):
            self.ratio = max(self.ratio - self.ratio_step, self.floor_ratio)
        elif ending:
            running.full = False
            return None
        else:
            self._retract()
        if len(running.lives) < before:
            running.full = False
        if not running.lives:
            return None
        self._allocate_decode(running)
        return running

    def _ending_in_flight(self) -> list[_Live]:
        """Running requests whose result in flight is their last by length."""
        if not self.overlap or not self.in_flight:
            return []
        out = self.in_flight[0].lives
        return [live for live in self.running.lives if live in out and live.ends_by_next_token]

    def _fits_decode(self, lives: Sequence[_Live]) -> bool:
        """Whether each can get its next slot, after evicting for it."""
        pages = sum(live.committed % self.page_size == 0 for live in lives)
        return self._evict_for(pages * self.page_size)

    def _allocate_decode(self, batch: _Batch) -> None:
        batch.kind = "decode"
        batch.decoding = []
        batch.computed = [live.committed for live in batch.lives]
        batch.scheduled = [1] * len(batch.lives)
        self._evict_for(len(batch.lives) * self.page_size)
        batch.given = []
        if self.page_size == 1:
            batch.given = [[slot] for slot in self.allocator.take(len(batch.lives))]
        else:
            batch.given = [self.allocator.extend(live.slots, 1) for live in batch.lives]
        for live, given in zip(batch.lives, batch.given, strict=True):
            live.slots.extend(given)
            live.committed += 1

    def _mix_in_running(self, batch: _Batch) -> None:
        """Rule 30."""
        running = self.running
        ending = self._ending_in_flight()
        running.drop(ending)
        if ending:
            running.full = False
        if not running.lives or not self._fits_decode(running.lives):
            return
        self._allocate_decode(running)
        batch.kind = "mixed"
        batch.decoding = running.lives
        batch.lives = batch.lives + running.lives
        batch.computed += running.computed
        batch.scheduled += running.scheduled
        batch.given += running.given
        batch.prefill_only = False
        self.running = _Batch(full=running.full)

    # ------------------------------------------------------------------ retraction

    def _retract(self) -> None:
        """Rules 23 and 24."""
        kept = sorted(self.running.lives, key=_Live.keep_rank, reverse=True)
        retracted: list[_Live] = []
        while len(kept) > 1 and (not retracted or not self._fits_decode(kept)):
            retracted.append(kept.pop())
            self._take_away(retracted[-1], len(kept))
        if len(kept) == 1 and not self._fits_decode(kept):
            self.aborted.append(kept.pop())
            self._take_away(self.aborted[-1], 0)
        self.running.lives = kept
        generated = sum(live.generated for live in kept)
        limits = sum(live.limit for live in kept)
        self.ratio = min(1.0, (generated + RETRACT_STEPS * len(kept)) / (limits + 1))
        self.waiting.extend(retracted)
        self.retracted_now.extend(retracted)

    def _take_away(self, live: _Live, remaining: int) -> None:
        """Free all that a request holds, and make room for those that remain."""
        self._release(live, live.committed)
        self._evict_for(remaining * RETRACT_STEPS)
        live.retractions += 1
        live.retracted = True
        live.committed = live.protected = live.published = live.prefix = live.chunks_out = 0
        live.node = None

    # ------------------------------------------------------------------ results

    def treat(self, launched: _Launched) -> tuple[list[_Live], list[_Live]]:
        """Treat a result in batch order; return who got a token and who finished."""
        served: list[_Live] = []
        finished: list[_Live] = []
        self.allocator.hold_frees()
        for live in launched.lives:
            if live.finished or live.retracted:
                continue
            if launched.kind != "decode" and live.chunks_out > 0:
                live.chunks_out -= 1
                continue
            live.known.append(live.request.output[live.generated])
            served.append(live)
            if live.generated >= live.limit or live.generated == len(live.request.output):
                self._finish(live)
                finished.append(live)
            elif launched.kind != "decode" and live not in launched.decoding:
                self._publish_prefill(live)
        self.allocator.apply_frees()
        return served, finished

    def _finish(self, live: _Live) -> None:
        """Rule 29."""
        live.finished = True
        owned = min(live.committed, live.prompt_length + min(live.generated, live.limit))
        self._publish(live, owned)
        self._release(live, owned)

    def _publish_prefill(self, live: _Live) -> None:
        """Publish what its extend batch computes; the next one would go on from there."""
        self._publish(live, live.extend_end)
        live.prefix = live.extend_end

    def _publish(self, live: _Live, length: int) -> None:
        """Rule 19: the first `length` known tokens become part of the tree."""
        if self.tree.disabled:
            return
        whole = self.tree.aligned(length)
        prompt = self.tree.aligned(live.prompt_length)
        slots = live.slots[:whole]
        self.tree.insert(live.known[:whole], slots, owned=live.protected, counted=live.published)
        live.published = max(live.published, whole)
        if 0 < prompt < whole:
            self.tree.insert(live.known[:prompt], slots[:prompt], owned=prompt, counted=prompt, priority=1)
        node = self.tree.match(live.known[:whole])
        tree_slots = self.tree.path_slots(node)
        live.slots[live.protected : len(tree_slots)] = tree_slots[live.protected :]
        if live.locked is not None:
            self.tree.unlock(live.locked)
        self.tree.lock(node)
        live.locked = live.node = node
        live.protected = len(tree_slots)

    def _release(self, live: _Live, owned: int) -> None:
        """Give back the slots that are not the tree's, the lock and the row."""
        assert owned == live.committed, "a request holds slots beyond its own tokens"
        assert live.row is not None
        self.allocator.give_back(live.slots[live.protected : owned])
        if live.locked is not None:
            self.tree.unlock(live.locked)
        self.rows.give_back(live.row)
        live.locked = live.row = None
        live.slots = []


class _Engine:
    """The engine's loop in virtual time (rules 1 to 3)."""

    def __init__(self, requests: Sequence[NaiveRequest], scheduler: NaiveScheduler, step_ns: StepTime) -> None:
        self.scheduler = scheduler
        self.step_ns = step_ns
        self.pending = deque(enumerate(requests))
        self.now = 0
        self.device_free = 0
        self.idle_at: tuple[int, int] | None = None
        """Time and launched batches at the last idle pass with requests waiting."""
        n = len(requests)
        unset, none = ([-1] * n for _ in range(5)), ([0] * n for _ in range(4))
        self.result = NaiveResult([], [], [], [], [], *unset, *none)

    def run(self) -> NaiveResult:
        scheduler = self.scheduler
        while True:
            self._take_in()
            previous = scheduler.last_batch
            batch = scheduler.schedule()
            if batch is not None:
                scheduler.in_flight.append(self._launch(batch))
            waits_for = previous if scheduler.overlap else batch
            if waits_for is not None:
                self._treat(scheduler.in_flight.popleft())
            elif batch is None and not self._idle(previous):
                break
        self.result.free_order = list(scheduler.allocator.free)
        self.result.row_order = list(scheduler.rows.free)
        self.result.aborted = [live.number for live in scheduler.aborted]
        return self.result

    def _take_in(self) -> None:
        """Requests that have come by now join the queue, in the trace's order."""
        while self.pending and self.pending[0][1].arrival_ns <= self.now:
            number, request = self.pending.popleft()
            self.result.ingested_ns[number] = self.now
            if self.scheduler.add(number, request) is None:
                self.result.rejected.append(number)

    def _idle(self, previous: _Batch | None) -> bool:
        """Rule 3; False when all is done."""
        scheduler = self.scheduler
        if scheduler.is_empty and (previous is None or not previous.lives):
            scheduler.check_nothing_lost()
            scheduler.ratio = scheduler.start_ratio
            if not self.pending:
                return False
        elif self.idle_at != (self.now, len(self.result.steps)):
            self.idle_at = (self.now, len(self.result.steps))
            return True
        elif not self.pending:
            first = scheduler.waiting[0].number
            raise RuntimeError(f"request {first} does not fit into the empty engine and blocks the queue")
        self.now = max(self.now, self.pending[0][1].arrival_ns)
        return True

    def _launch(self, batch: _Batch) -> _Launched:
        scheduler = self.scheduler
        decodes = len(batch.lives) if batch.kind == "decode" else len(batch.decoding)
        prefill = sum(batch.scheduled) - decodes
        context = sum(batch.computed) + sum(batch.scheduled)
        duration = self.step_ns(prefill, decodes, context)
        start = max(self.now, self.device_free)
        self.device_free = start + duration
        evictions, scheduler.evictions = scheduler.evictions, []
        retracted, scheduler.retracted_now = scheduler.retracted_now, []
        entries = zip(batch.lives, batch.computed, batch.scheduled, batch.given, strict=True)
        log = {
            "step": len(self.result.steps),
            "time_ns": self.now,
            "duration_ns": duration,
            "scheduled": [[live.number, before, tokens, runs(given)] for live, before, tokens, given in entries],
            "preempted": [live.number for live in retracted],
            "finished": [],
            "evicted": sum(dropped for _, dropped in evictions),
            "free": len(scheduler.allocator.free),
            "kind": batch.kind,
            "start_ns": start,
            "prefill_tokens": prefill,
            "decode_seqs": decodes,
            "context_tokens": context,
            "rows": [live.row for live in batch.lives],
            "available": scheduler.allocator.available,
            "evictable": scheduler.tree.evictable,
            "evictions": [list(eviction) for eviction in evictions],
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running.lives),
            "new_token_ratio": scheduler.ratio,
        }
        self.result.steps.append(log)
        self._note_extends(batch)
        for live in retracted:
            self.result.preemptions[live.number] = live.retractions
        return _Launched(batch.lives, batch.kind, batch.decoding, self.device_free, log)

    def _note_extends(self, batch: _Batch) -> None:
        if batch.kind == "decode":
            return
        result = self.result
        for live, before in zip(batch.lives, batch.computed, strict=True):
            if live in batch.decoding:
                continue
            number = live.number
            result.prefills[number] += 1
            if result.first_scheduled_ns[number] < 0:
                result.first_scheduled_ns[number] = self.now
                result.cached_first[number] = before
            elif live.resumed_at != live.retractions:
                result.cached_resumed[number] += before
            live.resumed_at = live.retractions

    def _treat(self, launched: _Launched) -> None:
        self.now = max(self.now, launched.end_ns)
        served, finished = self.scheduler.treat(launched)
        for live in served:
            self.result.generated[live.number] = live.generated
            if live.generated == 1:
                self.result.first_token_ns[live.number] = self.now
        for live in finished:
            self.result.finished_ns[live.number] = self.now
        launched.log["finished"] = [live.number for live in finished]


def runs(slots: Sequence[int]) -> list[list[int]]:
    """Slot ids as `[start, length]` runs of consecutive ones."""
    found: list[list[int]] = []
    for slot in slots:
        if found and slot == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([slot, 1])
    return found


def replay(
    requests: Sequence[NaiveRequest],
    *,
    num_slots: int,
    page_size: int = 1,
    chunked_prefill_size: int = 8192,
    max_prefill_tokens: int = 16384,
    schedule_policy: str = "fcfs",
    schedule_conservativeness: float = 1.0,
    radix_eviction_policy: str = "lru",
    disable_radix_cache: bool = False,
    disable_overlap_schedule: bool = False,
    enable_mixed_chunk: bool = False,
    max_running_requests: int | None = None,
    context_length: int = 131072,
    clip_max_new_tokens_estimation: int = 4096,
    step_ns: StepTime = linear_step_ns,
) -> NaiveResult:
    """Replay `requests`, given in arrival order."""
    scheduler = NaiveScheduler(
        num_slots=num_slots,
        page_size=page_size,
        chunked_prefill_size=chunked_prefill_size,
        max_prefill_tokens=max_prefill_tokens,
        schedule_policy=schedule_policy,
        schedule_conservativeness=schedule_conservativeness,
        radix_eviction_policy=radix_eviction_policy,
        disable_radix_cache=disable_radix_cache,
        disable_overlap_schedule=disable_overlap_schedule,
        enable_mixed_chunk=enable_mixed_chunk,
        max_running_requests=max_running_requests,
        context_length=context_length,
        clip_max_new_tokens_estimation=clip_max_new_tokens_estimation,
    )
    return _Engine(requests, scheduler, step_ns).run()
