"""The engine that has most of the prompt, unless it has too much to do."""

from __future__ import annotations

from ...traces.trace import Trace
from .router import Router


class PrefixAware(Router):
    """Weighs the prompt tokens that would be hit against the tokens an engine has more to do than the least loaded one.

    As real routers, it knows what it sent where, not what is still cached there.
    """

    def __init__(self, trace: Trace, replicas: int) -> None:
        super().__init__(trace, replicas)
        self._sent: list[set[int]] = [set() for _ in range(replicas)]

    def choose(self, request: int) -> int:
        nodes = self._nodes(request)
        least = min(self.outstanding)
        worth = [
            self._known(sent, nodes) * self._trace.granularity - (outstanding - least)
            for sent, outstanding in zip(self._sent, self.outstanding, strict=True)
        ]
        best = max(worth)
        # Among equals the least loaded.
        chosen = min((load, engine) for engine, load in enumerate(self.outstanding) if worth[engine] == best)[1]
        self._sent[chosen].update(nodes)
        return chosen

    def _nodes(self, request: int) -> list[int]:
        trace = self._trace
        if trace.nodes is None or trace.node_ptr is None:
            return []
        return trace.nodes[trace.node_ptr[request] : trace.node_ptr[request + 1]].tolist()

    @staticmethod
    def _known(sent: set[int], nodes: list[int]) -> int:
        """How many of the nodes, from the first on, were sent there: a node is known only if those before it are."""
        low, high = 0, len(nodes)
        while low < high:
            middle = (low + high) // 2
            if nodes[middle] in sent:
                low = middle + 1
            else:
                high = middle
        return low
