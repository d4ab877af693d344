"""What differs between runs of one trace, in sentences made from measured values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .compare_rows import evicted_tokens, percent, seconds
from .run_data import Run

Int64 = npt.NDArray[np.int64]


def differences(runs: Sequence[Run]) -> list[str]:
    """Return sentences on how each run differs from the first; nothing on what does not differ."""
    first = runs[0]
    sentences: list[str] = []
    for other in runs[1:]:
        for tell in (_capacity, _waste, _hits, _evictions, _preemptions, _steps, _running, _latency):
            sentence = tell(first, other)
            if sentence:
                sentences.append(sentence)
    return sentences


def hit_parts(one: Run, other: Run) -> tuple[float, float, float]:
    """Split the difference of two runs' prefix hit rates, `other` over `one`, by its causes.

    Where `other` has the smaller blocks, its hits are rounded down to the blocks of `one`, request by request, and as
    there the last prompt token counts as computed: what this takes away is owed to granularity. The rest is owed to
    what was in the cache when requests were admitted. With the larger blocks in `other`, the same the other way round.

    Returns:
        The difference, the part of granularity and the rest, as fractions of prompt tokens.
    """
    if other.block_size > one.block_size:
        return tuple(-part for part in hit_parts(other, one))  # pyright: ignore[reportReturnType]
    fine = other.requests["cached_tokens"]
    most = np.minimum(fine, other.requests["prompt_tokens"] - 1)
    rounded = most // one.block_size * one.block_size
    prompts = other.summary["prompt_tokens"] or 1
    whole = other.summary["prefix_hit_rate"] - one.summary["prefix_hit_rate"]
    granularity = 0.0 if one.block_size == other.block_size else float((fine - rounded).sum() / prompts)
    return whole, granularity, whole - granularity


def _capacity(one: Run, other: Run) -> str:
    difference = other.capacity_tokens - one.capacity_tokens
    if not difference:
        return ""
    return (
        f"Capacity: {one.name} holds {one.capacity_tokens:,} tokens, {other.name} {other.capacity_tokens:,}, "
        f"{percent(abs(difference) / one.capacity_tokens, 3)} {'more' if difference > 0 else 'less'}."
    )


def _waste(one: Run, other: Run) -> str:
    a, b = one.summary["tail_waste"], other.summary["tail_waste"]
    if a == b:
        return ""
    return (
        f"Tail waste: blocks of {one.block_size} waste {percent(a['share'], 3)} of the slots of running requests in "
        f"{one.name} ({a['tokens_mean']:.2f} tokens a request at its end), blocks of {other.block_size} "
        f"{percent(b['share'], 3)} in {other.name} ({b['tokens_mean']:.2f})."
    )


def _hits(one: Run, other: Run) -> str:
    whole, granularity, rest = hit_parts(one, other)
    if not whole:
        return ""
    more = int((other.requests["cached_tokens"] > one.requests["cached_tokens"]).sum())
    fewer = int((other.requests["cached_tokens"] < one.requests["cached_tokens"]).sum())
    return (
        f"Prefix hits: {percent(one.summary['prefix_hit_rate'])} in {one.name}, "
        f"{percent(other.summary['prefix_hit_rate'])} in {other.name}, {_points(whole)} points, of which "
        f"{_points(granularity)} come from granularity and {_points(rest)} from what was in the cache at admission; "
        f"{more:,} requests hit more in {other.name}, {fewer:,} more in {one.name}."
    )


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f}"


def _evictions(one: Run, other: Run) -> str:
    a, b = evicted_tokens(one), evicted_tokens(other)
    if a == b:
        return ""
    return (
        f"Evictions: {a:,} cached tokens were dropped in {one.name}{_evicted(one)}, {b:,} in {other.name}"
        f"{_evicted(other)}."
    )


def _evicted(run: Run) -> str:
    figures = run.summary.get("evictions") or {}
    if not figures.get("rows"):
        return ""
    return (
        f" ({percent(figures['never_hit_share'], 1)} never hit, {percent(figures['asked_again_share'], 1)} asked "
        "for again)"
    )


def _preemptions(one: Run, other: Run) -> str:
    a, b = one.summary["preemptions"], other.summary["preemptions"]
    if a == b:
        return ""
    return f"Preemptions: {_preempted(one)}, {_preempted(other)}."


def _preempted(run: Run) -> str:
    count = run.summary["preemptions"]
    if not count:
        return f"none in {run.name}"
    return (
        f"{count:,} in {run.name}, which lost {run.summary['preemption_lost_tokens']:,} computed tokens and found "
        f"{run.summary['readmission_cached_tokens']:,} again"
    )


def _steps(one: Run, other: Run) -> str:
    more = other.summary["steps"] - one.summary["steps"]
    if not more:
        return ""
    longer = other.summary["simulated_s"] - one.summary["simulated_s"]
    return (
        f"Steps: {one.summary['steps']:,} in {one.name}, {other.summary['steps']:,} in {other.name}"
        f"{_cost(other, more)}; the whole takes {abs(longer):,.1f} s {'longer' if longer > 0 else 'less'} there."
    )


def _cost(run: Run, steps: int) -> str:
    """What so many steps more cost by themselves, where the step time has such a part."""
    latency = run.summary["config"].get("latency", {})
    if latency.get("kind") != "linear":
        return ""
    return (
        f", whose {abs(steps):,} {'more' if steps > 0 else 'fewer'} are {abs(steps) * latency['base_ns'] / 1e9:,.1f} s"
    )


def _running(one: Run, other: Run) -> str:
    a, b = one.summary["running"], other.summary["running"]
    return (
        f"Concurrency: {a['mean']:.1f} requests run on average in {one.name} ({a['peak']:,} at most), "
        f"{b['mean']:.1f} in {other.name} ({b['peak']:,})."
    )


def _latency(one: Run, other: Run) -> str:
    a, b = one.summary, other.summary
    if a["ttft_s"]["mean"] is None or b["ttft_s"]["mean"] is None:
        return ""
    longer = b["ttft_s"]["mean"] - a["ttft_s"]["mean"]
    queueing = b["queue_s"]["mean"] - a["queue_s"]["mean"]
    return (
        f"Latency: mean TTFT is {seconds(a['ttft_s']['mean'])} in {one.name} and {seconds(b['ttft_s']['mean'])} in "
        f"{other.name}; of the {seconds(abs(longer))} between them {_signed(queueing, longer)} is queueing. TPOT p99 "
        f"is {seconds(a['tpot_s']['p99'])} against {seconds(b['tpot_s']['p99'])}."
    )


def _signed(part: float, whole: float) -> str:
    """A part of a difference, negative where it goes against the whole."""
    sign = "" if part * whole >= 0 else "-"
    return sign + seconds(abs(part))
