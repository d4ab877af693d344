"""Figures of requests: what they hit, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .figures_plot import Plot
from .run_data import Run

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "queue_s": "queueing"}
_MOST_CLASSES = 8


def hits(runs: Sequence[Run], bounds: Mapping[str, tuple[float, float]]) -> Plot:
    """Prompt tokens found in the cache.

    Args:
        runs: to draw.
        bounds: by name of run, where they are known: the optimum at its capacity, and an infinite cache's share.
    """
    classes = _class_names(runs)
    plot = Plot(
        "hits",
        "Prefix hits",
        "Prompt tokens found in the cache: at first admission and, of requests that were preempted, again at "
        "re-admission; against Belady's optimum at the same capacity and against an infinite cache. Over time: at "
        "first admission, by arrival.",
        (1, 3 if classes else 2),
        2.9,
    )
    split = plot.panel(0, "By admission", "", "% of prompt tokens")
    columns = [[100 * share for share in _shares(run)] for run in runs]
    kinds = ("first admission", "re-admission")
    for number, kind in enumerate(kinds):
        split.bars([run.name for run in runs], [column[number] for column in columns], kind, number, len(kinds) + 2)
    known = [bounds.get(run.name, (float("nan"),) * 2) for run in runs]
    if bounds:
        for number, kind in enumerate(("optimum", "infinite cache"), start=2):
            values = [100 * bound[number - 2] for bound in known]
            split.bars([run.name for run in runs], values, kind, number, len(kinds) + 2)
    split.legend(below=2)
    over_time = plot.panel(1, "Over time", "arrival, s", "% of prompt tokens hit")
    for number, run in enumerate(runs):
        time, share = _hits_by_arrival(run)
        over_time.line(time, 100 * share, run.name, number)
    over_time.axes.set_ylim(bottom=0)
    over_time.legend(below=3)
    if classes:
        by_class = plot.panel(2, "By request class", "", "% of prompt tokens hit")
        for number, run in enumerate(runs):
            shares = [100 * _share_of(run, run.requests["class"] == name) for name in classes]
            by_class.bars(classes, shares, run.name, number, len(runs))
        by_class.axes.tick_params(axis="x", rotation=30)
        by_class.axes.set_ylim(bottom=0)
    return plot


def latencies(runs: Sequence[Run], slos: Sequence[tuple[str, str, float]]) -> Plot:
    """Distribution functions of the latencies, and queueing against load.

    Args:
        runs: to draw.
        slos: latency, figure and bound in s, such as ("ttft_s", "p99", 2.0); drawn as points.
    """
    plot = Plot(
        "latency",
        "Latency",
        "Share of requests that took at most so long, from arrival to the first token (TTFT), between tokens (TPOT), "
        "and to the last token (E2E); and how long requests queued by the prompt tokens that arrived around them. "
        "Crosses: objectives; a line above and left of its cross meets it.",
        (2, 2),
        2.7,
    )
    for place, (key, name) in enumerate(list(LATENCIES.items())[:3]):
        panel = plot.panel(place, name, "s", "requests, %")
        for number, run in enumerate(runs):
            panel.distribution(_latency(run, key), run.name, number)
        for latency, figure, bound in slos:
            if latency == key and figure.startswith("p"):
                panel.marks(np.array([bound]), np.array([float(figure[1:])]), f"{figure} < {bound:g} s", 3, "X")
        if panel.axes.lines:
            panel.axes.set_xscale("log")
        panel.legend()
    queue = plot.panel(3, "Queueing against load", "prompt tokens arriving a second", "mean queueing, s")
    for number, run in enumerate(runs):
        load, waited = _queueing(run)
        queue.marks(load, waited, run.name, number, "os^D"[number % 4])
    queue.tokens("x")
    queue.legend(below=3)
    return plot


def _latency(run: Run, key: str) -> np.ndarray:
    rows = run.requests
    if key == "tpot_s":
        between = (rows["output_tokens"] - 1).astype(float)
        between[between <= 0] = np.nan
        return (rows["finished_s"] - rows["first_token_s"]) / between
    return rows[{"ttft_s": "first_token_s", "e2e_s": "finished_s"}[key]] - rows["arrival_s"]


def _shares(run: Run) -> tuple[float, float]:
    prompts = run.summary["prompt_tokens"] or 1
    return run.summary["prefix_hit_rate"], run.summary["readmission_cached_tokens"] / prompts


def _share_of(run: Run, rows: np.ndarray) -> float:
    prompts = int(run.requests["prompt_tokens"][rows].sum())
    return float(run.requests["cached_tokens"][rows].sum() / prompts) if prompts else 0.0


def _hits_by_arrival(run: Run, bins: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rows = run.requests
    time = rows["arrival_s"]
    place, width = _bins(time, bins)
    prompts = np.bincount(place, rows["prompt_tokens"], bins)
    there = prompts > 0
    shares = np.bincount(place, rows["cached_tokens"], bins)[there] / prompts[there]
    return (time.min() + (np.arange(bins) + 0.5) * width)[there], shares


def _queueing(run: Run, bins: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens a second, and mean queueing (s), of the requests of each stretch of arrivals."""
    rows = run.requests
    place, width = _bins(rows["arrival_s"], bins)
    waited = rows["first_scheduled_s"] - rows["arrival_s"]
    served = ~np.isnan(waited)
    counts = np.bincount(place[served], minlength=bins)
    there = counts > 0
    load = np.bincount(place, rows["prompt_tokens"], bins) / width
    return load[there], np.bincount(place[served], waited[served], bins)[there] / counts[there]


def _bins(time: np.ndarray, bins: int) -> tuple[np.ndarray, float]:
    """The stretch of time of each of `time`, int64 [n], and how long (s) a stretch is."""
    width = max(float(time.max() - time.min()), 1e-9) / bins
    return np.minimum((time - time.min()) / width, bins - 1).astype(np.int64), width


def _class_names(runs: Sequence[Run]) -> list[str]:
    names = {str(name) for run in runs if "class" in run.requests for name in run.requests["class"] if name}
    return sorted(names)[:_MOST_CLASSES]
