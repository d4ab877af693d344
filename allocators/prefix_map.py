"""Which block holds which prefix: the prefix cache's map from node to block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


class PrefixMap:
    """Node to the block that holds it, as an array over dense node numbers.

    Several blocks may hold one node, since a prefix computed twice is not merged. A look-up gives the one registered
    first among those still there; the others wait in `_duplicates`, in order of registration. They are rare;
    `_several` marks their nodes, so that a look at many nodes need not visit the dictionary.

    Block 0 never holds a prefix (it is the null block), so 0 stands for "no block" and the array starts as zeroed
    memory of which only the pages in use cost anything.
    """

    def __init__(self, num_nodes: int) -> None:
        self._first: Int32 = np.zeros(num_nodes, np.int32)
        self._duplicates: dict[int, list[int]] = {}
        self._several: npt.NDArray[np.bool_] = np.zeros(num_nodes, np.bool_)

    def __contains__(self, node: int) -> bool:
        return bool(self._first[node])

    def match(self, nodes: Int64) -> Int64:
        """Return the blocks of the longest run of known nodes from the start of `nodes`: int64 [<= len(nodes)]."""
        blocks = self._first[nodes]
        known = int(np.count_nonzero(blocks))
        if known < len(nodes):
            blocks = blocks[: int((blocks == 0).argmax())]
        return blocks.astype(np.int64)

    def add(self, nodes: Int64, blocks: Int64) -> None:
        """Note that `blocks[k]` holds `nodes[k]` (both int64 [k], nodes distinct)."""
        held = self._first[nodes]
        values = blocks.astype(np.int32)
        if not np.count_nonzero(held):
            self._first[nodes] = values
            return
        fresh = held == 0
        self._first[nodes[fresh]] = values[fresh]
        for node, block in zip(nodes[~fresh].tolist(), blocks[~fresh].tolist(), strict=True):
            self._duplicates.setdefault(node, []).append(block)
            self._several[node] = True

    def drop(self, nodes: Int64, blocks: Int64) -> None:
        """Forget that `blocks[k]` holds `nodes[k]` (both int64 [k], blocks distinct, in order of eviction)."""
        if self._duplicates:
            several = np.flatnonzero(self._several[nodes])
            if len(several):
                for place in several.tolist():
                    self._drop_duplicate(int(nodes[place]), int(blocks[place]))
                # The others, and the last one of those dropped, held their node alone.
                nodes = nodes[self._first[nodes] == blocks]
        self._first[nodes] = 0

    def _drop_duplicate(self, node: int, block: int) -> None:
        others = self._duplicates.get(node)
        if others is None:
            return
        if self._first[node] == block:
            self._first[node] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._duplicates[node]
            self._several[node] = False

    def check(self, node_of_block: Int32, free: Int64) -> None:
        """Raise AssertionError unless map and blocks agree.

        Args:
            node_of_block: int32 [num_blocks], -1 for none; stale for blocks in use that the map does not know.
            free: int64 [k], blocks that nobody uses.
        """
        known = {int(self._first[node]): int(node) for node in np.flatnonzero(self._first)}
        known |= {block: node for node, blocks in self._duplicates.items() for block in blocks}
        count = np.count_nonzero(self._first) + sum(map(len, self._duplicates.values()))
        assert len(known) == count, "a block holds two prefixes"
        assert all(node_of_block[block] == node for block, node in known.items()), "map and blocks disagree"
        assert all(node_of_block[block] == known.get(block, -1) for block in free.tolist()), "a free block is lost"
        assert all(self._duplicates.values()), "an empty list of duplicates is left"
        assert np.flatnonzero(self._several).tolist() == sorted(self._duplicates), "duplicates' marks out of step"
