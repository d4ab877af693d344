"""Token sequences that can be compared, whatever the trace knows of their tokens."""

from __future__ import annotations

import numpy as np

from .trace import Int32, Trace

_NOTHING: Int32 = np.empty(0, np.int32)


_EOS = 1 << 40
"""Beyond all node numbers: less this, a node's number stands for what it stands for and an EOS behind it."""


class TokenSequence:
    """The tokens of one request, prompt and answer, as far as they can be told from those of others.

    The first `known` tokens have an identity through the trace's nodes, each of which stands for a whole prefix at the
    trace's granularity. Then may come the EOS, which is the same token for all; the tokens behind that are like no
    other request's.
    """

    __slots__ = ("_granularity", "_nodes", "_numbers", "eos", "known", "owner")

    def __init__(self, owner: int, nodes: Int32, granularity: int, known: int, eos: bool) -> None:
        self.owner = owner
        self.known = known
        self.eos = eos
        """Whether the token behind the known ones is the EOS."""
        self._nodes = nodes
        # Reading single numbers out of a memoryview is several times as fast as out of an array.
        self._numbers = nodes.data
        self._granularity = granularity

    def common(self, other: TokenSequence, start: int, stop: int) -> int:
        """Return where the two first differ, at most `stop`; up to `start` they are known to be equal."""
        if other.owner == self.owner:
            return stop
        end = min(stop, self.known, other.known)
        if end > start:
            size = self._granularity
            first, last = start // size, (end - 1) // size
            # A node stands for everything before it, too: equal at the end is equal throughout.
            if self._numbers[last] != other._numbers[last]:
                different = self._nodes[first : last + 1] != other._nodes[first : last + 1]
                return max(start, (first + int(different.argmax())) * size)
        ends_alike = self.eos and other.eos and self.known == other.known == end
        return end + 1 if ends_alike and stop > end else max(start, end)

    def key(self, position: int) -> int:
        """Return a number that is the same in another sequence if both have the same tokens through `position`.

        Where they do not, it may be the same only if they differ in the trace block of `position` itself, and then
        they agree wherever both are known.
        """
        if position < self.known:
            return self._numbers[position // self._granularity]
        if self.eos and position == self.known > 0:
            return self._numbers[(position - 1) // self._granularity] - _EOS
        return -1 - self.owner


class TokenSequences:
    """The sequences of a trace's requests."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def of(self, request: int, length: int, eos: bool) -> TokenSequence:
        """Return the sequence of `request`, which ends at `length` tokens, with an EOS as the last or without."""
        trace = self._trace
        if trace.nodes is None or trace.node_ptr is None or trace.covered_tokens is None:
            return TokenSequence(request, _NOTHING, 1, 0, False)
        nodes = trace.nodes[int(trace.node_ptr[request]) : int(trace.node_ptr[request + 1])]
        covered = int(trace.covered_tokens[request])
        known = min(covered, length - eos)
        return TokenSequence(request, nodes, trace.granularity, known, eos and known == length - 1)
