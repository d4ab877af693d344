"""LRU stack distances of a whole reference stream at once, without a loop over references.

A reference hits in an LRU cache of `c` blocks exactly if at most `c` distinct blocks, itself included, were referenced
since it was last (Mattson et al., "Evaluation techniques for storage hierarchies", 1970). One pass therefore gives the
hits at every capacity.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def previous_uses(segment: Int64) -> Int64:
    """Return for each reference the place of the one before it to the same segment, -1 for none; int64 [r]."""
    order = np.argsort(segment, kind="stable")
    previous = np.full(len(segment), -1, np.int64)
    again = np.flatnonzero(segment[order[1:]] == segment[order[:-1]])
    previous[order[again + 1]] = order[again]
    return previous


def stack_distances(segment: Int64, blocks: Int64) -> tuple[Int64, Int64]:
    """Return which references repeat an earlier one, and the stack distance of each of these.

    All blocks of a segment have the same distance: those of the segment itself, and all others since.

    Args:
        segment: int64 [r].
        blocks: int64 [r], the same for all references to a segment.

    Returns:
        Places int64 [k] in the stream, in order, and distances int64 [k] in blocks.
    """
    previous = previous_uses(segment)
    again = np.flatnonzero(previous >= 0)
    start = previous[again]
    before = np.concatenate(([0], np.cumsum(blocks)))
    between = before[again] - before[start + 1]
    # What was referenced more than once in between must count once: take off each reference that repeats another
    # one there, that is, each interval from use to use inside this one.
    return again, between - _weight_inside(start, blocks[again]) + blocks[again]


def _weight_inside(start: Int64, weight: Int64) -> Int64:
    """For intervals in the order of their ends, the weight of those inside each: they end before it and start after.

    Counts, for each element, the earlier ones with a larger start. The elements are sorted by the bits of their rank
    from the top: at each bit, those of a group with a 1 there are larger than those with a 0, and the order within the
    group is still that of the ends. A dozen array operations a bit.

    Args:
        start: int64 [k], distinct.
        weight: int64 [k].
    """
    count = len(start)
    places = np.arange(count)
    rank = np.empty(count, np.int64)
    rank[np.argsort(start)] = places
    inside = np.zeros(count, np.int64)
    weight_of = np.empty(count, np.int64)
    weight_of[rank] = weight
    current = rank
    for bit in reversed(range(max(count - 1, 0).bit_length())):
        group = current >> (bit + 1) << (bit + 1)
        one = (current >> bit) & 1
        ones, heavier = _before(one), _before(one * weight_of[current])
        larger = heavier - heavier[group]
        smaller = np.flatnonzero(one == 0)
        inside[current[smaller]] += larger[smaller]
        # Stable partition: ranks fill their groups without gaps, so that places follow from counts.
        ones_here = ones - ones[group]
        target = np.where(one == 1, group + (1 << bit) + ones_here, places - ones_here)
        moved = np.empty_like(current)
        moved[target] = current
        current = moved
    return inside[rank]


def _before(values: Int64) -> Int64:
    """Sums of all earlier values."""
    return np.cumsum(values) - values
