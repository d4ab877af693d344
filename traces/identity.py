"""Views of a trace's prefix identity: the prompt's nodes only, made up where there are none, or as tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .ragged import flat_indices, pointers
from .trace import Int32, Int64, Trace


def with_identity(trace: Trace, granularity: int) -> Trace:
    """The trace itself, or one whose prompts have blocks of their own where it has no identity."""
    if trace.granularity:
        return trace
    ptr = pointers(-(-trace.prompt_tokens // granularity))
    return replace(
        trace,
        granularity=granularity,
        node_ptr=ptr,
        nodes=np.arange(ptr[-1], dtype=np.int32),
        num_nodes=int(ptr[-1]),
        covered_tokens=trace.prompt_tokens,
    )


def prompt_nodes(trace: Trace) -> tuple[Int32, Int64]:
    """The nodes of the prompts alone, int32 [m], and their row pointers, int64 [n + 1]."""
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    counts = -(-trace.prompt_tokens.astype(np.int64) // trace.granularity)
    return trace.nodes[flat_indices(trace.node_ptr[:-1], counts)], pointers(counts)


def token_ids(trace: Trace, row: int, tokens: int) -> Int64:
    """Made-up ids of a row's first `tokens` tokens, int64, equal exactly where prefixes are shared."""
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    nodes = trace.nodes[trace.node_ptr[row] : trace.node_ptr[row + 1]].astype(np.int64)
    size = trace.granularity
    return (nodes[:, None] * size + np.arange(size)).ravel()[:tokens]
