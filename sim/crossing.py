"""Schedulers on allocators that their engines do not ship."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..allocators.block_pool import BlockPool
from ..allocators.block_table import BlockTable
from ..allocators.contiguous import ContiguousPool
from ..allocators.radix_tree import RadixTree
from ..allocators.slot_pool import SlotPool
from ..traces.blocks import BlockNodes
from ..traces.sequences import TokenSequences
from ..traces.trace import Trace
from .contiguous_holdings import ContiguousHoldings
from .contiguous_meter import ContiguousMeter
from .engine import Clocked
from .evictions import EvictionRecorder, EvictionSink
from .pool_memory import PoolMemory
from .request import BlockRequest, ContiguousRequest, PagedRequest, PoolRequest
from .settings import Settings, SglangSettings
from .setup import SglangSetup, VllmSetup, observe_tree
from .sglang_memory import SglangMemory
from .tree_holdings import TreeHoldings
from .tree_memory import TreeMemory
from .vllm_memory import VllmMemory

Int64 = npt.NDArray[np.int64]


class SglangOnBlocks(SglangSetup):
    """SGLang's scheduler on vLLM's block pool. `disable_radix_cache` turns the pool's prefix cache off."""

    request_class = BlockRequest

    def _memory(self, trace: Trace, scheduler: SglangSettings, table: BlockTable, rows: int) -> SglangMemory:
        nodes = BlockNodes(trace, self.block_size)
        caching = not scheduler.disable_radix_cache
        self._num_nodes = nodes.num_nodes
        self.blocks = BlockPool(self.capacity + 1, self.block_size, nodes.num_nodes if caching else 0)
        return PoolMemory(self.blocks, table, nodes, rows, prefix_caching=caching)

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Send evictions, one row a block, to `sink`."""
        self.blocks.observer = recorder = EvictionRecorder(self.capacity + 1, self._num_nodes, sink)
        return recorder

    def free_order(self) -> Int64:
        """Return the free queue from its head, int64 [any]."""
        return self.blocks.free_order()


class VllmOnPages(VllmSetup):
    """vLLM's scheduler on SGLang's slots or pages and radix tree, which evicts the least recently used first."""

    def _memory(self, trace: Trace, prefix_caching: bool, table: BlockTable) -> VllmMemory:
        self._sequences = TokenSequences(trace)
        self.pages = SlotPool(self.capacity * self.block_size, self.block_size)
        self.tree = RadixTree(self.pages, "lru") if prefix_caching else None
        return TreeHoldings(TreeMemory(self.pages, self.tree, table, rows=0))

    def _request(self, index: int, arrival_ns: int, prompt: int, total: int, priority: int, eos: bool) -> PoolRequest:
        # The last token is never in the cache, whatever the trace says of it.
        sequence = self._sequences.of(index, total, eos)
        return PagedRequest(index, arrival_ns, prompt, total, priority, eos, sequence)

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Send evictions, one row a leaf of the tree, to `sink`."""
        return None if self.tree is None else observe_tree(self.tree, sink)

    def free_order(self) -> Int64:
        """Return the free pages from the head of the list, int64 [any]."""
        return self.pages.free_order()


class VllmContiguous(VllmSetup):
    """vLLM's scheduler on one region of consecutive blocks a request: prompt and most new tokens."""

    def _memory(self, trace: Trace, prefix_caching: bool, table: BlockTable) -> VllmMemory:
        self.pieces = ContiguousPool(self.capacity + 1, self.block_size)
        holdings = ContiguousHoldings(self.pieces, table)
        self.meter = ContiguousMeter(holdings)
        return holdings

    def _request(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int, eos: bool
    ) -> PoolRequest | None:
        most = min(prompt + self._lengths.told(index), self._longest)
        reserved = -(-most // self.block_size)
        if reserved > self.capacity:
            return None
        return ContiguousRequest(index, arrival_ns, prompt, total, priority, eos, reserved)

    def observe(self, sink: EvictionSink) -> Clocked | None:
        """Nothing is ever evicted."""
        return None

    def free_order(self) -> Int64:
        """Return the free blocks in the order of their numbers, int64 [any]."""
        return self.pieces.free_order()


_SETUPS = {
    ("vllm", "block_pool"): VllmSetup,
    ("vllm", "token_slots"): VllmOnPages,
    ("vllm", "paged_slots"): VllmOnPages,
    ("vllm", "contiguous"): VllmContiguous,
    ("sglang", "token_slots"): SglangSetup,
    ("sglang", "paged_slots"): SglangSetup,
    ("sglang", "block_pool"): SglangOnBlocks,
}


def make_setup(
    trace: Trace, settings: Settings, capacity: int, max_new_tokens: list[int] | None = None
) -> VllmSetup | SglangSetup:
    """Return the engine that `settings` name; `capacity` is its `num_blocks` or `num_slots`."""
    kind: Any = _SETUPS[settings.engine, settings.allocator.kind]
    return kind(trace, settings, capacity, max_new_tokens)
