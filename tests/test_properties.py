"""Random traffic in random setups: the engine does, step for step, what the naive one does.

HYPOTHESIS_PROFILE=thorough tries thousands of examples a test instead of dozens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.summary import summarize
from kvreplay.traces import load_trace
from scenarios import (
    NeverEndsError,
    Scenario,
    assert_same_figures,
    assert_same_outcome,
    assert_same_steps,
    comes_to_an_end,
    figures_of,
    logged_run,
    naive_engine,
    naive_run,
    rejected_rows,
    scenarios,
    simulation_of,
    with_covered_prompts,
    with_granularity,
)

EXAMPLES = settings().max_examples
MANY = settings(max_examples=4 * EXAMPLES)


def assert_equals_naive(scenario: Scenario, trace: Any = None) -> None:
    """Every way to run the scenario must give what the naive engine gives."""
    try:
        expected = naive_run(scenario)
    except NeverEndsError as endless:
        assert_begins_like(endless.steps[:300], scenario, trace)
        return
    figures = figures_of(scenario, expected.steps)
    for fast_forward in (True, False):
        simulation = simulation_of(scenario, trace or scenario.trace(), fast_forward=fast_forward)
        lines, result = logged_run(simulation, len(expected.steps))
        assert_same_steps(expected.steps, lines)
        assert_same_outcome(expected, result)
        assert_same_figures(figures, result)
        assert result.steps == len(lines)
        assert result.evicted_blocks == sum(line["evicted"] for line in lines)
        assert sorted(result.records.rejected_rows) == rejected_rows(scenario)


class EnoughError(Exception):
    """Ends a replay that would not end."""


def assert_begins_like(steps: list[dict[str, Any]], scenario: Scenario, trace: Any = None) -> None:
    """What never ends must at least begin with these steps."""
    for fast_forward in (True, False):
        simulation = simulation_of(scenario, trace or scenario.trace(), fast_forward=fast_forward)
        lines: list[dict[str, Any]] = []

        def write(line: dict[str, Any], lines: list[dict[str, Any]] = lines) -> None:
            lines.append(line)
            if len(lines) == len(steps):
                raise EnoughError

        simulation.engine.listeners.append(LayoutLog(write))
        with pytest.raises(EnoughError):
            simulation.run()
        assert_same_steps(steps, lines)


@MANY
@given(scenarios())
def test_equals_the_naive_engine(scenario: Scenario) -> None:
    assert_equals_naive(scenario)


OUT_OF_TURN = Scenario(
    arrival_ns=[0] * 6,
    prompts=[(100,), (0,), (100, 101, 103), (100, 101), (0,), (116, 117)],
    outputs=[(101,), (102,), (104, 105), (106, 107, 108, 109), (110, 111, 112, 113, 114, 115), (118, 119)],
    told=[1, 1, 2, 4, 6, 2],
    priority=[0, 0, 0, 0, 1, 0],
    num_blocks=7,
    block_size=1,
    prefix_caching=True,
    scheduler={
        "max_num_seqs": 2,
        "scheduler_reserve_full_isl": False,
        "policy": "priority",
        "async_scheduling": False,
    },
)
"""A request preempts itself before the last of the running list was served, which was to end in that step."""


LAST_BLOCK_IN_FLIGHT = Scenario(
    arrival_ns=[0, 15_000_000],
    prompts=[(100,), (100, 101, 102, 103, 104)],
    outputs=[(101, 102, 103, 104), (106,)],
    told=[4, 1],
    priority=[0, 0],
    num_blocks=22,
    block_size=1,
    prefix_caching=True,
    scheduler={"async_scheduling": True},
)
"""A prompt asks for the block that another request fills with its last token but one, while the last is in flight."""


TURN_ABOUT = Scenario(
    arrival_ns=[10, 10],
    prompts=[(100, 101, 102), (108, 109, 110, 111)],
    outputs=[(103, 104, 105, 106, 107), (112, 113, 114, 115, 116)],
    told=[5, 5],
    priority=[2, 2],
    num_blocks=11,
    block_size=1,
    prefix_caching=False,
    scheduler={
        "long_prefill_token_threshold": 1,
        "scheduler_reserve_full_isl": False,
        "policy": "priority",
    },
)
"""Equals in priority and arrival that preempt each other for ever: the first in the running list is the victim."""


def test_requests_that_preempt_each_other_for_ever_do_so_as_in_the_naive_engine() -> None:
    assert not comes_to_an_end(TURN_ABOUT)
    assert_equals_naive(TURN_ABOUT)


@example(LAST_BLOCK_IN_FLIGHT)
@given(scenarios(async_scheduling=True, prefix_caching=True))
def test_equals_it_where_answers_are_asked_for_while_they_are_generated(scenario: Scenario) -> None:
    assert_equals_naive(scenario)


@given(scenarios(policy="priority", scheduler_reserve_full_isl=False))
@example(OUT_OF_TURN)
def test_equals_it_by_priority_without_reserving(scenario: Scenario) -> None:
    assert_equals_naive(scenario)


@given(scenarios(policy="priority", async_scheduling=True))
def test_equals_it_by_priority_and_asynchronously(scenario: Scenario) -> None:
    assert_equals_naive(scenario)


@given(scenarios(most_requests=40, block_sizes=(1, 2, 4), max_num_seqs=256))
def test_equals_it_with_many_requests_and_small_blocks(scenario: Scenario) -> None:
    assert_equals_naive(scenario)


@given(scenarios(), st.data())
def test_equals_it_when_answers_are_known_in_part(scenario: Scenario, data: st.DataObject) -> None:
    more = data.draw(st.lists(st.integers(0, 40), min_size=len(scenario.prompts), max_size=len(scenario.prompts)))
    trace = with_covered_prompts(scenario.trace(), more)
    assert_equals_naive(scenario.tokens_meant_by(trace), trace)


@given(scenarios(block_sizes=(4, 8, 16, 32, 64)), st.sampled_from([1, 2, 4]), st.booleans())
def test_equals_it_on_coarser_or_finer_ids(scenario: Scenario, factor: int, coarser: bool) -> None:
    size = scenario.block_size
    trace = with_granularity(scenario.trace(), size * factor if coarser else size // factor)
    assert_equals_naive(scenario.tokens_meant_by(trace), trace)


@given(scenarios())
def test_equals_it_without_identity(scenario: Scenario) -> None:
    trace = with_granularity(scenario.trace(), 0)
    assert_equals_naive(scenario.tokens_meant_by(trace), trace)


@given(scenarios())
def test_nobody_listening_changes_nothing(scenario: Scenario) -> None:
    """Steps done in one go are kept as objects only for those who listen: the other path must agree."""
    assume(comes_to_an_end(scenario))
    lines, listened = logged_run(simulation_of(scenario, scenario.trace(), fast_forward=True))
    result = simulation_of(scenario, scenario.trace(), fast_forward=True).run()
    assert result.steps == len(lines)
    assert result.end_ns == listened.end_ns
    assert vars(result.meter) == vars(listened.meter)
    assert result.free_order.tolist() == listened.free_order.tolist()
    prompts = scenario.trace().prompt_tokens
    assert summarize(result, prompts) == summarize(listened, prompts)


@given(scenarios())
def test_summary_is_what_the_layout_says(scenario: Scenario) -> None:
    assume(comes_to_an_end(scenario))
    lines, result = logged_run(simulation_of(scenario, scenario.trace(), fast_forward=True))
    figures = figures_of(scenario, lines)
    summary = summarize(result, scenario.trace().prompt_tokens)
    capacity, size, end = scenario.num_blocks - 1, scenario.block_size, result.end_ns
    assert summary["kv_usage"]["peak"] == figures.used_peak / capacity
    assert summary["kv_usage"]["mean"] == (pytest.approx(figures.used / capacity / end) if end else 0)
    assert summary["running"]["peak"] == figures.running_peak
    assert summary["running"]["mean"] == (pytest.approx(figures.running / end) if end else 0)
    slots = figures.held * size
    assert summary["tail_waste"]["share"] == (pytest.approx(1 - figures.tokens / slots) if slots else 0)
    wastes = list(figures.tail_waste.values())
    assert summary["tail_waste"]["tokens_max"] == max(wastes, default=0)
    assert summary["tail_waste"]["tokens_mean"] == (pytest.approx(sum(wastes) / len(wastes)) if wastes else 0)
    assert summary["preemptions"] == sum(len(line["preempted"]) for line in lines)
    assert summary["preemption_lost_tokens"] == sum(figures.lost_tokens.values())
    assert summary["completed"] + summary["rejected"] == len(scenario.prompts)


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_equals_it_on_the_sample(async_scheduling: bool) -> None:
    """Real lengths: ids of 64 tokens, at four times the load, in a pool that everything runs short of."""
    trace = load_trace("sample", limit=150)
    trace = replace(trace, arrival_ns=trace.arrival_ns // 4)
    scenario = Scenario(
        arrival_ns=trace.arrival_ns.tolist(),
        prompts=[],
        outputs=[],
        told=trace.output_tokens.tolist(),
        priority=[0] * len(trace),
        num_blocks=501,
        block_size=16,
        prefix_caching=True,
        scheduler={
            "async_scheduling": async_scheduling,
            "max_num_batched_tokens": 2048,
            "long_prefill_token_threshold": 512,
            "scheduler_reserve_full_isl": False,
        },
    )
    assert_equals_naive(scenario.tokens_meant_by(trace), trace)


@given(scenarios(), st.data())
def test_turns_that_wait_for_their_predecessors_are_served_as_if_they_came_then(
    scenario: Scenario, data: st.DataObject
) -> None:
    # Where steps take no time, arrivals do not tell who came after whose end.
    assume(scenario.latency["base_ns"] > 0)
    # When they come depends on the run, so none that might never end.
    assume(scenario.scheduler["policy"] == "fcfs" or scenario.scheduler["scheduler_reserve_full_isl"])
    count = len(scenario.prompts)
    parent = [data.draw(st.integers(-1, row - 1)) for row in range(count)]
    think = [data.draw(st.sampled_from([-1, 0, 7, 5_000_000])) for _ in range(count)]
    trace = replace(scenario.trace(), parent=np.array(parent, np.int32), think_ns=np.array(think, np.int64))
    simulation = simulation_of(scenario, trace, fast_forward=data.draw(st.booleans()), sessions="closed")
    order: list[int] = []
    submit = simulation.engine.submit
    simulation.engine.submit = lambda request: (order.append(request.index), submit(request))[1]
    lines, result = logged_run(simulation)

    came, ended = result.records["arrival_ns"].tolist(), result.records["finished_ns"].tolist()
    for row, before in enumerate(parent):
        recorded = scenario.arrival_ns[row]
        if before >= 0:
            end = ended[before] if ended[before] >= 0 else came[before]  # the rejected end as they come
            recorded = end + think[row] if think[row] >= 0 else max(end, recorded)
        assert came[row] == recorded
    engine = naive_engine(scenario)
    waiting = {live.row: live for live in engine.pending}
    engine.pending = deque(waiting[row] for row in order)
    for row, live in waiting.items():
        live.request.arrival_ns = came[row]
    expected = engine.run()
    assert_same_steps(expected.steps, lines)
    assert_same_outcome(expected, result)


class States:
    """A sampler that keeps what it is shown, every so often."""

    def __init__(self, interval_ns: int) -> None:
        self.due_ns = 0
        self.seen: list[tuple[int, ...]] = []
        self._interval = interval_ns

    def sample(self, now_ns: int, scheduler: Any) -> None:
        """Keep the state that a timeline shows."""
        allocator = scheduler.allocator
        state = len(scheduler.running), len(scheduler.waiting), allocator.used, allocator.cached, allocator.evicted
        self.seen.append((now_ns, *state))
        self.due_ns = (now_ns // self._interval + 1) * self._interval


@given(scenarios(), st.sampled_from([1, 7, 100, 30_000_000]), st.sampled_from([2, 3, 5, 4096]))
def test_samples_do_not_depend_on_how_many_steps_are_done_in_one_go(scenario: Scenario, every: int, most: int) -> None:
    assume(comes_to_an_end(scenario))
    seen: list[list[tuple[int, ...]]] = []
    figures: list[dict[str, int]] = []
    for fast_forward in (True, False):
        simulation = simulation_of(scenario, scenario.trace(), fast_forward=fast_forward)
        simulation.engine.sampler = states = States(every)
        with mock.patch("kvreplay.sim.engine._MOST_STEPS", most):
            result = simulation.run()
        seen.append(states.seen)
        figures.append(vars(result.meter) | {"steps": result.steps, "end_ns": result.end_ns})
    assert seen[0] == seen[1]
    assert figures[0] == figures[1]
