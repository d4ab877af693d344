"""`sweep`: a grid of replays, in parallel, each kept as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..traces.errors import InputError
from ..traces.load import load_trace
from ..traces.trace import Trace
from .sweep_cells import BACKENDS, Record
from .sweep_spec import Specification, read_specification
from .sweep_store import SweepFolder, result_rows


def sweep(
    specification: Specification | str | Path | Mapping[str, Any],
    out: str,
    *,
    jobs: int = -1,
    backend: str = "processes",
    address: str | None = None,
    resume: bool = True,
    retry_failed: bool = False,
    run_folders: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay every cell of a sweep that the folder `out` does not hold yet.

    Args:
        specification: a YAML file, its content, or what `read_specification` returns.
        out: the folder; it may hold a part of the same sweep.
        jobs: processes; -1 for one a core.
        backend: processes, dask or ray.
        address: of a running Dask or Ray cluster; a local one is started if None.
        resume: whether `out` may hold a part of it already.
        retry_failed: whether cells that failed before are run again.
        run_folders: whether each cell leaves a run folder in `out/runs`.
        progress: called with the cells done and all cells.

    Returns:
        A row for each cell, as in `results.parquet`: what was varied, figures under dotted names (times in seconds),
        `error` where it failed.

    Raises:
        InputError: the specification is wrong, or `out` holds another sweep.
    """
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if not isinstance(specification, Specification):
        specification = read_specification(specification)
    folder = SweepFolder(out, specification, resume=resume)
    records = folder.finished()
    if retry_failed:
        records = {number: record for number, record in records.items() if "error" not in record}
    work = [
        (cell, folder.run_folder(cell.number) if run_folders else None)
        for cell in specification.cells
        if cell.number not in records
    ]
    if progress is not None:
        progress(len(records), len(specification.cells))
    if work:
        traces = _read_traces(specification, {cell.trace for cell, _ in work})
        with closing(BACKENDS[backend](work, traces, jobs, address)) as finished:  # pyright: ignore[reportArgumentType]
            for number, record in finished:
                folder.add(number, record)
                records[number] = record
                if progress is not None:
                    progress(len(records), len(specification.cells))
    rows = result_rows(specification, records)
    folder.write_results(rows)
    return rows


def _read_traces(specification: Specification, names: set[str]) -> dict[str, Trace]:
    return {name: load_trace(name, limit=specification.limit) for name in specification.traces if name in names}


def failed_cells(specification: Specification, rows: Sequence[Record]) -> list[str]:
    """Return a line for each cell that failed, with its error."""
    return [f"{specification.cells[row['cell']].name}: {row['error']}" for row in rows if row["error"]]
