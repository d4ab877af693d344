"""A trace's prefix nodes at an engine's block size."""

from __future__ import annotations

import numpy as np

from .errors import InputError
from .trace import Int64, Trace


class BlockNodes:
    """For every request, the node of each of its full blocks of `block_size` tokens.

    Where the trace knows the tokens (its `covered_tokens`), blocks with the same prefix have the same node in all
    requests. The blocks behind that, filled by generated tokens nobody repeats, have nodes of their own: consecutive
    numbers, so that block `k` of request `i` has `private_base[i] + k`.

    Attributes:
        num_nodes: all node numbers are below this.
        shared: int64 [n], blocks of each request whose node comes from the trace.
        private_base: int64 [n].
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        """Derive the nodes.

        Raises:
            InputError: neither of `block_size` and the trace's granularity divides the other.
        """
        self._trace = trace
        granularity = trace.granularity
        if granularity and granularity % block_size and block_size % granularity:
            raise InputError(
                f"allocator.block_size: {block_size} does not fit {trace.name}, whose block ids stand for "
                f"{granularity} tokens; sizes that do: {_fitting_sizes(granularity)}"
            )
        self._split = max(granularity // block_size, 1)
        self._stride = max(block_size // granularity, 1) if granularity else 1
        self._within = np.arange(self._split)
        known = 0 if trace.covered_tokens is None else trace.covered_tokens.astype(np.int64)
        self.shared: Int64 = np.zeros(len(trace), np.int64) + known // block_size
        computed = trace.prompt_tokens.astype(np.int64) + trace.output_tokens - 1
        private = np.maximum(computed // block_size - self.shared, 0)
        shared_nodes = trace.num_nodes * self._split
        before = np.cumsum(private) - private
        self.private_base: Int64 = shared_nodes + before - self.shared
        self.num_nodes = shared_nodes + int(private.sum())
        # Reading single numbers out of a memoryview is several times as fast as out of an array.
        self._start = None if trace.node_ptr is None else trace.node_ptr.data
        self._shared = self.shared.data

    def of(self, request: int) -> Int64:
        """Return the nodes of the blocks that the trace knows, int64 [shared[request]]."""
        if self._start is None or self._trace.nodes is None:
            return np.empty(0, np.int64)
        nodes = self._trace.nodes[self._start[request] : self._start[request + 1]].astype(np.int64)
        if self._stride > 1:
            nodes = nodes[self._stride - 1 :: self._stride]
        elif self._split > 1:
            # A block inside a longer trace block is named by that block and its place in it.
            nodes *= self._split
            nodes = np.add.outer(nodes, self._within).ravel()
        return nodes[: self._shared[request]]


def _fitting_sizes(granularity: int) -> str:
    smaller = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if granularity % size == 0]
    larger = [granularity * factor for factor in (2, 4)]
    return ", ".join(str(size) for size in sorted({*smaller, granularity, *larger}))
