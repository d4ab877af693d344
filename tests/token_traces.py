"""Traces from token ids, made the plain way: a dictionary from prefix to node, one token at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from kvreplay.traces import Trace


def trace_of_tokens(
    arrival_ns: Sequence[int] | np.ndarray,
    prompts: Sequence[Sequence[Hashable]],
    outputs: Sequence[Sequence[Hashable]],
    priority: Sequence[int] | np.ndarray | None = None,
) -> Trace:
    """A trace whose nodes stand for single tokens and cover prompts and answers."""
    numbers: dict[tuple[int, Hashable], int] = {}
    nodes: list[int] = []
    node_ptr = [0]
    for prompt, output in zip(prompts, outputs, strict=True):
        node = -1
        for token in (*prompt, *output):
            node = numbers.setdefault((node, token), len(numbers))
            nodes.append(node)
        node_ptr.append(len(nodes))
    return Trace(
        name="tokens",
        arrival_ns=np.asarray(arrival_ns, np.int64),
        prompt_tokens=np.array([len(prompt) for prompt in prompts], np.int32),
        output_tokens=np.array([len(output) for output in outputs], np.int32),
        granularity=1,
        node_ptr=np.array(node_ptr, np.int64),
        nodes=np.array(nodes, np.int32),
        num_nodes=len(numbers),
        covered_tokens=np.diff(node_ptr).astype(np.int32),
        priority=None if priority is None else np.asarray(priority, np.int32),
    )
