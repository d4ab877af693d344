"""`kvreplay sweep`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compare_rows import percent, seconds
from .progress import progress_bar


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("sweep", metavar="SWEEP.yaml", help="traces, a base configuration, and axes, zip or cells")
    parser.add_argument("--out", metavar="DIR", help="the sweep's folder (default: the file's name without .yaml)")
    parser.add_argument("-j", "--jobs", type=int, default=-1, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--backend", choices=("processes", "dask", "ray"), default="processes", help="where cells run (default: here)"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="of a running Dask or Ray cluster")
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument(
        "--resume", action="store_true", default=True, help="run what the folder does not hold yet (the default)"
    )
    resume.add_argument("--no-resume", dest="resume", action="store_false", help="refuse a folder that holds a sweep")
    parser.add_argument("--retry-failed", action="store_true", help="run cells that failed before again")
    parser.add_argument("--run-folders", action="store_true", help="leave a run folder for each cell")
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="one setting for all cells, on top of the base; repeatable",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests of each trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 1 if cells failed."""
    from .sweep import failed_cells, sweep
    from .sweep_spec import read_specification

    specification = read_specification(args.sweep, args.assignments, args.limit)
    out = args.out or Path(args.sweep).stem
    with progress_bar("sweeping", quiet=args.quiet, unit="cells") as report:
        rows = sweep(
            specification,
            out,
            jobs=args.jobs,
            backend=args.backend,
            address=args.address,
            resume=args.resume,
            retry_failed=args.retry_failed,
            run_folders=args.run_folders,
            progress=report,
        )
    _draw(out, rows, specification.varied)
    failed = failed_cells(specification, rows)
    if args.json:
        print(json.dumps({"out": out, "cells": len(rows), "failed": len(failed), "results": rows}))
    else:
        print(sweep_table(rows, specification.varied))
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


def _draw(out: str, rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> None:
    from .figures_files import write_plot
    from .figures_grid import over_axis
    from .figures_plot import styled

    with styled():
        plot = over_axis(rows, varied)
        if plot is not None:
            write_plot(Path(out), plot)


_FIGURES: list[tuple[str, str, Callable[[Any], str]]] = [
    ("prefix_hit_rate", "hits", percent),
    ("tail_waste.share", "tail waste", percent),
    ("evicted_blocks", "evicted", lambda value: f"{value:,}"),
    ("preemptions", "preempted", lambda value: f"{value:,}"),
    ("kv_usage.mean", "KV in use", lambda value: percent(value, 1)),
    ("ttft_s.p50", "TTFT p50", seconds),
    ("ttft_s.p99", "TTFT p99", seconds),
    ("tpot_s.p95", "TPOT p95", seconds),
]


def sweep_table(rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> str:
    """Return a line for each cell: what was varied (dotted keys, `trace`), and the main figures."""
    lines = [[*(key.rpartition(".")[2] for key in varied), *(name for _, name, _ in _FIGURES)]]
    for row in rows:
        cells = [str(row.get(key, "-")) for key in varied]
        if row["error"]:
            lines.append([*cells, "failed", *[""] * (len(_FIGURES) - 1)])
        else:
            lines.append([*cells, *("-" if row[key] is None else text(row[key]) for key, _, text in _FIGURES)])
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
