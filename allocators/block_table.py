"""The block table: one row of block ids a running request."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class BlockTable:
    """Block ids int64 [rows, width] in one flat array, so that entries of many requests are written at once.

    Rows of finished requests are reused, the one given back last first. Memory is touched only where it is written.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width
        self.flat: Int64 = np.empty(rows * width, np.int64)
        self._free_rows = list(range(rows - 1, -1, -1))

    def claim(self) -> int:
        """Return the flat index at which a free row starts; the row is the caller's until `give_back`."""
        return self._free_rows.pop() * self.width

    def give_back(self, start: int) -> None:
        """Make the row that starts at flat index `start` free again."""
        self._free_rows.append(start // self.width)
