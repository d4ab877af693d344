"""Rows of different lengths in one flat array: row `i` is `flat[ptr[i]:ptr[i + 1]]`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .trace import Int64


def pointers(counts: npt.NDArray[np.integer]) -> Int64:
    """int64 [n + 1] from the rows' lengths [n]."""
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def flat_indices(starts: Int64, counts: Int64) -> Int64:
    """The indices `starts[i] .. starts[i] + counts[i] - 1` of every row behind each other, int64."""
    ptr = pointers(counts)
    return np.repeat(starts - ptr[:-1], counts) + np.arange(ptr[-1], dtype=np.int64)
