"""Recorded runs for tests: those beside the repository, and ones made by simulating."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kvreplay.experiments.calibrate_recorded import Recorded
from kvreplay.experiments.calibrate_replay import replay_recorded
from kvreplay.sim.settings import Settings
from kvreplay.traces import load_trace

FOLDER = Path(__file__).parents[2] / "shared" / "recorded"


def recorded_folder(name: str) -> str:
    """The path of a run of a real engine; skips the test where there is none."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"no recorded run {FOLDER / name}")
    return str(FOLDER / name)


def made_run(settings: Settings, requests: int = 200) -> Recorded:
    """A run of the sample's first requests, as an engine with these settings would have recorded it."""
    trace = load_trace("sample", limit=requests)
    nothing = np.zeros(requests)
    replayed = replay_recorded(Recorded("made", trace, nothing, nothing, nothing), settings)
    return Recorded("made", trace, replayed.queued_s, replayed.first_s, replayed.last_s)
