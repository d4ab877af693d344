"""Running cells: in this process, in processes of this machine, or on a Dask or Ray cluster.

Every backend runs the same function on the same cells, sends each trace once, and yields what is finished as it
finishes, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np

from ..traces.errors import InputError
from ..traces.trace import Trace
from .replay import replay
from .run_folder import TIMING
from .sweep_spec import Cell

Record = dict[str, Any]
Finished = tuple[int, Record]

_SHARED_BYTES = 16_384
"""Arrays from this size on go to worker processes as one file that all of them map, instead of a copy each."""


def run_cell(cell: Cell, trace: Trace, folder: str | None) -> Finished:
    """Replay one cell; return its number, and `summary` or, if it fails, `error`.

    Args:
        cell: what to replay.
        trace: that it names.
        folder: for a run folder, if one is wanted.
    """
    try:
        summary = replay(_aligned(trace), cell.settings, out=folder)
    except InputError as error:
        return cell.number, {"error": str(error)}
    except Exception as error:  # whatever it is: the other cells go on, and the sweep names this one
        return cell.number, {"error": f"{type(error).__name__}: {error}"}
    return cell.number, {"summary": {key: value for key, value in summary.items() if key not in TIMING}}


def _aligned(trace: Trace) -> Trace:
    """The trace with every array where the processor can read its numbers; a cluster may hand them over elsewhere."""
    columns = {field.name: getattr(trace, field.name) for field in fields(trace)}
    arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
    if all(array.flags.aligned for array in arrays.values()):
        return trace
    return replace(trace, **{name: np.require(array, requirements="A") for name, array in arrays.items()})  # pyright: ignore[reportArgumentType]


Work = Sequence[tuple[Cell, str | None]]
"""Cells that are to be run, each with its run folder if it is to have one."""


def in_processes(work: Work, traces: Mapping[str, Trace], jobs: int, address: str | None) -> Iterator[Finished]:
    """Run cells in `jobs` processes (this one alone for 1); `address` must be None."""
    if address is not None:
        raise InputError("--address: only --backend dask and ray have one")
    if jobs == 1 or len(work) == 1:
        for cell, folder in work:
            yield run_cell(cell, traces[cell.trace], folder)
        return
    from joblib import Parallel, delayed

    one: Any = 1  # joblib's stubs know of "auto" alone
    pool = Parallel(jobs, batch_size=one, return_as="generator_unordered", max_nbytes=_SHARED_BYTES)
    yield from cast(
        Iterator[Finished], pool(delayed(run_cell)(cell, traces[cell.trace], folder) for cell, folder in work)
    )


def on_dask(work: Work, traces: Mapping[str, Trace], jobs: int, address: str | None) -> Iterator[Finished]:
    """Run cells on the Dask cluster at `address`, or on a local one with `jobs` processes."""
    distributed = _library("distributed", "dask")
    with _dask_client(distributed, jobs, address) as client:
        sent = {name: client.scatter(trace, broadcast=True) for name, trace in traces.items()}
        futures = [client.submit(run_cell, cell, sent[cell.trace], folder, pure=False) for cell, folder in work]
        for future in distributed.as_completed(futures):
            yield future.result()


def _dask_client(distributed: Any, jobs: int, address: str | None) -> Any:
    if address is None:
        workers = os.cpu_count() if jobs < 1 else jobs
        return distributed.Client(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
    try:
        return distributed.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"--address {address}: no Dask scheduler there: {error}") from None


def on_ray(work: Work, traces: Mapping[str, Trace], jobs: int, address: str | None) -> Iterator[Finished]:
    """Run cells on the Ray cluster at `address`, or on a local one with `jobs` processes."""
    ray = _library("ray", "ray")
    own = not ray.is_initialized()
    if own:
        local = {"num_cpus": os.cpu_count() if jobs < 1 else jobs, "include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, **({} if address else local))
        except ConnectionError as error:
            raise InputError(f"--address {address}: no Ray cluster there: {error}") from None
    try:
        sent = {name: ray.put(trace) for name, trace in traces.items()}
        task = ray.remote(num_cpus=1)(run_cell)
        waiting = [task.remote(cell, sent[cell.trace], folder) for cell, folder in work]
        while waiting:
            done, waiting = ray.wait(waiting)
            yield from ray.get(done)
    finally:
        if own:
            ray.shutdown()


def _library(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"--backend {extra}: needs a library; install it with `pip install 'kvreplay[{extra}]'`"
        ) from None


BACKENDS: dict[str, Callable[[Work, Mapping[str, Trace], int, str | None], Iterator[Finished]]] = {
    "processes": in_processes,
    "dask": on_dask,
    "ray": on_ray,
}
