"""Replays against recordings of SGLang's own scheduler: every batch, slot and number equal."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.scheduler import Scheduler
from kvreplay.sim.settings import AllocatorSettings, Settings, SglangSettings, SimSettings
from kvreplay.sim.sglang_scheduler import SglangScheduler
from kvreplay.sim.simulation import Simulation
from kvreplay.sim.tree_step import TreeStep
from kvreplay.traces import Trace, load_trace
from kvreplay.traces.sequences import TokenSequences
from sglang_recording_format import RecordedRequests, Recording, compare, load_recording
from token_traces import trace_of_tokens

SHARED = Path(__file__).parents[2] / "shared"
REFERENCE = SHARED / "oracle" / "sglang"
REFERENCE_NAMES = (
    "mc1000_960k_ps1",
    "mc1000_320k_ps16",
    "az2000_64k_ps64",
    "az600_16k_eos",
    "mt600_20k",
    "mt_noovl",
    "mt_retr_ps1",
)
OWN = Path(__file__).parent / "sglang_recordings"
OWN_NAMES = sorted(path.stem for path in OWN.glob("*.npz"))
STEP_BY_STEP = [False] if os.environ.get("KVREPLAY_THOROUGH") else []
"""The large recordings are replayed with fast forward; without it too where there is time."""
FAST_FORWARD = pytest.mark.parametrize("fast_forward", [True, False], ids=["fast_forward", "step_by_step"])


class DetailedLog(LayoutLog):
    """The layout log with what else a recording holds of a batch."""

    def __init__(self, lines: list[dict[str, Any]], page_size: int) -> None:
        super().__init__(lines.append)
        self._page_size = page_size

    def scheduled(self, step: TreeStep, scheduler: Scheduler) -> None:
        super().scheduled(step, scheduler)
        assert isinstance(scheduler, SglangScheduler)
        line = self._open[step.number]
        line["kind"] = step.kind
        line["start_ns"] = step.end_ns - step.duration_ns
        line["rows"] = [chunk.request.row for chunk in scheduler.entries(step)]
        line["evicted"] = step.evicted * self._page_size
        line["available"] = step.free * self._page_size
        line["evictable"] = scheduler.memory.evictable * self._page_size
        line["waiting"] = len(scheduler.waiting)


def replayed(recording: Recording, trace: Trace, fast_forward: bool, told: list[int] | None) -> None:
    """Replay `trace` as the recording was made and compare everything."""
    named = dict(recording.settings)
    num_slots, page_size = named.pop("num_slots"), named.pop("page_size", 1)
    settings = Settings(
        engine="sglang",
        allocator=AllocatorSettings(kind="token_slots" if page_size == 1 else "paged_slots", block_size=page_size),
        scheduler=SglangSettings(**named),
        sim=SimSettings(fast_forward=fast_forward),
    )
    simulation = Simulation(trace, settings, num_slots, told)
    lines: list[dict[str, Any]] = []
    simulation.engine.listeners.append(DetailedLog(lines, page_size))
    result = simulation.run()
    names = ("first_scheduled_ns", "first_token_ns", "finished_ns", "cached_first", "preemptions")
    requests = {name: result.records[name] for name in names}
    requests["cached_first"] = np.where(requests["first_scheduled_ns"] < 0, -1, requests["cached_first"])
    requests["cached_resumed"] = result.records["cached_readmitted"]
    scheduler = simulation.scheduler
    assert isinstance(scheduler, SglangScheduler)
    compare(recording, lines, result.free_order.tolist(), requests, scheduler.memory.free_rows)


def reference_trace(recording: Recording) -> tuple[Trace, list[int] | None]:
    """The trace of a reference recording, from the file that it names, and what the server was told."""
    about = recording.trace
    assert about is not None
    kind, n = about["kind"], about["n"]
    if kind == "mooncake":
        trace = load_trace(str(SHARED / "traces" / "mooncake_conversation.jsonl"), limit=n)
    elif kind == "azure":
        trace = load_trace(str(SHARED / "traces" / "azure_2023_conv.csv"), limit=n)
        # That recorder read microseconds.
        trace = dataclasses.replace(trace, arrival_ns=trace.arrival_ns // 1000 * 1000)
    else:
        trace = load_trace(str(REFERENCE / f"mt{n}.jsonl.gz"))
    told = about["max_new_tokens"]
    return trace, None if told is None else [told] * len(trace)


def carried_trace(requests: RecordedRequests) -> Trace:
    """The trace inside one of the project's own recordings."""
    rows = range(len(requests))
    prompts, outputs = [requests.prompt(row) for row in rows], [requests.output(row) for row in rows]
    return trace_of_tokens(requests.arrival_ns, prompts, outputs)


@pytest.mark.parametrize("name", REFERENCE_NAMES)
@pytest.mark.parametrize(
    "fast_forward", [True, *STEP_BY_STEP], ids=["fast_forward", *(["step_by_step"] * len(STEP_BY_STEP))]
)
def test_equals_the_reference_recording(name: str, fast_forward: bool) -> None:
    if not (REFERENCE / f"{name}.npz").exists():
        pytest.skip(f"the reference recording {name} is not here (../shared/oracle/sglang)")
    recording = load_recording(REFERENCE / name)
    trace, told = reference_trace(recording)
    replayed(recording, trace, fast_forward, told)


@pytest.fixture
def recorded_eos(monkeypatch: pytest.MonkeyPatch) -> None:
    """In our recordings the last token of an answer is its EOS, and a later turn's prompt repeats it like any other.

    Of a trace the simulator assumes that no prompt contains the EOS.
    """
    of = TokenSequences.of
    monkeypatch.setattr(TokenSequences, "of", lambda self, request, length, eos: of(self, request, length, False))


@FAST_FORWARD
@pytest.mark.usefixtures("recorded_eos")
@pytest.mark.parametrize("name", OWN_NAMES)
def test_equals_our_recording(name: str, fast_forward: bool) -> None:
    recording = load_recording(OWN / name)
    assert recording.requests is not None
    trace = carried_trace(recording.requests)
    replayed(recording, trace, fast_forward, np.asarray(recording.requests.max_new_tokens).tolist())
