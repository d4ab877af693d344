"""Token sequences that can be compared, whatever the trace knows of their tokens."""

from __future__ import annotations

import numpy as np

from .trace import Int32, Trace

_NOTHING: Int32 = np.empty(0, np.int32)


class TokenSequence:
    """The tokens of one request, prompt and answer, as far as they can be told from those of others.

    The first `known` tokens have an identity through the trace's nodes, each of which stands for a whole prefix at the
    trace's granularity; the tokens behind them are like no other request's.
    """

    __slots__ = ("_granularity", "_nodes", "_numbers", "known", "owner")

    def __init__(self, owner: int, nodes: Int32, granularity: int, known: int) -> None:
        self.owner = owner
        self.known = known
        self._nodes = nodes
        # Reading single numbers out of a memoryview is several times as fast as out of an array.
        self._numbers = nodes.data
        self._granularity = granularity

    def common(self, other: TokenSequence, start: int, stop: int) -> int:
        """Return where the two first differ, at most `stop`; up to `start` they are known to be equal."""
        if other.owner == self.owner:
            return stop
        stop = min(stop, self.known, other.known)
        if stop <= start:
            return start
        size = self._granularity
        first, last = start // size, (stop - 1) // size
        # A node stands for everything before it, too: equal at the end is equal throughout.
        if self._numbers[last] == other._numbers[last]:
            return stop
        different = self._nodes[first : last + 1] != other._nodes[first : last + 1]
        return max(start, (first + int(different.argmax())) * size)

    def key(self, position: int) -> int:
        """Return a number that is the same in another sequence if both have the same tokens through `position`.

        Where they do not, it may be the same only if they differ in the trace block of `position` itself, and then
        they agree wherever both are known.
        """
        if position < self.known:
            return self._numbers[position // self._granularity]
        return -1 - self.owner


class TokenSequences:
    """The sequences of a trace's requests."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def of(self, request: int, most: int) -> TokenSequence:
        """Return the sequence of `request`, of which at most the first `most` tokens are as the trace says."""
        trace = self._trace
        if trace.nodes is None or trace.node_ptr is None or trace.covered_tokens is None:
            return TokenSequence(request, _NOTHING, 1, 0)
        nodes = trace.nodes[int(trace.node_ptr[request]) : int(trace.node_ptr[request + 1])]
        known = min(int(trace.covered_tokens[request]), most)
        return TokenSequence(request, nodes, trace.granularity, known)
