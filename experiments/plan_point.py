"""One replay of a plan, and what it says about the objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sim.records import RequestRecords
from ..sim.settings import SchedulerSettings, Settings
from ..sim.simulation import Result, Simulation
from ..sim.summary import summarize
from ..traces.errors import InputError
from ..traces.trace import Trace
from .config import engine_capacity, with_capacity
from .fleet import Fleet
from .latency_source import with_step_time
from .plan_slo import Slo

Float64 = npt.NDArray[np.float64]
Value = int | float | str

_KEPT = ("prefix_hit_rate", "preemptions", "evicted_blocks", "rejected", "kv_usage", "running", "simulated_s")
_MARGIN_TOKENS = 6
"""SGLang refuses prompts that come this close to its longest sequence."""


@dataclass(frozen=True)
class Point:
    """What one value of the varied setting came to."""

    value: Value
    met: bool
    figures: dict[str, float | None]
    """By objective, s; None where no request has one."""
    goodput: float
    """Requests a second of which each latency is within its bound."""
    causes: dict[str, float]
    """Of the `requests` beyond the bound of the binding objective: what their latency consists of (shares `queueing`,
    `prefill`, `decode`, as far as they are part of it), and the share `preempted`. Empty where there are none."""
    binding: str
    """The objective with the least room, in proportion to its bound."""
    summary: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "value": self.value,
            "met": self.met,
            "figures": self.figures,
            "goodput_rps": self.goodput,
            "binding": self.binding,
            "causes": self.causes,
            **self.summary,
        }


def evaluate(
    trace: Trace, settings: Settings, value: Value, slos: Sequence[Slo], replicas: int = 1, router: str = "round_robin"
) -> Point:
    """Replay `trace` and judge it.

    An objective is met if its figure is below its bound and no request was rejected that a larger memory could serve.

    Args:
        trace: from `load_trace`.
        settings: with `value` in its place.
        value: that was set.
        slos: the objectives.
        replicas: engines with these settings each.
        router: that sends requests to them.
    """
    try:
        result = _result(trace, settings, replicas, router)
    except InputError as error:
        raise InputError(f"{value}: {error}") from None
    summary = summarize(result, trace.prompt_tokens)
    figures = {slo.text: slo.value(summary | {"rejected": 0}) for slo in slos}
    room = {slo.text: figures[slo.text] / slo.bound for slo in slos}
    binding = max(slos, key=lambda slo: room[slo.text])
    refused = summary["rejected"] > _too_long(trace, settings)
    latencies = _latencies(result.records)
    within = np.ones(len(trace), np.bool_)
    for slo in slos:
        # A request without a time between tokens has nothing against it.
        within &= ~(latencies[slo.latency] >= slo.bound)
    within &= result.records["finished_ns"] >= 0
    return Point(
        value=value,
        met=not refused and all(ratio < 1 for ratio in room.values()),
        figures={text: figure if np.isfinite(figure) else None for text, figure in figures.items()},
        goodput=float(within.sum() / summary["simulated_s"]) if summary["simulated_s"] else 0.0,
        causes=_causes(result.records, latencies[binding.latency] >= binding.bound, _PARTS[binding.latency]),
        binding=binding.text,
        summary={key: summary[key] for key in _KEPT},
    )


def _result(trace: Trace, settings: Settings, replicas: int, router: str) -> Result:
    if replicas > 1:
        return Fleet(trace, settings, replicas, router).run()
    capacity = engine_capacity(settings)
    settings, timing, _ = with_step_time(with_capacity(settings, capacity))
    return Simulation(trace, settings, capacity, timing=timing).run()


def with_capacity_tokens(settings: Settings, tokens: int) -> Settings:
    """Return the settings with room for so many tokens, whatever they said before."""
    return replace(
        settings, allocator=replace(settings.allocator, num_blocks=None, num_slots=None, capacity_tokens=tokens)
    )


def _too_long(trace: Trace, settings: Settings) -> int:
    """How many prompts the engine's own length rule refuses, whatever its memory."""
    scheduler = settings.scheduler
    if isinstance(scheduler, SchedulerSettings):
        return int((trace.prompt_tokens >= scheduler.max_model_len).sum())
    return int((trace.prompt_tokens >= scheduler.context_length - _MARGIN_TOKENS).sum())


def _latencies(records: RequestRecords) -> dict[str, Float64]:
    """Each latency of each request in s, float64 [n]; NaN for what did not happen."""
    arrival, scheduled, first, finished = (
        _seconds(records[f"{name}_ns"]) for name in ("arrival", "first_scheduled", "first_token", "finished")
    )
    between = (records["output_tokens"] - 1).astype(np.float64)
    between[between < 1] = np.nan
    return {
        "ttft_s": first - arrival,
        "tpot_s": (finished - first) / between,
        "e2e_s": finished - arrival,
        "queue_s": scheduled - arrival,
    }


def _seconds(times: npt.NDArray[np.int64]) -> Float64:
    return np.where(times < 0, np.nan, times / 1e9)


def _causes(
    records: RequestRecords, beyond: npt.NDArray[np.bool_], parts: Sequence[tuple[str, str, str]]
) -> dict[str, float]:
    """What the latency of the requests `beyond` its bound consists of; `parts` are names, beginnings and ends."""
    done = beyond & (records["finished_ns"] >= 0)
    if not done.any():
        return {}
    times = {name: int((records[end][done] - records[begin][done]).sum()) for name, begin, end in parts}
    whole = sum(times.values()) or 1
    shares = {name: time / whole for name, time in times.items()}
    return {"requests": int(done.sum()), **shares, "preempted": float((records["preemptions"][done] > 0).mean())}


_QUEUEING = ("queueing", "arrival_ns", "first_scheduled_ns")
_PREFILL = ("prefill", "first_scheduled_ns", "first_token_ns")
_DECODE = ("decode", "first_token_ns", "finished_ns")
_PARTS = {
    "ttft_s": (_QUEUEING, _PREFILL),
    "tpot_s": (_DECODE,),
    "e2e_s": (_QUEUEING, _PREFILL, _DECODE),
    "queue_s": (_QUEUEING,),
}
