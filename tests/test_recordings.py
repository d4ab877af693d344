"""Replays against recordings of the real engine's scheduler: every step, block and number equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.settings import AllocatorSettings, SchedulerSettings, Settings, SimSettings
from kvreplay.sim.simulation import Simulation
from kvreplay.traces import Trace, load_trace
from recording_format import RecordedRequests, Recording, compare, load_recording
from token_traces import trace_of_tokens

SHARED = Path(__file__).parents[2] / "shared"
REFERENCE = SHARED / "oracle" / "vllm"
REFERENCE_NAMES = (
    "az2000_b1k_t2048_lp",
    "az2000_b1k_t8192",
    "az2000_b4k_x5_t8192",
    "mc1000_b20k_async",
    "mc1000_b20k_t8192",
    "syn1_b300",
    "syn3_b250_async",
)
OWN = Path(__file__).parent / "recordings"
OWN_NAMES = sorted(path.stem for path in OWN.glob("*.npz"))
FAST_FORWARD = pytest.mark.parametrize("fast_forward", [True, False], ids=["fast_forward", "step_by_step"])


def settings_of(recording: Recording, fast_forward: bool) -> Settings:
    """The configuration that repeats a recording."""
    named = dict(recording.settings)
    allocator = AllocatorSettings(**{key: named.pop(key) for key in ("num_blocks", "block_size", "prefix_caching")})
    return Settings(
        allocator=allocator, scheduler=SchedulerSettings(**named), sim=SimSettings(fast_forward=fast_forward)
    )


def assert_replays(recording: Recording, trace: Trace, fast_forward: bool, told: list[int] | None = None) -> None:
    """Replay `trace` as the recording was made and compare everything."""
    settings = settings_of(recording, fast_forward)
    assert settings.allocator.num_blocks is not None
    simulation = Simulation(trace, settings, settings.allocator.num_blocks, told)
    lines: list[dict[str, Any]] = []
    simulation.engine.listeners.append(LayoutLog(lines.append))
    result = simulation.run()
    simulation.allocator.check([])
    names = ("first_scheduled_ns", "first_token_ns", "finished_ns", "cached_first", "preemptions")
    requests = {name: result.records[name] for name in names}
    requests["cached_resumed"] = result.records["cached_readmitted"]
    compare(recording, lines, result.free_order.tolist(), requests)
    assert result.evicted_blocks == recording.evicted_total


def reference_trace(recording: Recording) -> Trace:
    """The trace of a reference recording, from the file that it names."""
    about = recording.trace
    assert about is not None
    name = Path(about["path"]).name
    path = next(path for path in (REFERENCE / name, SHARED / "traces" / name) if path.exists())
    trace = load_trace(str(path), limit=about["n"])
    scaled = (trace.arrival_ns * about["time_scale"]).astype(np.int64)
    return dataclasses.replace(trace, arrival_ns=scaled)


def carried_trace(requests: RecordedRequests) -> Trace:
    """The trace inside one of the project's own recordings."""
    rows = range(len(requests))
    return trace_of_tokens(
        requests.arrival_ns,
        [requests.prompt(row) for row in rows],
        [requests.output(row) for row in rows],
        requests.priority,
    )


@FAST_FORWARD
@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_equals_the_reference_recording(name: str, fast_forward: bool) -> None:
    if not (REFERENCE / f"{name}.npz").exists():
        pytest.skip(f"the reference recording {name} is not here (../shared/oracle/vllm)")
    recording = load_recording(REFERENCE / name)
    assert_replays(recording, reference_trace(recording), fast_forward)


@FAST_FORWARD
@pytest.mark.parametrize("name", OWN_NAMES)
def test_equals_our_recording(name: str, fast_forward: bool) -> None:
    recording = load_recording(OWN / name)
    assert recording.requests is not None
    told = recording.requests.max_tokens.tolist()
    assert_replays(recording, carried_trace(recording.requests), fast_forward, told)


def test_our_recordings_are_there() -> None:
    assert len(OWN_NAMES) >= 10
