"""`replay`: one trace through one simulated engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, BinaryIO

from ..sim.layout import LayoutLog
from ..sim.settings import Settings
from ..sim.simulation import Result, Simulation
from ..sim.summary import summarize
from ..sim.timeline import Timeline
from ..traces.output import whole_file
from ..traces.trace import Trace
from .config import as_tree, engine_capacity, exact, to_yaml, with_capacity
from .eviction_file import EvictionFile
from .latency_source import with_step_time
from .perfetto import PerfettoTrace
from .run_folder import make_folder, write_run_folder

BUILTIN_CAPACITY_TOKENS = {"sample": 16_000}
"""KV-cache capacity of the traces that come with one: enough to run, too little to keep everything."""

_CROSSED = "{allocator} under the scheduler of {engine}, which does not ship it: no engine's exact behaviour"


def replay(
    trace: Trace,
    settings: Settings | None = None,
    *,
    out: str | None = None,
    layout_log: str | None = None,
    perfetto: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Replay `trace` and return its summary.

    Args:
        trace: from `kvreplay.traces.load_trace`.
        settings: of the engine; the defaults where None, which need a capacity unless the trace is built in.
        out: a run folder to write.
        layout_log: a file for the layout of every step, compressed by its name.
        perfetto: a file for a Chrome/Perfetto trace, compressed by its name.
        progress: called now and then with the requests done and all requests.

    Returns:
        The summary: counts, shares, and times in seconds, ready for JSON.

    Raises:
        InputError: settings that do not go together or with the trace, or files that cannot be written.
    """
    settings = settings or Settings()
    capacity = engine_capacity(settings, BUILTIN_CAPACITY_TOKENS.get(trace.name))
    settings, timing, source = with_step_time(with_capacity(settings, capacity))
    simulation = Simulation(trace, settings, capacity, timing=timing)
    simulation.records.progress = progress
    engine = simulation.engine
    with ExitStack() as stack:
        folder = None if out is None else make_folder(out)
        evictions = None if folder is None else stack.enter_context(EvictionFile(folder))
        if evictions is not None:
            simulation.observe(evictions)
        timeline = engine.sampler = _timeline(simulation) if folder or perfetto else None
        spans = None if perfetto is None else PerfettoTrace()
        if spans is not None:
            engine.listeners.append(spans)
        log = None if layout_log is None else _JsonLines(stack.enter_context(whole_file(layout_log)))
        if log is not None:
            engine.listeners.append(LayoutLog(log.write))
        result, times = _timed(simulation)
        summary = _summary(trace, settings, result, times) | ({} if source is None else {"step_time": source})
        if log is not None:
            log.write({"free_order": result.free_order.tolist()})
        if spans is not None and timeline is not None and perfetto is not None:
            spans.write(perfetto, timeline)
        if folder is not None and timeline is not None and evictions is not None:
            summary["evictions"] = evictions.figures()
            with whole_file(folder / "evictions.parquet") as file:
                evictions.write_parquet(file)
            write_run_folder(folder, trace, result, timeline, engine.preemptions, summary, to_yaml(settings))
    return summary


def _timeline(simulation: Simulation) -> Timeline:
    return Timeline(simulation.setup.capacity, simulation.setup.block_size)


def _summary(trace: Trace, settings: Settings, result: Result, times: dict[str, float]) -> dict[str, Any]:
    figures = summarize(result, trace.prompt_tokens)
    head = {"engine": settings.engine, "allocator": settings.allocator.kind, "trace": trace.name}
    if not exact(settings):
        head |= {"exact": False, "note": _CROSSED.format(**head)}
    # The times come where the reader looks for them: behind the simulated time.
    before = ("requests", "completed", "rejected", "simulated_s")
    first = {key: figures.pop(key) for key in before}
    return head | first | times | figures | {"config": as_tree(settings)}


def _timed(simulation: Simulation) -> tuple[Result, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulation.run()
    return result, {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(", ", ": ")).encode() + b"\n")
