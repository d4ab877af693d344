"""Step time interpolated in measured times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .step import Chunk

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Times (ns) at increasing places, straight lines between them and beyond the ends, never below 0."""

    places: list[float]
    times: list[float]
    slopes: list[float]
    """Of each stretch; the last one's twice, for what lies beyond."""

    def at(self, place: float) -> float:
        """Return the time at one place."""
        index = max(bisect_right(self.places, place) - 1, 0)
        return max(self.times[index] + (place - self.places[index]) * self.slopes[index], 0.0)

    def at_all(self, places: Float64) -> Float64:
        """Return the times at many places, which do not fall; to the last bit those of `at`."""
        first = max(bisect_right(self.places, places[0]) - 1, 0)
        if max(bisect_right(self.places, places[-1]) - 1, 0) == first:
            # All on one stretch, as they mostly are.
            return np.maximum(self.times[first] + (places - self.places[first]) * self.slopes[first], 0.0)
        known, times, slopes = self._arrays
        index = np.maximum(np.searchsorted(known, places, side="right") - 1, 0)
        return np.maximum(times[index] + (places - known[index]) * slopes[index], 0.0)

    @cached_property
    def _arrays(self) -> tuple[Float64, Float64, Float64]:
        return np.array(self.places), np.array(self.times), np.array(self.slopes)


def curve(places: Sequence[float], times: Sequence[float]) -> Curve:
    """Return the curve through at least one point; a single one is a constant."""
    pairs = zip(places, places[1:], times, times[1:], strict=False)
    slopes = [(later - earlier) / (right - left) for left, right, earlier, later in pairs]
    return Curve(list(places), list(times), [*slopes, slopes[-1] if slopes else 0.0])


@dataclass(frozen=True)
class Grid:
    """Times (ns) over two quantities: a curve over the second at each place of the first."""

    places: list[float]
    curves: list[Curve]

    def at(self, first: float, second: float) -> float:
        """Return the time at (first, second), linear in both."""
        low, high, share = self._around(first)
        below = low.at(second)
        return max(below + share * (high.at(second) - below), 0.0)

    def across(self, first: float) -> Curve:
        """Return the curve over the second quantity at `first`."""
        low, high, share = self._around(first)
        times = [a + share * (b - a) for a, b in zip(low.times, high.times, strict=True)]
        return curve(low.places, times)

    def _around(self, first: float) -> tuple[Curve, Curve, float]:
        """Return the curves on both sides of `first` (the last two beyond them), and how far it is from one to the
        other."""
        if len(self.places) == 1:
            return self.curves[0], self.curves[0], 0.0
        index = min(max(bisect_right(self.places, first) - 1, 0), len(self.places) - 2)
        share = (first - self.places[index]) / (self.places[index + 1] - self.places[index])
        return self.curves[index], self.curves[index + 1], share


@dataclass(frozen=True)
class Table:
    """Measured times of the parts of a step, in ns."""

    dense: Curve
    """All that is not attention, over the scheduled tokens of a step."""
    prefill: Grid | None
    """Attention of one prefill chunk, over its new tokens and the tokens before them."""
    decode: Grid | None
    """Attention of all decoding requests together, over their number and their mean context."""


class ProfileStepTime:
    """The sum of a table's parts: dense at the step's tokens, prefill for each chunk, decode for the rest together.

    The host's part is hidden behind the step before under asynchronous scheduling, else added.
    """

    def __init__(self, table: Table, host_ns: float, *, hidden: bool) -> None:
        self._table = table
        self._host = host_ns
        self._hidden = hidden
        self._decode: dict[int, Curve] = {}
        self._dense: dict[int, float] = {}

    def step(self, prefill_tokens: int, decode_seqs: int, context_tokens: int, chunks: Sequence[Chunk] = ()) -> int:
        if not (prefill_tokens or decode_seqs):
            return 0
        prefill = self._table.prefill
        attention, behind = 0.0, 0
        for chunk in chunks if prefill_tokens else ():
            if chunk.tokens > 1:
                behind += chunk.computed + chunk.tokens
                attention += 0.0 if prefill is None else prefill.at(chunk.tokens, chunk.computed)
        fixed = self._dense_at(prefill_tokens + decode_seqs) + attention
        if decode_seqs and self._table.decode is not None:
            fixed += self._across(decode_seqs).at((context_tokens - behind) / decode_seqs)
        return round(max(fixed, self._host) if self._hidden else fixed + self._host)

    def decode_steps(self, decode_seqs: int, context_tokens: int, count: int) -> Int64:
        dense = self._dense_at(decode_seqs)
        if self._table.decode is None:
            times = np.full(count, dense)
        else:
            contexts = (context_tokens + decode_seqs * np.arange(1, count + 1)) / decode_seqs
            times = dense + self._across(decode_seqs).at_all(contexts)
        times = np.maximum(times, self._host) if self._hidden else times + self._host
        return np.rint(times).astype(np.int64)

    def _dense_at(self, tokens: int) -> float:
        known = self._dense.get(tokens)
        if known is None:
            known = self._dense[tokens] = self._table.dense.at(tokens)
        return known

    def _across(self, decode_seqs: int) -> Curve:
        known = self._decode.get(decode_seqs)
        if known is None:
            assert self._table.decode is not None
            known = self._decode[decode_seqs] = self._table.decode.across(decode_seqs)
        return known
