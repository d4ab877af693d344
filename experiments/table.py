"""The summary as a table for people."""

from __future__ import annotations

from typing import Any

_LATENCIES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "queue_s": "queueing",
}
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")


def summary_table(summary: dict[str, Any]) -> str:
    """Return the summary as lines of text."""
    lines = [f"{summary['trace']} on {summary['engine']} ({summary['allocator']})"]
    lines += [summary["note"], ""] if "note" in summary else [""]
    rows = _counts(summary)
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {text}" for name, text in rows]
    lines += ["", "  " + "".join([f"{'':<12}", *(f"{name:>10}" for name in _PERCENTILES)])]
    for key, name in _LATENCIES.items():
        figures = [f"{_seconds(summary[key][figure]):>10}" for figure in _PERCENTILES]
        lines.append("  " + "".join([f"{name:<12}", *figures]))
    return "\n".join(lines)


def _counts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    usage, waste, running = summary["kv_usage"], summary["tail_waste"], summary["running"]
    regions = summary.get("contiguous")
    return [
        ("requests", _requests(summary)),
        ("simulated", f"{summary['simulated_s']:,.1f} s in {summary['steps']:,} steps"),
        ("took", f"{summary['wall_s']:.2f} s ({summary['cpu_s']:.2f} s CPU)"),
        ("tokens", f"{summary['prompt_tokens']:,} prompt, {summary['output_tokens']:,} generated"),
        ("pool", _pool(summary["config"]["allocator"])),
        ("KV in use", f"{_share(usage['mean'])} on average, {_share(usage['peak'])} at most"),
        ("running", f"{running['mean']:.1f} on average, {running['peak']:,} at most"),
        (
            "prefix hits",
            f"{_share(summary['prefix_hit_rate'])} of prompt tokens ({summary['cached_prompt_tokens']:,})",
        ),
        ("evicted", f"{summary['evicted_blocks']:,} cached blocks{_evictions(summary)}"),
        (
            "preemptions",
            f"{summary['preemptions']:,}, {summary['preemption_lost_tokens']:,} computed tokens lost, "
            f"{summary['readmission_cached_tokens']:,} found again in the cache",
        ),
        (
            "tail waste",
            f"{_share(waste['share'], 2)} of allocated slots; {waste['tokens_mean']:.1f} tokens a request "
            f"at its end, {waste['tokens_max']} at most",
        ),
        *([] if regions is None else [("regions", _regions(regions))]),
    ]


def _regions(figures: dict[str, Any]) -> str:
    return (
        f"{_share(figures['unused_share'])} of the pool reserved and unused, {_share(figures['scattered_share'])} free "
        f"in smaller pieces than the largest; {figures['kept_waiting']:,} waited for a piece"
    )


def _pool(allocator: dict[str, Any]) -> str:
    if "num_blocks" in allocator:
        return f"{allocator['num_blocks']:,} blocks of {allocator['block_size']} tokens"
    if allocator["page_size"] == 1:
        return f"{allocator['num_slots']:,} slots"
    return f"{allocator['num_slots']:,} slots in pages of {allocator['page_size']}"


def _requests(summary: dict[str, Any]) -> str:
    text = f"{summary['completed']:,} completed"
    if summary["rejected"]:
        text += f", {summary['rejected']:,} rejected (can never fit)"
    if summary["aborted"]:
        text += f", {summary['aborted']:,} aborted (gave up its memory and did not fit alone)"
    return text


def _evictions(summary: dict[str, Any]) -> str:
    figures = summary.get("evictions")
    if not figures or not figures["rows"]:
        return ""
    return (
        f"; unused for {figures['age_p50_s']:,.1f} s (median), {_share(figures['never_hit_share'])} never hit, "
        f"{_share(figures['asked_again_share'])} asked for again"
    )


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{1000 * value:.1f} ms"
    return f"{value:,.2f} s"
