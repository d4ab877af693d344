"""Figures over capacities and over what a sweep or a plan varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .figures_plot import Plot

_CURVES = {
    "hit_rate_per_token": "LRU",
    "leaf_first_per_token": "LRU, leaf first",
    "belady_per_token": "optimum",
}
_PANELS = (
    ("prefix_hit_rate", "Prefix hits", "% of prompt tokens", 100.0),
    ("tail_waste.share", "Tail waste", "% of slots of running requests", 100.0),
    ("ttft_s.p99", "TTFT, 99th percentile", "s", 1.0),
    ("tpot_s.p95", "TPOT, 95th percentile", "s", 1.0),
)
_MOST_SERIES = 12
_WIDE = 20
"""Largest over smallest value, from which on an axis is logarithmic."""
_MOST_OF_BOUND = 300
"""Of the axis of objectives, %."""


def hit_rate_curve(found: Mapping[str, Any]) -> Plot:
    """The hit rate against capacity, from what `curve` returns."""
    plot = Plot(
        "curve",
        "Hit rate against capacity",
        "Prompt tokens found in a cache of so many blocks; replays hold blocks for running requests besides.",
        (1, 1),
        4.0,
    )
    panel = plot.panel(0, found["trace"].rpartition("/")[2], f"blocks of {found['block_size']} tokens", "% of tokens")
    sizes = np.array(found["capacity_blocks"])
    for number, (key, name) in enumerate(_CURVES.items()):
        if key in found:
            panel.line(sizes, 100 * np.array(found[key]), name, number)
    ceiling = np.full(len(sizes), 100 * found["ceiling_per_token"])
    panel.line(sizes, ceiling, "infinite cache", 3)
    points = found.get("check", ())
    if points:
        rates = 100 * np.array([point["prefix_hit_rate"] for point in points])
        panel.marks(np.array([point["capacity_blocks"] for point in points]), rates, "replay", 4, "X")
    panel.axes.set_xscale("log", base=2)
    panel.axes.set_ylim(bottom=0)
    panel.legend(below=5)
    return plot


def over_axis(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Plot | None:
    """The main figures of a sweep over the numeric key with the most values, a line for each combination of the others.

    Args:
        rows: of the sweep's results.
        varied: the keys that tell cells apart.

    Returns:
        None where no number was varied.
    """
    done = [row for row in rows if not row["error"]]
    axis = _axis(done, varied)
    if axis is None:
        return None
    others = [key for key in varied if key != axis]
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in done:
        name = " ".join(_short(key, row[key]) for key in others if key in row) or "all"
        series.setdefault(name, []).append(row)
    note = f"The main figures over {axis}; each line is one combination of what else was varied."
    if len(series) > _MOST_SERIES:
        note += f" The first {_MOST_SERIES} of {len(series)} are drawn; all are in results.parquet."
    plot = Plot("sweep", "Sweep", note, (2, 2), 3.0)
    for place, (key, title, unit, factor) in enumerate(_PANELS):
        panel = plot.panel(place, title, axis.rpartition(".")[2], unit)
        for number, (name, members) in enumerate(list(series.items())[:_MOST_SERIES]):
            points = sorted((row[axis], factor * row[key]) for row in members if row.get(key) is not None)
            if points:
                x, y = np.array(points, float).T
                panel.line(x, y, name, number)
        panel.axes.set_ylim(bottom=0)
        panel.tokens("x")
    plot.legend_below()
    return plot


def plan_points(found: Mapping[str, Any]) -> Plot:
    """The objectives and goodput over what a plan varied, from what `plan` returns."""
    plot = Plot(
        "plan",
        "Plan",
        "Each objective's figure as a share of its bound, below 100 % where it is met (figures beyond three times the "
        "bound are in the table alone), and the requests a second that are within all bounds.",
        (1, 2),
        3.0,
    )
    points = found["points"]
    settings = [next(iter(point["setting"].values())) for point in points]
    numbers = all(isinstance(setting, (int, float)) for setting in settings)
    x = np.array(settings if numbers else range(len(settings)), float)
    goals = plot.panel(0, "Objectives", found["vary"], "% of the bound")
    for number, goal in enumerate(found["slos"]):
        bound = float(goal.partition("<")[2])
        figures = [point["figures"][goal] for point in points]
        shares = np.array([np.nan if figure is None else 100 * figure / bound for figure in figures])
        goals.line(x, shares, goal, number)
    goals.line(x, np.full(len(x), 100.0), "bound", 3)
    goodput = plot.panel(1, "Goodput", found["vary"], "requests/s within all bounds")
    goodput.line(x, np.array([point["goodput_rps"] for point in points]), "goodput", 0)
    for panel in (goals, goodput):
        if not numbers:
            panel.axes.set_xticks(x, [str(setting) for setting in settings])
        elif x.max() > _WIDE * x.min():
            panel.axes.set_xscale("log")
        else:
            panel.tokens("x")
    goals.axes.set_ylim(0, _MOST_OF_BOUND)
    goodput.axes.set_ylim(bottom=0)
    goals.legend(below=2)
    return plot


def _axis(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str | None:
    counts = {
        key: len({row[key] for row in rows if key in row})
        for key in varied
        if rows and all(type(row.get(key)) in (int, float) for row in rows)
    }
    several = {key: count for key, count in counts.items() if count > 1}
    return max(several, key=lambda key: several[key], default=None)


def _short(key: str, value: Any) -> str:
    return str(value) if key in ("engine", "trace") else f"{key.rpartition('.')[2]}={value}"
