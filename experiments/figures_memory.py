"""Figures of memory: what it holds over time, and the slots that hold nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .figures_plot import COLOURS, Plot, binned
from .run_data import Run


def memory_over_time(runs: Sequence[Run]) -> Plot:
    """What the KV memory of each run holds, a panel a run, with preemptions marked."""
    plot = Plot(
        "memory",
        "KV memory over time",
        "Tokens of KV memory held by running requests, of that the slots at the ends of blocks that hold nothing, "
        "prefixes that are cached and free for the taking, and empty slots. Ticks above: preemptions.",
        (len(runs), 1),
        2.6,
    )
    for place, run in enumerate(runs):
        panel = plot.panel(place, run.name, "simulated time, s", "tokens")
        lines, size = run.timeline, run.block_size
        waste = np.minimum(lines["tail_waste_tokens"], lines["used_blocks"] * size)
        panel.areas(
            lines["time_s"],
            [
                ("running requests", lines["used_blocks"] * size - waste, COLOURS[0]),
                ("tail waste", waste, COLOURS[1]),
                ("cached, free", lines["cached_blocks"] * size, COLOURS[5]),
                ("empty", lines["free_blocks"] * size, "#c9c9c9"),
            ],
        )
        times = run.preemptions["time_s"]
        if len(times):
            panel.marks(times, np.full(len(times), run.capacity_tokens * 1.04), f"preemptions ({len(times):,})", 3, "|")
        panel.axes.set_ylim(0, run.capacity_tokens * 1.09)
        panel.tokens()
        panel.legend(below=5)
    return plot


def tail_waste(runs: Sequence[Run], bytes_per_token: float | None) -> Plot:
    """Slots that requests were given and that hold no token."""
    plot = Plot(
        "tail_waste",
        "Tail waste",
        "Slots at the end of a request's last block that hold no token: how many a request has at its end, which "
        "share of the slots of running requests they are over time, and on average by block size, with how many they "
        "are at a time.",
        (1, 3),
        2.9,
    )
    request = plot.panel(0, "Per request, at its end", "tokens wasted", "requests with at most so many, %")
    over_time = plot.panel(1, "Over time", "simulated time, s", "share of slots, %")
    means = plot.panel(2, "On average", "tokens a block", "share of slots, %")
    largest = max(max(run.summary["tail_waste"]["tokens_max"] for run in runs), 1)
    for number, run in enumerate(runs):
        done = ~np.isnan(run.requests["finished_s"])
        wasted = run.requests["tail_waste_tokens"][done]
        if len(wasted):
            values, counts = np.unique(wasted, return_counts=True)
            shares = 100 * np.cumsum(counts) / len(wasted)
            request.line(np.append(values, largest), np.append(shares, 100.0), run.name, number)
        lines = run.timeline
        held = lines["used_blocks"] * run.block_size
        share = np.divide(lines["tail_waste_tokens"], held, out=np.zeros(len(held)), where=held > 0)
        time, share = binned(lines["time_s"], share, 80)
        over_time.line(time, 100 * share, run.name, number)
    names = [str(run.block_size) for run in runs]
    shares = [100 * run.summary["tail_waste"]["share"] for run in runs]
    means.bars([f"{run.name}\n{name}" for run, name in zip(runs, names, strict=True)], shares, "share", 0)
    for place, (share, run) in enumerate(zip(shares, runs, strict=True)):
        means.axes.annotate(
            _amount(share, run, bytes_per_token), (place, share), ha="center", va="bottom", fontsize=7.5
        )
    means.axes.margins(y=0.25)
    request.axes.set_ylim(0, 101)
    request.legend()
    return plot


def _amount(share: float, run: Run, bytes_per_token: float | None) -> str:
    mean = float(run.timeline["tail_waste_tokens"].mean()) if len(run.timeline["time_s"]) else 0.0
    text = f"{share:.2f} %\n{mean:,.0f} tokens"
    return text if bytes_per_token is None else f"{text}\n{mean * bytes_per_token / 2**20:,.1f} MiB"
