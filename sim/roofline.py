"""Step time from what the hardware must at least do: read weights and KV cache, multiply, exchange, be told to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .settings import RooflineSettings
from .step import Chunk

Int64 = npt.NDArray[np.int64]


class RooflineStepTime:
    """The time of a step as a sum of its parts, each as long as its scarcest resource takes.

    With n scheduled tokens (P of prefills and D of decoding requests), in the names of `RooflineSettings`:

    - linear layers: `max(weights + experts * touched(n), token * n)`: reading the weights hides the arithmetic of few
      tokens, the arithmetic of many hides the reading. Of the experts, `1 - (1 - expert_share) ** n` are touched: each
      token picks its own at random.
    - lm head: `max(head, head_seq * sequences)`, as only one token of a request is sampled.
    - decode attention: `decode_context * tokens in the decoding requests' cache` (memory bound), plus `decode_seq * D`.
    - prefill attention: `prefill_pair * pairs` of a new token and one that it sees (compute bound).
    - layers with a sliding window: the same with at most `window` tokens seen (`window_context`, `window_pair`). Of
      the decode group only the sum is known, so its mean context is what is cut at the window.
    - small kernels and all-reduces: `kernels + comm + comm_token * n`.

    The host prepares a step while the one before runs (asynchronous scheduling), so that a step takes at least
    `host_ns`; otherwise `host_ns` is added.
    """

    def __init__(self, settings: RooflineSettings, *, async_scheduling: bool) -> None:
        values = {name: value or 0.0 for name, value in vars(settings).items()}
        self._weights = values["weights_ns"]
        self._experts = values["experts_ns"]
        self._missed = 1.0 - values["expert_share"]
        self._token = values["token_ns"]
        self._head = values["head_ns"]
        self._head_seq = values["head_seq_ns"]
        self._decode_seq = values["decode_seq_ns"]
        self._context = values["decode_context_ns"]
        self._pair = values["prefill_pair_ns"]
        self._window = int(values["window"])
        self._window_context = values["window_context_ns"]
        self._window_pair = values["window_pair_ns"]
        self._constant = values["kernels_ns"] + values["comm_ns"]
        self._comm_token = values["comm_token_ns"]
        self._host = values["host_ns"]
        self._hidden = async_scheduling

    def step(self, prefill_tokens: int, decode_seqs: int, context_tokens: int, chunks: Sequence[Chunk] = ()) -> int:
        if not (prefill_tokens or decode_seqs):
            return 0
        prefills = prefill_context = 0
        attention = 0.0
        if prefill_tokens:
            for chunk in chunks:
                if chunk.tokens > 1:
                    prefills += 1
                    prefill_context += chunk.computed + chunk.tokens
                    attention += self._prefill_attention(chunk.computed, chunk.tokens)
        fixed = self._fixed(prefill_tokens + decode_seqs, decode_seqs, decode_seqs + prefills) + attention
        context = context_tokens - prefill_context
        time = fixed + (self._context * context + self._window_context * self._seen(context, decode_seqs))
        return round(max(time, self._host) if self._hidden else time + self._host)

    def decode_steps(self, decode_seqs: int, context_tokens: int, count: int) -> Int64:
        fixed = self._fixed(decode_seqs, decode_seqs, decode_seqs)
        context = context_tokens + decode_seqs * np.arange(1, count + 1)
        seen: npt.NDArray[np.int64] | int = 0
        if self._window:
            seen = np.minimum(context, self._window * decode_seqs)
        times = fixed + (self._context * context + self._window_context * seen)
        times = np.maximum(times, self._host) if self._hidden else times + self._host
        return np.rint(times).astype(np.int64)

    def _fixed(self, tokens: int, decode_seqs: int, sequences: int) -> float:
        """What does not depend on how long the contexts are."""
        weights = self._weights
        if self._experts:
            weights += self._experts * (1.0 - self._missed**tokens)
        linear = max(weights, self._token * tokens)
        head = max(self._head, self._head_seq * sequences)
        return linear + head + self._decode_seq * decode_seqs + self._constant + self._comm_token * tokens

    def _seen(self, context: int, decode_seqs: int) -> int:
        return min(context, self._window * decode_seqs) if self._window else 0

    def _prefill_attention(self, computed: int, new: int) -> float:
        time = self._pair * pairs(computed, new)
        if self._window:
            time += self._window_pair * window_pairs(computed, new, self._window)
        return time


def pairs(computed: int, new: int) -> int:
    """Return how many tokens `new` tokens behind `computed` ones see in all, each itself included."""
    return new * computed + new * (new + 1) // 2


def window_pairs(computed: int, new: int, window: int) -> int:
    """Return the same where a token sees at most `window` tokens."""
    growing = min(max(window - computed, 0), new)
    return pairs(computed, growing) + (new - growing) * window
