"""The roofline step time against its formula, and its many-steps-at-once form against single steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.sim.latency_kinds import step_time
from kvreplay.sim.request import PoolRequest
from kvreplay.sim.roofline import RooflineStepTime, pairs, window_pairs
from kvreplay.sim.settings import LatencySettings, RooflineSettings, Settings
from kvreplay.sim.simulation import Simulation
from kvreplay.sim.step import Chunk
from kvreplay.traces import load_trace

DENSE = RooflineSettings(
    weights_ns=1000.0, token_ns=10.0, decode_seq_ns=3.0, decode_context_ns=0.5, prefill_pair_ns=0.25
)


def chunk(computed: int, tokens: int) -> Chunk:
    """A chunk of a prefill."""
    return Chunk(PoolRequest(0, 0, computed + tokens, computed + tokens + 1), computed, tokens, 0)


def test_each_term_of_the_formula() -> None:
    time = RooflineStepTime(DENSE, async_scheduling=True)
    assert time.step(0, 0, 0) == 0
    # Few tokens hide behind the weights, many do not.
    assert time.step(0, 4, 100) == 1000 + 12 + 50
    assert time.step(200, 0, 200, [chunk(0, 200)]) == 2000 + round(0.25 * 200 * 201 / 2)
    # A second chunk behind 100 computed tokens beside 4 requests that decode with 100 tokens in all.
    assert time.step(50, 4, 250, [chunk(100, 50)]) == 1000 + 12 + 50 + round(0.25 * (50 * 100 + 50 * 51 / 2))


def test_the_host_is_hidden_only_under_asynchronous_scheduling() -> None:
    slow_host = replace(DENSE, host_ns=5000.0)
    assert RooflineStepTime(slow_host, async_scheduling=True).step(0, 1, 0) == 5000
    assert RooflineStepTime(slow_host, async_scheduling=False).step(0, 1, 0) == 6003


def test_experts_are_touched_one_by_one() -> None:
    mixture = RooflineSettings(weights_ns=0.0, experts_ns=1000.0, expert_share=0.25)
    time = RooflineStepTime(mixture, async_scheduling=True)
    assert time.step(0, 1, 1) == 250
    assert time.step(0, 2, 2) == round(1000 * (1 - 0.75**2))


@given(computed=st.integers(0, 60), new=st.integers(1, 60), window=st.integers(1, 50))
def test_pairs_are_counted_as_by_hand(computed: int, new: int, window: int) -> None:
    positions = range(computed, computed + new)
    assert pairs(computed, new) == sum(position + 1 for position in positions)
    assert window_pairs(computed, new, window) == sum(min(position + 1, window) for position in positions)


positive = st.floats(0, 1e7, allow_nan=False)


@given(
    values=st.builds(
        RooflineSettings,
        weights_ns=positive,
        token_ns=positive,
        decode_context_ns=positive,
        window=st.integers(0, 40),
        window_context_ns=positive,
        host_ns=positive,
    ),
    members=st.integers(1, 300),
    context=st.integers(0, 10**6),
    hidden=st.booleans(),
)
def test_many_decode_steps_are_the_single_ones(
    values: RooflineSettings, members: int, context: int, hidden: bool
) -> None:
    time = RooflineStepTime(values, async_scheduling=hidden)
    single = [time.step(0, members, context + members * (k + 1)) for k in range(8)]
    assert time.decode_steps(members, context, 8).tolist() == single


@pytest.mark.parametrize("hidden", [True, False])
def test_fast_forward_changes_nothing(hidden: bool) -> None:
    values = RooflineSettings(weights_ns=5e6, token_ns=1e5, decode_context_ns=33.3, prefill_pair_ns=1.7, host_ns=7e6)
    settings = Settings(latency=LatencySettings("roofline", roofline=values))
    settings = replace(settings, scheduler=replace(settings.scheduler, async_scheduling=hidden))
    trace = load_trace("sample", limit=300)
    results = [
        Simulation(trace, replace(settings, sim=replace(settings.sim, fast_forward=fast)), 1001).run()
        for fast in (True, False)
    ]
    assert results[0].end_ns == results[1].end_ns
    for name in ("first_token_ns", "finished_ns"):
        np.testing.assert_array_equal(results[0].records[name], results[1].records[name])


def test_the_settings_choose_the_kind() -> None:
    assert isinstance(step_time(Settings(latency=LatencySettings("roofline", roofline=DENSE))), RooflineStepTime)
