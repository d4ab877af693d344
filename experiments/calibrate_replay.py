"""Replaying a recorded run, and looking at it as the recording did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sim.roofline import pairs, window_pairs
from ..sim.scheduler import Scheduler
from ..sim.settings import Settings
from ..sim.simulation import Simulation
from ..sim.step import Step
from ..traces.errors import InputError
from ..traces.trace import Trace
from .calibrate_recorded import SECOND_NS, Float64, Recorded
from .config import engine_capacity, with_capacity
from .latency_source import with_step_time

Int64 = npt.NDArray[np.int64]

STEP_COLUMNS = (
    "scheduled_ns",
    "waiting",
    "prefill_tokens",
    "decode_seqs",
    "context_tokens",
    "decode_context",
    "prefills",
    "prefill_pairs",
    "prefill_window_pairs",
)


@dataclass(frozen=True)
class Replayed:
    """A recorded run's requests, replayed; times in seconds, float64 [n]."""

    queued_s: Float64
    """When the engine, between two steps, first saw the request."""
    arrival_s: Float64
    first_s: Float64
    last_s: Float64
    states: Int64
    """int64 [steps, 4]: (time in ns, running, waiting, blocks used) whenever a step's result had been treated."""
    steps: dict[str, Int64]
    """`STEP_COLUMNS`, int64 [steps]."""
    first_step: Int64
    """int64 [n]: the step whose result brought the first token."""
    last_step: Int64
    capacity: int
    """Blocks that can be handed out."""


class _Observer:
    """Notes what every step did, and the state after it."""

    def __init__(self, requests: int, window: int) -> None:
        self.scheduler: Scheduler | None = None
        self._window = window
        self.steps: list[tuple[int, ...]] = []
        self.states: list[tuple[int, ...]] = []
        self.first_step = np.zeros(requests, np.int64)
        self.last_step = np.zeros(requests, np.int64)
        self._row: dict[int, int] = {}
        """By the number of a step: its row in `steps`."""

    def scheduled(self, step: Step[Any], scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        prefill, decodes, context = scheduler.load(step)
        prefills = [chunk for chunk in step.chunks if chunk.tokens > 1]
        behind = sum(chunk.computed + chunk.tokens for chunk in prefills)
        seen = sum(pairs(chunk.computed, chunk.tokens) for chunk in prefills)
        near = sum(window_pairs(chunk.computed, chunk.tokens, self._window) for chunk in prefills)
        waiting = len(scheduler.waiting)
        self._row[step.number] = len(self.steps)
        self.steps.append(
            (step.time_ns, waiting, prefill, decodes, context, context - behind, len(prefills), seen, near)
        )

    def treated(self, step: Step[Any], now_ns: int) -> None:
        assert self.scheduler is not None
        used, running, _, _ = self.scheduler.state()
        self.states.append((now_ns, running, len(self.scheduler.waiting), used))
        row = self._row.pop(step.number)
        for request in step.firsts:
            self.first_step[request.index] = row
        for request in step.finishing:
            self.last_step[request.index] = row


def replay_recorded(recorded: Recorded, settings: Settings) -> Replayed:
    """Replay the requests of `recorded` under `settings`, whose capacity must be given.

    Raises:
        InputError: a request that the real engine served can never fit.
    """
    settings, timing, _ = with_step_time(settings)
    blocks = engine_capacity(settings)
    # Every step is looked at, so none is skipped.
    settings = replace(settings, sim=replace(settings.sim, fast_forward=False))
    simulation = Simulation(recorded.trace, settings, blocks, timing=timing)
    observer = _Observer(len(recorded), settings.latency.roofline.window or 0)
    simulation.engine.listeners.append(observer)
    result = simulation.run()
    records = result.records
    if records.rejected_rows:
        raise InputError(
            f"{recorded.name}: request {records.rejected_rows[0]} was served by the real engine but can never fit "
            f"into {blocks:,} blocks of {result.block_size} tokens; give the capacity that the engine had "
            "(--set allocator.num_blocks=N)"
        )
    arrival = recorded.trace.arrival_ns
    columns = np.array(observer.steps, np.int64).T
    scheduled = columns[0]
    queued = scheduled[np.minimum(np.searchsorted(scheduled, arrival), len(scheduled) - 1)]
    return Replayed(
        queued / SECOND_NS,
        arrival / SECOND_NS,
        records["first_token_ns"] / SECOND_NS,
        records["finished_ns"] / SECOND_NS,
        np.array(observer.states, np.int64),
        dict(zip(STEP_COLUMNS, columns, strict=True)),
        observer.first_step,
        observer.last_step,
        result.capacity,
    )


def with_room(recorded: Recorded, settings: Settings) -> tuple[Settings, str | None]:
    """Return settings that have a capacity, and what was assumed for it where nothing gives one."""
    allocator = settings.allocator
    given = (allocator.num_blocks, allocator.num_slots, allocator.capacity_tokens)
    if given != (None, None, None) or (settings.model is not None and settings.gpu is not None):
        return with_capacity(settings, engine_capacity(settings)), None
    blocks = _room_for_all(recorded.trace, allocator.block_size)
    return with_capacity(settings, blocks), (
        f"{recorded.name}: no KV capacity was recorded or given; replayed with room for every request at once "
        f"({blocks:,} blocks; --set allocator.num_blocks=N gives another)"
    )


def _room_for_all(trace: Trace, block_size: int) -> int:
    tokens = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    return int((-(-tokens // block_size)).sum()) + 1
