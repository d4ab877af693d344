"""`report`: figures and one page from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..traces.errors import InputError
from ..traces.load import load_trace
from ..traces.output import whole_file
from .compare_rows import compared_rows
from .compare_words import differences
from .curve import curve
from .figures_evictions import evictions, preemptions
from .figures_files import write_csv, write_plot
from .figures_memory import memory_over_time, tail_waste
from .figures_plot import Plot, styled
from .figures_requests import hits, latencies
from .report_page import page
from .run_data import Run, load_run
from .run_folder import make_folder

Slo = tuple[str, str, float]


def report(
    folders: Sequence[str | Path],
    out: str,
    *,
    slos: Sequence[Slo] = (),
    bytes_per_token: float | None = None,
    bounds: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Write figures (PNG, SVG), their numbers (CSV) and one HTML page that shows everything.

    Args:
        folders: run folders, as `replay(..., out=...)` and `compare(..., out=...)` leave them.
        out: the folder to write to.
        slos: objectives to draw: latency, figure, bound in s.
        bytes_per_token: of the KV cache, to state tail waste in bytes as well.
        bounds: whether to work out the optimum and the ceiling of hits, for which the trace is read again.
        progress: called with the figures done and all figures.

    Returns:
        The path of the page.

    Raises:
        InputError: one of the folders is no run folder, or `out` cannot be written to.
    """
    runs = _named([load_run(folder) for folder in folders])
    folder = make_folder(out)
    makers: list[Callable[[], Plot]] = [
        lambda: memory_over_time(runs),
        lambda: tail_waste(runs, bytes_per_token),
        lambda: evictions(runs),
        lambda: hits(runs, _bounds(runs) if bounds else {}),
        lambda: latencies(runs, slos),
        lambda: preemptions(runs),
    ]
    plots: list[Plot] = []
    for make in makers:
        with styled():
            plots.append(make())
        write_plot(folder, plots[-1])
        if progress is not None:
            progress(len(plots), len(makers))
    rows = compared_rows(runs)
    write_csv(folder / "table.csv", ["section", "figure", *(run.name for run in runs)], rows)
    path = folder / "report.html"
    with whole_file(path) as file:
        file.write(page(runs, rows, differences(runs), plots).encode())
    return path


def _named(runs: list[Run]) -> list[Run]:
    """Give runs whose folders have the same name that of the folder above as well."""
    names = [run.name for run in runs]
    return [
        Run(f"{run.folder.resolve().parent.name}/{run.name}", run.folder, run.summary)
        if names.count(run.name) > 1
        else run
        for run in runs
    ]


def _bounds(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """The optimum at each run's capacity and the ceiling, where its trace is still there and fits its block size."""
    found: dict[str, tuple[float, float]] = {}
    for run in runs:
        count = len(run.requests["id"])
        try:
            trace = load_trace(run.summary["trace"], limit=count)
            if len(trace) != count or (trace.prompt_tokens != run.requests["prompt_tokens"]).any():
                continue
            figures = curve(trace, block_size=run.block_size, capacities=[run.capacity_blocks])
        except InputError:
            continue
        found[run.name] = (figures["belady_per_token"][0], figures["ceiling_per_token"])
    return found
