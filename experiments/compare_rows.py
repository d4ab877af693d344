"""The comparison of runs as a table: rows of text, from measured values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .run_data import Run

Row = tuple[str, Callable[[Run], str]]


def compared_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows as [section, label, a text for each run]."""
    return [[section, label, *map(text, runs)] for section, rows in _SECTIONS for label, text in rows]


def percent(share: float, digits: int = 2) -> str:
    """Return a share as per cent."""
    return f"{100 * share:.{digits}f} %"


def seconds(value: float | None) -> str:
    """Return a time in s, or in ms where it is short."""
    if value is None:
        return "-"
    return f"{1000 * value:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def entries_per_request(run: Run) -> float:
    """Return the mean length of a finished request's mapping at its end, in numbers.

    One a block, or one a token where there are slots. The last generated token is never in the cache.
    """
    done = ~np.isnan(run.requests["finished_s"])
    held = (run.requests["prompt_tokens"] + run.requests["output_tokens"] - 1)[done]
    if run.has_slots or not len(held):
        return float(held.mean()) if len(held) else 0.0
    return float((-(-held // run.block_size)).mean())


def timeline_mean(run: Run, column: str) -> float:
    """Return the mean of a column over the samples of the timeline."""
    values = run.timeline[column]
    return float(values.mean()) if len(values) else 0.0


def evicted_tokens(run: Run) -> int:
    """Return the tokens in the cached blocks that were dropped."""
    return run.summary["evicted_blocks"] * run.block_size


def _unit(run: Run) -> str:
    if run.summary["allocator"] == "contiguous":
        return f"one region a request, in units of {run.block_size} tokens"
    if not run.has_slots:
        return f"block of {run.block_size} tokens"
    return "slot of 1 token" if run.block_size == 1 else f"page of {run.block_size} tokens"


def _mapping(run: Run) -> str:
    if run.summary["allocator"] == "contiguous":
        return "the region's beginning"
    entries = entries_per_request(run)
    if not run.has_slots:
        return f"block table, {entries:,.0f} entries a request (one a block)"
    return f"row of req_to_token, {entries:,.0f} entries a request (one a token)"


def _address(run: Run) -> str:
    if run.summary["allocator"] == "contiguous":
        return "begin + p"
    if not run.has_slots:
        return f"table[p // {run.block_size}] * {run.block_size} + p % {run.block_size}"
    return "row[p]"


def _free_structure(run: Run) -> str:
    cached, free = (timeline_mean(run, f"{kind}_blocks") for kind in ("cached", "free"))
    if run.summary["allocator"] == "contiguous":
        return f"gaps between regions: {free:,.0f} units free"
    if not run.has_slots:
        return f"linked queue in the order of eviction: {cached + free:,.0f} blocks, {cached:,.0f} of them cached"
    return f"list of free ids: {free:,.0f}; cached ones are in the tree: {cached:,.0f}"


def _reuse(run: Run) -> str:
    if run.summary["allocator"] == "contiguous":
        return "none"
    unit = "token by token" if run.block_size == 1 else f"in whole {'pages' if run.has_slots else 'blocks'}"
    by = "in a radix tree" if run.has_slots else "by hash"
    return f"{by}, {unit}: {run.summary['cached_prompt_tokens']:,} tokens"


def _waste(run: Run) -> str:
    waste = run.summary["tail_waste"]
    return f"{percent(waste['share'])} of slots; {waste['tokens_mean']:.1f} a request, {waste['tokens_max']} at most"


def _evictions(run: Run) -> str:
    return f"{run.summary['evicted_blocks']:,} ({evicted_tokens(run):,} tokens)"


def _of_evicted(key: str, text: Callable[[float], str]) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        value = run.summary.get("evictions", {}).get(key)
        return "-" if value is None else text(value)

    return cell


def _latency(key: str, figure: str) -> Callable[[Run], str]:
    return lambda run: seconds(run.summary[key][figure])


def _count(key: str) -> Callable[[Run], str]:
    return lambda run: f"{run.summary[key]:,}"


_LATENCIES: list[Row] = [
    (f"{name} {figure}", _latency(key, figure))
    for key, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"), ("queue_s", "queueing"))
    for figure in ("mean", "p50", "p99")
]

_SECTIONS: list[tuple[str, list[Row]]] = [
    (
        "mechanism",
        [
            ("allocation unit", _unit),
            ("mapping a request", _mapping),
            ("address of a write at p", _address),
            ("free structure (mean)", _free_structure),
            ("tail waste", _waste),
            ("prefix reuse", _reuse),
        ],
    ),
    (
        "memory",
        [
            ("capacity, tokens", lambda run: f"{run.capacity_tokens:,}"),
            ("in use, mean / peak", lambda run: _mean_peak(run.summary["kv_usage"])),
            ("evicted", _evictions),
            ("  unused for (median)", _of_evicted("age_p50_s", seconds)),
            ("  never hit", _of_evicted("never_hit_share", lambda share: percent(share, 1))),
            ("  asked for again", _of_evicted("asked_again_share", lambda share: percent(share, 1))),
        ],
    ),
    (
        "hits",
        [
            ("prefix hit rate", lambda run: percent(run.summary["prefix_hit_rate"])),
            ("at first admission, tokens", _count("cached_prompt_tokens")),
            ("at re-admission, tokens", _count("readmission_cached_tokens")),
            ("requests that hit", lambda run: f"{int((run.requests['cached_tokens'] > 0).sum()):,}"),
        ],
    ),
    (
        "scheduling",
        [
            ("completed", _count("completed")),
            ("rejected", _count("rejected")),
            ("steps", _count("steps")),
            ("simulated", lambda run: seconds(run.summary["simulated_s"])),
            ("preemptions (retractions)", _count("preemptions")),
            ("  computed tokens lost", _count("preemption_lost_tokens")),
            ("running, mean", lambda run: f"{run.summary['running']['mean']:.1f}"),
            ("running, peak", lambda run: f"{run.summary['running']['peak']:,}"),
        ],
    ),
    ("latency", _LATENCIES),
]


def _mean_peak(usage: dict[str, Any]) -> str:
    return f"{percent(usage['mean'], 1)} / {percent(usage['peak'], 1)}"
