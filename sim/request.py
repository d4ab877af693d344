"""A request on its way through the engine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..traces.blocks import BlockNodes

Int64 = npt.NDArray[np.int64]

UNSEEN = -1
"""Stands for a time that has not come."""


class Request:
    """One request's state; the scheduler owns it.

    Token counts: `prompt` tokens came with it, and it is done when it has `total` tokens. Of these it has `known` (the
    prompt and what was generated); `computed` are in the KV cache or scheduled to be. The last token is never computed.
    While `decoding`, a request's `computed`, `known` and `held` follow from the step number and the fields are stale.
    """

    __slots__ = (
        "arrival_ns",
        "block_start",
        "cached_first",
        "cached_readmitted",
        "computed",
        "decode_base",
        "decoding",
        "draining",
        "ending",
        "eos",
        "finish_step",
        "finished_ns",
        "first_scheduled_ns",
        "first_token_ns",
        "held",
        "index",
        "known",
        "lost_pending",
        "lost_tokens",
        "nodes",
        "order",
        "pending",
        "preemptions",
        "priority",
        "private_base",
        "prompt",
        "registered",
        "running",
        "shared",
        "tail_waste",
        "total",
    )

    def __init__(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int = 0, eos: bool = False
    ) -> None:
        self.index = index
        self.arrival_ns = arrival_ns
        self.prompt = prompt
        self.total = total
        self.priority = priority
        self.eos = eos
        """Whether it ends by itself: the engine learns only from the last token that it is the last."""
        self.known = prompt
        self.computed = 0
        self.pending = 0
        """1 while a generated token is in flight (asynchronous scheduling): computed but not yet seen."""

        self.decoding = False
        self.decode_base = 0
        """While decoding: before step t it has `decode_base + t` tokens in the KV cache."""
        self.draining = False
        """Whether its last token is in flight: it runs, but is scheduled no more."""
        self.ending = False
        """Whether its last token is being computed."""
        self.running = False
        self.order = UNSEEN
        """Place in the running list: later admissions have larger numbers."""
        self.finish_step = UNSEEN
        """The step that computes the last token, once that is certain."""

        self.block_start = UNSEEN
        """Flat index of its row in the block table."""
        self.held = 0
        """Blocks in that row."""
        self.registered = 0
        """How many of them hold a registered prefix."""
        self.nodes: Int64 | None = None
        """Nodes of its first `shared` blocks; block k behind them has node `private_base + k`."""
        self.shared = 0
        self.private_base = 0

        self.first_scheduled_ns = UNSEEN
        self.first_token_ns = UNSEEN
        self.finished_ns = UNSEEN
        self.cached_first = 0
        self.cached_readmitted = 0
        self.preemptions = 0
        self.lost_tokens = 0
        """Computed tokens that a preemption threw away and the cache did not give back."""
        self.lost_pending = 0
        self.tail_waste = 0

    def nodes_between(self, start: int, stop: int) -> Int64:
        """Return the nodes of its blocks `start` to `stop - 1`, int64 [stop - start]."""
        shared = self.shared
        if start >= shared:
            return np.arange(self.private_base + start, self.private_base + stop)
        assert self.nodes is not None
        if stop <= shared:
            return self.nodes[start:stop]
        return np.concatenate((self.nodes[start:], np.arange(self.private_base + shared, self.private_base + stop)))

    def load_nodes(self, nodes: BlockNodes) -> None:
        """Look up its nodes, once."""
        self.shared = int(nodes.shared[self.index])
        self.private_base = int(nodes.private_base[self.index])
        self.nodes = nodes.of(self.index)
