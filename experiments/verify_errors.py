"""A replay held against the recorded run: relative errors, figure by figure, and the state over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .calibrate_recorded import SECOND_NS, Float64, Recorded
from .calibrate_replay import Replayed

FIGURES = ("mean", "p50", "p90", "p99")
METRICS = ("ttft_s", "tpot_s", "e2e_s")


def latencies(start: Float64, first: Float64, last: Float64, output_tokens: Float64) -> dict[str, Float64]:
    """Return TTFT, TPOT (of requests with at least two tokens) and E2E in seconds, counted from `start`."""
    between = output_tokens - 1
    several = between > 0
    return {
        "ttft_s": first - start,
        "tpot_s": ((last - first)[several] / between[several]),
        "e2e_s": last - start,
    }


def both_sides(
    recorded: Recorded, replayed: Replayed, rows: npt.NDArray[np.bool_]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return the figures of the latencies (s) of the requests `rows`, recorded and replayed.

    Both count from the same moment: the engine's taking in of the request where that was recorded, else its arrival.
    """
    tokens = recorded.trace.output_tokens.astype(float)[rows]
    start = replayed.arrival_s if recorded.queued_s is None else replayed.queued_s
    times = (recorded.start_s, recorded.first_s, recorded.last_s)
    real = latencies(*(column[rows] for column in times), output_tokens=tokens)
    times = (start, replayed.first_s, replayed.last_s)
    simulated = latencies(*(column[rows] for column in times), output_tokens=tokens)
    return _figures(real), _figures(simulated)


def relative_errors(
    real: dict[str, dict[str, float]], simulated: dict[str, dict[str, float]]
) -> dict[str, dict[str, float | None]]:
    """Return (simulated - real) / real of every figure, as fractions; None where the real one is 0."""
    return {
        metric: {name: simulated[metric][name] / value - 1 if value else None for name, value in figures.items()}
        for metric, figures in real.items()
    }


def states_at_ticks(recorded: Recorded, replayed: Replayed) -> dict[str, Float64]:
    """Return the replay's running, waiting and KV usage (percent) at the recorded ticks, float64 [ticks].

    As the recording: the state after the last step that ended before the tick.
    """
    assert recorded.ticks is not None
    states = replayed.states
    last = np.searchsorted(states[:, 0], recorded.ticks.time_s * SECOND_NS) - 1
    known = np.where((last >= 0)[:, None], states[np.maximum(last, 0)], 0)
    return {
        "running": known[:, 1].astype(float),
        "waiting": known[:, 2].astype(float),
        "kv_usage": 100.0 * known[:, 3] / replayed.capacity,
    }


def state_errors(recorded: Recorded, replayed: Replayed, after_s: float = 0.0) -> dict[str, float | None]:
    """Return the mean absolute differences over the ticks later than `after_s`: KV usage in percentage points."""
    errors: dict[str, float | None] = {"kv_usage_points": None, "running": None, "waiting": None}
    if recorded.ticks is None:
        return errors
    simulated = states_at_ticks(recorded, replayed)
    ticks = recorded.ticks
    late = ticks.time_s > after_s
    pairs = {"kv_usage_points": (ticks.kv_usage, "kv_usage"), "running": (ticks.running, "running")}
    pairs["waiting"] = (ticks.waiting, "waiting")
    for name, (real, column) in pairs.items():
        if real is not None and late.any():
            errors[name] = float(np.abs(real - simulated[column])[late].mean())
    return errors


def throughput(recorded: Recorded, replayed: Replayed) -> tuple[float, float]:
    """Return the generated tokens a second from the first arrival to the last token, recorded and replayed."""
    tokens = int(recorded.trace.output_tokens.sum())
    return tokens / float(recorded.last_s.max()), tokens / float(replayed.last_s.max())


def compare(recorded: Recorded, replayed: Replayed, fitted: int) -> dict[str, Any]:
    """Return the errors on the requests behind the first `fitted`, on all, and what they come from."""
    rows = np.arange(len(recorded)) >= fitted
    held = both_sides(recorded, replayed, rows)
    everything = both_sides(recorded, replayed, np.ones(len(recorded), np.bool_))
    real, simulated = throughput(recorded, replayed)
    states = state_errors(recorded, replayed)
    return {
        "errors": relative_errors(*held) | {"kv_usage_points": states["kv_usage_points"]},
        "errors_all": relative_errors(*everything),
        "recorded": held[0],
        "simulated": held[1],
        "throughput_tokens_s": {"recorded": real, "simulated": simulated},
        "running_difference": states["running"],
        "waiting_difference": states["waiting"],
        "requests": len(recorded),
        "not_fitted": int(rows.sum()),
        "measured_from": recorded.measured_from,
    }


def _figures(values: dict[str, Float64]) -> dict[str, dict[str, float]]:
    return {
        metric: dict(zip(FIGURES, (float(x.mean()), *np.percentile(x, (50, 90, 99)).tolist()), strict=True))
        if len(x)
        else dict.fromkeys(FIGURES, 0.0)
        for metric, x in values.items()
    }
