"""What an engine is put together from: its memory, its scheduler, and how a request enters it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..allocators.base import BlockAllocator
from ..allocators.block_pool import BlockPool
from ..allocators.block_table import BlockTable
from ..allocators.radix_tree import RadixTree
from ..allocators.slot_pool import SlotPool
from ..traces.blocks import BlockNodes
from ..traces.errors import InputError
from ..traces.sequences import TokenSequences
from ..traces.trace import Trace
from .engine import Clocked
from .evictions import EvictionRecorder, EvictionSink
from .holdings import Holdings
from .meter import Meter
from .request import PoolRequest, Request, TreeRequest
from .scheduler import Scheduler
from .settings import SchedulerSettings, Settings, SglangSettings
from .sglang_memory import SglangMemory
from .sglang_scheduler import SglangScheduler
from .tree_evictions import TreeEvictionRecorder
from .tree_memory import TreeMemory
from .vllm_memory import VllmMemory
from .vllm_scheduler import VllmScheduler

Int64 = npt.NDArray[np.int64]

_MIN_DEFAULT_RUNNING, _MAX_DEFAULT_RUNNING, _DEFAULT_RUNNING_SHARE = 2048, 4096, 512
"""SGLang's own rule for how many requests may run: 512 times the contexts that fit, within these bounds."""


class Setup(Protocol):
    """An engine ready to run.

    Attributes:
        scheduler: with all that it holds.
        asynchronous: whether a step is scheduled while the one before it runs.
        capacity: blocks (pages) that can be in use at once.
        block_size: tokens in each.
        meter: for what is averaged over time.
    """

    asynchronous: bool
    capacity: int
    block_size: int
    meter: Meter

    @property
    def scheduler(self) -> Scheduler: ...

    def make(self, index: int, arrival_ns: int) -> Request | None:
        """Return the request of row `index`, to be handed to the scheduler; None if it is rejected."""
        ...

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Send evictions to `sink`; returns who must be told the time for it, if anybody."""
        ...

    def free_order(self) -> Int64:
        """Return the free blocks (pages) in the order in which they would be handed out, int64 [any]."""
        ...


class _Lengths:
    """What the server is told of each request, and how long it becomes."""

    def __init__(self, trace: Trace, settings: Settings, max_new_tokens: list[int] | None) -> None:
        # Reading single numbers out of a memoryview is several times as fast as out of an array.
        self.prompt = trace.prompt_tokens.data
        self.output = trace.output_tokens.data
        told = settings.requests.max_new_tokens
        self._fixed = told if isinstance(told, int) else None
        self._told = max_new_tokens
        self.most = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max(initial=1))

    def told(self, index: int) -> int:
        """Return the most tokens that the request may generate."""
        if self._told is not None:
            return self._told[index]
        return self.output[index] if self._fixed is None else self._fixed


class VllmSetup:
    """vLLM's scheduler on its block pool."""

    def __init__(
        self, trace: Trace, settings: Settings, num_blocks: int, max_new_tokens: list[int] | None = None
    ) -> None:
        """Put it together.

        Args:
            trace: the requests.
            settings: of the engine; how large the pool is, they need not say.
            num_blocks: of the pool, null block included.
            max_new_tokens: what the server is told of each request [n], in place of what the settings say.

        Raises:
            InputError: the block size does not go with the trace's.
        """
        assert isinstance(settings.scheduler, SchedulerSettings)
        scheduler, allocator = settings.scheduler, settings.allocator
        self.block_size = allocator.block_size
        self.capacity = num_blocks - 1
        self.asynchronous = scheduler.async_scheduling
        self._longest = scheduler.max_model_len
        self._lengths = lengths = _Lengths(trace, settings, max_new_tokens)
        self._priority = None if trace.priority is None else trace.priority.data
        width = min(-(-min(lengths.most, self._longest) // allocator.block_size) + 1, num_blocks)
        table = BlockTable(min(scheduler.max_num_seqs, max(len(trace), 1)), width)
        self.meter = Meter()
        self.scheduler = VllmScheduler(scheduler, self._memory(trace, allocator.prefix_caching, table))

    def _memory(self, trace: Trace, prefix_caching: bool, table: BlockTable) -> VllmMemory:
        """Return the memory, empty: rows in `table` on `capacity` blocks."""
        nodes = BlockNodes(trace, self.block_size)
        self.num_nodes = nodes.num_nodes
        self.allocator = self._pool(nodes.num_nodes if prefix_caching else 0)
        return Holdings(self.allocator, table, nodes, prefix_caching)

    def _pool(self, num_nodes: int) -> BlockAllocator:
        """Return the pool, empty; with `num_nodes` of 0 it caches nothing."""
        return BlockPool(self.capacity + 1, self.block_size, num_nodes)

    def make(self, index: int, arrival_ns: int) -> Request | None:
        """Return the request of row `index`, unless its prompt or its last token but one can never have a slot."""
        prompt, told = self._lengths.prompt[index], self._lengths.told(index)
        total = min(prompt + min(self._lengths.output[index], told), self._longest)
        if prompt >= self._longest or -(-(total - 1) // self.block_size) > self.capacity:
            return None
        priority = 0 if self._priority is None else self._priority[index]
        eos = total < min(prompt + told, self._longest)
        return self._request(index, arrival_ns, prompt, total, priority, eos)

    def _request(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int, eos: bool
    ) -> PoolRequest | None:
        return PoolRequest(index, arrival_ns, prompt, total, priority, eos)

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Send evictions, one row a block, to `sink`."""
        recorder = EvictionRecorder(self.capacity + 1, self.num_nodes, sink)
        self.allocator.observer = recorder
        return recorder

    def free_order(self) -> Int64:
        """Return the free queue from its head, int64 [any]."""
        return self.allocator.free_order()


class SglangSetup:
    """SGLang's scheduler on its slots or pages and radix tree."""

    request_class = TreeRequest

    def __init__(
        self, trace: Trace, settings: Settings, num_slots: int, max_new_tokens: list[int] | None = None
    ) -> None:
        """Put it together.

        Args:
            trace: the requests.
            settings: of the engine; how many slots there are, they need not say.
            num_slots: tokens that can be held, the padding slot or page not counted.
            max_new_tokens: what the server is told of each request [n], in place of what the settings say.
        """
        assert isinstance(settings.scheduler, SglangSettings)
        scheduler = settings.scheduler
        self.block_size = page = settings.allocator.block_size
        self.asynchronous = not scheduler.disable_overlap_schedule
        chunk = scheduler.chunked_prefill_size
        if 0 < chunk < page:
            raise InputError(
                f"scheduler.chunked_prefill_size: {chunk} is less than a page of {page} tokens, so that no longer "
                f"prompt could ever be admitted; expected at least {page}, or 0 for no chunks"
            )
        self._clip = scheduler.clip_max_new_tokens_estimation
        self._lengths = lengths = _Lengths(trace, settings, max_new_tokens)
        self._sequences = TokenSequences(trace)
        self.capacity = num_slots // page
        self._slots = self.capacity * page
        self._longest = min(scheduler.context_length, self._slots) - 1
        running = max_running_requests(scheduler, self._slots)
        width = min(-(-min(lengths.most, scheduler.context_length) // page), self.capacity) + 1
        table = BlockTable(min(running, max(len(trace), 1)), width)
        self.meter = Meter()
        self.scheduler = SglangScheduler(scheduler, self._memory(trace, scheduler, table, running), running)

    def _memory(self, trace: Trace, scheduler: SglangSettings, table: BlockTable, rows: int) -> SglangMemory:
        """Return the memory, empty: rows in `table` on `capacity` pages."""
        self.pool = SlotPool(self._slots, self.block_size)
        self.tree = None if scheduler.disable_radix_cache else RadixTree(self.pool, scheduler.radix_eviction_policy)
        return TreeMemory(self.pool, self.tree, table, rows)

    def make(self, index: int, arrival_ns: int) -> Request | None:
        """Return the request of row `index`, its limit clipped to what fits, unless it can never be admitted."""
        prompt = self._lengths.prompt[index]
        if prompt >= self._longest - 5:
            return None
        room = self._slots - -(-prompt // self.block_size) * self.block_size - self.block_size - 1
        limit = max(0, min(self._lengths.told(index), self._longest - prompt - 1, room))
        if prompt + min(limit, self._clip) + self.block_size >= self._slots:
            # Short enough for the engine's length rule, yet its admission would refuse it for ever.
            return None
        # With nothing to generate it still computes its prompt, and ends with the token that brings.
        total = prompt + max(1, min(limit, self._lengths.output[index]))
        eos = total < prompt + limit
        # A request that ends by itself generates an EOS last, whatever the trace says of that token.
        sequence = self._sequences.of(index, total, eos)
        return self.request_class(index, arrival_ns, prompt, total, limit, sequence)

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Send evictions, one row a leaf of the tree, to `sink`."""
        return None if self.tree is None else observe_tree(self.tree, sink)

    def free_order(self) -> Int64:
        """Return the free pages from the head of the list, int64 [any]."""
        return self.pool.free_order()


def observe_tree(tree: RadixTree, sink: EvictionSink) -> Clocked:
    """Send evictions, one row a leaf of `tree`, to `sink`; returns who must be told the time for it."""
    tree.observer = recorder = TreeEvictionRecorder(tree, sink)
    return recorder


def max_running_requests(settings: SglangSettings, num_slots: int) -> int:
    """Return how many requests may run at once, which is also the number of rows."""
    asked = settings.max_running_requests
    if asked is None:
        asked = int(num_slots / settings.context_length * _DEFAULT_RUNNING_SHARE)
        asked = max(_MIN_DEFAULT_RUNNING, min(_MAX_DEFAULT_RUNNING, asked))
    return min(asked, num_slots // 2)
