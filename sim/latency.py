"""How long a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .settings import LatencySettings
from .step import Chunk

Int64 = npt.NDArray[np.int64]


class StepTime(Protocol):
    """The time of one step, and of a run of steps that only decode."""

    def step(self, prefill_tokens: int, decode_seqs: int, context_tokens: int, chunks: Sequence[Chunk] = ()) -> int:
        """Return the time of a step in ns.

        Args:
            prefill_tokens: scheduled tokens of all requests that do not decode.
            decode_seqs: requests with one scheduled token that is the last of their sequence.
            context_tokens: tokens in the KV cache after the step, summed over the scheduled requests.
            chunks: requests that are listed one by one, for those who look at how long each context is; all that
                prefill are among them, counted in the three sums as well.
        """
        ...

    def decode_steps(self, decode_seqs: int, context_tokens: int, count: int) -> Int64:
        """Return the times in ns, int64 [count], of steps that each decode one token of the same `decode_seqs`
        requests, which hold `context_tokens` tokens before the first."""
        ...


class LinearStepTime:
    """`base + prefill_token * P + decode_seq * D + context_token * C`; 0 for a step that schedules nothing."""

    def __init__(self, settings: LatencySettings) -> None:
        self._base = settings.base_ns
        self._prefill = settings.prefill_token_ns
        self._decode = settings.decode_seq_ns
        self._context = settings.context_token_ns

    def step(self, prefill_tokens: int, decode_seqs: int, context_tokens: int, chunks: Sequence[Chunk] = ()) -> int:
        if not (prefill_tokens or decode_seqs):
            return 0
        return self._base + self._prefill * prefill_tokens + self._decode * decode_seqs + self._context * context_tokens

    def decode_steps(self, decode_seqs: int, context_tokens: int, count: int) -> Int64:
        first = self.step(0, decode_seqs, context_tokens + decode_seqs)
        return first + self._context * decode_seqs * np.arange(count)
