"""Replays beside the hit-rate curve: what the whole engine hits at some of its capacities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..sim.settings import Settings
from ..traces.trace import Trace
from .replay import replay


def spread_out(sizes: Sequence[int], count: int) -> list[int]:
    """Return `count` of the sizes, the last among them, at even steps; all where there are no more."""
    if count >= len(sizes):
        return list(sizes)
    step = len(sizes) / count
    return [sizes[round((place + 1) * step) - 1] for place in range(count)]


def check_points(
    trace: Trace,
    settings: Settings,
    sizes: Sequence[int],
    block_size: int,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay `trace` at capacities of `sizes` blocks of `block_size` tokens; a dictionary each, ready for JSON.

    Engine and settings are those given, the capacity in tokens apart, and vLLM's blocks, which are the curve's.
    The replay's hit rate is of prompt tokens; requests that can never fit at a capacity are left out of it there.
    """
    points: list[dict[str, Any]] = []
    for done, size in enumerate(sizes):
        allocator = replace(settings.allocator, num_blocks=None, num_slots=None, capacity_tokens=size * block_size)
        if settings.engine == "vllm":
            allocator = replace(allocator, block_size=block_size)
        summary = replay(trace, replace(settings, allocator=allocator))
        points.append(
            {
                "capacity_blocks": size,
                "prefix_hit_rate": summary["prefix_hit_rate"],
                "rejected": summary["rejected"],
                "preemptions": summary["preemptions"],
                "kv_usage": summary["kv_usage"],
            }
        )
        if progress is not None:
            progress(done + 1, len(sizes))
    return points
