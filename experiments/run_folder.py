"""The run folder: what `--out DIR` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..sim.simulation import Result
from ..sim.timeline import Timeline
from ..traces.errors import InputError
from ..traces.output import whole_file
from ..traces.trace import Trace

_SECOND = 1e9
TIMING = ("wall_s", "cpu_s")
"""Figures of the summary that differ from run to run; no file holds them."""


def make_folder(path: str) -> Path:
    """Make the folder `path` where it is not there, and return it.

    Raises:
        InputError: it cannot be made, or is a file.
    """
    if not path:
        raise InputError("--out: expected the name of a folder, got an empty one")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made a run folder: {error.strerror or error}") from None
    return folder


def write_run_folder(
    folder: Path,
    trace: Trace,
    result: Result,
    timeline: Timeline,
    preemptions: list[tuple[int, int]],
    summary: dict[str, Any],
    config: str,
) -> None:
    """Write everything but the evictions; each file appears whole or not at all.

    Args:
        folder: where to.
        trace: that was replayed.
        result: of the simulation.
        timeline: its samples.
        preemptions: when (ns), and whose row.
        summary: its figures.
        config: its settings as YAML.
    """
    stable = {key: value for key, value in summary.items() if key not in TIMING}
    with whole_file(folder / "summary.json") as file:
        file.write((json.dumps(stable, indent=2) + "\n").encode())
    with whole_file(folder / "config.yaml") as file:
        file.write(config.encode())
    _write_table(folder / "requests.parquet", request_columns(trace, result))
    _write_table(folder / "timeline.parquet", timeline_columns(timeline))
    times = np.array(preemptions, np.int64).reshape(-1, 2)
    _write_table(folder / "preemptions.parquet", {"time_s": times[:, 0] / _SECOND, "id": times[:, 1]})


def request_columns(trace: Trace, result: Result) -> dict[str, Any]:
    """Return a column each of `requests.parquet`, a row a request in arrival order; NaN for what did not happen."""
    records = result.records
    rejected = np.zeros(len(trace), np.bool_)
    rejected[records.rejected_rows] = True
    columns: dict[str, Any] = {"id": np.arange(len(trace))}
    for name in ("arrival", "first_scheduled", "first_token", "finished"):
        times = records[f"{name}_ns"]
        columns[f"{name}_s"] = np.where(times < 0, np.nan, times / _SECOND)
    columns |= {
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": records["output_tokens"],
        "cached_tokens": records["cached_first"],
        "preemptions": records["preemptions"],
        "tail_waste_tokens": records["tail_waste"],
        "readmission_cached_tokens": records["cached_readmitted"],
        "preemption_lost_tokens": records["lost_tokens"],
        "rejected": rejected,
    }
    if trace.session is not None:
        columns["session"] = trace.session
    if trace.kind is not None:
        columns["class"] = [trace.kind_names[kind] if kind >= 0 else None for kind in trace.kind.tolist()]
    return columns


def timeline_columns(timeline: Timeline) -> dict[str, Any]:
    """Return a column each of `timeline.parquet`, a row a sample."""
    values = np.array(timeline.rows, np.int64).reshape(-1, len(Timeline.COLUMNS)).T
    columns = dict(zip(Timeline.COLUMNS, values, strict=True))
    return {"time_s": columns.pop("time_ns") / _SECOND, **columns}


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with whole_file(path) as file:
        pq.write_table(pa.table(columns), file)
