"""Several engines behind a router."""

from __future__ import annotations

import numpy as np
import pytest
from kvreplay.experiments.config import load_settings
from kvreplay.experiments.fleet import Fleet
from kvreplay.experiments.plan import plan
from kvreplay.experiments.routers import ROUTERS
from kvreplay.sim.records import COUNTS, TIMES
from kvreplay.sim.simulation import Simulation
from kvreplay.traces import InputError, Trace, load_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A part of the sample, which has sessions and shared prefixes."""
    return load_trace("sample", limit=600)


def settings_of(engine: str = "vllm", *more: str):
    """Little memory and much load."""
    return load_settings(None, [f"engine={engine}", "allocator.capacity_tokens=8000", "arrivals.scale=4", *more])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_fleet_of_one_is_the_engine(trace: Trace, engine: str) -> None:
    settings = settings_of(engine)
    fleet = Fleet(trace, settings, 1, "least_loaded").run()
    alone = Simulation(trace, settings, 501 if engine == "vllm" else 8000).run()
    for column in (*TIMES, *COUNTS):
        assert np.array_equal(fleet.records[column], alone.records[column]), column
    assert (fleet.steps, fleet.end_ns, fleet.evicted_blocks) == (alone.steps, alone.end_ns, alone.evicted_blocks)
    assert vars(fleet.meter) == vars(alone.meter)
    assert np.array_equal(fleet.free_order, alone.free_order)


@pytest.mark.parametrize("router", list(ROUTERS))
def test_every_request_is_served_by_one_engine(trace: Trace, router: str) -> None:
    fleet = Fleet(trace, settings_of(), 3, router)
    result = fleet.run()
    assert (result.records["finished_ns"] >= 0).all()
    assert set(fleet.chosen) == {0, 1, 2}
    assert fleet.router.outstanding == [0, 0, 0]
    assert result.capacity == 1500


def test_fast_forward_changes_nothing(trace: Trace) -> None:
    fast, slow = (
        Fleet(trace, settings_of("vllm", f"sim.fast_forward={flag}"), 2, "least_loaded") for flag in ("true", "false")
    )
    assert np.array_equal(fast.run().records["finished_ns"], slow.run().records["finished_ns"])
    assert fast.chosen == slow.chosen


def test_round_robin_takes_turns(trace: Trace) -> None:
    fleet = Fleet(trace, settings_of(), 3, "round_robin")
    fleet.run()
    assert fleet.chosen == [row % 3 for row in range(len(trace))]


def test_a_session_stays_where_it_began(trace: Trace) -> None:
    fleet = Fleet(trace, settings_of(), 3, "session")
    fleet.run()
    assert trace.session is not None
    for session in np.unique(trace.session[trace.session >= 0]):
        assert len({fleet.chosen[row] for row in np.flatnonzero(trace.session == session)}) == 1


def test_routers_that_know_prefixes_hit_more(trace: Trace) -> None:
    hits = {}
    for router in ROUTERS:
        hits[router] = int(Fleet(trace, settings_of(), 3, router).run().records["cached_first"].sum())
    assert hits["prefix_aware"] > hits["round_robin"]
    assert hits["session"] > hits["round_robin"]


def test_wrong_fleets_are_input_errors(trace: Trace) -> None:
    with pytest.raises(InputError, match="--router nearest: expected one of"):
        Fleet(trace, settings_of(), 2, "nearest")
    with pytest.raises(InputError, match=r"arrivals.sessions: closed"):
        Fleet(trace, settings_of("vllm", "arrivals.sessions=closed"), 2, "session")


def test_the_fewest_replicas_are_found(trace: Trace) -> None:
    found = plan(trace, ["ttft_s.p99<0.3"], settings_of("vllm", "arrivals.scale=8"), vary="replicas")
    assert found["met"]
    assert found["above"]["value"] == found["below"]["value"] + 1
    assert found["answer"]["replicas"] > 1
