"""One row a request: what happened to it."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .request import UNSEEN, Request

Int64 = npt.NDArray[np.int64]

TIMES = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")
COUNTS = ("output_tokens", "cached_first", "cached_readmitted", "preemptions", "lost_tokens", "tail_waste")


class RequestRecords:
    """Columns over all requests of the trace, int64 [n]; times in ns, -1 for what did not happen.

    Columns: `arrival_ns`, `first_scheduled_ns` (first admission), `first_token_ns`, `finished_ns`, `output_tokens`
    (generated), `cached_first` (tokens hit at first admission), `cached_readmitted` (tokens hit at later ones),
    `preemptions`, `lost_tokens` (computed tokens lost to preemption and not hit again), `tail_waste` (tokens of slots
    allocated and unused at its end).
    """

    def __init__(self, count: int) -> None:
        self._columns = {name: array("q", [UNSEEN]) * count for name in TIMES}
        self._columns |= {name: array("q", [0]) * count for name in COUNTS}
        self.rejected_rows: list[int] = []
        """Requests that can never fit, in the order of arrival."""
        self.aborted_rows: list[int] = []
        """Requests that the engine gave up for want of memory, in that order."""
        self.progress: Callable[[int, int | None], None] | None = None
        """Called with the requests done and all requests, a thousand times or so."""
        self._count = count
        self._done = 0

    def __getitem__(self, name: str) -> Int64:
        return np.frombuffer(self._columns[name], np.int64)

    def ended(self, request: Request) -> None:
        """Write the row of a request that finished, or was aborted: then it has no end."""
        row, columns = request.index, self._columns
        if request.finished_ns == UNSEEN:
            self.aborted_rows.append(row)
        columns["arrival_ns"][row] = request.arrival_ns
        columns["first_scheduled_ns"][row] = request.first_scheduled_ns
        columns["first_token_ns"][row] = request.first_token_ns
        columns["finished_ns"][row] = request.finished_ns
        columns["cached_first"][row] = request.cached_first
        columns["cached_readmitted"][row] = request.cached_readmitted
        columns["preemptions"][row] = request.preemptions
        columns["lost_tokens"][row] = request.lost_tokens
        columns["tail_waste"][row] = request.tail_waste
        if request.finished_ns != UNSEEN:
            columns["output_tokens"][row] = request.total - request.prompt
        self._one_done()

    def rejected(self, row: int, arrival_ns: int) -> None:
        """Note a request that can never fit."""
        self._columns["arrival_ns"][row] = arrival_ns
        self.rejected_rows.append(row)
        self._one_done()

    def _one_done(self) -> None:
        self._done += 1
        if self.progress is not None and self._done % (self._count // 1000 + 1) == 0:
            self.progress(self._done, self._count)
