"""From the ids of a format to prefix nodes: dense numbers that each stand for one whole prefix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .trace import Int32, Int64


def number_by_first_appearance(values: npt.NDArray[np.integer]) -> tuple[Int32, Int64]:
    """Dense numbers from 0 in order of first appearance.

    Returns:
        The numbers, int32 [m], and the position at which each number appears first, int64 [distinct].
    """
    if len(values) == 0:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high < 4 * len(values) + 1024:
        # Small ids: a table instead of a sort. Assigned from the back, so that the first position stays.
        table = np.full(high + 1, -1, dtype=np.int64)
        table[values[::-1]] = np.arange(len(values) - 1, -1, -1)
        first = np.sort(table[table >= 0])
        table[values[first]] = np.arange(len(first))
        return table[values].astype(np.int32), first
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int32)
    rank[order] = np.arange(len(first), dtype=np.int32)
    return rank[inverse], first[order]


def intern_blocks(ids: Int64, ptr: Int64) -> Int32:
    """Prefix nodes of block ids, int32 [m], dense in order of first appearance.

    Where every id always follows the same id, ids already name prefixes and are only renumbered.
    Otherwise they name the content of one block, and nodes are made of (node before, id).
    """
    numbers, first = number_by_first_appearance(ids)
    if len(numbers) == 0:
        return numbers
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    starts = ptr[:-1]
    before[starts[starts < len(numbers)]] = -1
    if np.array_equal(before, before[first][numbers]):
        return numbers
    return intern_sequences(numbers, ptr)


def intern_sequences(ids: npt.NDArray[np.integer], ptr: Int64) -> Int32:
    """Prefix nodes of sequences whose ids name content only (tokens, or blocks), int32 [m], as above.

    Sequences are sorted, so that each shares with its neighbour all it shares with any sequence before it:
    it takes that many nodes over and gets new ones for the rest. No work is done per id in Python.
    """
    numbers, _ = number_by_first_appearance(ids)
    # Big-endian bytes sort as the numbers do.
    keys = numbers.astype(">u4").tobytes()
    bounds = (4 * ptr).tolist()
    order = sorted(range(len(ptr) - 1), key=lambda i: keys[bounds[i] : bounds[i + 1]])
    nodes = np.empty(len(numbers), dtype=np.int64)
    last_ids, last_nodes, used = numbers[:0], nodes[:0], 0
    for i in order:
        row = slice(ptr[i], ptr[i + 1])
        own, shared = numbers[row], _common_length(last_ids, numbers[row])
        nodes[row][:shared] = last_nodes[:shared]
        nodes[row][shared:] = np.arange(used, used + len(own) - shared)
        used += len(own) - shared
        last_ids, last_nodes = own, nodes[row]
    return number_by_first_appearance(nodes)[0]


def _common_length(a: Int32, b: Int32) -> int:
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    at = int(differs.argmax()) if n else 0
    return at if n and differs[at] else n
