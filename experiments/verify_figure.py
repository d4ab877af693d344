"""A figure of a replay and the recorded run: state over time, and how latencies are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..traces.errors import InputError
from .calibrate_recorded import Recorded
from .calibrate_replay import Replayed
from .verify_errors import latencies, states_at_ticks

_STATES = {"kv_usage": "KV cache in use (%)", "running": "running requests", "waiting": "waiting requests"}
_LATENCIES = {"ttft_s": "TTFT (s)", "tpot_s": "TPOT (s)", "e2e_s": "E2E (s)"}


def draw(recorded: Recorded, replayed: Replayed, path: str) -> None:
    """Write the figure to `path`, as PNG, SVG or PDF by its name.

    Raises:
        InputError: matplotlib is absent, the suffix is none of these, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("--figure: needs matplotlib, which is not installed (pip install matplotlib)") from None
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--figure {path}: expected a name that ends in .png, .svg or .pdf")
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes: Any = figure.subplots(2, 3)
    _draw_states(axes[0], recorded, replayed)
    _draw_latencies(axes[1], recorded, replayed)
    axes[0][0].legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--figure {path}: cannot be written: {error.strerror or error}") from None


def _draw_states(axes: Any, recorded: Recorded, replayed: Replayed) -> None:
    ticks = recorded.ticks
    simulated = {} if ticks is None else states_at_ticks(recorded, replayed)
    for axis, (name, label) in zip(axes, _STATES.items(), strict=True):
        real = getattr(ticks, name, None)
        if ticks is not None and real is not None:
            axis.plot(ticks.time_s, real, label="recorded", color="black", linewidth=1)
        if ticks is not None:
            axis.plot(ticks.time_s, simulated[name], label="simulated", color="tab:orange", linewidth=1)
        axis.set_xlabel("time (s)")
        axis.set_ylabel(label)


def _draw_latencies(axes: Any, recorded: Recorded, replayed: Replayed) -> None:
    tokens = recorded.trace.output_tokens.astype(float)
    start = replayed.arrival_s if recorded.queued_s is None else replayed.queued_s
    real = latencies(recorded.start_s, recorded.first_s, recorded.last_s, tokens)
    simulated = latencies(start, replayed.first_s, replayed.last_s, tokens)
    for axis, (metric, label) in zip(axes, _LATENCIES.items(), strict=True):
        for values, color in ((real[metric], "black"), (simulated[metric], "tab:orange")):
            axis.plot(np.sort(values), np.linspace(0, 1, len(values)), color=color, linewidth=1)
        axis.set_xlabel(label)
        axis.set_ylabel("share of requests")
