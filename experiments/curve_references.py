"""The stream of references to prefix blocks that a trace makes to a cache of blocks of one size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..traces.errors import InputError
from ..traces.ragged import flat_indices, pointers
from ..traces.trace import Trace

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class References:
    """What is asked of the cache, in arrival order and, within a request, from the first block to the last (r entries).

    An entry is a *segment*: blocks next to each other that are never asked for one without the others, so that one
    entry stands for all of them. Where the engine's blocks are smaller than the trace's, this keeps the stream as
    short as the trace. The answer's blocks, as far as the trace knows them, are entries too: they enter the cache but
    are no prompt's, and count neither as hits nor as misses.
    """

    request_ptr: Int64
    """int64 [requests + 1]: the entries of each request."""
    segment: Int64
    """int64 [r], the segment of each entry."""
    blocks: Int64
    """int64 [r], blocks that the entry stands for, at least 1."""
    asked: Bool
    """bool [r]: whether they are the prompt's."""
    tokens: Int64
    """int64 [r], prompt tokens in them."""

    @property
    def asked_blocks(self) -> int:
        """Blocks of all prompts, last partial ones included."""
        return int(self.blocks[self.asked].sum())

    @property
    def asked_tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.tokens.sum())

    def leaf_first(self) -> References:
        """Each request's entries from the last to the first, as engines give up the blocks of a request that ends."""
        row = np.repeat(np.arange(len(self.request_ptr) - 1), np.diff(self.request_ptr))
        order = self.request_ptr[row] + self.request_ptr[row + 1] - 1 - np.arange(len(row))
        return References(
            self.request_ptr, self.segment[order], self.blocks[order], self.asked[order], self.tokens[order]
        )


def references(trace: Trace, block_size: int) -> References:
    """Return the references of `trace` to blocks of `block_size` tokens; the last, partial block of a prompt is one.

    Raises:
        InputError: neither of `block_size` and the trace's granularity divides the other.
    """
    if block_size < 1:
        raise InputError(f"--block-size {block_size}: expected a whole number of at least 1")
    if trace.nodes is None or trace.node_ptr is None or trace.covered_tokens is None:
        return _without_identity(trace, block_size)
    granularity = trace.granularity
    if granularity % block_size and block_size % granularity:
        raise InputError(
            f"--block-size {block_size}: does not fit {trace.name}, whose block ids stand for {granularity} tokens; "
            "expected one that divides it, or a multiple of it"
        )
    unit = max(granularity, block_size)
    # One entry for each block of `unit` tokens, named by the last node in it.
    counts = -(-trace.covered_tokens.astype(np.int64) // unit)
    ptr = pointers(counts)
    row = np.repeat(np.arange(len(trace)), counts)
    place = np.arange(len(row)) - ptr[row]
    last = np.minimum((place + 1) * (unit // granularity), np.diff(trace.node_ptr)[row]) - 1
    node = trace.nodes[trace.node_ptr[row] + last].astype(np.int64)
    prompt = np.clip(trace.prompt_tokens[row] - place * unit, 0, unit)
    if unit == block_size:
        return References(ptr, node, np.ones(len(node), np.int64), prompt > 0, prompt)
    held = np.clip(trace.covered_tokens[row] - place * unit, 0, unit)
    return _segments(ptr, node, prompt, held, block_size, unit // block_size)


def _without_identity(trace: Trace, block_size: int) -> References:
    """One entry a request: no block is like any other, so that their order says nothing."""
    prompt = trace.prompt_tokens.astype(np.int64)
    rows = np.arange(len(trace))
    return References(np.arange(len(trace) + 1), rows, -(-prompt // block_size), np.ones(len(trace), np.bool_), prompt)


def _segments(ptr: Int64, node: Int64, prompt: Int64, held: Int64, block_size: int, split: int) -> References:
    """Cut the blocks of each node wherever some request's prompt or answer ends within it.

    Args:
        ptr: int64 [requests + 1], rows of each request in the columns that follow.
        node: int64 [m].
        prompt: int64 [m], prompt tokens in the node's place.
        held: int64 [m], prompt and known answer tokens there.
        block_size: tokens a block.
        split: blocks a node.
    """
    asked_end, held_end = -(-prompt // block_size), -(-held // block_size)
    stride = split + 1
    cuts = np.concatenate((node * stride + asked_end, node * stride + held_end))
    ends = np.unique(cuts)
    ends = ends[ends % stride > 0]
    begin = np.zeros(len(ends), np.int64)
    same = ends[1:] // stride == ends[:-1] // stride
    begin[1:][same] = (ends % stride)[:-1][same]
    first = np.searchsorted(ends, node * stride)
    counts = np.searchsorted(ends, node * stride + held_end, side="right") - first
    segment = flat_indices(first, counts)
    row = np.repeat(np.arange(len(node)), counts)
    blocks = (ends % stride - begin)[segment]
    tokens = np.clip(prompt[row] - begin[segment] * block_size, 0, blocks * block_size)
    return References(pointers(counts)[ptr], segment, blocks, tokens > 0, tokens)
