"""Figures of what was dropped from the cache, and of work lost to preemption."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .figures_plot import Plot
from .run_data import Run

_HITS = ("0", "1", "2", "3-4", "5-9", "10+")
_HIT_EDGES = np.array([0, 1, 2, 3, 5, 10])


def evictions(runs: Sequence[Run]) -> Plot:
    """How old and how useful cached tokens were when they were dropped, and whether that was regretted."""
    plot = Plot(
        "evictions",
        "Evictions",
        "Cached tokens that were dropped for new ones: how long they had been unused, how many hits they had served, "
        "how soon those that were asked for again were (each such token had to be computed once more), and how many "
        "were dropped a second.",
        (2, 2),
        2.7,
    )
    age = plot.panel(0, "Unused for, when evicted", "s since last use", "evicted tokens, %")
    hits = plot.panel(1, "Hits served before", "hits", "evicted tokens, %")
    again = plot.panel(2, "Regret: asked for again within", "s after the eviction", "evicted tokens, %")
    rate = plot.panel(3, "Rate", "simulated time, s", "tokens evicted a second")
    for number, run in enumerate(runs):
        rows = run.evictions
        if not len(rows["time_s"]):
            continue
        tokens = rows["blocks"] * run.block_size
        age.distribution(rows["age_s"], run.name, number, tokens)
        shares = np.bincount(np.searchsorted(_HIT_EDGES, rows["hits"], "right") - 1, tokens, len(_HITS)) / tokens.sum()
        hits.bars(_HITS, (100 * shares).tolist(), run.name, number, len(runs))
        asked = rows["asked_again"].astype(bool)
        after, dropped = rows["asked_again_after_s"][asked].astype(float), tokens[asked]
        if len(after):
            order = np.argsort(after)
            label = f"{run.name}: {dropped.sum():,.0f} tokens"
            again.line(after[order], 100 * np.cumsum(dropped[order]) / tokens.sum(), label, number)
        edges = np.linspace(0, run.summary["simulated_s"], 61)
        counts, _ = np.histogram(rows["time_s"], edges, weights=tokens)
        rate.line((edges[1:] + edges[:-1]) / 2, counts / (edges[1] - edges[0]), run.name, number)
    if not age.axes.lines:
        for panel in (age, hits, again, rate):
            panel.text("nothing was evicted")
        return plot
    age.axes.set_xscale("symlog", linthresh=0.1)
    again.axes.set_xscale("symlog", linthresh=0.1)
    age.axes.set_xlim(left=0)
    again.axes.set_xlim(left=0)
    again.axes.set_ylim(bottom=0)
    rate.axes.set_ylim(bottom=0)
    rate.tokens()
    age.legend()
    again.legend()
    return plot


def preemptions(runs: Sequence[Run]) -> Plot:
    """Who was thrown out for want of memory, when, and what was lost."""
    plot = Plot(
        "preemptions",
        "Preemptions",
        "Requests that were thrown out (retracted) for want of memory: when, by the length they had in the end, and "
        "what of their computed tokens was lost or found in the cache again.",
        (1, 2),
        2.8,
    )
    when = plot.panel(0, "Who and when", "simulated time, s", "prompt and answer, tokens")
    lost = plot.panel(1, "What they had computed", "", "tokens")
    for number, run in enumerate(runs):
        rows = run.preemptions["id"]
        length = (run.requests["prompt_tokens"] + run.requests["output_tokens"])[rows]
        if len(rows):
            when.marks(run.preemptions["time_s"], length, f"{run.name} ({len(rows):,})", number)
        figures = run.summary
        amounts = [float(figures["preemption_lost_tokens"]), float(figures["readmission_cached_tokens"])]
        lost.bars(["lost", "found again"], amounts, run.name, number, len(runs))
    if not any(run.summary["preemptions"] for run in runs):
        when.text("nobody was preempted")
        lost.text("nothing was lost")
        return plot
    when.tokens()
    lost.tokens()
    when.legend(below=3)
    lost.legend(below=3)
    return plot
