"""What can be fitted of a step's time: a few coefficients, and each step's share in every one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..sim.settings import LatencySettings, RooflineSettings

Float64 = npt.NDArray[np.float64]
Steps = dict[str, npt.NDArray[np.int64]]
"""Columns of `calibrate_replay.STEP_COLUMNS`."""

_WEIGHTS = ("weights_ns", "experts_ns", "head_ns")
_COMPUTE = ("token_ns", "head_seq_ns", "prefill_pair_ns", "window_pair_ns")
_CACHE = ("decode_context_ns", "window_context_ns")
_CACHE_PRIOR = 0.3
"""Residual of a cache factor that is off by 1, in relative error of one request's latency: a weak pull."""


class Terms(Protocol):
    """A kind of step time as a function of the coefficients that are fitted."""

    names: tuple[str, ...]

    def start(self, tpot_s: float) -> Float64:
        """Return coefficients to start from, where requests had a median TPOT of `tpot_s`."""
        ...

    def derivatives(self, steps: Steps, values: Float64) -> Float64:
        """Return how much longer each step gets with each coefficient, float64 [steps, coefficients], in ns."""
        ...

    def expected(self, values: Float64) -> tuple[Float64, Float64]:
        """Return what is known beforehand as residuals, and their slopes, float64 [residuals, coefficients]."""
        ...

    def settings(self, values: Float64) -> LatencySettings:
        """Return the latency settings with these coefficients."""
        ...


class LinearTerms:
    """The four coefficients of the linear step time, in ns."""

    names: tuple[str, ...] = ("base_ns", "prefill_token_ns", "decode_seq_ns", "context_token_ns")

    def start(self, tpot_s: float) -> Float64:
        # Half of a decode step is spent on the weights, and the arithmetic of 200 tokens or the cache of 100,000
        # takes as long: the orders of magnitude of today's GPUs and models.
        base = 0.5e9 * tpot_s
        return np.array((base, base / 200, base / 1000, base / 100_000))

    def derivatives(self, steps: Steps, values: Float64) -> Float64:
        prefill, decodes = steps["prefill_tokens"], steps["decode_seqs"]
        busy = prefill + decodes > 0
        return np.stack((busy, prefill, decodes, steps["context_tokens"] * busy), axis=1).astype(float)

    def expected(self, values: Float64) -> tuple[Float64, Float64]:
        return np.empty(0), np.empty((0, len(values)))

    def settings(self, values: Float64) -> LatencySettings:
        return LatencySettings("linear", *(round(value) for value in values.tolist()))


class RooflineTerms:
    """Three factors and a time: how much slower than in `base` weights are read, arithmetic is done and the cache is
    read, and ns a decoding request.

    The proportions within each factor are the model's. A run whose cache is always full cannot tell reading the cache
    from reading weights; so a factor of the cache other than 1 has to be worth its while (`expected`).
    """

    names: tuple[str, ...] = ("weights_factor", "compute_factor", "cache_factor", "decode_seq_ns")

    def __init__(self, base: RooflineSettings) -> None:
        self._base = base

    def start(self, tpot_s: float) -> Float64:
        return np.array((1.0, 1.0, 1.0, 0.0005e9 * tpot_s))

    def expected(self, values: Float64) -> tuple[Float64, Float64]:
        return np.array([_CACHE_PRIOR * (1 - values[2])]), np.array([[0.0, 0.0, _CACHE_PRIOR, 0.0]])

    def derivatives(self, steps: Steps, values: Float64) -> Float64:
        base = {name: value or 0.0 for name, value in vars(self._base).items()}
        decodes, context = steps["decode_seqs"], steps["decode_context"]
        near = np.minimum(context, base["window"] * decodes)
        tokens = (steps["prefill_tokens"] + decodes).astype(float)
        touched = 1 - (1 - base["expert_share"]) ** tokens
        linear = _longer(base["weights_ns"] + base["experts_ns"] * touched, base["token_ns"] * tokens, values)
        head = _longer(base["head_ns"], base["head_seq_ns"] * (decodes + steps["prefills"]), values)
        pairs, near_pairs = steps["prefill_pairs"], steps["prefill_window_pairs"]
        parts = np.stack(
            (
                linear[0] + head[0],
                linear[1] + head[1] + base["prefill_pair_ns"] * pairs + base["window_pair_ns"] * near_pairs,
                base["decode_context_ns"] * context + base["window_context_ns"] * near,
                decodes.astype(float),
            ),
            axis=1,
        )
        return parts * (tokens > 0)[:, None]

    def settings(self, values: Float64) -> LatencySettings:
        *factors, decode_seq = values.tolist()
        scaled = {
            name: float(f"{factor * (getattr(self._base, name) or 0.0):.7g}")
            for factor, names in zip(factors, (_WEIGHTS, _COMPUTE, _CACHE), strict=True)
            for name in names
        }
        return LatencySettings("roofline", roofline=replace(self._base, decode_seq_ns=round(decode_seq, 1), **scaled))


def _longer(reading: Any, arithmetic: Any, values: Float64) -> tuple[Any, Any]:
    """Return the derivatives of max(reading * weights factor, arithmetic * compute factor) by the two factors."""
    bound = arithmetic * values[1] > reading * values[0]
    return reading * ~bound, arithmetic * bound
