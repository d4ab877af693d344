"""The figures of a simulation, from its records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .meter import Meter
from .simulation import Result

Float64 = npt.NDArray[np.float64]

SECOND_NS = 1_000_000_000


def spread(values: Float64) -> dict[str, float | None]:
    """Return mean, percentiles and maximum of `values` (any unit); all None where there are none."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    if not len(values):
        return dict.fromkeys(names)
    percentiles = np.percentile(values, (50, 90, 95, 99))
    figures = (values.mean(), *percentiles, values.max())
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


def summarize(result: Result, prompt_tokens: npt.NDArray[np.int32]) -> dict[str, Any]:
    """Return the summary's figures: counts, seconds, shares.

    Definitions: TTFT and E2E count from arrival; TPOT is the time from first to last token over the tokens between
    them (requests with one token have none); the queue time ends with the first admission. Averages over time are over
    the whole simulated time; the share of tail waste is over the slots that running requests were given.

    Args:
        result: of the simulation.
        prompt_tokens: int32 [n], of the trace.
    """
    records, meter = result.records, result.meter
    done = records["finished_ns"] >= 0
    prompts = int(prompt_tokens[done].sum())
    cached = int(records["cached_first"].sum())
    waste = records["tail_waste"][done]
    return {
        "requests": len(done),
        "completed": int(done.sum()),
        "rejected": len(records.rejected_rows),
        "aborted": len(records.aborted_rows),
        "simulated_s": result.end_ns / SECOND_NS,
        "steps": result.steps,
        "prompt_tokens": prompts,
        "output_tokens": int(records["output_tokens"].sum()),
        "cached_prompt_tokens": cached,
        "prefix_hit_rate": cached / prompts if prompts else 0.0,
        "readmission_cached_tokens": int(records["cached_readmitted"].sum()),
        "evicted_blocks": result.evicted_blocks,
        "preemptions": int(records["preemptions"].sum()),
        "preemption_lost_tokens": int(records["lost_tokens"].sum()),
        **_latencies(records["arrival_ns"], records, done),
        "kv_usage": _usage(meter, result),
        "tail_waste": {
            "tokens_mean": float(waste.mean()) if len(waste) else 0.0,
            "tokens_max": int(waste.max()) if len(waste) else 0,
            "share": _ratio(meter.held * result.block_size - meter.tokens, meter.held * result.block_size),
        },
        "running": {"mean": _ratio(meter.running, result.end_ns), "peak": meter.running_peak},
        **meter.figures(result.end_ns),
        "rejected_requests": sorted(records.rejected_rows),
    }


def _latencies(arrival: npt.NDArray[np.int64], records: Any, done: npt.NDArray[np.bool_]) -> dict[str, Any]:
    arrival = arrival[done]
    scheduled, first, finished = (
        records[name][done] for name in ("first_scheduled_ns", "first_token_ns", "finished_ns")
    )
    between = records["output_tokens"][done] - 1
    several = between > 0
    return {
        "ttft_s": spread((first - arrival) / SECOND_NS),
        "tpot_s": spread((finished - first)[several] / between[several] / SECOND_NS),
        "e2e_s": spread((finished - arrival) / SECOND_NS),
        "queue_s": spread((scheduled - arrival) / SECOND_NS),
    }


def _usage(meter: Meter, result: Result) -> dict[str, float]:
    capacity = result.capacity
    return {
        "mean": _ratio(meter.used, result.end_ns * capacity),
        "peak": _ratio(meter.used_peak, capacity),
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
