"""A request on its way through an engine."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..traces.blocks import BlockNodes
from ..traces.sequences import TokenSequence

Int64 = npt.NDArray[np.int64]

UNSEEN = -1
"""Stands for a time that has not come."""


class Request:
    """What all engines know of a request; its scheduler owns it.

    Token counts: `prompt` tokens came with it, and it is done when it has `total` tokens. Of these it has `known` (the
    prompt and what was generated); `computed` are in the KV cache or scheduled to be. While it is `decoding`, its
    `computed`, `known` and `held` follow from the decode group's time, and the fields are stale.
    """

    __slots__ = (
        "arrival_ns",
        "block_start",
        "cached_first",
        "cached_readmitted",
        "computed",
        "decode_base",
        "decoding",
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
        "order",
        "preemptions",
        "priority",
        "prompt",
        "running",
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

        self.decoding = False
        self.decode_base = 0
        """While decoding: before time t of the decode group it has `decode_base + t` tokens in the KV cache."""
        self.running = False
        self.order = UNSEEN
        """Place in the running list: later ones have larger numbers."""
        self.finish_step = UNSEEN
        """The decode group's time at which the last token is computed, once that is certain."""

        self.block_start = UNSEEN
        """Flat index of its row in the block table."""
        self.held = 0
        """Blocks (pages) in that row."""

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

    def admitted(self, now_ns: int, cached: int) -> None:
        """Note an admission at which `cached` tokens were found in the cache."""
        if self.first_scheduled_ns == UNSEEN:
            self.first_scheduled_ns = now_ns
            self.cached_first = cached
        else:
            self.cached_readmitted += cached
            self.lost_tokens += max(self.lost_pending - cached, 0)


class HasBlockNodes:
    """The part of a request by which a pool of blocks knows its prefixes."""

    __slots__ = ()
    index: int
    nodes: Int64 | None
    """Nodes of its first `shared` blocks; block k behind them has node `private_base + k`."""
    shared: int
    private_base: int

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


class PoolRequest(Request, HasBlockNodes):
    """A request as vLLM's scheduler sees it. Its last token is never computed, unless it ends by itself."""

    __slots__ = ("draining", "ending", "nodes", "pending", "private_base", "registered", "shared")

    def __init__(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int = 0, eos: bool = False
    ) -> None:
        super().__init__(index, arrival_ns, prompt, total, priority, eos)
        self.pending = 0
        """1 while a generated token is in flight (asynchronous scheduling): computed but not yet seen."""
        self.draining = False
        """Whether its last token is in flight: it runs, but is scheduled no more."""
        self.ending = False
        """Whether its last token is being computed."""
        self.registered = 0
        """How many of its blocks hold a registered prefix."""
        self.nodes: Int64 | None = None
        self.shared = 0
        self.private_base = 0


class ContiguousRequest(PoolRequest):
    """A request as vLLM's scheduler sees it, with one region for all it may become."""

    __slots__ = ("region", "reserved")

    def __init__(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int, eos: bool, reserved: int
    ) -> None:
        super().__init__(index, arrival_ns, prompt, total, priority, eos)
        self.reserved = reserved
        """Blocks of its region."""
        self.region = UNSEEN
        """The first of them."""


class TreeHolder(Protocol):
    """A request some of whose pages are a radix tree's, as the members of `TreeRequest` say."""

    prompt: int
    known: int
    block_start: int
    sequence: TokenSequence
    protected: int
    published: int
    locked: Any


class PagedRequest(PoolRequest):
    """A request as vLLM's scheduler sees it, on slots or pages with a radix tree."""

    __slots__ = ("locked", "prefill_end", "protected", "published", "sequence")

    def __init__(
        self, index: int, arrival_ns: int, prompt: int, total: int, priority: int, eos: bool, sequence: TokenSequence
    ) -> None:
        super().__init__(index, arrival_ns, prompt, total, priority, eos)
        self.sequence = sequence
        self.protected = 0
        """Tokens whose pages the tree owns."""
        self.published = 0
        """Up to where it was inserted into the tree."""
        self.locked: Any = None
        """The end of the path that it keeps from being evicted."""
        self.prefill_end = 0
        """Tokens that were known at its last admission."""


class TreeRequest(Request):
    """A request as SGLang's scheduler sees it."""

    __slots__ = (
        "chunks_out",
        "extend_end",
        "finished",
        "generated",
        "in_extend",
        "left_base",
        "limit",
        "locked",
        "prefix",
        "protected",
        "published",
        "retracted",
        "row",
        "sequence",
    )

    def __init__(
        self,
        index: int,
        arrival_ns: int,
        prompt: int,
        total: int,
        limit: int,
        sequence: TokenSequence,
    ) -> None:
        super().__init__(index, arrival_ns, prompt, total, eos=total < prompt + limit)
        self.limit = limit
        """Generated tokens at most, as the server was told."""
        self.sequence = sequence
        self.generated = 0
        """Generated tokens seen by the scheduler; stale while decoding."""
        self.prefix = 0
        """Tokens before the part that its next, or current, extend batch computes."""
        self.extend_end = 0
        """The end of that part."""
        self.protected = 0
        """Tokens whose pages the tree owns."""
        self.published = 0
        """Up to where it was inserted into the tree."""
        self.locked: Any = None
        """What it keeps from being evicted, as its memory names it: of a tree, the end of a path."""
        self.row = UNSEEN
        """Row in the request-to-token table."""
        self.chunks_out = 0
        """Launched batches with a chunk that did not complete its prompt, and whose result is still out."""
        self.left_base = 0
        """While decoding: at time t of the decode group it may generate `left_base - t` more tokens, besides any in
        flight."""
        self.in_extend = UNSEEN
        """The last extend batch that it was part of."""
        self.retracted = False
        """From its retraction to its next extend batch."""
        self.finished = False


class BlockRequest(TreeRequest, HasBlockNodes):
    """A request as SGLang's scheduler sees it, on a pool of blocks in place of the radix tree."""

    __slots__ = ("nodes", "private_base", "shared")

    def __init__(
        self, index: int, arrival_ns: int, prompt: int, total: int, limit: int, sequence: TokenSequence
    ) -> None:
        super().__init__(index, arrival_ns, prompt, total, limit, sequence)
        self.nodes: Int64 | None = None
        self.shared = 0
        self.private_base = 0
